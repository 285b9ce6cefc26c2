// Four fp32 lanes in the vector extension that GCC and Clang share: SSE2 on x86-64, NEON on aarch64.
// Same functions as simd_avx512.h, see there for their meaning.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "smartgen/exp2.h"

namespace smartgen {
namespace {

struct Portable {
  typedef float Vec __attribute__((vector_size(16)));
  typedef int32_t Int __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;
  static constexpr bool kDotPairs = false;
  static constexpr bool kHalfVectors = false;

  static Vec zero() { return Vec{}; }
  static Vec set1(float x) { return Vec{x, x, x, x}; }
  static Vec load(const void* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Vec load_halves(const void* low, const void* high) {
    Vec v;
    std::memcpy(&v, low, sizeof v / 2);
    std::memcpy(reinterpret_cast<char*>(&v) + sizeof v / 2, high, sizeof v / 2);
    return v;
  }
  static void store(void* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  static Vec broadcast(const void* p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return set1(x);
  }

  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec div(Vec a, Vec b) { return a / b; }
  static Vec fma(Vec a, Vec b, Vec c) {
#ifdef __aarch64__
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
  }
  static Vec select(Int mask, Vec x, Vec y) { return (Vec)((mask & (Int)x) | (~mask & (Int)y)); }
  static Vec max(Vec a, Vec b) { return select(a > b, a, b); }
  static Vec min(Vec a, Vec b) { return select(a < b, a, b); }
  static bool any_greater(Vec a, Vec b) {
    const Int m = a > b;
    return (m[0] | m[1] | m[2] | m[3]) != 0;
  }
  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) { return select(a >= b, x, y); }
  static float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float highest(Vec v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }

  static Vec exp2(Vec x) {
    const Vec magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Vec c = select(x > set1(127.99999f), set1(127.99999f), select(x < set1(-127.0f), set1(-127.0f), x));
    const Vec rounded = (c + magic) - magic;
    const Vec n = select(rounded > c, rounded - set1(1.0f), rounded);
    const Vec f = c - n;
    Vec p = set1(kExp2[5]);
    p = fma(p, f, set1(kExp2[4]));
    p = fma(p, f, set1(kExp2[3]));
    p = fma(p, f, set1(kExp2[2]));
    p = fma(p, f, set1(kExp2[1]));
    p = fma(p, f, set1(1.0f));
    const Int whole = (Int)(n + magic) - (Int)magic;
    const Vec y = (Vec)((Bits)p + ((Bits)whole << 23));
    return select(x != x, x, select(x < set1(-126.0f), zero(), y));
  }

  static void split(Vec x, Vec& m, Vec& exponent) {
    m = (Vec)(((Bits)x & 0x007fffffu) | 0x3f800000u);
    exponent = __builtin_convertvector((Int)((Bits)x >> 23) - 127, Vec);
  }

  static Vec load_bf16(const void* p) {
    uint16_t h[4];
    std::memcpy(h, p, sizeof h);
    const Bits bits = {h[0], h[1], h[2], h[3]};
    return (Vec)(bits << 16);
  }
  static Bits rounded_bits(Vec v) {
    const Bits bits = (Bits)v;
    const Bits up = bits + ((bits >> 16) & 1u) + 0x7fffu;
    const Bits nan = (Bits)(v != v);
    return (nan & 0x7fc00000u) | (~nan & up);
  }
  static void store_bf16(void* p, Vec v) {
    const Bits bits = rounded_bits(v) >> 16;
    const uint16_t h[4] = {uint16_t(bits[0]), uint16_t(bits[1]), uint16_t(bits[2]), uint16_t(bits[3])};
    std::memcpy(p, h, sizeof h);
  }
  static Vec round_bf16(Vec v) { return (Vec)(rounded_bits(v) & 0xffff0000u); }
  static Vec low_halves(Vec pairs) { return (Vec)((Bits)pairs << 16); }
  static Vec high_halves(Vec pairs) { return (Vec)((Bits)pairs & 0xffff0000u); }

  static void transpose(Vec (&r)[kWidth]) {
    const Vec a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    const Vec b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    const Vec c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const Vec d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
  }
  static Vec sum_halves(Vec (&r)[kWidth / 2]) {
    return __builtin_shufflevector(r[0], r[1], 0, 4, 2, 6) + __builtin_shufflevector(r[0], r[1], 1, 5, 3, 7);
  }
};

}  // namespace
}  // namespace smartgen
