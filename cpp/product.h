// Sums of products with features in the vector lanes: c[a][f] += Σ_d x(a, d) · y[d][f].
//
// The three products of the gradient that are not scores. x is a block of weights (key, query); its
// numbers are broadcast from where they lie, along either axis, so nothing is turned.
#pragma once

#include "tile.h"

namespace limelight::LIMELIGHT_ISA {

enum class Sum { over_keys, over_queries };

// One block of x and the rows of y that belong to its summed axis.
template <class C> struct Term {
    const C* x;
    int64_t pitch;  // from one key to the next
    const C* y;
    int64_t stride, n;
};

// The first `n` numbers of a vector, and zeros.
template <class C> LIMELIGHT_INLINE Vec<C> load_part(const C* p, int64_t n) {
    Vec<C> v{};
    std::memcpy(&v, p, n * sizeof(C));
    return v;
}

template <class C> LIMELIGHT_INLINE void store_part(C* p, Vec<C> v, int64_t n) { std::memcpy(p, &v, n * sizeof(C)); }

// K rows from the a-th on and NV vectors of features; with a `tail` the last vector has only so many.
template <class C, int K, int NV, Sum over>
LIMELIGHT_INLINE void tile_product(const Term<C>* terms, int count, int64_t a, int64_t feature, C* c, int64_t stride,
                                   int64_t tail) {
    constexpr int W = kWidth<C>;
    Vec<C> acc[K][NV] = {};
    for (int t = 0; t < count; ++t) {
        const Term<C>& term = terms[t];
        const C* x = term.x + (over == Sum::over_keys ? a : a * term.pitch);
        const C* y = term.y + feature;
#pragma GCC unroll 4
        for (int64_t d = 0; d < term.n; ++d) {
            Vec<C> v[NV];
#pragma GCC unroll 3
            for (int b = 0; b < NV; ++b) v[b] = load(y + d * term.stride + b * W);
#pragma GCC unroll 32
            for (int i = 0; i < K; ++i)
#pragma GCC unroll 3
                for (int b = 0; b < NV; ++b)
                    acc[i][b] += (over == Sum::over_keys ? x[d * term.pitch + i] : x[i * term.pitch + d]) * v[b];
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < K; ++i)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) {
            C* to = c + (a + i) * stride + feature + b * W;
            if (!tail) store(to, load(to) + acc[i][b]);
            else store_part<C>(to, load_part(to, tail) + acc[i][b], tail);
        }
}

template <class C, int NV, Sum over, int K = kTile<NV>>
void product_rows(const Term<C>* terms, int count, int64_t rows, int64_t feature, C* c, int64_t stride,
                  int64_t tail, int64_t a = 0) {
    for (; a + K <= rows; a += K) tile_product<C, K, NV, over>(terms, count, a, feature, c, stride, tail);
    if constexpr (K > 1)
        if (a < rows) product_rows<C, NV, over, (K + 1) / 2>(terms, count, rows, feature, c, stride, tail, a);
}

// `rows` rows of c, each of `width` features. The rows of y are filled up to whole vectors.
template <Sum over, class C>
void product(const Term<C>* terms, int count, int64_t rows, int64_t width, C* c, int64_t stride) {
    constexpr int W = kWidth<C>;
    int64_t f = 0;
    for (; f + 3 * W <= width && f + 4 * W != width; f += 3 * W)
        product_rows<C, 3, over>(terms, count, rows, f, c, stride, 0);
    for (; f + 2 * W <= width; f += 2 * W) product_rows<C, 2, over>(terms, count, rows, f, c, stride, 0);
    for (; f < width; f += W) product_rows<C, 1, over>(terms, count, rows, f, c, stride, f + W <= width ? 0 : width - f);
}

}  // namespace limelight::LIMELIGHT_ISA
