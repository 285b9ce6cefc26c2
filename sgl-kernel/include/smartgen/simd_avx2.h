// Eight fp32 lanes on AVX2 with FMA.  Same functions as simd_avx512.h, see there for their meaning.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "smartgen/exp2.h"

namespace smartgen {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kRegisters = 16;
  static constexpr bool kDotPairs = false;
  static constexpr bool kHalfVectors = false;  // 16 bf16 values fill one vector of pairs

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static Vec load_halves(const void* low, const void* high) {
    const __m128 first = _mm_loadu_ps(static_cast<const float*>(low));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(first), _mm_loadu_ps(static_cast<const float*>(high)), 1);
  }
  static void store(void* p, Vec v) { _mm256_storeu_ps(static_cast<float*>(p), v); }
  static Vec broadcast(const void* p) { return _mm256_broadcast_ss(static_cast<const float*>(p)); }

  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
  static float sum(Vec v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float highest(Vec v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static Vec exp2(Vec x) {
    const Vec top = set1(127.99999f);
    const Vec c = _mm256_min_ps(top, x);  // this operand order keeps a NaN in x
    const Vec n = _mm256_floor_ps(c);
    const Vec f = sub(c, n);
    Vec p = set1(kExp2[5]);
    p = fma(p, f, set1(kExp2[4]));
    p = fma(p, f, set1(kExp2[3]));
    p = fma(p, f, set1(kExp2[2]));
    p = fma(p, f, set1(kExp2[1]));
    p = fma(p, f, set1(1.0f));
    const __m256i scale = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const Vec y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), scale));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(-126.0f), _CMP_LT_OQ), y);  // flush what would be denormal
  }

  static void split(Vec x, Vec& m, Vec& exponent) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff));
    m = _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)));
    exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
  }

  static Vec load_bf16(const void* p) {
    const __m128i h = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static __m256i rounded_bits(Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
  }
  static void store_bf16(void* p, Vec v) {
    const __m256i h = _mm256_srli_epi32(rounded_bits(v), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static Vec round_bf16(Vec v) {
    return _mm256_castsi256_ps(_mm256_and_si256(rounded_bits(v), _mm256_set1_epi32(int32_t(0xffff0000u))));
  }
  static Vec low_halves(Vec pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16)); }
  static Vec high_halves(Vec pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(int32_t(0xffff0000u))));
  }

  static Vec sum_halves(Vec (&r)[kWidth / 2]) {
    for (int i = 0; i < 2; ++i) {
      const Vec other = _mm256_shuffle_ps(r[i], r[i + 2], 0x4e);
      r[i] = add(_mm256_blend_ps(r[i], r[i + 2], 0xcc), other);
    }
    const Vec other = _mm256_permute_ps(_mm256_blend_ps(r[1], r[0], 0xaa), 0xb1);
    return add(_mm256_blend_ps(r[0], r[1], 0xaa), other);
  }

  static void transpose(Vec (&r)[kWidth]) {
    Vec t[kWidth];
    for (int i = 0; i < 8; i += 4) {
      const Vec a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
      const Vec c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
      t[i] = _mm256_shuffle_ps(a, c, 0x44);
      t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }
};

}  // namespace
}  // namespace smartgen
