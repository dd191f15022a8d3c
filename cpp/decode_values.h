// The second product of decoding: values, weighted by the tiles of decode.h.
#pragma once

#include "decode.h"

namespace limelight::LIMELIGHT_ISA {

// A block of keys may be met in parts, so that each stays in the first cache for all passes over it. Between them the sums of
// the block, which are apart from those of the rows, wait in memory.
template <class C> struct PartOfBlock {
    C* sums;  // (row, feature)
    bool first, last;

    PartOfBlock from(int64_t place) const { return {sums + place, first, last}; }
};

// o[row] = decay[row] · o[row] + Σ p[row][key] v[key] for F vectors of features from d on, and R of the rows of tiles that have
// K keys; the sum is over the n keys of a part and those before it in its block, and o changes with the last one.
template <class C, class E, int K, int R, int F>
LIMELIGHT_INLINE void add_values(const C* p, Matrix<E> v, int64_t n, C* o, int64_t Dv, int64_t d, const C* decay,
                                 PartOfBlock<C> part, Ahead ahead) {
    constexpr int W = kWidth<C>;
    constexpr int room = LIMELIGHT_REGISTERS / 2 / (R * F), most = K < 4 ? K : 4;
    constexpr int U = room > most ? most : room ? room : 1;  // sums of each number
    Vec<C> acc[U][R][F] = {};
    if (!part.first)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int f = 0; f < F; ++f) acc[0][r][f] = load(part.sums + r * Dv + d + f * W);
    // In order, every pass over the keys asks for its share of the memory ahead of them.
    const Matrix<E> soon{v.row(ahead.rows) + (ahead.in_order ? d * n : d), ahead.in_order ? F * W : v.stride};
    v = v.from(0, d);
    const auto add = [&](Vec<C>(&sum)[R][F], int64_t j, const C* weights) __attribute__((always_inline)) {
        constexpr bool converts = !std::is_same_v<C, E>;
        Vec<C> weight[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            if (converts) keep_order();
            weight[r] = in_register<kKept<C, E, R>>(broadcast(weights[r * K]));
        }
        const auto add_vector = [&](int f, Vec<C> x) __attribute__((always_inline)) {
            if (converts) keep_order();
            x = in_register<kKept<C, E, R>>(x);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sum[r][f] += weight[r] * x;
        };
        if constexpr (F == 1) {
            add_vector(0, load_as<C>(v.row(j)));
        } else {
#pragma GCC unroll 4
            for (int f = 0; f < F; f += 2) {
                const VecPair<C> x = load_two<C>(v.row(j) + f * W);
                add_vector(f, x.first), add_vector(f + 1, x.second);
            }
        }
    };
    int64_t j = 0;
    const auto add_tiles = [&](auto into_first) __attribute__((always_inline)) {
        for (; j + K <= n; j += K, p += W)
            for (int a = 0; a < K; a += U)
#pragma GCC unroll 4
                for (int u = 0; u < U; ++u) {
                    if (ahead.rows) ahead.template fetch<into_first>(soon.row(j + a + u), F * W);
                    add(acc[u], j + a + u, p + a + u);
                }
    };
    if (ahead.into_first_cache) add_tiles(std::true_type{});
    else add_tiles(std::false_type{});
    for (; j < n; ++j, ++p) add(acc[0], j, p);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f)
#pragma GCC unroll 4
            for (int u = 1; u < U; ++u) acc[0][r][f] += acc[u][r][f];
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f) {
            if (!part.last) {
                store(part.sums + r * Dv + d + f * W, acc[0][r][f]);
                continue;
            }
            C* to = o + r * Dv + d + f * W;
            Vec<C> x = acc[0][r][f];
            if constexpr (F > 1)
                x = f % 2 ? in_order<C, E>(acc[0][r][f - 1], x).second : in_order<C, E>(x, acc[0][r][f + 1]).first;
            store(to, load(to) * decay[r] + x);
        }
    }
}

// The same for all features from d on: as many vectors at once as the registers hold, then half as many.
template <class C, class E, int K, int R, int F>
LIMELIGHT_INLINE void add_all_values(const C* p, Matrix<E> v, int64_t n, C* o, int64_t Dv, const C* decay,
                                     PartOfBlock<C> part, Ahead ahead, int64_t d = 0) {
    constexpr int W = kWidth<C>;
    for (; d + F * W <= Dv; d += F * W) add_values<C, E, K, R, F>(p, v, n, o, Dv, d, decay, part, ahead);
    if constexpr (F > 1) {
        if (d < Dv) add_all_values<C, E, K, R, F / 2>(p, v, n, o, Dv, decay, part, ahead, d);
    } else {
        // Such widths have no parts. The block is summed apart, in four chains, as vectors are: one chain over all keys
        // would lose digits.
        for (; d < Dv; ++d) {
            C sums[R][4] = {};
            for (int64_t j = 0; j < n; ++j)
                for (int r = 0; r < R; ++r) sums[r][j % 4] += p[j / K * W + r * K + j % K] * C(widen(v.row(j)[d]));
            for (int r = 0; r < R; ++r) {
                const C sum = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
                o[r * Dv + d] = o[r * Dv + d] * decay[r] + sum;
            }
        }
    }
}

// Vectors of features whose sums fit into the registers for so many rows.
constexpr int vectors_at_once(int rows) {
    const int room = LIMELIGHT_REGISTERS * 3 / 4 / rows;
    return room >= 8 ? 8 : room >= 4 ? 4 : 2;
}

// o[row] = decay[row] · o[row] + Σ p[row][key] v[key] over the keys [begin, end) of a step, which are a part of a block.
template <class C, class E>
void decode_part(const C* p, Matrix<E> v, int64_t Dv, int64_t begin, int64_t end, int rows, C* o, const C* decay,
                 PartOfBlock<C> part, PrefetchDistance distance) {
    const bool in_order = distance.in_order && v.stride == Dv;
    by_rows<kTileRows<C>>(rows, [&](int first, auto T) {
        constexpr int K = kTileKeys<C, T>;
        const C* weights = p + tiles_at(first) + begin / K * kWidth<C>;
        const auto add = [&](int r, auto R) {
            constexpr int F = vectors_at_once(R);
            // The keys are passed through once for so many features, and as much earlier memory is prefetched, unless
            // all passes together ask for what follows the part.
            const int64_t passes = (Dv + F * kWidth<C> - 1) / (F * kWidth<C>), rows_ahead = distance.rows<E>(Dv);
            const int64_t row = first + r, all_ahead = in_order ? larger(rows_ahead, end - begin) : passes * rows_ahead;
            const Ahead ahead{row ? 0 : all_ahead, distance.into_first_cache, in_order};
            add_all_values<C, E, K, R, F>(weights + r * K, v.from(begin), end - begin, o + row * Dv, Dv, decay + row,
                                          part.from(row * Dv), ahead);
        };
        // With sixteen registers there is room for four rows of one cache line each. Two rows of two lines follow memory
        // better, unless there are so many rows that multiply-adds take longer than reading. Three rows of two lines fit if
        // nothing has to be converted.
        constexpr bool fit = LIMELIGHT_REGISTERS >= 32 || (T == 3 && std::is_same_v<C, E>);
        if (fit || (T == 4 && rows > 4)) by_rows<kTileRows<C>>(T, add);
        else by_rows<2>(T, add);
    });
}

// Keys in a part, which begins with a tile of scores: as many as lie in 16 KiB where memory is read in order and in
// several passes, and otherwise all of a block.
template <class C, class E> int64_t keys_of_part(int64_t Dv, int rows, PrefetchDistance distance) {
    constexpr int64_t W = kWidth<C>;
    if (!distance.in_order || Dv % W || (rows <= kTileRows<C> && Dv <= vectors_at_once(rows) * W)) return kBlock;
    return smaller(larger(int64_t(16384 / sizeof(E)) / Dv / W * W, W), kBlock);
}

// The same over a step of n keys; `sums` has room for as many numbers as o.
template <class C, class E>
void decode_values(const C* p, Matrix<E> v, int64_t Dv, int64_t n, int rows, C* o, const C* decay, C* sums,
                   PrefetchDistance distance) {
    constexpr int W = kWidth<C>;
    alignas(64) C ones[W];
    store(ones, broadcast(C(1)));
    const int64_t keys = keys_of_part<C, E>(Dv, rows, distance);
    for (int64_t block = 0; block < n; block += kBlock) {
        const int64_t end = smaller(block + kBlock, n);
        for (int64_t j = block; j < end; j += keys)
            decode_part(p, v, Dv, j, smaller(j + keys, end), rows, o, block ? ones : decay,
                        PartOfBlock<C>{sums, j == block, j + keys >= end}, distance);
    }
}

}  // namespace limelight::LIMELIGHT_ISA
