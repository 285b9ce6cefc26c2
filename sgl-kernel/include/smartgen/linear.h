// y = x W^T + b for a handful of rows: the matrix products of a decode step.
//
// Bound by reading W once at memory speed, which a general GEMM at these sizes does not reach (figures in
// smartgen/ops/backends/cpu.py).  Four weight rows are multiplied with up to four rows of x at a time; they stay
// in the first cache level for the other rows of x, while the next ones are prefetched in address order.
#pragma once

#include <type_traits>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"

namespace smartgen {
namespace {

constexpr int kFeaturesAtOnce = 64;   // one work item of a thread
constexpr int kLinearRows = 4;        // rows of x per pass over a weight row
constexpr int kPrefetchRows = 8;      // ahead in W, which is contiguous; 4 is too late, 16 no better

// Sums over width for F features and M rows; lanes are the width.
template <class Simd, class T, int M, int F, bool Prefetch>
[[gnu::always_inline]] inline void dot_rows(const Linear& a, const T* w, const T* x, int64_t feature, int64_t row) {
  using Vec = typename Simd::Vec;
  using E = Element<Simd, T>;
  constexpr bool pairs = Simd::kDotPairs && std::is_same<T, BFloat16>::value;
  constexpr int step = pairs ? 2 * Simd::kWidth : Simd::kWidth;
  Vec acc[F][M];
#pragma GCC unroll 4
  for (int f = 0; f < F; ++f)
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[f][m] = Simd::zero();
  const int64_t whole = a.width / step * step;
  const T* ahead = w + kPrefetchRows * a.width;
  for (int64_t d = 0; d < whole; d += step) {
    if (Prefetch)
      for (int f = 0; f < F; ++f, ahead += step) __builtin_prefetch(ahead, 0, 2);
    Vec in[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      if constexpr (pairs)
        in[m] = Simd::load(x + m * a.x_row + d);
      else
        in[m] = E::load(x + m * a.x_row + d);
    }
#pragma GCC unroll 4
    for (int f = 0; f < F; ++f) {
      const T* const at = w + f * a.width + d;
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        if constexpr (pairs)
          acc[f][m] = Simd::dot_pairs(acc[f][m], Simd::load(at), in[m]);
        else
          acc[f][m] = Simd::fma(E::load(at), in[m], acc[f][m]);
      }
    }
  }
  for (int f = 0; f < F; ++f)
    for (int m = 0; m < M; ++m) {
      float sum = Simd::sum(acc[f][m]);
      for (int64_t d = whole; d < a.width; ++d) sum += to_float(w[f * a.width + d]) * to_float(x[m * a.x_row + d]);
      if (a.bias) sum += to_float(static_cast<const T*>(a.bias)[feature + f]);
      from_float(static_cast<T*>(a.out) + (row + m) * a.features + feature + f, sum);
    }
}

// F weight rows from `feature` on, against every row of x; only the first pass prefetches.
template <class Simd, class T, int F>
void linear_features(const Linear& a, int64_t feature) {
  const T* const x = static_cast<const T*>(a.x);
  const T* const w = static_cast<const T*>(a.weight) + feature * a.width;
  int64_t row = least<int64_t>(a.rows, (a.rows - 1) % kLinearRows + 1);
  switch (row) {
    case 1: dot_rows<Simd, T, 1, F, true>(a, w, x, feature, 0); break;
    case 2: dot_rows<Simd, T, 2, F, true>(a, w, x, feature, 0); break;
    case 3: dot_rows<Simd, T, 3, F, true>(a, w, x, feature, 0); break;
    case 4: dot_rows<Simd, T, 4, F, true>(a, w, x, feature, 0); break;
    default: return;  // no rows
  }
  for (; row < a.rows; row += kLinearRows)
    dot_rows<Simd, T, kLinearRows, F, false>(a, w, x + row * a.x_row, feature, row);
}

template <class Simd, class T>
void linear_rows(const Linear& a) {
  const int64_t items = (a.features + kFeaturesAtOnce - 1) / kFeaturesAtOnce;
  for_rows(items, a.threads, [&](int64_t i) {
    int64_t feature = i * kFeaturesAtOnce;
    const int64_t end = least<int64_t>(a.features, feature + kFeaturesAtOnce);
    for (; feature + 4 <= end; feature += 4) linear_features<Simd, T, 4>(a, feature);
    for (; feature < end; ++feature) linear_features<Simd, T, 1>(a, feature);
  });
}

template <class Simd>
void linear(const Linear& a) {
  if (a.dtype == DType::kBFloat16)
    linear_rows<Simd, BFloat16>(a);
  else
    linear_rows<Simd, float>(a);
}

}  // namespace
}  // namespace smartgen
