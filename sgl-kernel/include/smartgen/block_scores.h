// Weight of each block as its digest has it: log2(sum over sub-blocks of tokens * 2^logit).
//
// Bound by memory, so the digest is read once for all rows and the next tile is prefetched while this one is worked
// on.  A tile is kWidth blocks: lanes are head elements inside a product and blocks after it, so that the sum over
// sub-blocks needs no horizontal step.  Bounds are digests with one sub-block whose logit is
// min(q, 0) * least + max(q, 0) * greatest.
#pragma once

#include <cmath>
#include <cstring>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"
#include "smartgen/log2.h"
#include "smartgen/row_dots.h"
#include "smartgen/workspace.h"

namespace smartgen {
namespace {

template <class Simd, class T, int Size>
class Scores {
  using Vec = typename Simd::Vec;
  using Dots = RowDots<Simd, T>;
  static constexpr int W = Simd::kWidth;

 public:
  static void run(const BlockScores& a) { for_items<Scores>((a.blocks + W - 1) / W, a.threads, a); }

  explicit Scores(const BlockScores& a)
      : a_(a), size_(Size ? Size : a.head_size), packed_(Dots::packed(size_)), pieces_(a.bounds ? 2 : 1),
        group_(a.heads / a.kv_heads), queries_(a.rows * group_), slot_(ptrdiff_t(a.kv_heads) * size_),
        tokens_(a.block_size / a.subs), all_(::log2f(static_cast<float>(tokens_))) {
    const size_t packed = size_t(a.rows) * a.heads * pieces_ * packed_, logits = size_t(queries_) * a.subs * W;
    float* p = static_cast<float*>(scratch((packed + logits + a.subs * W) * sizeof(float) + sizeof(T) * size_));
    q_ = p, p += packed;
    logits_ = p, p += logits;
    counts_ = p, p += a.subs * W;
    load_queries(reinterpret_cast<T*>(p));
  }

  // Blocks [W * i, W * i + W), or those there are.
  void item(int64_t i) {
    const int64_t first = i * W;
    const int blocks = static_cast<int>(least<int64_t>(W, a_.blocks - first));
    count_tokens(first, blocks);
    for (int kv = 0; kv < a_.kv_heads; ++kv) {
      for (int sub = 0; sub < a_.subs; ++sub) {
        prefetch(first + W, kv * a_.subs + sub);
        multiply(first, blocks, kv, sub);
      }
      int64_t query = 0;
      for (; query + Dots::kQueries <= queries_; query += Dots::kQueries)
        write<Dots::kQueries>(first, blocks, kv, query);
      for (; query < queries_; ++query) write<1>(first, blocks, kv, query);
    }
  }

 private:
  // KV head by KV head; those of the bounds as min(q, 0) and max(q, 0).
  void load_queries(T* piece_of_q) {
    float* to = q_;
    for (int kv = 0; kv < a_.kv_heads; ++kv)
      for (int64_t query = 0; query < queries_; ++query)
        for (int piece = 0; piece < pieces_; ++piece, to += packed_) {
          const int64_t row = query / group_, head = kv * group_ + query % group_;
          const T* const q = static_cast<const T*>(a_.q) + row * a_.q_row + head * a_.q_head;
          for (int d = 0; d < size_; ++d) {
            const bool drop = a_.bounds && (piece == 0 ? to_float(q[d]) > 0.0f : to_float(q[d]) < 0.0f);
            piece_of_q[d] = drop ? T{} : q[d];
          }
          Dots::pack(to, piece_of_q, size_);
        }
  }

  // log2 of the tokens in each sub-block of a tile, -inf where there are none.
  void count_tokens(int64_t first, int blocks) {
    const bool full = blocks == W && (first + W) * a_.block_size <= a_.length;
    if (full && counted_full_) return;
    counted_full_ = full;
    for (int sub = 0; sub < a_.subs; ++sub)
      for (int lane = 0; lane < W; ++lane) {
        const int64_t before = (first + lane) * a_.block_size + int64_t(sub) * tokens_;
        const int64_t tokens = least<int64_t>(tokens_, a_.length - before);
        counts_[sub * W + lane] = tokens == tokens_ ? all_
                                  : tokens > 0      ? ::log2f(static_cast<float>(tokens))
                                                    : -INFINITY;
      }
  }

  // Asks for one of kv_heads * subs parts of the tile at `first`.
  [[gnu::always_inline]] inline void prefetch(int64_t first, int part) const {
    const ptrdiff_t block = slot_ * a_.subs * pieces_;
    const ptrdiff_t elements = block * least<int64_t>(W, most<int64_t>(0, a_.blocks - first));
    const int parts = a_.kv_heads * a_.subs;
    const T* const from = static_cast<const T*>(a_.digest) + first * block;
    for (ptrdiff_t d = elements * part / parts; d < elements * (part + 1) / parts; d += 64 / ptrdiff_t(sizeof(T)))
      __builtin_prefetch(from + d, 0, 2);
  }

  // Logits of one sub-block of a tile's blocks, for the queries of one KV head.
  void multiply(int64_t first, int blocks, int kv, int sub) {
    const T* rows[W];  // lanes past the end repeat a block; their scores are dropped
    for (int i = 0; i < W; ++i)
      rows[i] = static_cast<const T*>(a_.digest) + ((first + least(i, blocks - 1)) * a_.subs + sub) * pieces_ * slot_ +
                ptrdiff_t(kv) * size_;
    int64_t query = 0;
    for (; query + Dots::kQueries <= queries_; query += Dots::kQueries)
      multiply_few<Dots::kQueries>(rows, kv, query, sub);
    for (; query < queries_; ++query) multiply_few<1>(rows, kv, query, sub);
  }

  // Neither this nor write() is inlined: GCC then spills what both keep, which costs a quarter.
  template <int G>
  [[gnu::noinline]] void multiply_few(const T* const (&rows)[W], int kv, int64_t query, int sub) {
    const int size = Size ? Size : size_;
    const ptrdiff_t step = ptrdiff_t(pieces_) * packed_;
    const Vec scale = Simd::set1(a_.scale * 1.44269504088896341f);  // base 2
    const Vec count = Simd::load(counts_ + sub * W);
    Vec x[G];
    Dots::template products<G>(rows, q_ + (kv * queries_ + query) * step, step, size, pieces_, slot_, x);
    for (int g = 0; g < G; ++g)  // whatever an empty sub-block holds
      Simd::store(logits_ + ((query + g) * a_.subs + sub) * W,
                  Simd::select_ge(count, Simd::zero(), Simd::fma(x[g], scale, count), Simd::set1(-INFINITY)));
  }

  // Sums the sub-blocks of a tile for a few queries, whose long chains of operations overlap.
  template <int G>
  [[gnu::noinline]] void write(int64_t first, int blocks, int kv, int64_t query) const {
    const float* const logits = logits_ + query * a_.subs * W;
    const auto logit = [&](int g, int sub) { return Simd::load(logits + (g * a_.subs + sub) * W); };
    Vec result[G], high[G], sum[G];
#pragma GCC unroll 3
    for (int g = 0; g < G; ++g) {
      high[g] = Simd::set1(-3e38f);  // not -inf, which would make NaN of a block without tokens
      sum[g] = Simd::zero();
    }
    for (int sub = 0; sub < a_.subs; ++sub)
#pragma GCC unroll 3
      for (int g = 0; g < G; ++g) high[g] = Simd::max(logit(g, sub), high[g]);
    for (int sub = 0; sub < a_.subs; ++sub)
#pragma GCC unroll 3
      for (int g = 0; g < G; ++g) sum[g] = Simd::add(sum[g], Simd::exp2(Simd::sub(logit(g, sub), high[g])));
#pragma GCC unroll 3
    for (int g = 0; g < G; ++g) result[g] = Simd::add(high[g], log2_of<Simd>(sum[g]));
    for (int g = 0; g < G; ++g) {
      const int64_t row = (query + g) / group_, head = kv * group_ + (query + g) % group_;
      float* const to = a_.out + (row * a_.heads + head) * a_.blocks + first;
      alignas(64) float lanes[W];
      Simd::store(blocks == W ? to : lanes, result[g]);
      if (blocks < W) std::memcpy(to, lanes, sizeof(float) * blocks);
    }
  }

  const BlockScores& a_;
  const int size_;
  const int packed_;  // floats per packed query
  const int pieces_;  // vectors per sub-block: one, or two bounds
  const int group_;
  const int64_t queries_;         // per KV head: rows times heads of a group
  const ptrdiff_t slot_;          // elements of one vector of all KV heads
  const int tokens_;              // of a full sub-block
  const float all_;               // log2 of them
  bool counted_full_ = false;     // counts_ are those of a tile of full blocks
  float *q_, *logits_, *counts_;  // [kv_heads][queries][pieces][packed], [queries][subs][W], [subs][W]
};

template <class Simd>
void block_scores(const BlockScores& a) {
  if (a.dtype == DType::kBFloat16) {
    if (a.head_size == 64) return Scores<Simd, BFloat16, 64>::run(a);
    if (a.head_size == 128) return Scores<Simd, BFloat16, 128>::run(a);
    return Scores<Simd, BFloat16, 0>::run(a);
  }
  if (a.head_size == 64) return Scores<Simd, float, 64>::run(a);
  if (a.head_size == 128) return Scores<Simd, float, 128>::run(a);
  return Scores<Simd, float, 0>::run(a);
}

}  // namespace
}  // namespace smartgen
