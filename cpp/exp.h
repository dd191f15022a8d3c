// 2ˣ and tanh on vectors, to about one unit in the last place.
#pragma once

#include <cmath>

#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

// 2ˣ = 2ⁿ · 2ᶠ with n = round(x), |f| ≤ 1/2. Adding `magic` rounds x to an integer and leaves
// n + bias in the low mantissa bits, ready to be shifted into an exponent. x is at most slightly
// above 0 here; below the smallest exponent the result is exactly 0, and NaN stays NaN.
LIMELIGHT_INLINE Vec<float> exp2(Vec<float> x) {
    constexpr float magic = 0x1.8p23f + 127;
    x = x < -127.0f ? broadcast(-127.0f) : x;
    const Vec<float> shifted = x + magic;
    const Vec<float> f = x - (shifted - magic);
    Vec<float> p = broadcast(0.00132647273f);
    p = p * f + 0.00967151299f;
    p = p * f + 0.0555073358f;
    p = p * f + 0.240222424f;
    p = p * f + 0.693147004f;
    p = p * f + 1.0f;
    return p * (Vec<float>)((IntVec<float>)shifted << 23);
}

LIMELIGHT_INLINE Vec<double> exp2(Vec<double> x) {
    constexpr double magic = 0x1.8p52 + 1023;
    x = x < -1023.0 ? broadcast(-1023.0) : x;
    const Vec<double> shifted = x + magic;
    const Vec<double> f = (x - (shifted - magic)) * 0.6931471805599453094;
    // eᶠ by its Taylor series: |f| ≤ 0.347, so the term after the last is below 2⁻⁵⁴.
    Vec<double> p = broadcast(1.0 / 6227020800);
    p = p * f + 1.0 / 479001600;
    p = p * f + 1.0 / 39916800;
    p = p * f + 1.0 / 3628800;
    p = p * f + 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1.0;
    p = p * f + 1.0;
    return p * (Vec<double>)((IntVec<double>)shifted << 52);
}

// Near 0 an odd polynomial, further out 1 − 2 / (e²ˣ + 1), which would lose digits near 0.
LIMELIGHT_INLINE Vec<float> tanh(Vec<float> x) {
    const Vec<float> a = x < 0.0f ? -x : x;
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
