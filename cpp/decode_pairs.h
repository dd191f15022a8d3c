// Scores of decoding as products of pairs of bfloat16.
#pragma once

#include "bf16_pairs.h"
#include "decode.h"
#include "rows.h"

namespace limelight::LIMELIGHT_ISA {

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

// The scores of a tile of R rows and the first keys of k. If there are not enough keys for a `whole` tile, the last of n takes
// the place of others.
template <int R, bool whole>
LIMELIGHT_INLINE Vec<float> pair_tile(const bf16* q, Matrix<bf16> k, int64_t D, int64_t n, Ahead ahead) {
    constexpr int K = kTileKeys<float, R>, side_by_side = K < 8 ? K : 8;
    Vec<float> acc[kWidth<float>] = {};
#pragma GCC unroll 2
    for (int first = 0; first < K; first += side_by_side)
        for (int64_t d = 0; d < D; d += kPaired) {
            if (ahead.covers(d)) ahead.prefetch(k.from(first), side_by_side, d, kPaired);
            Vec<float> y[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) y[r] = load_pairs(q + d * R + r * kPaired);
#pragma GCC unroll 8
            for (int a = first; a < first + side_by_side; ++a) {
                const Vec<float> x = load_pairs(k.row(whole || a < n ? a : n - 1) + d);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) acc[r * K + a] = add_pairs(acc[r * K + a], x, y[r]);
            }
        }
    return sums<float>(acc);
}

// The scores of R rows and n keys, times a factor.
template <int R>
void pair_scores(const bf16* q, Matrix<bf16> k, int64_t D, int64_t n, float factor, float* s, Ahead ahead) {
    constexpr int W = kWidth<float>, K = kTileKeys<float, R>;
    int64_t j = 0;
    if constexpr (kReadsInOrder<float, R>)
        if (ahead.in_order && ahead.covers(0)) {
            j = scores_in_order<float, R>(n, s, [&](int64_t key, Vec<float>(&sum)[R]) __attribute__((always_inline)) {
                for (int r = 0; r < R; ++r) sum[r] = Vec<float>{};
                for (int64_t d = 0; d < D; d += kPaired) {
                    ahead.prefetch(k.from(key), 1, d, kPaired);
                    const Vec<float> x = load_pairs(k.row(key) + d);
                    for (int r = 0; r < R; ++r) sum[r] = add_pairs(sum[r], x, load_pairs(q + d * R + r * kPaired));
                }
                for (int r = 0; r < R; ++r) sum[r] *= factor;
            });
            s += j * R;
        }
    for (; j + K <= n; j += K, s += W) store(s, pair_tile<R, true>(q, k.from(j), D, K, ahead) * factor);
    if (j < n) store(s, pair_tile<R, false>(q, k.from(j), D, n - j, {}) * factor);
}

// As decode_scores, for rows that `pack_pairs` has packed.
template <class C>
void decode_pairs(const bf16* q, Matrix<bf16> k, int64_t D, int64_t n, int rows, C factor, C* s,
                  PrefetchDistance distance) {
    if constexpr (kKnowsPairs<C>)
        for_tiles_of_rows<C>(k, D, n, rows, s, distance,
                             [&](int r, auto R, Matrix<bf16> some, int64_t count, C* to, Ahead ahead) {
                                 pair_scores<R>(q + r * D, some, D, count, factor, to, ahead);
                             });
}

}  // namespace limelight::LIMELIGHT_ISA
