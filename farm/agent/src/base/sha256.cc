#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/io.h"
#include "base/sha256_blocks.h"

namespace farm {
namespace {

class Sha256 {
 public:
  void Add(const unsigned char* data, size_t size) {
    total_ += size;
    while (size) {
      const size_t whole = used_ ? 0 : size / kShaBlockBytes;
      if (whole) blocks_(state_, data, whole);
      size_t n = whole ? whole * kShaBlockBytes : std::min(size, kShaBlockBytes - used_);
      if (!whole) Hold(data, n);
      data += n;
      size -= n;
    }
  }

  std::string Finish() {
    const uint64_t bits = total_ * 8;
    const unsigned char one = 0x80, zero = 0;
    Hold(&one, 1);
    while (used_ != kShaBlockBytes - sizeof(bits)) Hold(&zero, 1);
    unsigned char length[sizeof(bits)];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
    Hold(length, sizeof(length));
    std::string hex;
    for (uint32_t word : state_) {
      for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
    }
    return hex;
  }

 private:
  // At most what is missing of a block.
  void Hold(const unsigned char* data, size_t size) {
    memcpy(block_ + used_, data, size);
    used_ += size;
    if (used_ != kShaBlockBytes) return;
    blocks_(state_, block_, 1);
    used_ = 0;
  }

  const ShaBlocks blocks_ = FastestShaBlocks();
  // The first 32 bits of the fractions of the square roots of the first 8 primes.
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[kShaBlockBytes];
  size_t used_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

std::string Sha256OfFile(const std::string& path) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) Fail("cannot read " + path);
  Sha256 sha;
  std::string piece(1 << 18, '\0');
  ssize_t n;
  while ((n = read(file.get(), &piece[0], piece.size())) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot read " + path);
    sha.Add(reinterpret_cast<const unsigned char*>(piece.data()), static_cast<size_t>(n));
  }
  return sha.Finish();
}

}  // namespace farm
