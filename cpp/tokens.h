// Steps of a model on single tokens, between its matrices: the root-mean-square norm and the rotation by position.
#pragma once

#include <cmath>

#include "rows.h"
#include "thread_pool.h"

namespace limelight::LIMELIGHT_ISA {

// f(token) for every token; `cost` is about how many multiplications one takes.
template <class F> void for_each_token(int64_t tokens, double cost, int threads, F&& f) {
    const int64_t together = max(1, min(tokens, int64_t(kWorthAThread / 16 / cost)));
    if (tokens * cost < kWorthAThread) threads = 1;
    parallel(ceil_div(tokens, together), threads, 0, [&](int64_t task, char*) {
        for (int64_t i = task * together; i < min((task + 1) * together, tokens); ++i) f(i);
    });
}

// Σ x² in four vectors, whose order depends on the width alone.
template <class C, class E> C sum_of_squares(const E* x, int64_t D) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[4] = {};
    int64_t d = 0;
    for (; d + 4 * W <= D; d += 4 * W)
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) {
            const Vec<C> y = load_as<C>(x + d + u * W);
            acc[u] += y * y;
        }
    C total = sum<C>((acc[0] + acc[1]) + (acc[2] + acc[3]));
    for (; d < D; ++d) total += C(widen(x[d])) * C(widen(x[d]));
    return total;
}

// out = x / √(mean(x²) + eps) ∘ weight.
template <class C> void rms_norm(const RmsNorm& n, int threads) {
    with_readable_type<C>(n.type, [&](auto e) {
        using E = decltype(e);
        const E *x = reinterpret_cast<const E*>(n.x), *weight = reinterpret_cast<const E*>(n.weight);
        E* out = reinterpret_cast<E*>(n.out);
        for_each_token(n.rows, 4.0 * n.D, threads, [&](int64_t i) {
            const E* row = x + i * n.D;
            const C factor = 1 / std::sqrt(sum_of_squares<C>(row, n.D) / C(n.D) + C(n.eps));
            for (int64_t d = 0; d < n.D; ++d)
                out[i * n.D + d] = narrow<E>(C(widen(row[d])) * factor * (weight ? C(widen(weight[d])) : C(1)));
        });
    });
}

// (a, b) becomes (a cos − b sin, b cos + a sin) for each pair of features; those after `width` are copied.
template <class C, class E, bool interleaved>
LIMELIGHT_INLINE void rotate_row(const E* x, const E* cos, const E* sin, int64_t width, int64_t D, E* out) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; ++i) {
        const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
        const C a = C(widen(x[first])), b = C(widen(x[second])), c = C(widen(cos[i])), s = C(widen(sin[i]));
        out[first] = narrow<E>(a * c - b * s);
        out[second] = narrow<E>(b * c + a * s);
    }
    for (int64_t d = width; d < D; ++d) out[d] = x[d];
}

template <class C> void rotate(const Rotation& r, int threads) {
    with_readable_type<C>(r.type, [&](auto e) {
        using E = decltype(e);
        double heads = 0;
        for (int i = 0; i < r.count; ++i) heads += double(r.parts[i].heads);
        for_each_token(r.B * r.N, 4.0 * heads * r.D, threads, [&](int64_t token) {
            const int64_t b = token / r.N, n = token % r.N, angle = b * r.angle_batch + n * (r.width / 2);
            const E *cos = reinterpret_cast<const E*>(r.cos) + angle, *sin = reinterpret_cast<const E*>(r.sin) + angle;
            for (int i = 0; i < r.count; ++i)
                for (int64_t h = 0; h < r.parts[i].heads; ++h) {
                    const E* x = reinterpret_cast<const E*>(address(r.parts[i].x, b, h, n));
                    E* out = reinterpret_cast<E*>(address(r.parts[i].out, b, h, n));
                    if (r.interleaved) rotate_row<C, E, true>(x, cos, sin, r.width, r.D, out);
                    else rotate_row<C, E, false>(x, cos, sin, r.width, r.D, out);
                }
        });
    });
}

}  // namespace limelight::LIMELIGHT_ISA
