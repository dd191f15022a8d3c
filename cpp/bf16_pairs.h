// Products of bfloat16 numbers where the processor multiplies pairs of them by itself: the scores of decoding, and linear
// layers. One instruction adds the products of 32 features to 16 sums. Otherwise these take two instructions to be widened and
// two multiply-adds. Products of bfloat16 are exact in float32, so the sums are rounded as those of multiply-adds are.
#pragma once

#include "decode.h"
#include "kernels.h"
#include "rows.h"

// Compilers without this instruction know nothing of its header.
#if defined(LIMELIGHT_X86) && LIMELIGHT_BYTES == 64 && __has_include(<avx512bf16intrin.h>)
#define LIMELIGHT_BF16_PAIRS __attribute__((target("avx512bf16")))
#endif

namespace limelight::LIMELIGHT_ISA {

// The features that one instruction multiplies.
constexpr int64_t kPaired = 32;

// True if rows of `width` features of two types are multiplied in pairs.
template <class C> bool multiplies_pairs(Type a, Type b, int64_t width) {
#if defined(LIMELIGHT_BF16_PAIRS)
    constexpr bool has = sizeof(C) == 4;
#else
    constexpr bool has = false;
#endif
    return has && a == Type::bf16 && b == Type::bf16 && width % kPaired == 0 && kernels().multiplies_bf16;
}

// Packs rows for tiles as `pack_rows` does: of every kPaired features, those of each row one after the other.
template <class C>
void pack_pairs(const Rows& q, int64_t batch, const Row* rows, int row_count, int64_t D, bf16* to) {
    by_rows<kTileRows<C>>(row_count, [&](int first, auto R) {
        for (int r = 0; r < R; ++r) {
            const Row& row = rows[first + r];
            const char* from = address(q, batch, row.head, row.query);
            for (int64_t d = 0; d < D; d += kPaired)
                std::memcpy(to + first * D + d * R + r * kPaired, from + d * sizeof(bf16), kPaired * sizeof(bf16));
        }
    });
}

#if defined(LIMELIGHT_BF16_PAIRS)

// The scores of a tile of R rows and the first keys of k, of which there are `n`; the last one takes the place of those beyond.
template <int R, bool whole>
LIMELIGHT_BF16_PAIRS LIMELIGHT_INLINE Vec<float> pair_tile(const bf16* q, Matrix<bf16> k, int64_t D, int64_t n,
                                                           Ahead ahead) {
    constexpr int K = kTileKeys<float, R>, side_by_side = K < 8 ? K : 8;
    Vec<float> acc[kWidth<float>] = {};
#pragma GCC unroll 2
    for (int first = 0; first < K; first += side_by_side)
        for (int64_t d = 0; d < D; d += kPaired) {
            if (ahead.covers(d)) ahead.prefetch(k.from(first), side_by_side, d, kPaired);
            __m512bh y[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) y[r] = (__m512bh)_mm512_loadu_si512(q + d * R + r * kPaired);
#pragma GCC unroll 8
            for (int a = first; a < first + side_by_side; ++a) {
                const __m512bh x = (__m512bh)_mm512_loadu_si512(k.row(whole || a < n ? a : n - 1) + d);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    acc[r * K + a] = (Vec<float>)_mm512_dpbf16_ps((__m512)acc[r * K + a], x, y[r]);
            }
        }
    return sums<float>(acc);
}

// The scores of R rows and n keys, times a factor.
template <int R>
LIMELIGHT_BF16_PAIRS __attribute__((noinline)) void pair_scores(const bf16* q, Matrix<bf16> k, int64_t D, int64_t n,
                                                                float factor, float* s, Ahead ahead) {
    constexpr int W = kWidth<float>, K = kTileKeys<float, R>;
    int64_t j = 0;
    for (; j + K <= n; j += K, s += W) store(s, pair_tile<R, true>(q, k.from(j), D, K, ahead) * factor);
    if (j < n) store(s, pair_tile<R, false>(q, k.from(j), D, n - j, {}) * factor);
}

// sum[r][j] += the products of kPaired features from d on, of R rows of x with J rows of w.
template <int R, int J>
LIMELIGHT_BF16_PAIRS LIMELIGHT_INLINE void add_pairs(const bf16* x, const bf16* w, int64_t stride, int64_t D, int64_t d,
                                                     Vec<float> (&sum)[R][J]) {
    __m512bh column[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) column[j] = (__m512bh)_mm512_loadu_si512(w + j * stride + d);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const __m512bh row = (__m512bh)_mm512_loadu_si512(x + r * D + d);
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) sum[r][j] = (Vec<float>)_mm512_dpbf16_ps((__m512)sum[r][j], column[j], row);
    }
}

// y[r][j] = x[r] · w[j] for R rows of x and J rows of w that lie `stride` apart, prefetching `ahead` bytes before their use.
template <int R, int J>
LIMELIGHT_BF16_PAIRS __attribute__((noinline)) void multiply_pairs(const bf16* x, const bf16* w, int64_t stride,
                                                                   int64_t D, int64_t ahead, float* y) {
    constexpr int n = R * J, U = n == 1 ? 8 : n == 2 ? 4 : n <= 4 ? 2 : 1;  // about eight sums in flight
    Vec<float> acc[U][R][J] = {};
    int64_t d = 0;
    for (; d + U * kPaired <= D; d += U * kPaired)
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
#pragma GCC unroll 4
            for (int j = 0; j < J; ++j)
                __builtin_prefetch(reinterpret_cast<const char*>(w + j * stride + d + u * kPaired) + ahead);
            add_pairs<R, J>(x, w, stride, D, d + u * kPaired, acc[u]);
        }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u, d += kPaired) {
        if (d >= D) break;
        add_pairs<R, J>(x, w, stride, D, d, acc[u]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
            for (int u = 1; u < U; ++u) acc[0][r][j] += acc[u][r][j];
            y[r * J + j] = sum<float>(acc[0][r][j]);
        }
}

#endif

// As decode_scores, for rows that `pack_pairs` has packed.
template <class C>
void decode_pairs([[maybe_unused]] const bf16* q, [[maybe_unused]] Matrix<bf16> k, [[maybe_unused]] int64_t D,
                  [[maybe_unused]] int64_t n, [[maybe_unused]] int rows, [[maybe_unused]] C factor,
                  [[maybe_unused]] C* s, [[maybe_unused]] PrefetchDistance distance) {
#if defined(LIMELIGHT_BF16_PAIRS)
    if constexpr (sizeof(C) == 4)
        for_tiles_of_rows<C>(k, D, n, rows, s, distance,
                             [&](int r, auto R, Matrix<bf16> some, int64_t count, C* to, Ahead ahead) {
                                 pair_scores<R>(q + r * D, some, D, count, factor, to, ahead);
                             });
#endif
}

}  // namespace limelight::LIMELIGHT_ISA
