// The small per-layer operators between the matrix products of a Llama-like layer.
//
// Numerics follow SGLang's forward_native: fp32 inside, and one rounding to the element type at each place
// where a separate torch operator would have stored its result.
#pragma once

#include <cmath>

#include "smartgen/element.h"
#include "smartgen/items.h"
#include "smartgen/kernels.h"

namespace smartgen {
namespace {

template <class Simd, class T>
void rms_norm_row(const RmsNorm& a, int64_t row) {
  using Vec = typename Simd::Vec;
  using E = Element<Simd, T>;
  constexpr int W = Simd::kWidth;
  const T* const x = static_cast<const T*>(a.x) + row * a.x_row;
  T* const residual = a.residual ? static_cast<T*>(a.residual) + row * a.residual_row : nullptr;
  T* const out = static_cast<T*>(a.out) + row * a.out_row;
  const T* const weight = static_cast<const T*>(a.weight);
  const int64_t whole = a.width / W * W;

  Vec squares[2] = {Simd::zero(), Simd::zero()};
  float rest = 0.0f;
  for (int64_t d = 0; d < whole; d += W) {
    Vec v = E::load(x + d);
    if (residual) v = Simd::add(v, E::load(residual + d));
    Vec& sum = squares[d / W % 2];
    sum = Simd::fma(v, v, sum);
  }
  for (int64_t d = whole; d < a.width; ++d) {
    const float v = to_float(x[d]) + (residual ? to_float(residual[d]) : 0.0f);
    rest += v * v;
  }
  const float mean = (Simd::sum(Simd::add(squares[0], squares[1])) + rest) / static_cast<float>(a.width);
  const float inverse = 1.0f / ::sqrtf(mean + a.eps);

  for (int64_t d = 0; d < whole; d += W) {
    Vec v = E::load(x + d);
    if (residual) {
      v = Simd::add(v, E::load(residual + d));
      E::store(residual + d, v);
    }
    E::store(out + d, Simd::mul(Simd::mul(v, Simd::set1(inverse)), E::load(weight + d)));
  }
  for (int64_t d = whole; d < a.width; ++d) {
    const float v = to_float(x[d]) + (residual ? to_float(residual[d]) : 0.0f);
    if (residual) from_float(residual + d, v);
    from_float(out + d, v * inverse * to_float(weight[d]));
  }
}

template <class Simd, class T>
void silu_and_mul_row(const SiluAndMul& a, int64_t row) {
  using Vec = typename Simd::Vec;
  using E = Element<Simd, T>;
  constexpr int W = Simd::kWidth;
  const T* const gate = static_cast<const T*>(a.x) + row * a.x_row;
  const T* const up = gate + a.width;
  T* const out = static_cast<T*>(a.out) + row * a.out_row;
  const int64_t whole = a.width / W * W;
  const Vec one = Simd::set1(1.0f), minus_log2e = Simd::set1(-1.44269504088896341f);
  for (int64_t d = 0; d < whole; d += W) {
    const Vec g = E::load(gate + d);
    const Vec silu = Simd::div(g, Simd::add(one, Simd::exp2(Simd::mul(g, minus_log2e))));
    E::store(out + d, Simd::mul(E::round(silu), E::load(up + d)));
  }
  for (int64_t d = whole; d < a.width; ++d) {
    const float g = to_float(gate[d]);
    from_float(out + d, rounded<T>(g / (1.0f + ::expf(-g))) * to_float(up[d]));
  }
}

// x1' = x1 cos - x2 sin, x2' = x2 cos + x1 sin; every product and sum is rounded to T, as torch does it.
template <class T>
void rotate(T* x1, T* x2, float cos, float sin) {
  const float a = to_float(*x1), b = to_float(*x2);
  from_float(x1, rounded<T>(a * cos) - rounded<T>(b * sin));
  from_float(x2, rounded<T>(b * cos) + rounded<T>(a * sin));
}

template <class Simd, class T, class C>
void rotate_heads(const Rotary& a, T* x, int heads, const C* cos, const C* sin) {
  using Vec = typename Simd::Vec;
  using E = Element<Simd, T>;
  constexpr int W = Simd::kWidth;
  const int half = a.rotary_dim / 2;
  for (int h = 0; h < heads; ++h, x += a.head_size) {
    int d = 0;
    if (a.neox)
      for (; d + W <= half; d += W) {
        const Vec x1 = E::load(x + d), x2 = E::load(x + half + d);
        const Vec c = E::round(Element<Simd, C>::load(cos + d)), s = E::round(Element<Simd, C>::load(sin + d));
        E::store(x + d, Simd::sub(E::round(Simd::mul(x1, c)), E::round(Simd::mul(x2, s))));
        E::store(x + half + d, Simd::add(E::round(Simd::mul(x2, c)), E::round(Simd::mul(x1, s))));
      }
    for (; d < half; ++d) {
      const float c = rounded<T>(to_float(cos[d])), s = rounded<T>(to_float(sin[d]));
      rotate(a.neox ? x + d : x + 2 * d, a.neox ? x + half + d : x + 2 * d + 1, c, s);
    }
  }
}

template <class Simd, class T, class C>
void rotary_rows(const Rotary& a) {
  for_rows(a.tokens, a.threads, [&](int64_t i) {
    const C* const cos = static_cast<const C*>(a.cos_sin) + a.positions[i] * a.rotary_dim;
    rotate_heads<Simd>(a, static_cast<T*>(a.q) + i * a.q_row, a.q_heads, cos, cos + a.rotary_dim / 2);
    rotate_heads<Simd>(a, static_cast<T*>(a.k) + i * a.k_row, a.k_heads, cos, cos + a.rotary_dim / 2);
  });
}

template <class Simd>
void rms_norm(const RmsNorm& a) {
  for_rows(a.tokens, a.threads, [&](int64_t i) {
    if (a.dtype == DType::kBFloat16)
      rms_norm_row<Simd, BFloat16>(a, i);
    else
      rms_norm_row<Simd, float>(a, i);
  });
}

template <class Simd>
void silu_and_mul(const SiluAndMul& a) {
  for_rows(a.tokens, a.threads, [&](int64_t i) {
    if (a.dtype == DType::kBFloat16)
      silu_and_mul_row<Simd, BFloat16>(a, i);
    else
      silu_and_mul_row<Simd, float>(a, i);
  });
}

template <class Simd>
void rotary(const Rotary& a) {
  const bool wide = a.cache_dtype == DType::kFloat32;
  if (a.dtype == DType::kBFloat16)
    wide ? rotary_rows<Simd, BFloat16, float>(a) : rotary_rows<Simd, BFloat16, BFloat16>(a);
  else
    wide ? rotary_rows<Simd, float, float>(a) : rotary_rows<Simd, float, BFloat16>(a);
}

}  // namespace
}  // namespace smartgen
