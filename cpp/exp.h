// 2ˣ and tanh on vectors, to about one unit in the last place.
#pragma once

#include <cmath>

#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64

// 2ˣ = 2^(n / 16) · 2ᶠ with n = round(16 x), |f| ≤ 1/32. Adding `magic` rounds x to sixteenths and leaves n in the low mantissa
// bits, of which the last four choose a number of the table. Shifted to the exponent, n brings these four along as
// the first bits of the mantissa, so the table has the bits of 2^(i / 16) minus i in that place. Compared with a polynomial for
// |f| ≤ 1/2 this takes fewer instructions and, for floats, three quarters of the time until the result is known: the processor
// overlaps few exponentials.
//
// x is at most slightly above 0 here. Below the smallest normal number the result is 0: a multiply-add with a subnormal number
// takes an Intel processor 200 times as long as with others. NaN stays NaN. The last multiply-add is one instruction by name: at
// low levels of optimisation compilers make two, of which the first gives 0 where 2^(n / 16) is as small as that.
alignas(64) constexpr int32_t kPowers[16] = {0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532,
                                             0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                                             0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};

LIMELIGHT_INLINE Vec<float> exp2(Vec<float> x) {
    constexpr float magic = 0x1.8p19f;
    const Vec<float> shifted = x + magic;
    const Vec<float> f = x - (shifted - magic);
    Vec<float> p = f * 0.0555021353f + 0.240234286f;  // 2ᶠ − 1: minimax of degree 3, with an error of 2e-9
    p = (p * f + 0.693147182f) * f;
    const __m512i n = (__m512i)shifted, power = _mm512_permutexvar_epi32(n, _mm512_load_si512(kPowers));
    const Vec<float> t = (Vec<float>)_mm512_add_epi32(power, _mm512_slli_epi32(n, 19));
    const Vec<float> y = (Vec<float>)_mm512_fmadd_ps((__m512)t, (__m512)p, (__m512)t);
    return x < opaque(broadcast(-126.0f)) ? Vec<float>{} : y;
}

alignas(64) constexpr int64_t kWidePowers[16] = {
    0x3ff0000000000000, 0x3fefb5586cf9890f, 0x3fef72b83c7d517b, 0x3fef387a6e756238,
    0x3fef06fe0a31b715, 0x3feedea64c123422, 0x3feebfdad5362a27, 0x3feeab07dd485429,
    0x3feea09e667f3bcd, 0x3feea11473eb0187, 0x3feeace5422aa0db, 0x3feec49182a3f090,
    0x3feee89f995ad3ad, 0x3fef199bdd85529c, 0x3fef5818dcfba487, 0x3fefa4afa2a490da};

LIMELIGHT_INLINE Vec<double> exp2(Vec<double> x) {
    constexpr double magic = 0x1.8p48;
    const Vec<double> shifted = x + magic;
    const Vec<double> f = x - (shifted - magic);
    Vec<double> p = f * 0.0001540341887339821 + 0.0013333818703168264;  // minimax of degree 6, with an error of 7e-18
    p = p * f + 0.009618129111151459;
    p = p * f + 0.055504108652108844;
    p = p * f + 0.24022650695909943;
    p = (p * f + 0.6931471805599469) * f;
    const __m512i n = (__m512i)shifted, low = _mm512_load_si512(kWidePowers), high = _mm512_load_si512(kWidePowers + 8);
    const __m512i power = _mm512_permutex2var_epi64(low, n, high);
    const Vec<double> t = (Vec<double>)_mm512_add_epi64(power, _mm512_slli_epi64(n, 48));
    const Vec<double> y = (Vec<double>)_mm512_fmadd_pd((__m512d)t, (__m512d)p, (__m512d)t);
    return x < opaque(broadcast(-1022.0)) ? Vec<double>{} : y;
}

#else

// 2ˣ = 2ⁿ⁻¹ · 2 · 2ᶠ with n = round(x), |f| ≤ 1/2. Adding `magic` rounds x to an integer and leaves n − 1 + bias in the low
// mantissa bits, ready to be shifted into an exponent. x is at most slightly above 0 here. For the lowest n that exponent
// is 0, which makes the result exactly 0: it would be a subnormal number, with which a multiply-add takes an Intel
// processor 200 times as long as with others. NaN stays NaN.
LIMELIGHT_INLINE Vec<float> exp2(Vec<float> x) {
    constexpr float magic = 0x1.8p23f + 126;
    x = larger(opaque(broadcast(-126.0f)), x);
    const Vec<float> shifted = x + magic;
    const Vec<float> f = x - (shifted - magic);
    // Minimax of degree 6 for relative error, with 2⁰ exact, times 2. Its error, 2e-9, is far below the rounding of the result:
    // degree 5 (9e-8) would show in rows with few keys. Horner's rule takes the fewest instructions.
    Vec<float> p = f * (2 * 0.00015353362f) + 2 * 0.0013398874f;
    p = p * f + 2 * 0.0096184369f;
    p = p * f + 2 * 0.0555033237f;
    p = p * f + 2 * 0.2402264774f;
    p = p * f + 2 * 0.6931471825f;
    p = p * f + 2.0f;
    return p * (Vec<float>)((IntVec<float>)shifted << 23);
}

LIMELIGHT_INLINE Vec<double> exp2(Vec<double> x) {
    constexpr double magic = 0x1.8p52 + 1022;
    x = larger(opaque(broadcast(-1022.0)), x);
    const Vec<double> shifted = x + magic;
    const Vec<double> f = x - (shifted - magic);
    // Chebyshev approximation of degree 11 (error 5e-18), in pairs and pairs of pairs.
    const Vec<double> f2 = f * f, f4 = f2 * f2;
    const Vec<double> p0 = f * 0.6931471805599453 + 1.0;
    const Vec<double> p1 = f * 0.055504108664821625 + 0.24022650695910158;
    const Vec<double> p2 = f * 0.001333355814640647 + 0.009618129107587256;
    const Vec<double> p3 = f * 1.5252733841556773e-05 + 0.00015403530463724353;
    const Vec<double> p4 = f * 1.0178057087733941e-07 + 1.3215432535912375e-06;
    const Vec<double> p5 = f * 4.4558179083360645e-10 + 7.074194297288521e-09;
    const Vec<double> p = ((p5 * f2 + p4) * f4 + (p3 * f2 + p2)) * f4 + (p1 * f2 + p0);
    return 2 * p * (Vec<double>)((IntVec<double>)shifted << 52);
}

#endif

// Near 0 an odd polynomial, further out 1 − 2 / (e²ˣ + 1), which would lose digits near 0.
LIMELIGHT_INLINE Vec<float> tanh(Vec<float> x) {
    const Vec<float> a = magnitude<float>(x);
    const Vec<float> far = 1.0f - 2.0f * exp2(a * -2.8853901f) / (1.0f + exp2(a * -2.8853901f));
    const Vec<float> z = x * x;
    Vec<float> p = broadcast(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const Vec<float> near = x + x * z * p;
    return a < 0.625f ? near : (x < 0.0f ? -far : far);
}

LIMELIGHT_INLINE Vec<double> tanh(Vec<double> x) {
    for (int i = 0; i < kWidth<double>; ++i) x[i] = std::tanh(x[i]);
    return x;
}

}  // namespace limelight::LIMELIGHT_ISA
