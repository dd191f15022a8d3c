// The two products of attention, scores = K Qᵀ and sums += Vᵀ P, with queries in the vector lanes.
//
// Maximum, sum and exponential of a row are then lane-wise, and neither K nor V needs packing: their
// numbers are broadcast from where they lie. A register tile of keys × NV vectors of queries keeps
// every fused multiply-add unit busy.
#pragma once

#include "bf16_pairs.h"
#include "upcoming.h"

namespace limelight::LIMELIGHT_ISA {

// The sums that fit into registers with NV vectors of queries and one broadcast number. NEON's multiply-add takes that number
// from a lane of a register, where each is loaded ahead of its use: with more sums the compiler spills some.
// Of these, a tile has at most kMostKeys (or features). Lengths of short sequences and widths of heads are mostly multiples
// of 16, and blocks have 128 keys: in 32 registers there is room for 16 with one vector of queries and for 8 with more, which
// leave no rest.
#if defined(LIMELIGHT_X86)
template <int NV> constexpr int kSums = LIMELIGHT_REGISTERS - 1 - NV;
template <int NV> constexpr int kMostKeys = LIMELIGHT_REGISTERS < 32 ? 12 : NV == 1 ? 16 : 8;
#else
template <int NV> constexpr int kSums = 18;
template <int NV> constexpr int kMostKeys = 12;
#endif

// Keys (or features) in a register tile.
template <int NV> constexpr int kTile = kSums<NV> / NV < kMostKeys<NV> ? kSums<NV> / NV : kMostKeys<NV>;

// A bias −slope · |position − key| for every lane, added while the scores are still in registers:
// `slope` is negative and in their units, `ahead` is position − key for the first key.
template <class C> struct AlibiBias {
    const C *slope, *distance;  // by lane; null for no bias

    AlibiBias from(int lane) const { return slope ? AlibiBias{slope + lane, distance + lane} : *this; }

    LIMELIGHT_INLINE Vec<C> at(int lane, int64_t key) const {
        return load(slope + lane) * magnitude<C>(load(distance + lane) - C(key));
    }
};

// Features that are summed in one chain; longer sums would lose digits. Between a few rows, or a few keys, a dense
// product is one of vectors, with many short chains; as exact are chains of kShortChain, which cost a little more.
constexpr int64_t kLongestChain = 128, kShortChain = 16;

// How scores are summed: as products of numbers.
template <class C> struct NumberProducts {
    LIMELIGHT_INLINE C factor(const C& k) const { return k; }
    LIMELIGHT_INLINE Vec<C> add(Vec<C> sum, C k, Vec<C> q) const { return sum + k * q; }
    LIMELIGHT_INLINE Vec<C> finish(Vec<C> sum) const { return sum; }
};

// As products of pairs of bfloat16, each pair in the place of one number, and times the factor of queries in the end.
struct PairProducts {
    float of_queries;

    LIMELIGHT_INLINE Vec<float> factor(const float& k) const { return copies_of(&k); }
    LIMELIGHT_INLINE Vec<float> add(Vec<float> sum, Vec<float> k, Vec<float> q) const { return add_pairs(sum, q, k); }
    LIMELIGHT_INLINE Vec<float> finish(Vec<float> sum) const { return sum * of_queries; }
};

// K keys from the block's key `first` on, for NV of the L vectors of a tile.
template <class C, int K, int NV, int L, class Products>
LIMELIGHT_INLINE void tile_scores(Products products, const C* q, const C* k, int64_t stride, int64_t D, C* s, C* top,
                                  AlibiBias<C> alibi_bias, int64_t first, int64_t chain) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[K][NV];
    const auto for_sums = [&](auto f) {
#pragma GCC unroll 32
        for (int a = 0; a < K; ++a)
#pragma GCC unroll 3
            for (int b = 0; b < NV; ++b) f(acc[a][b], s + (a * L + b) * W);
    };
    for (int64_t d = 0;;) {
        const int64_t begin = d, end = begin + chain < D ? begin + chain : D;
        for_sums([](Vec<C>& sum, C*) { sum = Vec<C>{}; });
#pragma GCC unroll 4
        for (; d < end; ++d) {
            Vec<C> x[NV];
#pragma GCC unroll 3
            for (int b = 0; b < NV; ++b) x[b] = load(q + (d * L + b) * W);
#pragma GCC unroll 32
            for (int a = 0; a < K; ++a) {
                const auto factor = products.factor(k[a * stride + d]);
#pragma GCC unroll 3
                for (int b = 0; b < NV; ++b) acc[a][b] = products.add(acc[a][b], factor, x[b]);
            }
        }
        if (begin) for_sums([](Vec<C>& sum, C* before) { sum += load(before); });
        if (end == D) break;
        for_sums([](Vec<C>& sum, C* to) { store(to, sum); });
    }
    for_sums([&](Vec<C>& sum, C*) { sum = products.finish(sum); });
#pragma GCC unroll 3
    for (int b = 0; b < NV; ++b) {
        if (alibi_bias.slope)
#pragma GCC unroll 32
            for (int a = 0; a < K; ++a) acc[a][b] += alibi_bias.at(b * W, first + a);
#pragma GCC unroll 32
        for (int a = 0; a < K; ++a) store(s + (a * L + b) * W, acc[a][b]);
        if (top) {
            Vec<C> t = load(top + b * W);
#pragma GCC unroll 32
            for (int a = 0; a < K; ++a) t = larger(acc[a][b], t);
            store(top + b * W, t);
        }
    }
}

// Keys by which values are prefetched ahead of their use. A register tile takes a few numbers from each row of V; where rows
// are 512 bytes long and more, few of them fit into the first cache together, since their addresses differ by a power of two.
constexpr int64_t kValuesAhead = 4;

// o = decay · o + Σ p v. The block is summed apart first: a sum over all keys in one chain would lose digits.
template <class C, int K, int NV, int L>
LIMELIGHT_INLINE void tile_values(const C* p, const C* v, int64_t stride, int64_t n, C* o, const C* decay) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[K][NV] = {};
#pragma GCC unroll 4
    for (int64_t j = 0; j < n; ++j) {
        __builtin_prefetch(v + (j + kValuesAhead) * stride, 0, 3);
        Vec<C> x[NV];
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) x[b] = load(p + (j * L + b) * W);
#pragma GCC unroll 32
        for (int a = 0; a < K; ++a)
#pragma GCC unroll 3
            for (int b = 0; b < NV; ++b) acc[a][b] += v[j * stride + a] * x[b];
    }
#pragma GCC unroll 32
    for (int a = 0; a < K; ++a)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) {
            C* to = o + (a * L + b) * W;
            store(to, load(to) * load(decay + b * W) + acc[a][b]);
        }
}

// The scores of n keys, and their maximum joined to `top` unless that is null. Whole register tiles while
// they last, then halves, so that no number outside is ever read. Between them some of what is `upcoming` is prefetched.
template <class C, int NV, int L, int K = kTile<NV>, class Products>
void all_scores(Products products, const C* q, const C* k, int64_t stride, int64_t D, int64_t n, C* s, C* top,
                AlibiBias<C> alibi_bias, int64_t chain, Upcoming* upcoming, int64_t first) {
    constexpr int lanes = L * kWidth<C>;
    int64_t j = first;
    for (; j + K <= n; j += K) {
        tile_scores<C, K, NV, L>(products, q, k + j * stride, stride, D, s + j * lanes, top, alibi_bias, j, chain);
        if (upcoming) upcoming->fetch();
    }
    if constexpr (K > 1)
        if (j < n)
            all_scores<C, NV, L, (K + 1) / 2>(products, q, k, stride, D, n, s, top, alibi_bias, chain, upcoming, j);
}

template <class C, int NV, int L = NV, int K = kTile<NV>>
void all_values(const C* p, const C* v, int64_t stride, int64_t n, int64_t Dv, C* o, const C* decay,
                Upcoming* upcoming) {
    int64_t d = 0;
    for (; d + K <= Dv; d += K) {
        tile_values<C, K, NV, L>(p, v + d, stride, n, o + d * L * kWidth<C>, decay);
        if (upcoming) upcoming->fetch();
    }
    if constexpr (K > 1)
        if (d < Dv)
            all_values<C, NV, L, (K + 1) / 2>(p, v + d, stride, n, Dv - d, o + d * L * kWidth<C>, decay, upcoming);
}

}  // namespace limelight::LIMELIGHT_ISA
