// CUDA's matrix fragments, as far as TVM's kernels use them, for the host. The 32 threads of a warp
// hold 8 of the 256 elements each, and multiply together: one that comes alone, or with another
// fragment, gives a wrong answer, as it does on a GPU.
#pragma once
#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

constexpr unsigned kSide = 16, kHeld = kSide * kSide / stand_in::kLanes;

template <typename Use, int Rows, int Columns, int Depth, typename T, typename Layout = void>
struct fragment {
  static_assert(Rows == kSide && Columns == kSide && Depth == kSide);
  using Element = T;
  T x[kHeld];
};

// Does something with the place, row and column of each element that a thread holds.
template <typename Work>
static void ForHeld(Work work) {
  const unsigned lane = stand_in::now % stand_in::kLanes;
  for (unsigned i = 0; i < kHeld; ++i)
    work(i, (lane * kHeld + i) / kSide, (lane * kHeld + i) % kSide);
}

template <typename Fragment, typename Value>
static void fill_fragment(Fragment& to, Value value) {
  for (auto& element : to.x) element = static_cast<typename Fragment::Element>(value);
}

template <typename Use, typename T>
static void load_matrix_sync(fragment<Use, 16, 16, 16, T, row_major>& to, const T* from,
                             unsigned stride) {
  ForHeld(
      [&](unsigned i, unsigned row, unsigned column) { to.x[i] = from[row * stride + column]; });
}

template <typename Use, typename T>
static void load_matrix_sync(fragment<Use, 16, 16, 16, T, col_major>& to, const T* from,
                             unsigned stride) {
  ForHeld(
      [&](unsigned i, unsigned row, unsigned column) { to.x[i] = from[column * stride + row]; });
}

template <typename T>
static void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& from,
                              unsigned stride, layout_t) {
  ForHeld(
      [&](unsigned i, unsigned row, unsigned column) { to[row * stride + column] = from.x[i]; });
}

// The element of a warp's fragment that another of its threads holds.
template <typename Fragment>
static float Of(const Fragment* const* shown, unsigned row, unsigned column) {
  const unsigned place = row * kSide + column;
  return static_cast<float>(shown[place / kHeld]->x[place % kHeld]);
}

template <typename A, typename B, typename Sum>
static void mma_sync(Sum& to, const A& a, const B& b, const Sum& added) {
  const A* rows[stand_in::kLanes];
  const B* columns[stand_in::kLanes];
  stand_in::OfWarp(&a, rows);
  stand_in::OfWarp(&b, columns);
  ForHeld([&](unsigned i, unsigned row, unsigned column) {
    float sum = added.x[i];
    for (unsigned k = 0; k < kSide; ++k) sum += Of(rows, row, k) * Of(columns, k, column);
    to.x[i] = sum;
  });
  stand_in::Wait(stand_in::kAtWarp);
}

}  // namespace nvcuda::wmma
