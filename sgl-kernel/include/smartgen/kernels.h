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

// One batch of paged attention.  Extend and decode share it: a decode is a batch without prefix_lens whose
// request i owns exactly query row i.
struct AttentionBatch {
  DType dtype;
  const void* q;           // [tokens, heads, head_size], rows q_token / q_head apart
  ptrdiff_t q_token, q_head;
  const void* k;           // [slots, kv_heads, head_size], rows k_slot apart
  const void* v;
  ptrdiff_t k_slot, v_slot;
  int64_t slots;
  const int32_t* req_to_token;  // [requests, max_len], rows table_row apart
  ptrdiff_t table_row;
  int64_t table_rows, table_len;
  Indices rows, prefix_lens, seq_lens;
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

struct KernelTable {
  const char* isa;
  void (*extend_attention)(const AttentionBatch&);
  void (*decode_attention)(const AttentionBatch&);
  void (*rms_norm)(const RmsNorm&);
  void (*silu_and_mul)(const SiluAndMul&);
  void (*rotary)(const Rotary&);
  void (*linear)(const Linear&);
};

}  // namespace smartgen
