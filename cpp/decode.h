// The two products of attention in decoding, with fewer rows than lanes: features lie in the lanes instead.
//
// Reading K and V is most of the cost. Each is read once for up to four rows, in steps of kDecodeStep keys, and prefetched
// explicitly, since the machine's own prefetching stops at every page and at every change between K and V.
// Scores and weights lie row by row, s[row][key], so that maxima and exponentials fill whole vectors however few the
// rows are, and the values of a step are summed in registers, apart from the steps before.
#pragma once

#include "half.h"

namespace limelight::LIMELIGHT_ISA {

// Keys in a step, and numbers from one row of scores to the next.
constexpr int64_t kDecodeStep = 64;

// Rows of K or V where they lie.
template <class E> struct Matrix {
    const E* data;
    int64_t stride;

    LIMELIGHT_INLINE const E* row(int64_t j) const { return data + j * stride; }
};

// How many rows ahead memory is prefetched: about 8 KiB, or nothing where all of it lies in a cache.
template <class E> LIMELIGHT_INLINE int64_t rows_ahead(int64_t width, bool in_cache) {
    return in_cache ? 0 : 8192 / (width * int64_t(sizeof(E))) + 1;
}

// Prefetches into the second cache: the first one can wait for a few lines only, and more requests than that stall it.
template <class E> LIMELIGHT_INLINE void prefetch_row(const E* row, int64_t width) {
    for (int64_t d = 0; d < width; d += 64 / int64_t(sizeof(E))) __builtin_prefetch(row + d, 0, 2);
}

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
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        Vec<C> total = acc[r][0];
#pragma GCC unroll 8
        for (int u = 1; u < U; ++u) total += acc[r][u];
        s[r] = sum<C>(total);
    }
    for (; d < D; ++d)
        for (int r = 0; r < R; ++r) s[r] += C(widen(k[d])) * q[r * D + d];
}

// s[0 … 3] = the sums of four vectors.
template <class C> LIMELIGHT_INLINE void store_sums(const Vec<C> (&v)[4], C* s) {
    if constexpr (sizeof(C) == 4) {
        const Vec<C> four = sums(v);
        std::memcpy(s, &four, 4 * sizeof(C));
    } else {
#pragma GCC unroll 4
        for (int a = 0; a < 4; ++a) s[a] = sum<C>(v[a]);
    }
}

// s[row][key] = q[row] · k[key] for R rows and four keys, whose sums are folded together.
template <class C, class E, int R>
LIMELIGHT_INLINE void dot_four_keys(const C* q, const E* const (&k)[4], int64_t D, C* s) {
    constexpr int W = kWidth<C>, U = R == 1 ? 2 : 1;  // eight sums in flight
    Vec<C> acc[U][R][4] = {};
    int64_t d = 0;
    const auto add = [&](Vec<C>(&sum)[R][4], int64_t at) {
        Vec<C> y[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) y[r] = load(q + r * D + at);
#pragma GCC unroll 4
        for (int a = 0; a < 4; ++a) {
            const Vec<C> x = load_as<C>(k[a] + at);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][a] += x * y[r];
        }
    };
    for (; d + U * W <= D; d += U * W)
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u) add(acc[u], d + u * W);
    if (U > 1 && d + W <= D) add(acc[0], d), d += W;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        if constexpr (U > 1)
#pragma GCC unroll 4
            for (int a = 0; a < 4; ++a) acc[0][r][a] += acc[1][r][a];
        store_sums<C>(acc[0][r], s + r * kDecodeStep);
    }
    for (; d < D; ++d)
        for (int r = 0; r < R; ++r)
            for (int a = 0; a < 4; ++a) s[r * kDecodeStep + a] += C(widen(k[a][d])) * q[r * D + d];
}

// f(first row, number of rows as a constant) for all rows: as many at once as the registers hold sums with four keys.
template <class F> LIMELIGHT_INLINE void by_rows(int rows, F&& f) {
    constexpr bool many = LIMELIGHT_REGISTERS >= 32;
    int r = 0;
    if constexpr (many)
        for (; rows - r >= 4; r += 4) f(r, std::integral_constant<int, 4>{});
    for (; rows - r >= 3 && (many || rows - r != 4); r += 3) f(r, std::integral_constant<int, 3>{});
    for (; rows - r >= 2; r += 2) f(r, std::integral_constant<int, 2>{});
    if (r < rows) f(r, std::integral_constant<int, 1>{});
}

// s[row][key] = q[row] · k[key] for a step of n keys; up to three more scores are written, without meaning.
template <class C, class E>
void decode_scores(const C* q, Matrix<E> k, int64_t D, int64_t n, int rows, C* s, bool in_cache) {
    const int64_t ahead = rows_ahead<E>(D, in_cache);
    by_rows(rows, [&](int r, auto R) {
        for (int64_t j = 0; j < n; j += 4) {
            const E* key[4];
            for (int a = 0; a < 4; ++a) key[a] = k.row(j + a < n ? j + a : n - 1);
            if (ahead && !r)
                for (int a = 0; a < 4; ++a) prefetch_row(k.row(j + a + ahead), D);
            dot_four_keys<C, E, R>(q + r * D, key, D, s + r * kDecodeStep + j);
        }
    });
}

// o[row] = decay[row] · o[row] + Σ p[row][key] v[key] for R rows and F vectors of features, `ahead` of which is read.
template <class C, class E, int R, int F>
LIMELIGHT_INLINE void add_values(const C* p, Matrix<E> v, int64_t n, C* o, int64_t Dv, const C* decay, int64_t ahead) {
    constexpr int W = kWidth<C>, U = R * F <= 4 ? 2 : 1;  // keys at once, where there are few sums in flight
    Vec<C> acc[U][R][F] = {};
    const auto add = [&](Vec<C>(&sum)[R][F], int64_t j) {
        if (ahead) prefetch_row(v.row(j + ahead), Dv);
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f) {
            const Vec<C> x = load_as<C>(v.row(j) + f * W);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][f] += p[r * kDecodeStep + j] * x;
        }
    };
    int64_t j = 0;
    for (; j + U <= n; j += U)
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u) add(acc[u], j + u);
    if (U > 1 && j < n) add(acc[0], j);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f) {
            if constexpr (U > 1) acc[0][r][f] += acc[1][r][f];
            C* to = o + r * Dv + f * W;
            store(to, load(to) * decay[r] + acc[0][r][f]);
        }
}

// The same for all features from d on: as many vectors at once as the registers hold, then half as many.
template <class C, class E, int R, int F>
LIMELIGHT_INLINE void add_all_values(const C* p, Matrix<E> v, int64_t n, C* o, int64_t Dv, const C* decay,
                                     int64_t ahead, int64_t d = 0) {
    constexpr int W = kWidth<C>;
    for (; d + F * W <= Dv; d += F * W)
        add_values<C, E, R, F>(p, {v.data + d, v.stride}, n, o + d, Dv, decay, d ? 0 : ahead);
    if constexpr (F > 1) {
        if (d < Dv) add_all_values<C, E, R, F / 2>(p, v, n, o, Dv, decay, ahead, d);
    } else {
        for (; d < Dv; ++d)
            for (int r = 0; r < R; ++r) {
                C total = 0;
                for (int64_t j = 0; j < n; ++j) total += p[r * kDecodeStep + j] * C(widen(v.row(j)[d]));
                o[r * Dv + d] = o[r * Dv + d] * decay[r] + total;
            }
    }
}

// o[row] = decay[row] · o[row] + Σ p[row][key] v[key] over a step of n keys.
template <class C, class E>
void decode_values(const C* p, Matrix<E> v, int64_t Dv, int64_t n, int rows, C* o, const C* decay, bool in_cache) {
    const int64_t ahead = rows_ahead<E>(Dv, in_cache);
    by_rows(rows, [&](int r, auto R) {
        constexpr int F = R == 1 || (R == 2 && LIMELIGHT_REGISTERS >= 32) ? 8 : 4;
        add_all_values<C, E, R, F>(p + r * kDecodeStep, v, n, o + r * Dv, Dv, decay + r, r ? 0 : ahead);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
