// x Wᵀ + bias for a few rows of x: reading W is the whole cost, as reading K is in decoding.
#pragma once

#include "rows.h"
#include "thread_pool.h"

namespace limelight::LIMELIGHT_ISA {

// Columns [begin, end) of the output; `x` and `scratch` are in the compute type.
template <class C> void multiply(const Linear& l, const C* x, int64_t begin, int64_t end, C* scratch) {
    constexpr int W = kWidth<C>;
    constexpr int64_t step = 32;
    const bool in_cache = l.N * l.D * int64_t(size_of(l.type)) <= 1 << 20;
    with_readable_type<C>(l.type, [&](auto e) {
        using E = decltype(e);
        const E *w = reinterpret_cast<const E*>(l.w), *bias = reinterpret_cast<const E*>(l.bias);
        for (int64_t j = begin; j < end; j += step) {
            const int64_t n = min(step, end - j);
            for (int64_t first = 0; first < l.rows; first += W) {  // as many rows as there are lanes
                const int64_t rows = min(l.rows - first, W);
                decode_scores<C, E>(x + first * l.D, Matrix<E>{w + j * l.stride, l.stride}, l.D, n, int(rows), scratch,
                                    in_cache);
                for (int64_t r = 0; r < rows; ++r) {
                    E* to = reinterpret_cast<E*>(l.out) + (first + r) * l.N + j;
                    for (int64_t i = 0; i < n; ++i)
                        to[i] = narrow<E>(scratch[i * W + r] + (bias ? C(widen(bias[j + i])) : C(0)));
                }
            }
        }
    });
}

template <class C> void linear(const Linear& l, int threads) {
    constexpr int64_t columns = 256, panel = 32 * kWidth<C>;  // `panel` is the scratch of multiply
    if (double(l.rows) * l.N * l.D < kWorthAThread) threads = 1;
    parallel(ceil_div(l.N, columns), threads, (l.rows * l.D + panel) * sizeof(C), [&](int64_t i, char* memory) {
        C *scratch = reinterpret_cast<C*>(memory), *x = scratch + panel;
        for (int64_t r = 0; r < l.rows; ++r)
            widen_row(l.x + r * l.D * int64_t(size_of(l.type)), l.type, l.D, C(1), x + r * l.D, l.D);
        multiply(l, x, i * columns, min((i + 1) * columns, l.N), scratch);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
