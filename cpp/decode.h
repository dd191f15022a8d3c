// The two products of attention in decoding, with fewer rows than lanes: features lie in the lanes instead.
//
// Reading K and V is then the whole cost. Each is read once for up to four rows, one key after the
// other from its first feature to its last: any other order loses the machine's own prefetching and
// half of the bandwidth with it.
#pragma once

#include "half.h"

namespace limelight::LIMELIGHT_ISA {

// Rows of K or V where they lie.
template <class E> struct Matrix {
    const E* data;
    int64_t stride;

    LIMELIGHT_INLINE const E* row(int64_t j) const { return data + j * stride; }
};

// s[row] = q[row] · k for R rows.
template <class C, class E, int R> LIMELIGHT_INLINE void dot(const C* q, const E* k, int64_t D, C* s) {
    constexpr int W = kWidth<C>, U = 8 / R;  // eight sums in flight hide the latency of an addition
    Vec<C> acc[R][U] = {};
    int64_t d = 0;
    for (; d + U * W <= D; d += U * W)
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
            const Vec<C> x = load_as<C>(k + d + u * W);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) acc[r][u] += x * load(q + r * D + d + u * W);
        }
    for (; d + W <= D; d += W) {
        const Vec<C> x = load_as<C>(k + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r][0] += x * load(q + r * D + d);
    }
    Vec<C> total[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        total[r] = acc[r][0];
#pragma GCC unroll 8
        for (int u = 1; u < U; ++u) total[r] += acc[r][u];
    }
    if constexpr (R == 4 && sizeof(C) == 4) {
        const Vec<C> four = sums(total);
        std::memcpy(s, &four, 4 * sizeof(C));
    } else {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) s[r] = sum<C>(total[r]);
    }
    for (; d < D; ++d)
        for (int r = 0; r < R; ++r) s[r] += C(widen(k[d])) * q[r * D + d];
}

// s[key] = q · k[key] for four keys at once, whose sums are then folded together: cheaper than one by
// one, where K lies in a cache and the order of reading does not matter.
template <class E> LIMELIGHT_INLINE void dot_four(const float* q, Matrix<E> k, int64_t D, float* s) {
    constexpr int W = kWidth<float>;
    Vec<float> acc[4] = {}, more[4] = {};
    int64_t d = 0;
    for (; d + 2 * W <= D; d += 2 * W) {
        const Vec<float> x = load(q + d), y = load(q + d + W);
#pragma GCC unroll 4
        for (int a = 0; a < 4; ++a) {
            acc[a] += x * load_as<float>(k.row(a) + d);
            more[a] += y * load_as<float>(k.row(a) + d + W);
        }
    }
#pragma GCC unroll 4
    for (int a = 0; a < 4; ++a) acc[a] += more[a];
    const Vec<float> four = sums(acc);
#pragma GCC unroll 4
    for (int a = 0; a < 4; ++a) s[a * W] = four[a];
    for (; d < D; ++d)
        for (int a = 0; a < 4; ++a) s[a * W] += q[d] * float(widen(k.row(a)[d]));
}

// Reads one number of every line of a row, so that a pair of rows is still met in the order above.
template <class E> LIMELIGHT_INLINE void touch_lines(const E* row, int64_t n) {
    for (int64_t d = 0; d < n; d += 64 / sizeof(E)) {
        const E x = row[d];
        asm volatile("" : : "m"(x));
    }
}

// o[row] += Σ p[key][row] v[key] for R rows and K keys.
template <class C, class E, int R, int K>
LIMELIGHT_INLINE void accumulate(const C* p, Matrix<E> v, int64_t Dv, C* o) {
    constexpr int W = kWidth<C>;
    Vec<C> w[K][R];
#pragma GCC unroll 2
    for (int a = 0; a < K; ++a)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) w[a][r] = broadcast(p[a * W + r]);
    int64_t d = 0;
    for (; d + W <= Dv; d += W) {
        Vec<C> x[K];
#pragma GCC unroll 2
        for (int a = 0; a < K; ++a) x[a] = load_as<C>(v.row(a) + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            Vec<C> total = load(o + r * Dv + d);
#pragma GCC unroll 2
            for (int a = 0; a < K; ++a) total += w[a][r] * x[a];
            store(o + r * Dv + d, total);
        }
    }
    for (; d < Dv; ++d)
        for (int r = 0; r < R; ++r)
            for (int a = 0; a < K; ++a) o[r * Dv + d] += p[a * W + r] * C(widen(v.row(a)[d]));
}

// f(first row, how many as a constant) over the rows: fours, then two, then one.
template <class F> LIMELIGHT_INLINE void by_rows(int rows, F&& f) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) f(r, std::integral_constant<int, 4>{});
    if (r + 2 <= rows) f(r, std::integral_constant<int, 2>{}), r += 2;
    if (r < rows) f(r, std::integral_constant<int, 1>{});
}

// s[key][row] = q[row] · k[key]; `near` says that K lies in a cache.
template <class C, class E> void decode_scores(const C* q, Matrix<E> k, int64_t D, int64_t n, int rows, C* s,
                                               bool in_cache) {
    constexpr int W = kWidth<C>;
    by_rows(rows, [&](int r, auto R) {
        int64_t j = 0;
        if constexpr (sizeof(C) == 4)
            if constexpr (decltype(R)::value == 1)
                for (; in_cache && j + 4 <= n; j += 4) dot_four<E>(q + r * D, {k.row(j), k.stride}, D, s + j * W + r);
        for (; j < n; ++j) dot<C, E, R>(q + r * D, k.row(j), D, s + j * W + r);
    });
}

// o[row] += Σ p[key][row] v[key] for R rows whose features all fit in registers.
template <class C, class E, int R>
LIMELIGHT_INLINE void accumulate_narrow(const C* p, Matrix<E> v, int64_t n, C* o) {
    constexpr int W = kWidth<C>, F = 8 / R;
    Vec<C> acc[R][F];
#pragma GCC unroll 8
    for (int i = 0; i < R * F; ++i) acc[i / F][i % F] = load(o + i * W);
    for (int64_t j = 0; j < n; ++j)
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f) {
            const Vec<C> x = load_as<C>(v.row(j) + f * W);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) acc[r][f] += p[j * W + r] * x;
        }
#pragma GCC unroll 8
    for (int i = 0; i < R * F; ++i) store(o + i * W, acc[i / F][i % F]);
}

// o[row] = decay[row] · o[row] + Σ p[key][row] v[key]
template <class C, class E>
void decode_values(const C* p, Matrix<E> v, int64_t Dv, int64_t n, int rows, C* o, const C* decay) {
    constexpr int W = kWidth<C>;
    for (int r = 0; r < rows; ++r)
        if (decay[r] != C(1))
            for (int64_t d = 0; d < Dv; ++d) o[r * Dv + d] *= decay[r];
    by_rows(rows, [&](int r, auto R) {
        if (Dv * R == 8 * W) return accumulate_narrow<C, E, R>(p + r, v, n, o + r * Dv);
        int64_t j = 0;
        for (; j + 2 <= n; j += 2) {
            touch_lines(v.row(j), Dv);
            accumulate<C, E, R, 2>(p + j * W + r, {v.row(j), v.stride}, Dv, o + r * Dv);
        }
        if (j < n) accumulate<C, E, R, 1>(p + j * W + r, {v.row(j), v.stride}, Dv, o + r * Dv);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
