// Register tiles with queries in the lanes: what extend and block_mass share.
//
// Rows of q and K are seen as "units" of 32 bits: one fp32 value, or a pair of bf16 values where the machine
// multiplies pairs.  Queries lie side by side, unit by unit; units of K are broadcast from memory.
#pragma once

#include <cstring>
#include <type_traits>

#include "smartgen/element.h"

namespace smartgen {
namespace {

constexpr int kMaxVectors = 4;  // vectors of queries per tile
constexpr int kKeyStep = 16;    // key counts are padded to this with zero rows; a multiple of every unroll()

// Reads as: acc[u][r] += sum over s of dot(a[u * unit + s * step], b[s][r]).
template <class Simd, bool Pairs, int U, int R>
[[gnu::always_inline]] inline void accumulate(typename Simd::Vec (&acc)[U][R], const float* a, ptrdiff_t unit,
                                              ptrdiff_t step, const float* b, int steps) {
  using Vec = typename Simd::Vec;
#pragma GCC unroll 2
  for (int s = 0; s < steps; ++s) {
    Vec rows[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) rows[r] = Simd::load(b + (s * R + r) * Simd::kWidth);
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
      const Vec x = Simd::broadcast(a + u * unit + s * step);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        if constexpr (Pairs)
          acc[u][r] = Simd::dot_pairs(acc[u][r], x, rows[r]);
        else
          acc[u][r] = Simd::fma(x, rows[r], acc[u][r]);
      }
    }
  }
}

// Broadcasts per register tile: as many independent sums as the register file holds.
template <class Simd, int R>
constexpr int unroll() {
  if (Simd::kRegisters == 32) return R == 1 ? 16 : R <= 3 ? 8 : 4;
  return R == 1 ? 8 : R == 2 ? 4 : R == 3 ? 4 : 2;
}

template <class Simd, class T>
struct Units {
  static constexpr bool kPairs = Simd::kDotPairs && std::is_same<T, BFloat16>::value;
  static constexpr int kPer = kPairs ? 2 : 1;  // elements per unit

  // One row as units: copied where units are pairs or fp32 already, otherwise widened.
  static void unpack(float* to, const T* from, int size) {
    if constexpr (kPairs || std::is_same<T, float>::value)
      std::memcpy(to, from, sizeof(T) * size);
    else
      for (int d = 0; d < size; d += Simd::kWidth) Simd::store(to + d, Element<Simd, T>::load(from + d));
  }

  // Turns kWidth rows, `row` apart (a multiple of kWidth), into one vector per unit, `step` apart.
  static void to_lanes(const float* rows, int row, int units, float* to, ptrdiff_t step) {
    constexpr int W = Simd::kWidth;
    for (int u = 0; u < units; u += W) {
      typename Simd::Vec tile[W];
      for (int lane = 0; lane < W; ++lane) tile[lane] = Simd::load(rows + lane * row + u);
      Simd::transpose(tile);
      for (int s = 0; s < least(W, units - u); ++s) Simd::store(to + (u + s) * step, tile[s]);
    }
  }
};

}  // namespace
}  // namespace smartgen
