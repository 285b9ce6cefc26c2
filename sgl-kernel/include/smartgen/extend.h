// Causal attention of fresh tokens over a paged cache: the prefill kernel.
//
// Lanes are queries: one vector holds the same head of kWidth consecutive queries, so that S^T = K Q^T and
// O^T = V^T P^T need no horizontal sums; K and V elements are broadcast from memory.  A tile is 1 to 4 such
// vectors that share a KV head (heads of the group, or neighbouring queries when the group is small).
// Keys are copied page by page into a dense chunk once per 256 queries, then walked in blocks of 128 with a
// running maximum.  Chunk and block borders are absolute key numbers and lanes never mix, so a query's
// result does not depend, bit for bit, on how the prompt was cut into chunks, on the batch or on threads.
// Keys past the last visible one are never read.  A NaN in the V row of a *fresh* token may reach the up
// to 79 queries before it, whose probability for it is an exact 0.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"
#include "smartgen/pages.h"
#include "smartgen/tile.h"
#include "smartgen/workspace.h"

namespace smartgen {
namespace {

constexpr int kQueriesAtOnce = 256;  // their state (acc, q) stays in the second cache level
constexpr int kChunkKeys = 512;      // packed K and V of one KV head stay there as well
constexpr int kBlockKeys = 128;     // per softmax step; scores of one tile stay near the first level

template <class Simd, class T, int Size>  // Size: head size, or 0 to take it from the batch
class Extend {
  using Vec = typename Simd::Vec;
  static constexpr int W = Simd::kWidth;
  using Unit = Units<Simd, T>;
  static constexpr bool kPairs = Unit::kPairs;
  static constexpr int kPer = Unit::kPer;

  // Consecutive queries [first, first + blocks * W) of heads [head, head + heads).
  struct Tile {
    int64_t position;  // of the first query
    int64_t token;     // its row in q and out
    int queries;       // real ones; the other lanes are padding
    int head, heads, vectors;
    float *q, *acc, *high, *sum;  // [units][vectors][W], [head_size][vectors][W], [vectors][W] twice
  };

 public:
  static void run(const AttentionBatch& b) { for_items<Extend>(count_groups(b) * b.kv_heads, b.threads, b); }

  explicit Extend(const AttentionBatch& batch) : b_(batch), size_(Size ? Size : batch.head_size) {
    const int group = b_.heads / b_.kv_heads;
    parts_ = (group + kMaxVectors - 1) / kMaxVectors;
    const size_t rows = static_cast<size_t>(kQueriesAtOnce + kMaxVectors * W) * group;  // every lane of a group
    const size_t floats = rows * (size_ / kPer + size_ + 2) + 2 * size_t(kChunkKeys) * (size_ / kPer) +
                          kBlockKeys * kMaxVectors * W + W * (size_ / kPer + W);
    float* p = static_cast<float*>(scratch(floats * sizeof(float)));
    keys_ = p, p += size_t(kChunkKeys) * (size_ / kPer);
    values_ = p, p += size_t(kChunkKeys) * (size_ / kPer);
    scores_ = p, p += kBlockKeys * kMaxVectors * W;
    lanes_ = p, p += W * (size_ / kPer + W);
    state_ = p;
  }

  void item(int64_t number) {
    int64_t group = number / b_.kv_heads, token = 0;
    for (int64_t i = 0; i < b_.batch; ++i) {
      const int64_t length = fresh(b_, i), groups = (length + kQueriesAtOnce - 1) / kQueriesAtOnce;
      if (group < groups) {
        const int64_t first = (groups - 1 - group) * kQueriesAtOnce;
        attend(i, static_cast<int>(number % b_.kv_heads), token, first, least<int64_t>(length, first + kQueriesAtOnce));
        return;
      }
      group -= groups;
      token += length;
    }
  }

 private:
  // Items are (request, up to kQueriesAtOnce queries, KV head); the heavy late ones come first.
  static int64_t fresh(const AttentionBatch& b, int64_t i) { return b.seq_lens[i] - b.prefix_lens[i]; }
  static int64_t count_groups(const AttentionBatch& b) {
    int64_t n = 0;
    for (int64_t i = 0; i < b.batch; ++i) n += (fresh(b, i) + kQueriesAtOnce - 1) / kQueriesAtOnce;
    return n;
  }

  // Queries [first, last) of request i against everything before and among them.
  void attend(int64_t i, int kv_head, int64_t token, int64_t first, int64_t last) {
    const int64_t prefix = b_.prefix_lens[i], keys = prefix + last;
    const PageList pages = pages_of(b_, i);
    float* free = state_;
    const int group = b_.heads / b_.kv_heads;
    const int blocks = group >= 3 ? 1 : kMaxVectors / group;
    for (int64_t q = first; q < last; q += blocks * W)
      for (int part = 0; part < parts_; ++part) begin(tile_at(free, kv_head, part, blocks, prefix, token, q, last));
    for (int64_t c = 0; c < keys; c += kChunkKeys) {
      const int64_t end = least<int64_t>(keys, c + kChunkKeys);
      pack(pages, kv_head, c, end);
      free = state_;
      for (int64_t q = first; q < last; q += blocks * W)
        for (int part = 0; part < parts_; ++part) {
          const Tile tile = tile_at(free, kv_head, part, blocks, prefix, token, q, last);
          const int64_t visible = least<int64_t>(end, tile.position + tile.queries);
          for (int64_t k = c; k < visible; k += kBlockKeys)
            step(tile, k, c, static_cast<int>(least<int64_t>(kBlockKeys, visible - k)));
        }
    }
    free = state_;
    for (int64_t q = first; q < last; q += blocks * W)
      for (int part = 0; part < parts_; ++part) finish(tile_at(free, kv_head, part, blocks, prefix, token, q, last));
  }

  Tile tile_at(float*& free, int kv_head, int part, int blocks, int64_t prefix, int64_t token, int64_t q,
               int64_t last) const {
    const int group = b_.heads / b_.kv_heads;
    const int from = group * part / parts_, heads = group * (part + 1) / parts_ - from;
    const int queries = static_cast<int>(least<int64_t>(int64_t(blocks) * W, last - q));
    const int vectors = heads * ((queries + W - 1) / W);
    Tile t{prefix + q, token + q, queries, kv_head * group + from, heads, vectors, nullptr, nullptr, nullptr, nullptr};
    t.q = free, free += size_t(size_ / kPer) * vectors * W;
    t.acc = free, free += size_t(size_) * vectors * W;
    t.high = free, free += vectors * W;
    t.sum = free, free += vectors * W;
    return t;
  }

  // Loads the tile's queries, one unit of every lane side by side, and clears its state.
  void begin(const Tile& t) {
    const int units = size_ / kPer, padded = (units + W - 1) / W * W;
    for (int r = 0; r < t.vectors; ++r) {
      const int block = r / t.heads, head = t.head + r % t.heads;
      for (int lane = 0; lane < W; ++lane) {
        float* to = lanes_ + lane * padded;
        const int query = block * W + lane;
        if (query < t.queries)
          Unit::unpack(to, static_cast<const T*>(b_.q) + (t.token + query) * b_.q_token + head * b_.q_head, size_);
        else
          std::memset(to, 0, sizeof(float) * units);
      }
      Unit::to_lanes(lanes_, padded, units, t.q + r * W, ptrdiff_t(t.vectors) * W);
      Simd::store(t.high + r * W, Simd::set1(-INFINITY));
      Simd::store(t.sum + r * W, Simd::zero());
    }
    std::memset(t.acc, 0, sizeof(float) * size_ * t.vectors * W);
  }

  // Copies keys [begin, end) of one KV head out of their pages; zero rows up to a multiple of kKeyStep.
  void pack(const PageList& pages, int kv_head, int64_t begin, int64_t end) {
    const int units = size_ / kPer;
    pages.for_each(begin, end, [&](int64_t first, int64_t slot, int64_t count) {
      const T* k = static_cast<const T*>(b_.k) + slot * b_.k_slot + ptrdiff_t(kv_head) * size_;
      const T* v = static_cast<const T*>(b_.v) + slot * b_.v_slot + ptrdiff_t(kv_head) * size_;
      for (int64_t i = 0; i < count; ++i) {
        Unit::unpack(keys_ + (first + i - begin) * units, k + i * b_.k_slot, size_);
        put_value(first + i - begin, v + i * b_.v_slot);
      }
    });
    const int64_t count = end - begin, padded = (count + kKeyStep - 1) / kKeyStep * kKeyStep;
    std::memset(keys_ + count * units, 0, sizeof(float) * (padded - count) * units);
    if constexpr (kPairs) {
      if (count % 2 != 0) Simd::interleave(values_ + count / 2 * size_, even_, nullptr, size_);
      const int64_t pairs = (count + 1) / 2;
      std::memset(values_ + pairs * size_, 0, sizeof(float) * (padded / 2 - pairs) * size_);
    } else {
      std::memset(values_ + count * units, 0, sizeof(float) * (padded - count) * units);
    }
  }

  // V by rows, or by pairs of keys: unit d of pair j is (v[2j][d], v[2j + 1][d]).  Keys come in order.
  void put_value(int64_t key, const T* v) {
    if constexpr (!kPairs)
      Unit::unpack(values_ + key * size_, v, size_);
    else if (key % 2 == 0)
      even_ = v;
    else
      Simd::interleave(values_ + key / 2 * size_, even_, v, size_);
  }

  void step(const Tile& t, int64_t key, int64_t chunk, int count) {
    switch (t.vectors) {
      case 1: return step_of<1>(t, key, chunk, count);
      case 2: return step_of<2>(t, key, chunk, count);
      case 3: return step_of<3>(t, key, chunk, count);
      default: return step_of<4>(t, key, chunk, count);
    }
  }

  // One block of keys for one tile: scores, running maximum, probabilities, weighted values.
  template <int R>
  void step_of(const Tile& t, int64_t key, int64_t chunk, int count) {
    const int size = Size ? Size : size_;  // a constant wherever it can be
    const int units = size / kPer;
    const int keys = (count + kKeyStep - 1) / kKeyStep * kKeyStep;
    float* const s = scores_;

    Vec high[R];
    scores<R>(t, keys_ + (key - chunk) * units, keys, units, high);
    if (key + keys > t.position + 1) mask<R>(t, key, keys, high);
    for (int r = 0; r < R; ++r) high[r] = raise<R>(t, r, size, high[r]);

    Vec sum[R];
    for (int r = 0; r < R; ++r) sum[r] = Simd::load(t.sum + r * W);
    for (int k = 0; k < keys; k += 2)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        float *even = s + (k * R + r) * W, *odd = even + R * W;
        const Vec p = Simd::exp2(Simd::sub(Simd::load(even), high[r]));
        const Vec n = Simd::exp2(Simd::sub(Simd::load(odd), high[r]));
        sum[r] = Simd::add(sum[r], Simd::add(p, n));
        if constexpr (kPairs) {
          Simd::store(s + (k / 2 * R + r) * W, Simd::make_pairs(p, n));
        } else {
          Simd::store(even, p);
          Simd::store(odd, n);
        }
      }
    for (int r = 0; r < R; ++r) Simd::store(t.sum + r * W, sum[r]);

    constexpr int U = unroll<Simd, R>();
    const float* v = values_ + (key - chunk) / kPer * size;
    for (int d = 0; d < size; d += U) {
      Vec acc[U][R];
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[u][r] = Simd::load(t.acc + ((d + u) * R + r) * W);
      accumulate<Simd, kPairs, U, R>(acc, v + d, 1, size, s, keys / kPer);
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) Simd::store(t.acc + ((d + u) * R + r) * W, acc[u][r]);
    }
  }

  template <int R>
  void scores(const Tile& t, const float* k, int keys, int units, Vec (&high)[R]) {
    constexpr int U = unroll<Simd, R>();
    const Vec scale = Simd::set1(scale2());
    for (int r = 0; r < R; ++r) high[r] = Simd::set1(-INFINITY);
    for (int j = 0; j < keys; j += U) {
      Vec acc[U][R];
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[u][r] = Simd::zero();
      accumulate<Simd, kPairs, U, R>(acc, k + ptrdiff_t(j) * units, units, 1, t.q, units);
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const Vec x = Simd::mul(acc[u][r], scale);
          high[r] = Simd::max(high[r], x);
          Simd::store(scores_ + ((j + u) * R + r) * W, x);
        }
    }
  }

  // Blocks that reach past a query: keys after it get -inf, and the maximum is taken anew.
  template <int R>
  void mask(const Tile& t, int64_t key, int keys, Vec (&high)[R]) {
    alignas(64) float iota[W];
    for (int i = 0; i < W; ++i) iota[i] = static_cast<float>(i);
    const Vec lane = Simd::load(iota), none = Simd::set1(-INFINITY);
    for (int r = 0; r < R; ++r) {
      const int64_t position = t.position + r / t.heads * W;
      high[r] = none;
      for (int k = 0; k < keys; ++k) {
        const int64_t past = most<int64_t>(-1, least<int64_t>(W, key + k - position));  // lanes below see no such key
        float* at = scores_ + (k * R + r) * W;
        const Vec x = Simd::select_ge(lane, Simd::set1(static_cast<float>(past)), Simd::load(at), none);
        Simd::store(at, x);
        high[r] = Simd::max(high[r], x);
      }
    }
  }

  // Raises the running maximum of vector r to include `block`; rescales what was summed under the old one.
  template <int R>
  Vec raise(const Tile& t, int r, int size, Vec block) {
    const Vec old = Simd::load(t.high + r * W), now = Simd::max(old, block);
    if (!Simd::any_greater(now, old)) return old;
    const Vec shrink = Simd::exp2(Simd::sub(old, now));  // exactly 1 in lanes that did not change
    Simd::store(t.high + r * W, now);
    Simd::store(t.sum + r * W, Simd::mul(shrink, Simd::load(t.sum + r * W)));
    for (int d = 0; d < size; ++d) {
      float* at = t.acc + (d * R + r) * W;
      Simd::store(at, Simd::mul(shrink, Simd::load(at)));
    }
    return now;
  }

  void finish(const Tile& t) {
    for (int r = 0; r < t.vectors; ++r) {
      const int block = r / t.heads, head = t.head + r % t.heads;
      const int lanes = least(W, t.queries - block * W);
      const Vec inverse = Simd::div(Simd::set1(1.0f), Simd::load(t.sum + r * W));
      const int64_t token = t.token + block * W;
      for (int d = 0; d < size_; d += W) {
        Vec tile[W];
        for (int i = 0; i < W; ++i)
          tile[i] = Simd::mul(inverse, Simd::load(t.acc + (size_t(d + i) * t.vectors + r) * W));
        Simd::transpose(tile);
        for (int lane = 0; lane < lanes; ++lane)
          Element<Simd, T>::store(static_cast<T*>(b_.out) + ((token + lane) * b_.heads + head) * size_ + d, tile[lane]);
      }
      for (int lane = 0; lane < lanes; ++lane)
        b_.lse2[(token + lane) * b_.heads + head] = t.high[r * W + lane] + ::log2f(t.sum[r * W + lane]);
    }
  }

  float scale2() const { return b_.scale * 1.44269504088896341f; }  // logits in base 2

  const AttentionBatch& b_;
  const int size_;
  int parts_;
  float *keys_, *values_, *scores_, *lanes_, *state_;
  const T* even_ = nullptr;
};

template <class Simd>
void extend_attention(const AttentionBatch& b) {
  if (b.dtype == DType::kBFloat16) {
    if (b.head_size == 64) return Extend<Simd, BFloat16, 64>::run(b);
    if (b.head_size == 128) return Extend<Simd, BFloat16, 128>::run(b);
    return Extend<Simd, BFloat16, 0>::run(b);
  }
  if (b.head_size == 64) return Extend<Simd, float, 64>::run(b);
  if (b.head_size == 128) return Extend<Simd, float, 128>::run(b);
  return Extend<Simd, float, 0>::run(b);
}

}  // namespace
}  // namespace smartgen
