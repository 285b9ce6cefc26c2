// Walking the token slots behind a list of pages: the one way kernels reach K and V.
//
// A list is `bases[j * step]` = first slot of its j-th page.  A request's own row of req_to_token is such a
// list with step == page_size; an explicit choice of blocks is one with step == 1.  Keys are numbered by
// their place in the list, whatever their position in the prompt.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace
}  // namespace smartgen
