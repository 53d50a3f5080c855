// CUDA's half precision, as far as TVM's kernels use it, for the host: every operation rounds, as a
// GPU's do.
#pragma once
#include <math.h>

using half = _Float16;
using __half = half;
struct half2 {
  half x, y;
};
using __half2 = half2;
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half __float2half(float value) { return static_cast<half>(value); }
static inline half __float2half_rn(float value) { return static_cast<half>(value); }
static inline float __half2float(half value) { return static_cast<float>(value); }
static inline bool __hgt(half a, half b) { return a > b; }
static inline bool __hlt(half a, half b) { return a < b; }
static inline half hexp(half value) { return static_cast<half>(expf(static_cast<float>(value))); }
static inline half hsqrt(half value) { return static_cast<half>(sqrtf(static_cast<float>(value))); }
static inline half htanh(half value) { return static_cast<half>(tanhf(static_cast<float>(value))); }
