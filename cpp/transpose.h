// Between rows, as tensors lie in memory, and lanes, as the kernels want them.
#pragma once

#include "half.h"

namespace limelight::LIMELIGHT_ISA {

// A square of vectors: exchange ever smaller off-diagonal squares.
template <class C, int half = kWidth<C> / 2> LIMELIGHT_INLINE void transpose_square(Vec<C> (&v)[kWidth<C>]) {
    constexpr int W = kWidth<C>;
    if constexpr (half > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
            if (!(i & half)) {
                const Vec<C> a = v[i], b = v[i | half];
                v[i] = shuffle<C>(a, b, [](auto j) { return j & half ? W + j - half : j; });
                v[i | half] = shuffle<C>(a, b, [](auto j) { return j & half ? W + j : j + half; });
            }
        transpose_square<C, half / 2>(v);
    }
}

// to[c][r] = f(from[r][c …], c) for whole squares, where f changes a vector of consecutive columns from c on. Numbers are
// converted as they are read and written.
template <class C, class From, class To, class F>
void transpose_squares(const From* from, int64_t from_stride, int64_t rows, int64_t cols, To* to, int64_t to_stride,
                       F&& f) {
    constexpr int W = kWidth<C>;
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t c = 0; c < cols; c += W) {
            Vec<C> v[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) v[i] = f(load_as<C>(from + (r + i) * from_stride + c), c);
            transpose_square<C>(v);
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) store_as<C>(to + (c + i) * to_stride + r, v[i]);
        }
}

// to[c][r] = from[r][c]
template <class C>
void transpose(const C* from, int64_t from_stride, int64_t rows, int64_t cols, C* to, int64_t to_stride) {
    constexpr int W = kWidth<C>;
    int64_t r = 0;
    for (; r + W <= rows; r += W) {
        int64_t c = 0;
        for (; c + W <= cols; c += W) {
            Vec<C> v[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) v[i] = load(from + (r + i) * from_stride + c);
            transpose_square<C>(v);
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) store(to + (c + i) * to_stride + r, v[i]);
        }
        for (; c < cols; ++c)
            for (int i = 0; i < W; ++i) to[c * to_stride + r + i] = from[(r + i) * from_stride + c];
    }
    for (; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

}  // namespace limelight::LIMELIGHT_ISA
