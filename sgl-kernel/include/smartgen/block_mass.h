// Share of each query's attention that falls on each block of keys.
//
// Lanes are queries, as in extend: the (query, head) pairs of a KV head lie side by side, so that every key is read
// once for all of them.  The log-sum-exp is known, so there is no running maximum: scores become shares at once and
// are added up per block.  Sums of kWidth blocks are turned together, because a result's neighbours in memory are
// blocks, not queries.  Lanes never mix: a result does not depend on the other queries or on threads.
#pragma once

#include <cstring>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"
#include "smartgen/pages.h"
#include "smartgen/tile.h"
#include "smartgen/workspace.h"

namespace smartgen {
namespace {

constexpr int kMassKeys = 32;  // packed at a time; with the queries of one tile they fit the first cache level

template <class Simd, class T, int Size>  // Size: head size, or 0 to take it from the arguments
class Mass {
  using Vec = typename Simd::Vec;
  using Unit = Units<Simd, T>;
  static constexpr int W = Simd::kWidth;

  // Some of a KV head's vectors; their lanes are rows, a row being a query and a head.
  struct Tile {
    int64_t first;  // vector
    int vectors;
    int64_t least, most;  // position
  };

 public:
  static void run(const BlockMass& a) { for_items<Mass>(spans(a.keys), a.keys.threads, a); }

  explicit Mass(const BlockMass& a)
      : a_(a), k_(a.keys), size_(Size ? Size : k_.head_size), units_(size_ / Unit::kPer), group_(a.heads / k_.kv_heads),
        rows_(a.queries * group_), vectors_((rows_ + W - 1) / W), tiles_((vectors_ + kMaxVectors - 1) / kMaxVectors) {
    const size_t rows = size_t(vectors_) * W, lanes = rows * k_.kv_heads, padded = (units_ + W - 1) / W * W;
    const size_t floats = lanes * (units_ + W + 1) + kMassKeys * units_ + W * padded;
    positions_ = static_cast<int64_t*>(scratch(rows * sizeof(int64_t) + floats * sizeof(float)));
    float* p = reinterpret_cast<float*>(positions_ + rows);
    q_ = p, p += lanes * units_;
    sums_ = p, p += lanes * W;
    lse2_ = p, p += lanes;
    keys_ = p, p += kMassKeys * units_;
    for (size_t i = 0; i < rows; ++i) positions_[i] = a.positions[least<int64_t>(i, rows_ - 1) / group_];
    for (int kv = 0; kv < k_.kv_heads; ++kv)
      for (int64_t i = 0; i < tiles_; ++i) load(kv, tile(i), p, static_cast<int>(padded));
  }

  // A span of blocks.
  void item(int64_t span) {
    const int64_t begin = k_.blocks() * span / spans(k_), end = k_.blocks() * (span + 1) / spans(k_);
    for (int64_t b = begin; b < end; b += W) {
      const int wide = static_cast<int>(least<int64_t>(W, end - b));
      for (int i = 0; i < wide; ++i) add_up(b + i, i);
      for (int kv = 0; kv < k_.kv_heads; ++kv)
        for (int64_t v = 0; v < vectors_; ++v) write(kv, v, b, wide);
    }
  }

 private:
  static int64_t spans(const BlockKeys& k) { return k.threads <= 1 ? 1 : least<int64_t>(k.threads, k.blocks()); }

  Tile tile(int64_t i) const {
    const int64_t first = vectors_ * i / tiles_, last = vectors_ * (i + 1) / tiles_;
    Tile t{first, static_cast<int>(last - first), positions_[first * W], positions_[first * W]};
    for (int64_t row = first * W; row < last * W; ++row) {
      t.least = least(t.least, positions_[row]);
      t.most = most(t.most, positions_[row]);
    }
    return t;
  }

  float* queries_of(int kv, const Tile& t) const { return q_ + (kv * vectors_ + t.first) * units_ * W; }
  float* sums_of(int kv, int64_t vector, int i) const { return sums_ + ((kv * vectors_ + vector) * W + i) * W; }

  // Place of a row's head among the tensors' heads, counted through all queries.
  int64_t head(int kv, int64_t row) const { return row / group_ * a_.heads + kv * group_ + row % group_; }

  // Lays the rows of a tile side by side: [units][vectors][W].
  void load(int kv, const Tile& t, float* unpacked, int padded) {
    for (int r = 0; r < t.vectors; ++r) {
      for (int lane = 0; lane < W; ++lane) {
        const int64_t row = (t.first + r) * W + lane;
        float* const to = unpacked + lane * padded;
        lse2_[kv * vectors_ * W + row] = row < rows_ ? a_.lse2[head(kv, row)] : 0.0f;
        if (row < rows_)
          Unit::unpack(
              to, static_cast<const T*>(a_.q) + row / group_ * a_.q_query + (kv * group_ + row % group_) * a_.q_head,
              size_);
        else
          std::memset(to, 0, sizeof(float) * units_);
      }
      Unit::to_lanes(unpacked, padded, units_, queries_of(kv, t) + r * W, ptrdiff_t(t.vectors) * W);
    }
  }

  // Adds up a block, the i-th of those written together.
  void add_up(int64_t block, int i) {
    const int64_t begin = block * k_.block_size, end = least<int64_t>(k_.length, begin + k_.block_size);
    for (int kv = 0; kv < k_.kv_heads; ++kv)
      for (int64_t v = 0; v < vectors_; ++v) Simd::store(sums_of(kv, v, i), Simd::zero());
    for (int64_t key = begin; key < end; key += kMassKeys) {
      const int count = static_cast<int>(least<int64_t>(kMassKeys, end - key));
      const int64_t next = key + count, parts = k_.kv_heads * tiles_;
      for (int64_t part = 0; part < parts; ++part) {
        const int kv = static_cast<int>(part / tiles_);
        if (part % tiles_ == 0) pack(kv, key, count);
        prefetch_keys<T>(k_, next + kMassKeys * part / parts, next + kMassKeys * (part + 1) / parts);
        const Tile t = tile(part % tiles_);
        if (t.most >= key) step(kv, t, key, count, sums_of(kv, t.first, i));
      }
    }
  }

  // Copies keys out of their pages; zero rows up to a multiple of kKeyStep.
  void pack(int kv, int64_t key, int count) {
    pages_of(k_).for_each(key, key + count, [&](int64_t first, int64_t slot, int64_t n) {
      const T* const k = static_cast<const T*>(k_.k) + slot * k_.k_slot + ptrdiff_t(kv) * size_;
      for (int64_t j = 0; j < n; ++j) Unit::unpack(keys_ + (first - key + j) * units_, k + j * k_.k_slot, size_);
    });
    const int padded = (count + kKeyStep - 1) / kKeyStep * kKeyStep;
    std::memset(keys_ + ptrdiff_t(count) * units_, 0, sizeof(float) * (padded - count) * units_);
  }

  void step(int kv, const Tile& t, int64_t key, int count, float* sums) {
    const bool all = t.least >= key + count - 1 && count % kKeyStep == 0;  // every query sees every key
    switch (t.vectors) {
      case 1: return all ? add<1, true>(kv, t, key, count, sums) : add<1, false>(kv, t, key, count, sums);
      case 2: return all ? add<2, true>(kv, t, key, count, sums) : add<2, false>(kv, t, key, count, sums);
      case 3: return all ? add<3, true>(kv, t, key, count, sums) : add<3, false>(kv, t, key, count, sums);
      default: return all ? add<4, true>(kv, t, key, count, sums) : add<4, false>(kv, t, key, count, sums);
    }
  }

  // Adds the shares of the packed keys, of which the first has number `key`; sums lie W * W apart.
  template <int R, bool All>
  void add(int kv, const Tile& t, int64_t key, int count, float* sums) const {
    constexpr int U = unroll<Simd, R>();
    const int units = Size ? Size / Unit::kPer : units_;
    const Vec scale = Simd::set1(a_.scale * 1.44269504088896341f);  // base 2
    Vec sum[R], lse2[R], seen[R];
    for (int r = 0; r < R; ++r) {
      sum[r] = Simd::load(sums + r * W * W);
      lse2[r] = Simd::load(lse2_ + (kv * vectors_ + t.first + r) * W);
      if (!All) seen[r] = keys_seen(t.first + r, key, count);
    }
    for (int j = 0; j < count; j += U) {
      Vec acc[U][R];
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[u][r] = Simd::zero();
      accumulate<Simd, Unit::kPairs, U, R>(acc, keys_ + ptrdiff_t(j) * units, units, 1, queries_of(kv, t), units);
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          Vec share = Simd::exp2(Simd::sub(Simd::mul(acc[u][r], scale), lse2[r]));
          if (!All) share = Simd::select_ge(seen[r], Simd::set1(static_cast<float>(j + u + 1)), share, Simd::zero());
          sum[r] = Simd::add(sum[r], share);
        }
    }
    for (int r = 0; r < R; ++r) Simd::store(sums + r * W * W, sum[r]);
  }

  // How many of the packed keys each query of a vector sees.
  Vec keys_seen(int64_t vector, int64_t key, int count) const {
    alignas(64) float seen[W];
    for (int lane = 0; lane < W; ++lane)
      seen[lane] = static_cast<float>(most<int64_t>(0, least<int64_t>(count, positions_[vector * W + lane] + 1 - key)));
    return Simd::load(seen);
  }

  // Results of one vector for blocks [block, block + count).
  void write(int kv, int64_t vector, int64_t block, int count) const {
    Vec tile[W];
    for (int i = 0; i < W; ++i) tile[i] = i < count ? Simd::load(sums_of(kv, vector, i)) : Simd::zero();
    Simd::transpose(tile);
    for (int lane = 0; lane < W && vector * W + lane < rows_; ++lane) {
      float* const to = a_.out + head(kv, vector * W + lane) * k_.blocks() + block;
      alignas(64) float blocks[W];
      Simd::store(count == W ? to : blocks, tile[lane]);
      if (count < W) std::memcpy(to, blocks, sizeof(float) * count);
    }
  }

  const BlockMass& a_;
  const BlockKeys& k_;
  const int size_, units_, group_;
  const int64_t rows_, vectors_, tiles_;  // per KV head
  int64_t* positions_;                    // [rows]
  float *q_, *sums_, *lse2_, *keys_;  // [kv_heads][tiles][units][vectors][W], [kv_heads][vectors][W blocks][W], ...
};

template <class Simd>
void block_mass(const BlockMass& a) {
  if (a.queries == 0 || a.keys.length == 0) return;
  if (a.keys.dtype == DType::kBFloat16) {
    if (a.keys.head_size == 64) return Mass<Simd, BFloat16, 64>::run(a);
    if (a.keys.head_size == 128) return Mass<Simd, BFloat16, 128>::run(a);
    return Mass<Simd, BFloat16, 0>::run(a);
  }
  if (a.keys.head_size == 64) return Mass<Simd, float, 64>::run(a);
  if (a.keys.head_size == 128) return Mass<Simd, float, 128>::run(a);
  return Mass<Simd, float, 0>::run(a);
}

}  // namespace
}  // namespace smartgen
