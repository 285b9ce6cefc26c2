// Sixteen fp32 lanes on AVX-512 (F, BW, DQ, VL), with or without the BF16 dot product.
//
// Owns nothing but instruction choice: every SIMD header offers the same static functions, and the kernels
// are written once against them.  All of it lives in an anonymous namespace, because the same templates are
// compiled for several instruction sets and the linker must never merge them.
#pragma once

// GCC 12 warns about the undefined operands inside its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "smartgen/exp2.h"

namespace smartgen {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;
  static constexpr bool kDotPairs = false;
  static constexpr bool kHalfVectors = true;  // rows may end in half a vector (head size 80)

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec load(const void* p) { return _mm512_loadu_ps(p); }
  static Vec load_half(const void* p) { return _mm512_zextps256_ps512(_mm256_loadu_ps(static_cast<const float*>(p))); }
  // Half a vector from each address.
  static Vec load_halves(const void* low, const void* high) {
    return _mm512_insertf32x8(load_half(low), _mm256_loadu_ps(static_cast<const float*>(high)), 1);
  }
  static void store(void* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec broadcast(const void* p) { return _mm512_set1_ps(*static_cast<const float*>(p)); }

  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where one is NaN, as min
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  // a >= b ? x : y, lane by lane
  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
  }
  // Not the library's reductions, which go through intrinsics that GCC 12 warns about.
  static __m256 upper(Vec v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 1); }
  static float sum(Vec v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), upper(v));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float highest(Vec v) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), upper(v));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  // 2^x; exact for whole x, NaN stays NaN, -inf gives 0.
  static Vec exp2(Vec x) {
    const Vec f = _mm512_reduce_ps(x, 0x09);  // x - floor(x); 0 for infinities
    Vec p = set1(kExp2[5]);
    p = fma(p, f, set1(kExp2[4]));
    p = fma(p, f, set1(kExp2[3]));
    p = fma(p, f, set1(kExp2[2]));
    p = fma(p, f, set1(kExp2[1]));
    p = fma(p, f, set1(1.0f));
    return _mm512_scalef_ps(p, x);
  }

  // x = m * 2^exponent with m in [1, 2), for normal x > 0.
  static void split(Vec x, Vec& m, Vec& exponent) {
    m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
    exponent = _mm512_getexp_ps(x);
  }

  // bf16 <-> fp32.  Rounding is to nearest even, NaN becomes the quiet NaN, as in torch.
  static Vec load_bf16(const void* p) {
    const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static __m512i rounded_bits(Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
  }
  static void store_bf16(void* p, Vec v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(v), 16)));
  }
  static Vec round_bf16(Vec v) {
    return _mm512_castsi512_ps(_mm512_and_si512(rounded_bits(v), _mm512_set1_epi32(int32_t(0xffff0000u))));
  }
  // A vector of bf16 pairs as the fp32 values of its low and of its high halves.
  static Vec low_halves(Vec pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
  static Vec high_halves(Vec pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(int32_t(0xffff0000u))));
  }

  // Lane i becomes the sum over the lower half of r[i], lane i + kWidth / 2 that over the upper half; r is used up.
  static Vec sum_halves(Vec (&r)[kWidth / 2]) {
    for (int i = 0; i < 4; ++i) r[i] = fold<0xf0f0, 4>(r[i], r[i + 4]);
    for (int i = 0; i < 2; ++i) r[i] = fold<0xcccc, 2>(r[i], r[i + 2]);
    return fold<0xaaaa, 1>(r[0], r[1]);
  }
  // a + (a moved by Distance lanes) where Upper is clear, the same of b where it is set.
  template <int Upper, int Distance>
  static Vec fold(Vec a, Vec b) {
    const Vec kept = _mm512_mask_blend_ps(Upper, a, b), other = _mm512_mask_blend_ps(Upper, b, a);
    if constexpr (Distance == 4) return add(kept, _mm512_shuffle_f32x4(other, other, 0xb1));
    if constexpr (Distance == 2) return add(kept, _mm512_permute_ps(other, 0x4e));
    return add(kept, _mm512_permute_ps(other, 0xb1));
  }

  // In-register transpose of a 16 x 16 tile of 32-bit lanes.
  static void transpose(Vec (&r)[kWidth]) {
    Vec t[kWidth];
    for (int i = 0; i < 16; i += 4) {
      const Vec a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
      const Vec c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
      t[i] = _mm512_shuffle_ps(a, c, 0x44);
      t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      const Vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
      const Vec c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
      const Vec d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

#ifdef __AVX512BF16__
struct Avx512Bf16 : Avx512 {
  static constexpr bool kDotPairs = true;

  // acc + a.low * b.low + a.high * b.high in every 32-bit lane
  static Vec dot_pairs(Vec acc, Vec a, Vec b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
  // Lane i becomes the pair (low[i], high[i]) rounded to bf16.
  static Vec make_pairs(Vec low, Vec high) {
    const __m512i half = _mm512_set1_epi32(0x8000);  // probabilities: round half up, ties do not matter
    const __m512i lo = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(low), half), 16);
    const __m512i hi = _mm512_add_epi32(_mm512_castps_si512(high), half);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, lo, hi));
  }
  // Elements 32 at a time of two rows of bf16, paired up but in the order that costs one instruction each;
  // in_order() restores the order of the sums.
  static Vec first_pairs(Vec even, Vec odd) {
    return _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512(even), _mm512_castps_si512(odd)));
  }
  static Vec second_pairs(Vec even, Vec odd) {
    return _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512(even), _mm512_castps_si512(odd)));
  }
  static void in_order(Vec& first, Vec& second) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const Vec a = first, b = second;
    first = _mm512_permutex2var_ps(a, low, b);
    second = _mm512_permutex2var_ps(a, high, b);
  }
  // to[d] = the pair (even[d], odd[d]) of bf16 values, d < size; a null odd row counts as zeros.
  static void interleave(float* to, const void* even, const void* odd, int size) {
    for (int d = 0; d < size; d += kWidth) {
      const Vec lo = load_bf16(static_cast<const uint16_t*>(even) + d);
      const Vec hi = odd ? load_bf16(static_cast<const uint16_t*>(odd) + d) : zero();
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(lo), 16);
      store(to + d, _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(hi))));
    }
  }
};
#endif

}  // namespace
}  // namespace smartgen
