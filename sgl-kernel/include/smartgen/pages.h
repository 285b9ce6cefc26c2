// Walking the token slots behind a list of pages: the one way kernels reach K and V.
//
// A list is `bases[j * step]` = first slot of its j-th page.  A request's own row of req_to_token is such a
// list with step == page_size; an explicit choice of blocks is one with step == 1.  Keys are numbered by
// their place in the list, whatever their position in the prompt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smartgen/kernels.h"

namespace smartgen {
namespace {

struct PageList {
  const int32_t* bases;
  ptrdiff_t step;
  int page_size;

  // Calls visit(first_key, slot, count) for each part of a page that meets keys [begin, end).
  template <class Visit>
  void for_each(int64_t begin, int64_t end, Visit visit) const {
    int64_t page = begin / page_size;
    int64_t offset = begin - page * page_size;
    while (begin < end) {
      int64_t count = page_size - offset;
      if (count > end - begin) count = end - begin;
      visit(begin, static_cast<int64_t>(bases[page * step]) + offset, count);
      begin += count;
      offset = 0;
      ++page;
    }
  }
};

// Keys of request i of a batch.
inline PageList pages_of(const AttentionBatch& b, int64_t i) {
  return {b.table + (b.rows.data ? b.rows[i] : i) * b.table_row, b.page_step, b.page_size};
}

inline PageList pages_of(const BlockKeys& k) { return {k.entries, k.page_size, k.page_size}; }

// Asks for keys [begin, end), or those there are, into the second cache level; decode.h says why there, and why
// inlined.
template <class T>
[[gnu::always_inline]] inline void prefetch_keys(const BlockKeys& k, int64_t begin, int64_t end) {
  if (end > k.length) end = k.length;
  if (begin >= end) return;
  const ptrdiff_t size = ptrdiff_t(k.kv_heads) * k.head_size;
  pages_of(k).for_each(begin, end, [&](int64_t, int64_t slot, int64_t count) {
    const T* row = static_cast<const T*>(k.k) + slot * k.k_slot;
    for (int64_t j = 0; j < count; ++j, row += k.k_slot)
      for (ptrdiff_t d = 0; d < size; d += 64 / ptrdiff_t(sizeof(T))) __builtin_prefetch(row + d, 0, 2);
  });
}

}  // namespace
}  // namespace smartgen
