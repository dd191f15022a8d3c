// Decoding, with fewer rows than lanes: features lie in the lanes instead. Here are tiles and scores; decode_values.h has the
// product with V.
//
// Reading K and V is most of the cost. Each is read once for up to four rows, and prefetched explicitly, since the machine's
// own prefetching stops at every page and at every change between K and V.
//
// Scores and weights lie in tiles of one vector: some rows (four, two or one) of as many keys as there are lanes for, row by
// row; three rows leave the place of a fourth empty. The sums of a tile are folded together, and maxima and exponentials fill whole vectors however few the rows are.
#pragma once

#include "half.h"
#include "kernels.h"

namespace limelight::LIMELIGHT_ISA {

// Keys are met in blocks of this many, and summed apart before they join the sums of a row.
constexpr int64_t kBlock = 128;

// Keys in a step of decoding at most, and numbers from the scores of one row to those of the next. A step is several blocks:
// while reading changes between K and V, and while exponentials are computed, memory is not kept busy.
constexpr int64_t kDecodeStep = 4 * kBlock;

// The rows that share a tile of scores at most. With enough registers these are eight, so that K is passed through once for
// them: while a second pass finds it in the nearest cache, nothing comes from memory.
template <class C> constexpr int kTileRows = kWidth<C> > 8 && LIMELIGHT_REGISTERS >= 32 ? 8 : kWidth<C> > 4 ? 4 : 2;

// Rows of K or V where they lie.
template <class E> struct Matrix {
    const E* data;
    int64_t stride;

    LIMELIGHT_INLINE const E* row(int64_t j) const { return data + j * stride; }
    LIMELIGHT_INLINE Matrix from(int64_t j, int64_t feature = 0) const { return {row(j) + feature, stride}; }
};

// How far ahead K and V are prefetched, and into which cache. The first one can wait for a few lines only: what comes from
// memory, which takes long, goes into the second, and more requests than that would stall the first.
struct PrefetchDistance {
    int64_t bytes = 0;  // 0: nothing is prefetched
    bool into_first_cache = false;
    // Memory is read and prefetched in the order in which it lies, one key after the other, which costs some arithmetic.
    bool in_order = false;

    template <class E> int64_t rows(int64_t width) const {
        return bytes ? bytes / (width * int64_t(sizeof(E))) + 1 : 0;
    }
};

// So many bytes of K and V stay in the second cache, and need no prefetching.
constexpr int64_t kInCache = 1 << 20;

// By the size of K and V. Those of a few megabytes lie in the last cache if nothing else was read since the last step, and in
// memory if a model's weights were. AMD's Zen 4 is served best by requests into the second cache, further ahead the further
// away K and V are, and Zen 3, which has no AVX-512, by requests just ahead. On an Intel Xeon requests into the first cache
// are better in both cases, and at nearly every size; so they are on Zen 5, somewhat further ahead, where what comes from
// memory has to be read in order.
inline PrefetchDistance prefetch_distance(int64_t bytes, size_t of_number) {
    if (bytes <= kInCache) return {};
    const int family = amd_family();
    if (!family) return {4096, true};
    const bool from_memory = bytes > 16 * kInCache;
    if (family > 25) return {8192, true, from_memory};
    if (LIMELIGHT_BYTES < 64) return {of_number < 4 ? 4096 : 2048, false};
    return {from_memory ? 16384 : 8192, false};
}

// Prefetching: with what is read of K or V, as much of what lies so many rows ahead, of the features [begin, end). Where rows lie
// one after the other, they can be asked for in order, whichever features are read first.
struct Ahead {
    int64_t rows = 0;  // nothing for 0
    bool into_first_cache = false;
    bool in_order = false;
    int64_t begin = 0, end = 0;

    bool covers(int64_t d) const { return rows && begin <= d && d < end; }

    // Asks for n numbers, into the first cache or the second.
    template <bool into_first, class E> LIMELIGHT_INLINE static void fetch(const E* from, int64_t n) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(E))) __builtin_prefetch(from + i, 0, into_first ? 3 : 2);
    }

    // Asks for n features from d on, of what lies ahead of the first `count` rows of x.
    template <class E> LIMELIGHT_INLINE void prefetch(Matrix<E> x, int count, int64_t d, int n) const {
        if (into_first_cache) prefetch_into<true>(x, count, d, n);
        else prefetch_into<false>(x, count, d, n);
    }

private:
    template <bool into_first, class E>
    LIMELIGHT_INLINE void prefetch_into(Matrix<E> x, int count, int64_t d, int n) const {
        for (int a = 0; a < count; ++a) fetch<into_first>(x.row(rows + a) + d, n);
    }
};

// f(first row, number of rows as a constant) for all rows: `most` at a time, then as many as are left, up to three. With
// sixteen registers, five and six rows are better divided evenly.
template <int most, class F> LIMELIGHT_INLINE void by_rows(int rows, F&& f, int r = 0) {
    const auto even = [&] { return LIMELIGHT_REGISTERS < 32 && most == 4 && (rows - r == 5 || rows - r == 6); };
    for (; rows - r >= most && !even(); r += most) f(r, std::integral_constant<int, most>{});
    if constexpr (most > 4) by_rows<most / 2>(rows, f, r);
    else if constexpr (most > 1) by_rows<most - 1>(rows, f, r);
}

// Keys in a tile of R rows.
template <class C, int R> constexpr int kTileKeys = kWidth<C> / (R == 3 ? 4 : R < kTileRows<C> ? R : kTileRows<C>);

// Tiles that are computed at once, whose sums fill up to three quarters of the registers.
template <class C, int R> constexpr int tiles_at_once() {
    int tiles = 1;
    while (2 * tiles * R * kTileKeys<C, R> <= LIMELIGHT_REGISTERS * 3 / 4) tiles *= 2;
    return tiles;
}

// Numbers in the tiles of as many rows as lanes.
template <class C> constexpr int64_t kTileNumbers = (kWidth<C> + 4) * kDecodeStep;

// Where the tiles of rows from the `first` on begin; three rows have room for four.
constexpr int64_t tiles_at(int first) { return (LIMELIGHT_REGISTERS < 32 ? (4 * first + 2) / 3 : first) * kDecodeStep; }

// f(row, key, place) for the scores of `rows` rows and n keys.
template <class C, class F> LIMELIGHT_INLINE void for_each_score(int rows, int64_t n, F&& f) {
    by_rows<kTileRows<C>>(rows, [&](int first, auto R) {
        constexpr int K = kTileKeys<C, R>;
        for (int64_t j = 0; j < n; ++j)
            for (int r = 0; r < R; ++r) f(first + r, j, tiles_at(first) + j / K * kWidth<C> + r * K + j % K);
    });
}

// R rows, such as queries, as a tile reads them: a vector of each row, then the next of each, in the order of `load_two`; the
// features after the last whole vector lie one of each row after the other.
template <class C, int R> struct PackedRows {
    const C* data;

    LIMELIGHT_INLINE Vec<C> vector(int r, int64_t d) const { return load(data + d * R + r * kWidth<C>); }
    LIMELIGHT_INLINE C feature(int r, int64_t d) const { return data[d * R + r]; }
};

// Packs rows (rows, D) into `to`, where those from r on begin at r · D.
template <class C> void pack_rows(const C* q, int64_t D, int rows, C* to) {
    constexpr int W = kWidth<C>;
    by_rows<kTileRows<C>>(rows, [&](int first, auto R) {
        for (int r = 0; r < R; ++r) {
            const C* row = q + (first + r) * D;
            C* packed = to + first * D;
            int64_t d = 0;
            for (; d + W <= D; d += W) store(packed + d * R + r * W, load(row + d));
            for (; d < D; ++d) packed[d * R + r] = row[d];
        }
    });
}

// s[row · apart] = q[row] · k for R rows.
template <class C, class E, int R>
LIMELIGHT_INLINE void dot(PackedRows<C, R> q, const E* k, int64_t D, C* s, int64_t apart = 1) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[R][2] = {};
    int64_t d = 0;
    for (; d + 2 * W <= D; d += 2 * W) {
        const VecPair<C> x = load_two<C>(k + d);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            acc[r][0] += x.first * q.vector(r, d);
            acc[r][1] += x.second * q.vector(r, d + W);
        }
    }
    if (d + W <= D) {
        const Vec<C> x = load_as<C>(k + d);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][0] += x * q.vector(r, d);
        d += W;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) s[r * apart] = sum<C>(acc[r][0] + acc[r][1]);
    for (; d < D; ++d)
        for (int r = 0; r < R; ++r) s[r * apart] += C(widen(k[d])) * q.feature(r, d);
}

// True if what R rows use is kept in a register for them (in_register). Numbers that are converted are in registers anyway,
// and sixteen are too few to hold more.
template <class C, class E, int R> constexpr bool kKept = R > 1 && (std::is_same_v<C, E> || LIMELIGHT_REGISTERS >= 32);

// acc[row · K + key] gains the products of R rows and K keys over all whole pairs of vectors; returns the feature after them.
// A vector of each key stays in a register for all rows, and one of each row for all keys.
template <class C, class E, int R, int K>
LIMELIGHT_INLINE int64_t multiply_many_rows(PackedRows<C, R> q, Matrix<E> k, int64_t D, Vec<C>* acc, Ahead ahead) {
    constexpr int W = kWidth<C>;
    const bool prefetches = ahead.rows;
    const auto multiply_pair = [&](int64_t d, auto is_first) __attribute__((always_inline)) {
        if (prefetches && ahead.covers(d)) ahead.prefetch(k, K, d, 2 * W);
        Vec<C> x[2][K];
#pragma GCC unroll 8
        for (int a = 0; a < K; ++a) {
            const VecPair<C> both = load_two<C>(k.row(a) + d);
            x[0][a] = in_register<true>(both.first), x[1][a] = in_register<true>(both.second);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Vec<C> y = in_register<true>(q.vector(r, d + i * W));
#pragma GCC unroll 8
                for (int a = 0; a < K; ++a) {
                    Vec<C>& sum = acc[r * K + a];
                    if (is_first && i == 0) sum = x[i][a] * y;  // sixteen sums that need not be set to 0
                    else sum += x[i][a] * y;
                }
            }
    };
    if (2 * W > D) return 0;
    multiply_pair(0, std::true_type{});
    int64_t d = 2 * W;
    for (; d + 2 * W <= D; d += 2 * W) multiply_pair(d, std::false_type{});
    return d;
}

// Computes T tiles of R rows each.
template <class C, class E, int R, int T>
LIMELIGHT_INLINE void score_tiles(PackedRows<C, R> q, Matrix<E> k, int64_t D, C* s, Ahead ahead) {
    constexpr int W = kWidth<C>, K = kTileKeys<C, R>;
    // Keys: the machine's own prefetching follows no more of them well. With AVX2 that was measured on Zen 3.
    constexpr int most = LIMELIGHT_REGISTERS >= 32 ? 8 : R == 1 && std::is_same_v<C, E> ? 2 : 4;
    constexpr int side_by_side = K < most ? K : most;
    Vec<C> acc[T][W] = {};
    const auto add = [&](int t, int a, Vec<C> x, int64_t d) __attribute__((always_inline)) {
        x = in_register<kKept<C, E, R>>(x);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[t][r * K + a] += x * q.vector(r, d);
    };
    int64_t d = 0;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        if constexpr (R >= K) {
            d = multiply_many_rows<C, E, R, K>(q, k.from(t * K), D, acc[t], ahead);
            continue;
        }
#pragma GCC unroll 4
        for (int first = 0; first < K; first += side_by_side)
            for (d = 0; d + 2 * W <= D; d += 2 * W) {
                if (ahead.covers(d)) ahead.prefetch(k.from(t * K + first), side_by_side, d, 2 * W);
#pragma GCC unroll 8
                for (int a = first; a < first + side_by_side; ++a) {
                    const VecPair<C> x = load_two<C>(k.row(t * K + a) + d);
                    add(t, a, x.first, d), add(t, a, x.second, d + W);
                }
            }
    }
    if (d + W <= D) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 16
            for (int a = 0; a < K; ++a) add(t, a, load_as<C>(k.row(t * K + a) + d), d);
        d += W;
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(s + t * W, sums<C>(acc[t]));
    for (; d < D; ++d)
        for (int t = 0; t < T; ++t)
            for (int r = 0; r < R; ++r)
                for (int a = 0; a < K; ++a) s[t * W + r * K + a] += C(widen(k.row(t * K + a)[d])) * q.feature(r, d);
}

// Rows for which keys are read one after the other where memory has to be read in order. More of them would take longer to
// compute than to read.
template <class C, int R> constexpr bool kReadsInOrder = R <= 2 && kWidth<C> >= 4;

// Writes the scores of R rows and the first of n keys, as many as whole tiles have, and returns their number. sums_of(j, sum)
// sets sum[row] to the products with key j, vector by vector; they wait in memory until those of a tile are folded, so
// that the loop over keys can stay a loop, which reads all of them at the same place of the program: the processor's own
// prefetching goes by that.
template <class C, int R, class F> LIMELIGHT_INLINE int64_t scores_in_order(int64_t n, C* s, F&& sums_of) {
    constexpr int W = kWidth<C>, K = kTileKeys<C, R>;
    static_assert(R * K == W);
    alignas(64) C waiting[W][W];
    int64_t j = 0;
    for (; j + K <= n; j += K, s += W) {
#pragma GCC unroll 1
        for (int a = 0; a < K; ++a) {
            Vec<C> sum[R];
            sums_of(j + a, sum);
            for (int r = 0; r < R; ++r) store(waiting[r * K + a], sum[r]);
        }
        Vec<C> all[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) all[i] = load(waiting[i]);
        store(s, sums<C>(all));
    }
    return j;
}

// The scores of R rows and n keys.
template <class C, class E, int R>
LIMELIGHT_INLINE void row_scores(PackedRows<C, R> q, Matrix<E> k, int64_t D, int64_t n, C* s, Ahead ahead) {
    constexpr int W = kWidth<C>, K = kTileKeys<C, R>, T = tiles_at_once<C, R>();
    int64_t j = 0;
    if constexpr (kReadsInOrder<C, R>)
        if (ahead.in_order && ahead.covers(0) && D % (2 * W) == 0) {
            j = scores_in_order<C, R>(n, s, [&](int64_t key, Vec<C>(&sum)[R]) __attribute__((always_inline)) {
                Vec<C> acc[R][2] = {};
                for (int64_t d = 0; d < D; d += 2 * W) {
                    ahead.prefetch(k.from(key), 1, d, 2 * W);
                    const VecPair<C> x = load_two<C>(k.row(key) + d);
                    for (int r = 0; r < R; ++r)
                        acc[r][0] += x.first * q.vector(r, d), acc[r][1] += x.second * q.vector(r, d + W);
                }
                for (int r = 0; r < R; ++r) sum[r] = acc[r][0] + acc[r][1];
            });
            s += j * R;
        }
    // In order, the keys of a tile are asked for at once, line by line; requests for more than a kilobyte would stall.
    const int64_t rows_ahead = ahead.in_order && ahead.covers(0) && T * K * D * sizeof(E) <= 1024 ? ahead.rows : 0;
    if (rows_ahead) ahead.rows = 0;
    for (; j + T * K <= n; j += T * K, s += T * W) {
        if (rows_ahead) Ahead::fetch<true>(k.row(j + rows_ahead), T * K * D);
        score_tiles<C, E, R, T>(q, k.from(j), D, s, ahead);
    }
    if constexpr (T > 1)
        for (; j + K <= n; j += K, s += W) score_tiles<C, E, R, 1>(q, k.from(j), D, s, ahead);
    for (; j < n; ++j, ++s) dot<C, E, R>(q, k.row(j), D, s, K);
}

// f(first row, number of rows as a constant, keys, their number, where their scores go, what is prefetched) for all rows and
// n keys. Where rows need several tiles, keys are met in chunks that stay in the nearest cache for all of them. What goes
// into that cache is prefetched by the first tile alone, since the others find their keys there; otherwise each prefetches
// its share.
template <class C, class E, class F>
LIMELIGHT_INLINE void for_tiles_of_rows(Matrix<E> k, int64_t D, int64_t n, int rows, C* s, PrefetchDistance distance,
                                        F&& f) {
    const int64_t chunk = rows <= kTileRows<C> ? n : D * sizeof(E) <= 512 ? 32 : 16;
    for (int64_t j = 0; j < n; j += chunk)
        by_rows<kTileRows<C>>(rows, [&](int r, auto R) {
            constexpr int padded = kWidth<C> / kTileKeys<C, R>;  // rows with those that are empty
            Ahead ahead{distance.rows<E>(D), distance.into_first_cache, distance.in_order && k.stride == D,
                        D * r / rows, D * (r + R) / rows};
            if (distance.into_first_cache) ahead.begin = 0, ahead.end = r ? 0 : D;
            f(r, R, k.from(j), n - j < chunk ? n - j : chunk, s + tiles_at(r) + j * padded, ahead);
        });
}

// The scores q[row] · k[key] of a step of n keys, for queries that are packed.
template <class C, class E>
void decode_scores(const C* q, Matrix<E> k, int64_t D, int64_t n, int rows, C* s, PrefetchDistance distance) {
    for_tiles_of_rows<C>(k, D, n, rows, s, distance,
                         [&](int r, auto R, Matrix<E> some, int64_t count, C* to, Ahead ahead) {
                             row_scores<C, E, R>({q + r * D}, some, D, count, to, ahead);
                         });
}

}  // namespace limelight::LIMELIGHT_ISA
