#include "sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>

#include "io.h"

namespace farm {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t RotateRight(uint32_t x, int n) { return x >> n | x << (32 - n); }

class Sha256 {
 public:
  void Add(const unsigned char* data, size_t size) {
    total_ += size;
    while (size) {
      size_t n = std::min(size, sizeof(block_) - used_);
      memcpy(block_ + used_, data, n);
      used_ += n;
      data += n;
      size -= n;
      if (used_ == sizeof(block_)) Compress();
    }
  }

  std::string Finish() {
    uint64_t bits = total_ * 8;
    block_[used_++] = 0x80;
    if (used_ > 56) {
      memset(block_ + used_, 0, sizeof(block_) - used_);
      Compress();
    }
    memset(block_ + used_, 0, 56 - used_);
    for (int i = 0; i < 8; ++i) block_[56 + i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
    Compress();
    std::string hex;
    for (uint32_t word : state_) {
      for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
    }
    return hex;
  }

 private:
  void Compress() {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      const unsigned char* p = block_ + 4 * i;
      w[i] = uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
    }
    for (int i = 16; i < 64; ++i) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (RotateRight(a, 7) ^ RotateRight(a, 18) ^ a >> 3) + (RotateRight(b, 17) ^ RotateRight(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    memcpy(s, state_, sizeof(s));
    for (int i = 0; i < 64; ++i) {
      uint32_t a = s[0], e = s[4];
      uint32_t t1 = s[7] + (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + kRound[i] + w[i];
      uint32_t t2 = (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      memmove(s + 1, s, 7 * sizeof(*s));
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) state_[i] += s[i];
    used_ = 0;
  }

  // The first 32 bits of the fractions of the square roots of the first 8 primes.
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64];
  size_t used_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

std::string Sha256OfFile(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) Fail("cannot read " + path);
  Sha256 sha;
  unsigned char piece[1 << 15];
  ssize_t n;
  while ((n = read(file.get(), piece, sizeof(piece))) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot read " + path);
    sha.Add(piece, static_cast<size_t>(n));
  }
  return sha.Finish();
}

}  // namespace farm
