// Reads every index once before a kernel trusts it; a page costs one comparison.
#include "check.h"

#include <stdexcept>
#include <string>

#include "smartgen/pages.h"

namespace smartgen {
namespace {

[[noreturn]] void refuse(const std::string& what, int64_t value, const std::string& expected) {
  throw std::invalid_argument(what + ": got " + std::to_string(value) + ", expected " + expected);
}

std::string at(const char* name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

// The first slot of every page must leave room for the page's tokens; `name` names entry 0.
void check_pages(const PageList& pages, int64_t length, int64_t slots, const std::string& name) {
  for (int64_t p = 0, first = 0; first < length; ++p, first += pages.page_size) {
    const int64_t used = length - first < pages.page_size ? length - first : pages.page_size;
    const int64_t slot = pages.bases[p * pages.step];
    if (slot < 0 || slot > slots - used)
      refuse(name + std::to_string(p * pages.step) + "]", slot, "a slot in 0.." + std::to_string(slots - used));
  }
}

void check_length(const AttentionBatch& b, int64_t i, int64_t length) {
  if (!b.page_counts.data) {
    if (length < 0 || length > b.table_len)
      refuse(at("seq_lens", i), length, "0.." + std::to_string(b.table_len) + " (width of req_to_token)");
    return;
  }
  const int64_t pages = b.page_counts[i], most = pages * b.page_size;
  if (pages < 0 || pages > b.table_len)
    refuse(at("page_counts", i), pages, "0.." + std::to_string(b.table_len) + " (width of pages)");
  const int64_t least = pages == 0 ? 0 : most - b.page_size + 1;
  if (length < least || length > most)
    refuse(at("lengths", i), length,
           std::to_string(least) + ".." + std::to_string(most) + " (" + std::to_string(pages) + " pages)");
}

}  // namespace

void check_batch(const AttentionBatch& b, bool extend) {
  const char* const table = b.page_counts.data ? "pages[" : "req_to_token[";
  int64_t tokens = 0;
  for (int64_t i = 0; i < b.batch; ++i) {
    const int64_t length = b.seq_lens[i], row = b.rows.data ? b.rows[i] : i;
    check_length(b, i, length);
    if (row < 0 || row >= b.table_rows)
      refuse(at("rows", i), row, "0.." + std::to_string(b.table_rows - 1) + " (rows of req_to_token)");
    if (extend) {
      const int64_t prefix = b.prefix_lens[i];
      if (prefix < 0 || prefix > length)
        refuse(at("prefix_lens", i), prefix, "0..seq_lens[i] = " + std::to_string(length));
      tokens += length - prefix;
    }
    check_pages(pages_of(b, i), length, b.slots, table + std::to_string(row) + ", ");
  }
  if (extend && tokens != b.tokens)
    refuse("q: rows", b.tokens, std::to_string(tokens) + " = sum of seq_lens - prefix_lens");
}

void check_blocks(const BlockKeys& k) { check_pages(pages_of(k), k.length, k.slots, "slots["); }

void check_positions(const Rotary& r, int64_t max_positions) {
  for (int64_t i = 0; i < r.tokens; ++i)
    if (r.positions[i] < 0 || r.positions[i] >= max_positions)
      refuse(at("positions", i), r.positions[i],
             "0.." + std::to_string(max_positions - 1) + " (rows of cos_sin_cache)");
}

}  // namespace smartgen
