// Reads every index once before a kernel trusts it; a page costs one comparison.
#include "check.h"

#include <stdexcept>
#include <string>

namespace smartgen {
namespace {

[[noreturn]] void refuse(const std::string& what, int64_t value, const std::string& expected) {
  throw std::invalid_argument(what + ": got " + std::to_string(value) + ", expected " + expected);
}

std::string at(const char* name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

void check_pages(const AttentionBatch& b, int64_t row, int64_t length) {
  const int32_t* const table = b.req_to_token + row * b.table_row;
  for (int64_t p = 0; p < length; p += b.page_size) {
    const int64_t used = length - p < b.page_size ? length - p : b.page_size;
    if (table[p] < 0 || table[p] > b.slots - used)
      refuse("req_to_token[" + std::to_string(row) + ", " + std::to_string(p) + "]", table[p],
             "a slot in 0.." + std::to_string(b.slots - used));
  }
}

}  // namespace

void check_batch(const AttentionBatch& b, bool extend) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < b.batch; ++i) {
    const int64_t length = b.seq_lens[i], row = b.rows[i];
    if (length < 0 || length > b.table_len)
      refuse(at("seq_lens", i), length, "0.." + std::to_string(b.table_len) + " (width of req_to_token)");
    if (row < 0 || row >= b.table_rows)
      refuse(at("rows", i), row, "0.." + std::to_string(b.table_rows - 1) + " (rows of req_to_token)");
    if (extend) {
      const int64_t prefix = b.prefix_lens[i];
      if (prefix < 0 || prefix > length)
        refuse(at("prefix_lens", i), prefix, "0..seq_lens[i] = " + std::to_string(length));
      tokens += length - prefix;
    }
    check_pages(b, row, length);
  }
  if (extend && tokens != b.tokens)
    refuse("q: rows", b.tokens, std::to_string(tokens) + " = sum of seq_lens - prefix_lens");
}

void check_positions(const Rotary& r, int64_t max_positions) {
  for (int64_t i = 0; i < r.tokens; ++i)
    if (r.positions[i] < 0 || r.positions[i] >= max_positions)
      refuse(at("positions", i), r.positions[i],
             "0.." + std::to_string(max_positions - 1) + " (rows of cos_sin_cache)");
}

}  // namespace smartgen
