// What a kernel takes, and the table of kernels that each instruction set fills in.
//
// Plain pointers and sizes only; everything is in elements unless a name says bytes.  Callers have checked
// shapes, bounds and page tables (see check.h); kernels trust them.  All memory is the caller's, except the
// scratch buffers of workspace.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smartgen {

enum class DType : int { kFloat32 = 0, kBFloat16 = 1 };

// Int32 or int64 values, as SGLang holds request rows, lengths and positions in either.
struct Indices {
  const void* data;
  int item_bytes;  // 4 or 8

  int64_t operator[](ptrdiff_t i) const {
    return item_bytes == 8 ? static_cast<const int64_t*>(data)[i]
                           : static_cast<int64_t>(static_cast<const int32_t*>(data)[i]);
  }
};

// One batch of paged attention.  All forms share it: a decode is a batch without prefix_lens whose request i owns
// exactly query row i, and attention over listed pages is a decode with page_step 1, page_counts and no rows.
struct AttentionBatch {
  DType dtype;
  const void* q;           // [tokens, heads, head_size], rows q_token / q_head apart
  ptrdiff_t q_token, q_head;
  const void* k;           // [slots, kv_heads, head_size], rows k_slot apart
  const void* v;
  ptrdiff_t k_slot, v_slot;
  int64_t slots;
  const int32_t* table;    // [table_rows, table_len], rows table_row apart: req_to_token, or lists of pages
  ptrdiff_t table_row;
  int64_t table_rows, table_len;
  ptrdiff_t page_step;     // entries from one page to the next: page_size in req_to_token, 1 in a list
  Indices rows;            // row of the table of each request; without data, request i has row i
  Indices prefix_lens, seq_lens, page_counts;
  int64_t batch;
  int64_t tokens;
  int heads, kv_heads, head_size, page_size;
  float scale;
  void* out;               // [tokens, heads, head_size], contiguous
  float* lse2;             // [tokens, heads], contiguous
  int threads;
};

struct RmsNorm {
  DType dtype;
  void* x;                 // [tokens, width], rows x_row apart
  ptrdiff_t x_row;
  void* residual;          // null, or updated in place: residual += x
  ptrdiff_t residual_row;
  const void* weight;      // [width]
  void* out;               // [tokens, width], rows out_row apart; may be x
  ptrdiff_t out_row;
  int64_t tokens, width;
  float eps;
  int threads;
};

struct SiluAndMul {
  DType dtype;
  const void* x;           // [tokens, 2 * width], rows x_row apart
  ptrdiff_t x_row;
  void* out;               // [tokens, width], rows out_row apart
  ptrdiff_t out_row;
  int64_t tokens, width;
  int threads;
};

struct Rotary {
  DType dtype, cache_dtype;
  Indices positions;       // [tokens]
  void* q;                 // [tokens, q_heads * head_size], rows q_row apart, changed in place
  ptrdiff_t q_row;
  void* k;
  ptrdiff_t k_row;
  const void* cos_sin;     // [max_positions, rotary_dim]: cosines, then sines
  int64_t tokens;
  int q_heads, k_heads, head_size, rotary_dim;
  bool neox;               // halves are rotated together; otherwise neighbours are
  int threads;
};

struct Linear {
  DType dtype;
  const void* x;           // [rows, width], rows x_row apart
  ptrdiff_t x_row;
  const void* weight;      // [features, width], contiguous
  const void* bias;        // null or [features]
  void* out;               // [rows, features], contiguous
  int64_t rows, features, width;
  int threads;
};

// Keys of one request, in blocks; the last one may be partial.
struct BlockKeys {
  DType dtype;
  const void* k;           // [slots, kv_heads, head_size], rows k_slot apart
  ptrdiff_t k_slot;
  int64_t slots;
  const int32_t* entries;  // a row of req_to_token
  int64_t length;          // tokens
  int block_size, page_size, kv_heads, head_size;
  int threads;

  int64_t blocks() const { return (length + block_size - 1) / block_size; }
};

struct BlockMass {
  BlockKeys keys;
  const void* q;           // [queries, heads, head_size], rows q_query / q_head apart
  ptrdiff_t q_query, q_head;
  const float* lse2;       // [queries, heads], contiguous
  Indices positions;       // [queries]; a query sees keys up to its position
  int64_t queries;
  int heads;
  float scale;
  float* out;              // [queries, heads, blocks], contiguous
};

// Mean keys of sub-blocks, or the bounds of whole blocks.
struct BlockFold {
  BlockKeys keys;
  int sub_tokens;          // for means; a divisor of block_size
  void* out;               // means [blocks, subs, kv_heads, head_size]; bounds [blocks, 2, kv_heads, head_size]
};

struct BlockScores {
  DType dtype;
  bool bounds;             // digest holds bounds, with "subs" 1
  const void* q;           // [rows, heads, head_size], rows q_row / q_head apart
  ptrdiff_t q_row, q_head;
  const void* digest;      // as BlockFold writes it
  int64_t rows, blocks;
  int64_t length;          // tokens the digest covers
  int block_size, subs, heads, kv_heads, head_size;
  float scale;
  float* out;              // [rows, heads, blocks], contiguous
  int threads;
};

struct KernelTable {
  const char* isa;
  void (*extend_attention)(const AttentionBatch&);
  void (*decode_attention)(const AttentionBatch&);
  void (*rms_norm)(const RmsNorm&);
  void (*silu_and_mul)(const SiluAndMul&);
  void (*rotary)(const Rotary&);
  void (*linear)(const Linear&);
  void (*block_mass)(const BlockMass&);
  void (*block_digest)(const BlockFold&);
  void (*block_bounds)(const BlockFold&);
  void (*block_scores)(const BlockScores&);
};

}  // namespace smartgen
