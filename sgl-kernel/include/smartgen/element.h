// How a tensor element type is read into fp32 lanes and written back.
#pragma once

#include <cstdint>

namespace smartgen {
namespace {

struct BFloat16 {
  uint16_t bits;
};

template <class Simd, class T>
struct Element;

template <class Simd>
struct Element<Simd, float> {
  static typename Simd::Vec load(const float* p) { return Simd::load(p); }
  static void store(float* p, typename Simd::Vec v) { Simd::store(p, v); }
  static typename Simd::Vec round(typename Simd::Vec v) { return v; }
};

template <class Simd>
struct Element<Simd, BFloat16> {
  static typename Simd::Vec load(const BFloat16* p) { return Simd::load_bf16(p); }
  static void store(BFloat16* p, typename Simd::Vec v) { Simd::store_bf16(p, v); }
  static typename Simd::Vec round(typename Simd::Vec v) { return Simd::round_bf16(v); }
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}
inline void from_float(float* p, float x) { *p = x; }
inline void from_float(BFloat16* p, float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = x != x ? 0x7fc00000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  p->bits = static_cast<uint16_t>(bits >> 16);
}
template <class T>
inline float rounded(float x) {
  T t;
  from_float(&t, x);
  return to_float(t);
}

template <class T>
constexpr T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T most(T a, T b) {
  return a < b ? b : a;
}

}  // namespace
}  // namespace smartgen
