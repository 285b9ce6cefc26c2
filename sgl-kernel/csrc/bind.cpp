// The Python extension module smartgen_kernel._C: integers in, kernels run, nothing else.
//
// Tensors arrive as data pointers and strides; smartgen_kernel/__init__.py has checked what can be seen from
// their attributes.  Values inside index tensors are checked here.  The GIL is released while a kernel runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/check.h"
#include "cpu/dispatch.h"

namespace nb = nanobind;
using namespace smartgen;

namespace {

using Address = uintptr_t;
using Size = int64_t;

template <class P>
P* at(Address a) {
  return reinterpret_cast<P*>(a);
}

Indices indices(Address data, int item_bytes) { return {at<const void>(data), item_bytes}; }

// Vectors that a form of attention does not have are null.
void attention(const KernelTable* table, bool extend, int dtype, Address q, Size q_token, Size q_head, Address k,
               Size k_slot, Address v, Size v_slot, Size slots, Address pages, Size table_row, Size table_rows,
               Size table_len, Size page_step, Address rows, int rows_bytes, Address prefix_lens, int prefix_bytes,
               Address seq_lens, int seq_bytes, Address page_counts, int count_bytes, Size batch, Size tokens,
               int heads, int kv_heads, int head_size, int page_size, double scale, Address out, Address lse2,
               int threads) {
  // clang-format off
  const AttentionBatch b{static_cast<DType>(dtype), at<const void>(q), q_token, q_head, at<const void>(k),
                         at<const void>(v), k_slot, v_slot, slots, at<const int32_t>(pages), table_row, table_rows,
                         table_len, page_step, indices(rows, rows_bytes), indices(prefix_lens, prefix_bytes),
                         indices(seq_lens, seq_bytes), indices(page_counts, count_bytes), batch, tokens, heads,
                         kv_heads, head_size, page_size, static_cast<float>(scale), at<void>(out), at<float>(lse2),
                         threads};
  // clang-format on
  nb::gil_scoped_release release;
  check_batch(b, extend);
  (extend ? table->extend_attention : table->decode_attention)(b);
}

BlockKeys block_keys(int dtype, Address k, Size k_slot, Size slots, Address entries, Size length, int block_size,
                     int page_size, int kv_heads, int head_size, int threads) {
  return {static_cast<DType>(dtype),
          at<const void>(k),
          k_slot,
          slots,
          at<const int32_t>(entries),
          length,
          block_size,
          page_size,
          kv_heads,
          head_size,
          threads};
}

void block_mass(const KernelTable* table, const BlockKeys& keys, Address q, Size q_query, Size q_head, Address lse2,
                Address positions, int position_bytes, Size queries, int heads, double scale, Address out) {
  nb::gil_scoped_release release;
  check_blocks(keys);
  table->block_mass({keys, at<const void>(q), q_query, q_head, at<const float>(lse2),
                     indices(positions, position_bytes), queries, heads, static_cast<float>(scale), at<float>(out)});
}

void block_digest(const KernelTable* table, const BlockKeys& keys, int sub_tokens, Address out) {
  nb::gil_scoped_release release;
  check_blocks(keys);
  table->block_digest({keys, sub_tokens, at<void>(out)});
}

void block_bounds(const KernelTable* table, const BlockKeys& keys, Address out) {
  nb::gil_scoped_release release;
  check_blocks(keys);
  table->block_bounds({keys, keys.block_size, at<void>(out)});
}

void block_scores(const KernelTable* table, int dtype, bool bounds, Address q, Size q_row, Size q_head, Address digest,
                  Size rows, Size blocks, Size length, int block_size, int subs, int heads, int kv_heads, int head_size,
                  double scale, Address out, int threads) {
  nb::gil_scoped_release release;
  table->block_scores({static_cast<DType>(dtype), bounds, at<const void>(q), q_row, q_head, at<const void>(digest),
                       rows, blocks, length, block_size, subs, heads, kv_heads, head_size, static_cast<float>(scale),
                       at<float>(out), threads});
}

void rms_norm(const KernelTable* table, int dtype, Address x, Size x_row, Address residual, Size residual_row,
              Address weight, Address out, Size out_row, Size tokens, Size width, double eps, int threads) {
  nb::gil_scoped_release release;
  table->rms_norm({static_cast<DType>(dtype), at<void>(x), x_row, at<void>(residual), residual_row,
                   at<const void>(weight), at<void>(out), out_row, tokens, width, static_cast<float>(eps), threads});
}

void silu_and_mul(const KernelTable* table, int dtype, Address x, Size x_row, Address out, Size out_row, Size tokens,
                  Size width, int threads) {
  nb::gil_scoped_release release;
  table->silu_and_mul(
      {static_cast<DType>(dtype), at<const void>(x), x_row, at<void>(out), out_row, tokens, width, threads});
}

void rotary(const KernelTable* table, int dtype, int cache_dtype, Address positions, int position_bytes, Address q,
            Size q_row, Address k, Size k_row, Address cos_sin, Size max_positions, Size tokens, int q_heads,
            int k_heads, int head_size, int rotary_dim, bool neox, int threads) {
  // clang-format off
  const Rotary r{static_cast<DType>(dtype), static_cast<DType>(cache_dtype), indices(positions, position_bytes),
                 at<void>(q), q_row, at<void>(k), k_row, at<const void>(cos_sin), tokens, q_heads, k_heads, head_size,
                 rotary_dim, neox, threads};
  // clang-format on
  nb::gil_scoped_release release;
  check_positions(r, max_positions);
  table->rotary(r);
}

void linear(const KernelTable* table, int dtype, Address x, Size x_row, Address weight, Address bias, Address out,
            Size rows, Size features, Size width, int threads) {
  nb::gil_scoped_release release;
  table->linear({static_cast<DType>(dtype), at<const void>(x), x_row, at<const void>(weight), at<const void>(bias),
                 at<void>(out), rows, features, width, threads});
}

}  // namespace

NB_MODULE(_C, m) {
  nb::class_<KernelTable>(m, "Kernels").def_prop_ro("isa", [](const KernelTable& t) { return t.isa; });
  m.def("available", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : available_kernels()) names.emplace_back(table->isa);
    return names;
  });
  m.def("kernels", [](const std::string& isa) { return &kernels_for(isa); }, nb::rv_policy::reference);
  nb::class_<BlockKeys>(m, "BlockKeys").def(nb::new_(&block_keys));
  m.def("attention", &attention);
  m.def("rms_norm", &rms_norm);
  m.def("silu_and_mul", &silu_and_mul);
  m.def("rotary", &rotary);
  m.def("linear", &linear);
  m.def("block_mass", &block_mass);
  m.def("block_digest", &block_digest);
  m.def("block_bounds", &block_bounds);
  m.def("block_scores", &block_scores);
}
