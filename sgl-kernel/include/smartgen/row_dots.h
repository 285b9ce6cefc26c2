// Dot products of a few queries with kWidth rows of keys or digests: lanes are head elements.
//
// A vector holds half a vector of one row and as much of the row kWidth / 2 places on, and serves up to kQueries
// queries; a tree of blends turns the partial sums into one vector of sums per query.  What decode and block_scores
// share.
#pragma once

#include <cstring>
#include <type_traits>

#include "smartgen/element.h"

namespace smartgen {
namespace {

template <class Simd, class T>
struct RowDots {
  using Vec = typename Simd::Vec;
  static constexpr int W = Simd::kWidth, H = W / 2;
  static constexpr bool kBf16 = std::is_same<T, BFloat16>::value;
  static constexpr bool kPairs = Simd::kDotPairs && kBf16;
  static constexpr int kPer = kBf16 ? 2 : 1;               // elements per 32-bit lane of a loaded row
  static constexpr int kSplit = kBf16 && !kPairs ? 2 : 1;  // query vectors per loaded vector
  static constexpr int kQueries = 3;  // kWidth / 2 sums each: more do not fit the registers

  // Floats that a packed query takes; sizes are multiples of 16 elements, so of half a vector.
  static int packed(int size) { return size / kPer * 2 * kSplit; }

  // As loaded rows will meet it: every half vector twice, and the low halves of bf16 pairs before the high ones
  // where pairs cannot be multiplied.
  static void pack(float* to, const T* q, int size) {
    for (int d = 0; d < size; d += H * kPer, to += W * kSplit)
      for (int i = 0; i < W; ++i) {
        const T* const at = q + d + i % H * kPer;
        if constexpr (kSplit == 2) {
          to[i] = to_float(at[0]);
          to[W + i] = to_float(at[1]);
        } else {
          std::memcpy(to + i, at, sizeof(float));
        }
      }
  }

  // Lane i of out[g] becomes rows[i] . query g.  Queries lie q_step apart.  A row may have more pieces, row_step apart
  // (those of a query follow each other), whose products are added.
  template <int G>
  [[gnu::always_inline]] static inline void products(const T* const (&rows)[W], const float* q, ptrdiff_t q_step,
                                                     int size, int pieces, ptrdiff_t row_step, Vec (&out)[G]) {
    Vec acc[G][H];
#pragma GCC unroll 3
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
      for (int i = 0; i < H; ++i) acc[g][i] = Simd::zero();
    for (ptrdiff_t piece = 0; piece < pieces; ++piece)
#pragma GCC unroll 4
      for (int d = 0; d < size; d += H * kPer, q += W * kSplit) {
        Vec q0[G], q1[G];
#pragma GCC unroll 3
        for (int g = 0; g < G; ++g) {
          q0[g] = Simd::load(q + g * q_step);
          q1[g] = Simd::load(q + g * q_step + W * (kSplit - 1));
        }
#pragma GCC unroll 8
        for (int i = 0; i < H; ++i) {
          const ptrdiff_t at = piece * row_step + d;
          const Vec x = Simd::load_halves(rows[i] + at, rows[i + H] + at);
#pragma GCC unroll 3
          for (int g = 0; g < G; ++g) acc[g][i] = dot(acc[g][i], x, q0[g], q1[g]);
        }
      }
#pragma GCC unroll 3
    for (int g = 0; g < G; ++g) out[g] = Simd::sum_halves(acc[g]);
  }

 private:
  static Vec dot(Vec acc, Vec row, Vec q0, [[maybe_unused]] Vec q1) {
    if constexpr (kPairs)
      return Simd::dot_pairs(acc, q0, row);
    else if constexpr (kBf16)
      return Simd::fma(Simd::high_halves(row), q1, Simd::fma(Simd::low_halves(row), q0, acc));
    else
      return Simd::fma(row, q0, acc);
  }
};

}  // namespace
}  // namespace smartgen
