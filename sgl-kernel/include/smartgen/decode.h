// Attention of single queries over a paged cache: the decode kernel.
//
// Bound by memory, so each page is fetched once, for all heads, and the pages of the next tile are prefetched
// while this one is worked on.  Lanes are head elements.  Values are multiplied in pairs of keys where the machine
// does that (probabilities rounded to bf16), otherwise in fp32.  Heads are independent, so results do not depend on
// the number of threads.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"
#include "smartgen/pages.h"
#include "smartgen/row_dots.h"
#include "smartgen/workspace.h"

namespace smartgen {
namespace {

constexpr int kTileKeys = 16;  // a multiple of every kWidth; small, so that prefetches come in short bursts

template <class Simd, class T, int Size>
class Decode {
  using Vec = typename Simd::Vec;
  static constexpr int W = Simd::kWidth;
  using Dots = RowDots<Simd, T>;
  static constexpr bool kPairs = Dots::kPairs;
  static constexpr int kMaxGroup = 4;  // heads that share one pass over a tile

 public:
  static void run(const AttentionBatch& b) { for_items<Decode>(b.batch * (by_head(b) ? b.kv_heads : 1), b.threads, b); }

  explicit Decode(const AttentionBatch& b)
      : b_(b), by_head_(by_head(b)), size_(Size ? Size : b.head_size), packed_(Dots::packed(size_)),
        acc_size_((size_ + 2 * W - 1) / (2 * W) * (2 * W)) {
    const size_t floats = size_t(b_.heads) * (packed_ + acc_size_ + 2) + kMaxGroup * kTileKeys;
    float* p = static_cast<float*>(scratch(floats * sizeof(float)));
    p_ = p, p += kMaxGroup * kTileKeys;
    q_ = p, p += size_t(b_.heads) * packed_;
    acc_ = p, p += size_t(b_.heads) * acc_size_;
    high_ = p, p += b_.heads;
    sum_ = p;
    for (int i = 0; i < W; ++i) iota_[i] = static_cast<float>(i);
  }

  void item(int64_t i) {
    if (by_head_)
      attend(i / b_.kv_heads, static_cast<int>(i % b_.kv_heads), static_cast<int>(i % b_.kv_heads) + 1);
    else
      attend(i, 0, b_.kv_heads);
  }

 private:
  // Whole requests per thread keep page reads together; few requests are split by KV head.
  static bool by_head(const AttentionBatch& b) { return b.threads > 1 && b.batch < 2 * int64_t(b.threads); }

  // Slots of one tile of keys.
  struct Slots {
    int64_t at[kTileKeys];
    int count;
  };

  void attend(int64_t i, int kv_begin, int kv_end) {
    const int group = b_.heads / b_.kv_heads;
    const int head_begin = kv_begin * group, head_end = kv_end * group;
    const PageList pages = pages_of(b_, i);
    const int64_t keys = b_.seq_lens[i];
    for (int h = head_begin; h < head_end; ++h) {
      Dots::pack(q_ + size_t(h) * packed_, static_cast<const T*>(b_.q) + i * b_.q_token + h * b_.q_head, size_);
      std::memset(acc_ + size_t(h) * acc_size_, 0, sizeof(float) * acc_size_);
      high_[h] = -INFINITY;
      sum_[h] = 0.0f;
    }
    Slots slots, next;
    find(pages, 0, keys, next);
    for (int64_t k = 0; k < keys; k += kTileKeys) {
      slots = next;
      find(pages, k + kTileKeys, keys, next);
      for (int kv = kv_begin; kv < kv_end; ++kv) {
        const int done = kv - kv_begin, all = kv_end - kv_begin;
        Ahead ahead{next, next.count * done / all, next.count * (done + 1) / all, ptrdiff_t(kv_begin) * size_,
                    ptrdiff_t(all) * size_};
        for (int part = 0, parts = (group + kMaxGroup - 1) / kMaxGroup; part < parts; ++part) {
          const int from = group * part / parts, heads = group * (part + 1) / parts - from;
          tile(kv, kv * group + from, heads, slots, ahead);
          ahead.end = ahead.begin;
        }
      }
    }
    for (int h = head_begin; h < head_end; ++h) finish(i, h);
  }

  // Asks for part of the next tile: all heads of keys [begin, end), because the hardware likes long stretches.
  // Into the second cache level only: on a Zen 4 core pages of 6 KB came at 14.7 GB/s that way, at 8.7 into the
  // first level, at 7.3 without.  Always inlined: GCC takes a function that only prefetches for one without effect.
  struct Ahead {
    const Slots& slots;
    int begin, end;
    ptrdiff_t first, count;  // elements of a slot
  };
  [[gnu::always_inline]] static inline void prefetch(const Ahead& a, const void* pool, ptrdiff_t stride) {
    for (int j = a.begin; j < a.end; ++j) {
      const T* const row = static_cast<const T*>(pool) + a.slots.at[j] * stride + a.first;
      for (ptrdiff_t d = 0; d < a.count; d += 64 / ptrdiff_t(sizeof(T))) __builtin_prefetch(row + d, 0, 2);
    }
  }

  static void find(const PageList& pages, int64_t begin, int64_t keys, Slots& slots) {
    const int64_t end = least<int64_t>(keys, begin + kTileKeys);
    slots.count = static_cast<int>(most<int64_t>(0, end - begin));
    if (slots.count > 0)
      pages.for_each(begin, end, [&](int64_t first, int64_t slot, int64_t count) {
        for (int64_t j = 0; j < count; ++j) slots.at[first - begin + j] = slot + j;
      });
  }

  void tile(int kv, int head, int heads, const Slots& slots, const Ahead& ahead) {
    switch (heads) {
      case 1: return tile_of<1>(kv, head, slots, ahead);
      case 2: return tile_of<2>(kv, head, slots, ahead);
      case 3: return tile_of<3>(kv, head, slots, ahead);
      default: return tile_of<4>(kv, head, slots, ahead);
    }
  }

  template <int G>
  void tile_of(int kv, int head, const Slots& slots, const Ahead& ahead) {
    const int size = Size ? Size : size_;
    const T* const k = static_cast<const T*>(b_.k) + ptrdiff_t(kv) * size;
    const T* const v = static_cast<const T*>(b_.v) + ptrdiff_t(kv) * size;
    prefetch(ahead, b_.k, b_.k_slot);
    for (int j = 0; j < slots.count; j += W) {
      const int keys = least(W, slots.count - j);
      const T* rows[W];  // lanes past the end repeat a row; their scores are dropped
      for (int i = 0; i < W; ++i) rows[i] = k + slots.at[j + least(i, keys - 1)] * b_.k_slot;
      constexpr int first = least(G, Dots::kQueries);
      scores<first>(rows, head, 0, j, keys, size);
      if constexpr (G > first) scores<G - first>(rows, head, first, j, keys, size);
    }
    for (int g = 0; g < G; ++g) soften(head + g, p_ + g * kTileKeys, slots.count);

    prefetch(ahead, b_.v, b_.v_slot);
    constexpr int N = Simd::kRegisters == 32 || G < 4 ? 4 : 2;  // vectors of the output sum per pass
    int d = 0;
    for (; d + N * W <= size; d += N * W) add_values<G, N>(v, slots, head, d);
    if constexpr (kPairs) {
      if (d < size) add_values<G, 2>(v, slots, head, d);  // at most 3 halves of a 32-element group remain
      if (d + 2 * W < size) add_values<G, 2>(v, slots, head, d + 2 * W);
    } else {
      for (; d < size; d += W) add_values<G, 1>(v, slots, head, d);
    }
  }

  // Scaled logits of kWidth keys, of which `keys` are real, for queries g to g + N of a tile that begins at `head`.
  template <int N>
  [[gnu::always_inline]] inline void scores(const T* const (&rows)[W], int head, int g, int j, int keys, int size) {
    Vec x[N];
    Dots::template products<N>(rows, q_ + size_t(head + g) * packed_, packed_, size, 1, 0, x);
    const Vec scale = Simd::set1(b_.scale * 1.44269504088896341f);  // base 2
    for (int n = 0; n < N; ++n) {
      x[n] = Simd::mul(scale, x[n]);
      if (keys < W)
        x[n] =
            Simd::select_ge(Simd::set1(static_cast<float>(keys - 1)), Simd::load(iota_), x[n], Simd::set1(-INFINITY));
      Simd::store(p_ + (g + n) * kTileKeys + j, x[n]);
    }
  }

  // Scores of one tile become probabilities relative to the running maximum.
  void soften(int head, float* x, int count) {
    Vec top = Simd::load(x);
    for (int j = W; j < count; j += W) top = Simd::max(top, Simd::load(x + j));
    const float old = high_[head], block = Simd::highest(top), now = block > old ? block : old;
    const Vec high = Simd::set1(now);
    Vec sum = Simd::zero();
    for (int j = 0; j < count; j += W) {
      const Vec p = Simd::exp2(Simd::sub(Simd::load(x + j), high));
      sum = Simd::add(sum, p);
      if constexpr (kPairs)
        Simd::store_bf16(x + j / 2, p);
      else
        Simd::store(x + j, p);
    }
    if (now > old) {
      const Vec shrink = Simd::exp2(Simd::set1(old - now));
      float* acc = acc_ + size_t(head) * acc_size_;
      for (int d = 0; d < acc_size_; d += W) Simd::store(acc + d, Simd::mul(shrink, Simd::load(acc + d)));
      alignas(64) float lanes[W];
      Simd::store(lanes, shrink);
      sum_[head] *= lanes[0];
      high_[head] = now;
    }
    sum_[head] += Simd::sum(sum);
  }

  // Adds p * V to N vectors of the output sum, from element d on.
  template <int G, int N>
  void add_values(const T* v, const Slots& slots, int head, int d) {
    Vec acc[G][N];
    for (int g = 0; g < G; ++g)
      for (int n = 0; n < N; ++n) acc[g][n] = Simd::load(acc_ + size_t(head + g) * acc_size_ + d + n * W);
    if constexpr (kPairs)
      add_pairs<G, N>(acc, v + d, slots, size_ - d);
    else
      for (int j = 0; j < slots.count; ++j) {
        const T* row = v + slots.at[j] * b_.v_slot + d;
        Vec p[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) p[g] = Simd::broadcast(p_ + g * kTileKeys + j);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          const Vec x = Element<Simd, T>::load(row + n * W);
#pragma GCC unroll 4
          for (int g = 0; g < G; ++g) acc[g][n] = Simd::fma(p[g], x, acc[g][n]);
        }
      }
    for (int g = 0; g < G; ++g)
      for (int n = 0; n < N; ++n) Simd::store(acc_ + size_t(head + g) * acc_size_ + d + n * W, acc[g][n]);
  }

  // The same by pairs of keys; p_ holds bf16 here, and a missing last key counts as zeros.
  template <int G, int N>
  [[gnu::always_inline]] inline void add_pairs(Vec (&acc)[G][N], const T* v, const Slots& slots, int rest) const {
    for (int j = 0; j < slots.count; j += 2) {
      const T* const even = v + slots.at[j] * b_.v_slot;
      const T* const odd = j + 1 < slots.count ? v + slots.at[j + 1] * b_.v_slot : nullptr;
      Vec p[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) p[g] = Simd::broadcast(p_ + g * kTileKeys + j / 2);
#pragma GCC unroll 4
      for (int n = 0; n < N; n += 2) {
        const bool half = N == 2 && rest < 2 * W;
        const Vec a = half ? Simd::load_half(even) : Simd::load(even + n * W);
        const Vec b = !odd ? Simd::zero() : half ? Simd::load_half(odd) : Simd::load(odd + n * W);
        const Vec first = Simd::first_pairs(a, b), second = Simd::second_pairs(a, b);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          acc[g][n] = Simd::dot_pairs(acc[g][n], p[g], first);
          acc[g][n + 1] = Simd::dot_pairs(acc[g][n + 1], p[g], second);
        }
      }
    }
  }

  void finish(int64_t i, int head) {
    const bool empty = b_.seq_lens[i] == 0;
    const Vec inverse = Simd::set1(empty ? 0.0f : 1.0f / sum_[head]);
    float* const acc = acc_ + size_t(head) * acc_size_;
    T* const out = static_cast<T*>(b_.out) + (i * b_.heads + head) * size_;
    if constexpr (kPairs)
      for (int d = 0; d < size_; d += 2 * W) {
        Vec first = Simd::load(acc + d), second = Simd::load(acc + d + W);
        Simd::in_order(first, second);
        Simd::store(acc + d, first);
        Simd::store(acc + d + W, second);
      }
    for (int d = 0; d < size_; d += W) Element<Simd, T>::store(out + d, Simd::mul(inverse, Simd::load(acc + d)));
    b_.lse2[i * b_.heads + head] = empty ? -INFINITY : high_[head] + ::log2f(sum_[head]);
  }

  const AttentionBatch& b_;
  const bool by_head_;
  const int size_;
  const int packed_;    // floats per packed query
  const int acc_size_;  // floats per output sum
  float *p_, *q_, *acc_, *high_, *sum_;
  alignas(64) float iota_[W];
};

template <class Simd>
void decode_attention(const AttentionBatch& b) {
  if (b.dtype == DType::kBFloat16) {
    if (b.head_size == 64) return Decode<Simd, BFloat16, 64>::run(b);
    if (b.head_size == 128) return Decode<Simd, BFloat16, 128>::run(b);
    return Decode<Simd, BFloat16, 0>::run(b);
  }
  if (b.head_size == 64) return Decode<Simd, float, 64>::run(b);
  if (b.head_size == 128) return Decode<Simd, float, 128>::run(b);
  return Decode<Simd, float, 0>::run(b);
}

}  // namespace
}  // namespace smartgen
