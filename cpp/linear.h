// x Wᵀ + bias for a few rows of x: reading W is the whole cost, as reading K is in decoding.
//
// Several matrices that share x are read in one call. Each is read once, one row after the other from its first number
// to its last, for all rows of x together; how the work is cut depends on the matrices alone.
#pragma once

#include "rows.h"
#include "thread_pool.h"

namespace limelight::LIMELIGHT_ISA {

constexpr int64_t kAskAhead = 4096;  // bytes by which memory is prefetched ahead of its use

// total[r] = x[r] ∘ w, summed down to one vector, for R rows of x; the numbers after the last whole vector are left.
template <class C, class E, int R>
LIMELIGHT_INLINE void multiply_row(const C* x, const E* w, int64_t D, Vec<C> (&total)[R]) {
    constexpr int W = kWidth<C>, U = R == 1 ? 8 : R == 2 ? 4 : R <= 4 ? 2 : 1;  // about eight sums in flight
    Vec<C> acc[R][U] = {};
    int64_t d = 0;
    for (; d + U * W <= D; d += U * W) {
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
            const Vec<C> y = load_as<C>(w + d + u * W);
            __builtin_prefetch(reinterpret_cast<const char*>(w + d + u * W) + kAskAhead);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[r][u] += y * load(x + r * D + d + u * W);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u, d += W) {
        if (d + W > D) break;
        const Vec<C> y = load_as<C>(w + d);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][u] += y * load(x + r * D + d);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int u = 1; u < U; ++u) acc[r][0] += acc[r][u];
        total[r] = acc[r][0];
    }
}

// Columns [begin, end) of the output of one matrix, for R rows of x in the compute type.
template <class C, class E, int R>
void multiply_rows(const Linear& l, const LinearPart& part, const C* x, int64_t begin, int64_t end) {
    constexpr int W = kWidth<C>;
    const E *w = reinterpret_cast<const E*>(part.w), *bias = reinterpret_cast<const E*>(part.bias);
    E* out = reinterpret_cast<E*>(part.out);
    const int64_t whole = l.D / W * W;
    for (int64_t j = begin; j < end; ++j) {
        const E* row = w + j * part.stride;
        Vec<C> total[R];
        multiply_row<C, E, R>(x, row, l.D, total);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            C y = sum<C>(total[r]);
            for (int64_t d = whole; d < l.D; ++d) y += x[r * l.D + d] * C(widen(row[d]));
            if (bias) y += C(widen(bias[j]));
            out[r * part.N + j] = narrow<E>(y);
        }
    }
}

// The same for all rows of x: eight at once, then those that are left.
template <class C, class E>
void multiply(const Linear& l, const LinearPart& part, const C* x, int64_t begin, int64_t end) {
    switch (l.rows) {
        case 1: return multiply_rows<C, E, 1>(l, part, x, begin, end);
        case 2: return multiply_rows<C, E, 2>(l, part, x, begin, end);
        case 3: return multiply_rows<C, E, 3>(l, part, x, begin, end);
        case 4: return multiply_rows<C, E, 4>(l, part, x, begin, end);
        case 5: return multiply_rows<C, E, 5>(l, part, x, begin, end);
        case 6: return multiply_rows<C, E, 6>(l, part, x, begin, end);
        case 7: return multiply_rows<C, E, 7>(l, part, x, begin, end);
        default: return multiply_rows<C, E, 8>(l, part, x, begin, end);
    }
}

template <class C> void linear(const Linear& l, int threads) {
    const bool in_place = l.type == kType<C>;
    const int64_t columns = in_place ? 64 : 256;  // of one task; a copy of x has to pay
    int64_t first_task[kLinearParts + 1] = {0}, all = 0;
    for (int i = 0; i < l.count; ++i) {
        first_task[i + 1] = first_task[i] + ceil_div(l.parts[i].N, columns);
        all += l.parts[i].N;
    }
    if (double(l.rows) * all * l.D < kWorthAThread) threads = 1;
    const size_t copy = in_place ? 0 : l.rows * l.D * sizeof(C);
    parallel(first_task[l.count], threads, copy, [&](int64_t task, char* memory) {
        int i = 0;
        while (task >= first_task[i + 1]) ++i;
        const LinearPart& part = l.parts[i];
        const int64_t begin = (task - first_task[i]) * columns, end = min(begin + columns, part.N);
        const C* x = reinterpret_cast<const C*>(l.x);
        if (!in_place) {
            C* wide = reinterpret_cast<C*>(memory);
            widen_row(l.x, l.type, l.rows * l.D, C(1), wide, l.rows * l.D);
            x = wide;
        }
        with_readable_type<C>(l.type, [&](auto e) { multiply<C, decltype(e)>(l, part, x, begin, end); });
    });
}

}  // namespace limelight::LIMELIGHT_ISA
