// x Wᵀ + bias for a few rows of x: reading W is the whole cost, as reading K is in decoding.
#pragma once

#include "rows.h"

namespace limelight::LIMELIGHT_ISA {

// Columns [begin, end) of the output; `x` and `scratch` are in the compute type.
template <class C> void multiply(const Linear& l, const C* x, int64_t begin, int64_t end, C* scratch) {
    constexpr int W = kWidth<C>;
    constexpr int64_t step = 32;
    const bool near = l.N * l.D * int64_t(size_of(l.type)) <= 1 << 20;
    with_element<C>(l.type, [&](auto e) {
        using E = decltype(e);
        const E *w = reinterpret_cast<const E*>(l.w), *bias = reinterpret_cast<const E*>(l.bias);
        for (int64_t j = begin; j < end; j += step) {
            const int64_t n = least(step, end - j);
            for (int64_t first = 0; first < l.rows; first += W) {  // as many rows as there are lanes
                const int64_t rows = least(l.rows - first, W);
                few_scores<C, E>(x + first * l.D, Lines<E>{w + j * l.stride, l.stride}, l.D, n, int(rows), scratch, near);
                for (int64_t r = 0; r < rows; ++r) {
                    E* to = reinterpret_cast<E*>(l.out) + (first + r) * l.N + j;
                    for (int64_t i = 0; i < n; ++i)
                        to[i] = narrow<E>(scratch[i * W + r] + (bias ? C(widen(bias[j + i])) : C(0)));
                }
            }
        }
    });
}

// Elements of scratch that this needs beside x.
template <class C> constexpr int64_t kLinearScratch = 32 * kWidth<C>;

}  // namespace limelight::LIMELIGHT_ISA
