// Sums over queries with features in the vector lanes: c[key][f] += Σ x[key][query] · y[query][f].
//
// The two products of the gradient that belong to keys, dV and dK. x is a block of weights; its numbers are
// broadcast from where they lie, so nothing is transposed.
#pragma once

#include <cmath>

#include "spans.h"
#include "register_tile.h"

namespace limelight::LIMELIGHT_ISA {

// A block of x for some queries, and their rows of y.
template <class C> struct Term {
    const C* x;
    int64_t pitch;  // from one key to the next
    const C* y;
    int64_t stride, n;

    // From the a-th key on, for some of the queries.
    Term part(int64_t a, Range queries) const {
        return {x + a * pitch + queries.begin, pitch, y + queries.begin * stride, stride, queries.end - queries.begin};
    }
};

// Keys that are multiplied at a time.
constexpr int kProductKeys = 12;

// Vectors of features that are multiplied at a time, at most.
constexpr int kProductVectors = LIMELIGHT_REGISTERS >= 32 && LIMELIGHT_BYTES == 64 ? 4 : 3;

// Keys in a register tile with NV vectors of features: as many as fit and divide kProductKeys. A tile of the keys that are
// left otherwise has too few sums to keep the multiply-add units busy.
template <int NV> constexpr int product_tile_keys() {
    int keys = kProductKeys;
    while (keys * NV > kSums<NV> || kProductKeys % keys) --keys;
    return keys;
}

// The first `n` numbers of a vector, and zeros.
template <class C> LIMELIGHT_INLINE Vec<C> load_part(const C* p, int64_t n) {
    Vec<C> v{};
    std::memcpy(&v, p, n * sizeof(C));
    return v;
}

template <class C> LIMELIGHT_INLINE void store_part(C* p, Vec<C> v, int64_t n) { std::memcpy(p, &v, n * sizeof(C)); }

// K keys from the a-th on and NV vectors of features; with a `tail` the last vector has only so many.
template <class C, int K, int NV>
LIMELIGHT_INLINE void tile_product(const Term<C>* terms, int count, int64_t a, int64_t feature, C* c, int64_t stride,
                                   int64_t tail) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[K][NV] = {};
    for (int t = 0; t < count; ++t) {
        const Term<C>& term = terms[t];
        const C* x = term.x + a * term.pitch;
        const C* y = term.y + feature;
#pragma GCC unroll 4
        for (int64_t d = 0; d < term.n; ++d) {
            Vec<C> v[NV];
#pragma GCC unroll 4
            for (int b = 0; b < NV; ++b) v[b] = load(y + d * term.stride + b * W);
#pragma GCC unroll 32
            for (int i = 0; i < K; ++i)
#pragma GCC unroll 4
                for (int b = 0; b < NV; ++b) acc[i][b] += x[i * term.pitch + d] * v[b];
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < K; ++i)
#pragma GCC unroll 4
        for (int b = 0; b < NV; ++b) {
            C* to = c + (a + i) * stride + feature + b * W;
            if (!tail) store(to, load(to) + acc[i][b]);
            else store_part<C>(to, load_part(to, tail) + acc[i][b], tail);
        }
}

template <class C, int NV, int K = product_tile_keys<NV>()>
void product_keys(const Term<C>* terms, int count, int64_t a, int64_t end, int64_t feature, C* c, int64_t stride,
                  int64_t tail) {
    for (; a + K <= end; a += K) tile_product<C, K, NV>(terms, count, a, feature, c, stride, tail);
    if constexpr (K > 1)
        if (a < end) product_keys<C, NV, (K + 1) / 2>(terms, count, a, end, feature, c, stride, tail);
}

// The keys [a, end) and all features from f on: NV vectors at a time while there are as many, but none alone at the end.
template <class C, int NV>
void product_features(const Term<C>* terms, int count, int64_t a, int64_t end, int64_t f, int64_t width, C* c,
                      int64_t stride) {
    constexpr int W = kWidth<C>;
    if constexpr (NV == 1) {
        for (; f < width; f += W)
            product_keys<C, 1>(terms, count, a, end, f, c, stride, f + W <= width ? 0 : width - f);
    } else {
        for (; f + NV * W <= width && (NV == 2 || f + (NV + 1) * W != width); f += NV * W)
            product_keys<C, NV>(terms, count, a, end, f, c, stride, 0);
        product_features<C, NV - 1>(terms, count, a, end, f, width, c, stride);
    }
}

// `keys` rows of c, each of `width` features, a few at a time, so that their weights stay in the nearest cache
// together with all of y. The rows of y are filled up to whole vectors.
template <class C> void product(const Term<C>* terms, int count, int64_t keys, int64_t width, C* c, int64_t stride) {
    for (int64_t a = 0; a < keys; a += kProductKeys) {
        const int64_t end = min(a + kProductKeys, keys);
        product_features<C, kProductVectors>(terms, count, a, end, 0, width, c, stride);
    }
}

// With fewer rows than this, dK and dV are short sums, and as exact as those of a dense product only in short chains.
constexpr int64_t kFewRows = 512;

// Of n numbers that are summed in chains, whose sums are added up in another chain, roundings are least for √n in a chain.
inline int64_t few_rows_chain(int64_t rows) { return max(2, std::lround(std::sqrt(double(rows)))); }

// The same with sums over at most `chain` queries in one chain.
template <class C>
void product_in_chains(const Term<C>* terms, int count, int64_t chain, int64_t keys, int64_t width, C* c,
                       int64_t stride) {
    int64_t queries = 0;
    for (int t = 0; t < count; ++t) queries += terms[t].n;
    if (queries <= chain) return product(terms, count, keys, width, c, stride);
    for (int t = 0; t < count; ++t)
        for (int64_t q = 0; q < terms[t].n; q += chain) {
            const Term<C> part = terms[t].part(0, {q, min(q + chain, terms[t].n)});
            product(&part, 1, keys, width, c, stride);
        }
}

}  // namespace limelight::LIMELIGHT_ISA
