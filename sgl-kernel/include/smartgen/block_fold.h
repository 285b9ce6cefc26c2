// What is kept of a block's keys: the means of its sub-blocks, or their least and greatest elements.
//
// Bound by memory: every key is read once, in the order of its pages, and the same place in the next block is
// prefetched meanwhile.  Lanes are elements of a slot, all KV heads in a row.
#pragma once

#include <cmath>
#include <cstring>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"
#include "smartgen/pages.h"

namespace smartgen {
namespace {

template <class Simd>
struct MeanFold {
  using Vec = typename Simd::Vec;
  static constexpr int kResults = 1;

  Vec sum = Simd::zero();

  void add(Vec x) { sum = Simd::add(sum, x); }
  Vec result(int, float count) const { return Simd::div(sum, Simd::set1(count)); }
};

template <class Simd>
struct BoundsFold {
  using Vec = typename Simd::Vec;
  static constexpr int kResults = 2;

  Vec low = Simd::set1(INFINITY), high = Simd::set1(-INFINITY);

  void add(Vec x) {  // NaN stays
    low = Simd::select_ge(x, x, Simd::min(x, low), x);
    high = Simd::select_ge(x, x, Simd::max(x, high), x);
  }
  Vec result(int i, float) const { return i == 0 ? low : high; }
};

// Folds N vectors of keys [begin, end), which are not none, from `column` on; results lie a slot apart.  The first
// column's pass asks for the like of every key in the next block, all of its bytes at once.
template <class Simd, class T, template <class> class Fold, int N>
ptrdiff_t fold_columns(const BlockKeys& k, int64_t begin, int64_t end, ptrdiff_t column, T* out) {
  constexpr int W = Simd::kWidth;
  const ptrdiff_t slot_size = ptrdiff_t(k.kv_heads) * k.head_size;
  for (; column + N * W <= slot_size; column += N * W) {
    Fold<Simd> folds[N];
    pages_of(k).for_each(begin, end, [&](int64_t first, int64_t slot, int64_t count) {
      const T* row = static_cast<const T*>(k.k) + slot * k.k_slot + column;
      for (int64_t j = 0; j < count; ++j, row += k.k_slot) {
        if (column == 0) prefetch_keys<T>(k, first + j + k.block_size, first + j + k.block_size + 1);
#pragma GCC unroll 12
        for (int n = 0; n < N; ++n) folds[n].add(Element<Simd, T>::load(row + n * W));
      }
    });
    for (int i = 0; i < Fold<Simd>::kResults; ++i)
      for (int n = 0; n < N; ++n)
        Element<Simd, T>::store(out + i * slot_size + column + n * W,
                                folds[n].result(i, static_cast<float>(end - begin)));
  }
  return column;
}

// Cuts every block into parts of `tokens` and folds each one that has any; the others become zeros.
template <class Simd, class T, template <class> class Fold>
void fold_blocks(const BlockFold& a, int tokens) {
  // Few passes, so that keys arrive evenly: on a Zen 4 core 12 vectors gave 18 GB/s, 6 gave 16 and 4 gave 14.
  constexpr int wide = Simd::kRegisters == 32 ? 12 : 6;
  const BlockKeys& k = a.keys;
  const ptrdiff_t step = ptrdiff_t(k.kv_heads) * k.head_size * Fold<Simd>::kResults;
  const int64_t parts = k.block_size / tokens;
  for_rows(k.blocks(), k.threads, [&](int64_t block) {
    for (int64_t part = block * parts; part < (block + 1) * parts; ++part) {
      T* const out = static_cast<T*>(a.out) + part * step;
      const int64_t begin = part * tokens, end = least<int64_t>(k.length, begin + tokens);
      if (begin >= end) {
        std::memset(out, 0, sizeof(T) * step);
        continue;
      }
      ptrdiff_t column = fold_columns<Simd, T, Fold, wide>(k, begin, end, 0, out);
      column = fold_columns<Simd, T, Fold, 4>(k, begin, end, column, out);
      fold_columns<Simd, T, Fold, 1>(k, begin, end, column, out);
    }
  });
}

template <class Simd>
void block_digest(const BlockFold& a) {
  if (a.keys.dtype == DType::kBFloat16)
    fold_blocks<Simd, BFloat16, MeanFold>(a, a.sub_tokens);
  else
    fold_blocks<Simd, float, MeanFold>(a, a.sub_tokens);
}

template <class Simd>
void block_bounds(const BlockFold& a) {
  if (a.keys.dtype == DType::kBFloat16)
    fold_blocks<Simd, BFloat16, BoundsFold>(a, a.keys.block_size);
  else
    fold_blocks<Simd, float, BoundsFold>(a, a.keys.block_size);
}

}  // namespace
}  // namespace smartgen
