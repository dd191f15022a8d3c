// Loops that show the limits of the machine: multiply-adds that wait for nothing, and memory read in order.
#pragma once

#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

// Does `rounds` times twelve independent multiply-adds on whole vectors; returns the floating-point
// operations done. Twelve are enough to hide the latency and few enough for the registers.
template <class C> double multiply_add_loop(int64_t rounds) {
    Vec<C> a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, a6{}, a7{}, a8{}, a9{}, a10{}, a11{};
    const Vec<C> x = opaque(broadcast(C(0.999))), y = opaque(broadcast(C(0.001)));
    for (int64_t i = 0; i < rounds; ++i) {
        const auto step = [&](Vec<C>& a) { a = opaque(a * x + y); };
        step(a0), step(a1), step(a2), step(a3), step(a4), step(a5);
        step(a6), step(a7), step(a8), step(a9), step(a10), step(a11);
    }
    const Vec<C> all = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
    return all[0] < C(-1) ? 0.0 : double(rounds) * 12 * 2 * kWidth<C>;
}

inline float sum_all(const float* data, int64_t n) {
    constexpr int W = kWidth<float>;
    Vec<float> a{}, b{}, c{}, d{};
    for (int64_t i = 0; i + 4 * W <= n; i += 4 * W) {
        a += load(data + i);
        b += load(data + i + W);
        c += load(data + i + 2 * W);
        d += load(data + i + 3 * W);
    }
    return sum<float>(a + b + c + d);
}

}  // namespace limelight::LIMELIGHT_ISA
