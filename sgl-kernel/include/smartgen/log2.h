// Base-2 logarithm by lanes.
#pragma once

namespace smartgen {
namespace {

// Of lanes >= 0: -inf for 0, NaN for NaN and infinity, exact for powers of two, otherwise off by about 1e-7.
template <class Simd>
inline typename Simd::Vec log2_of(typename Simd::Vec x) {
  using Vec = typename Simd::Vec;
  const Vec one = Simd::set1(1.0f), root = Simd::set1(1.41421356f);
  Vec m, exponent;
  Simd::split(x, m, exponent);
  exponent = Simd::select_ge(m, root, Simd::add(exponent, one), exponent);
  m = Simd::select_ge(m, root, Simd::mul(m, Simd::set1(0.5f)), m);
  // log2(m) = 2 / ln 2 * atanh(z) with |z| < 0.172: the first term left out is below 5e-8.
  const Vec z = Simd::div(Simd::sub(m, one), Simd::add(m, one)), zz = Simd::mul(z, z);
  Vec p = Simd::fma(zz, Simd::set1(1.0f / 7), Simd::set1(1.0f / 5));
  p = Simd::fma(p, zz, Simd::set1(1.0f / 3));
  p = Simd::fma(p, zz, one);
  const Vec y = Simd::fma(Simd::mul(z, Simd::set1(2.88539008f)), p, exponent);
  return Simd::add(Simd::select_ge(Simd::zero(), x, Simd::set1(-__builtin_inff()), y), Simd::sub(x, x));
}

}  // namespace
}  // namespace smartgen
