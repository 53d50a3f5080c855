#include "base/sha256_blocks.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace farm {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t RotateRight(uint32_t x, int n) { return x >> n | x << (32 - n); }

// One round. The caller renames the words instead of moving them; `h` becomes the new `a`, `d` the
// new `e`.
inline void Round(uint32_t a, uint32_t b, uint32_t c, uint32_t& d, uint32_t e, uint32_t f,
                  uint32_t g, uint32_t& h, uint32_t kw) {
  h += (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) + (g ^ (e & (f ^ g))) + kw;
  d += h;
  h += (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) + ((a & b) | (c & (a | b)));
}

void PlainBlocks(uint32_t* state, const unsigned char* data, size_t count) {
  for (; count; --count, data += kShaBlockBytes) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      memcpy(w + i, data + 4 * i, sizeof(*w));
      w[i] = __builtin_bswap32(w[i]);
    }
    for (int i = 16; i < 64; ++i) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (RotateRight(a, 7) ^ RotateRight(a, 18) ^ a >> 3) +
             (RotateRight(b, 17) ^ RotateRight(b, 19) ^ b >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
             g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 8) {
      const uint32_t* k = kRound + i;
      const uint32_t* v = w + i;
      Round(a, b, c, d, e, f, g, h, k[0] + v[0]);
      Round(h, a, b, c, d, e, f, g, k[1] + v[1]);
      Round(g, h, a, b, c, d, e, f, k[2] + v[2]);
      Round(f, g, h, a, b, c, d, e, k[3] + v[3]);
      Round(e, f, g, h, a, b, c, d, k[4] + v[4]);
      Round(d, e, f, g, h, a, b, c, k[5] + v[5]);
      Round(c, d, e, f, g, h, a, b, k[6] + v[6]);
      Round(b, c, d, e, f, g, h, a, k[7] + v[7]);
    }
    const uint32_t words[] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += words[i];
  }
}

#if defined(__x86_64__)

// The SHA extensions of x86:
// https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sha-extensions.html
__attribute__((target("sha,sse4.1"))) void ShaExtensionBlocks(uint32_t* state,
                                                              const unsigned char* data,
                                                              size_t count) {
  const __m128i bytes_swapped = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto words = reinterpret_cast<__m128i*>(state);
  // The instructions want the words as A B E F and C D G H, the first in the highest place.
  __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1),
          hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
  for (; count; --count, data += kShaBlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i),
                               bytes_swapped);
      } else {
        const __m128i last = w[(i + 3) % 4], seventh = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        now = _mm_sha256msg2_epu32(
            _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), seventh), last);
      }
      const __m128i kw =
          _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool HasShaExtension() {
  unsigned a, b, c, d;
  const bool shuffles = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3);
  return shuffles && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

#elif defined(__aarch64__)

// ARMv8's cryptographic extension; not every board's processor has it, those of the Raspberry Pi 3
// and 4 do not.
__attribute__((target("sha2"))) void ShaExtensionBlocks(uint32_t* state, const unsigned char* data,
                                                        size_t count) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; count; --count, data += kShaBlockBytes) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t w[4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      uint32x4_t& now = w[i % 4];
      now = i < 4 ? vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)))
                  : vsha256su1q_u32(vsha256su0q_u32(now, w[(i + 1) % 4]), w[(i + 2) % 4],
                                    w[(i + 3) % 4]);
      const uint32x4_t kw = vaddq_u32(now, vld1q_u32(kRound + 4 * i)), abcd_now = abcd;
      abcd = vsha256hq_u32(abcd, efgh, kw);
      efgh = vsha256h2q_u32(efgh, abcd_now, kw);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

bool HasShaExtension() {
  constexpr unsigned long kSha2 = 1 << 6;  // HWCAP_SHA2 of the kernel's asm/hwcap.h
  return getauxval(AT_HWCAP) & kSha2;
}

#else

constexpr ShaBlocks ShaExtensionBlocks = nullptr;
bool HasShaExtension() { return false; }

#endif

}  // namespace

ShaBlocks FastestShaBlocks() { return HasShaExtension() ? ShaExtensionBlocks : PlainBlocks; }

}  // namespace farm
