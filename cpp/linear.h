// x Wᵀ + bias, and a residual where given, for a few rows of x: reading W is the whole cost, as reading K is in decoding.
//
// Several matrices that share x are read in one call. Each is read once, a few rows at a time from their first number
// to their last, for all rows of x together; how the work is cut depends on the matrices alone.
#pragma once

#include "bf16_pairs.h"
#include "kernels.h"
#include "rows.h"
#include "thread_pool.h"

namespace limelight::LIMELIGHT_ISA {

// Bytes by which memory is prefetched ahead of its use; 0 for not at all. A matrix is read in order, which AMD's processors
// without AVX-512 foresee by themselves where computing takes less time than reading: with requests, one row of x took an
// eighth longer on Zen 3.
template <class C, class E, int R> int64_t ask_ahead() {
    constexpr bool quick = R <= 3 && std::is_same_v<C, E>;
    return quick && LIMELIGHT_BYTES < 64 && amd_family() ? 0 : 4096;
}

// Rows of W that are read side by side for R rows of x, which are then loaded once for all of them: a load takes as long as
// a product. Their sums fit into the registers beside a number of each.
template <int R> constexpr int columns_at_once() {
    constexpr int room = (LIMELIGHT_REGISTERS - 5) / R;
    return R == 1 || room < 1 ? 1 : room < 4 ? room : 4;
}

// Numbers that one instruction multiplies: where x is bfloat16, pairs.
template <class C, class X> constexpr int64_t kMultiplied = std::is_same_v<X, bf16> ? kPaired : kWidth<C>;

// y[r][j] = x[r] · w[j] for R rows of x and J rows of W that lie `stride` apart, without the numbers after the last whole
// vector. x has the compute type, or is bfloat16 for products of pairs.
template <class C, class E, int R, int J, class X>
LIMELIGHT_INLINE void multiply_row(const X* x, const E* w, int64_t stride, int64_t D, int64_t ahead, C* y) {
    constexpr bool pairs = std::is_same_v<X, bf16>;
    constexpr int64_t W = kMultiplied<C, X>;
    constexpr int n = R * J, U = n == 1 ? 8 : n == 2 ? 4 : n <= 4 ? 2 : 1;  // about eight sums in flight
    Vec<C> acc[U][R][J] = {};
    const auto load_column = [](const E* p) __attribute__((always_inline)) {
        if constexpr (pairs) return load_pairs(p);
        else return in_register<(R > 1)>(load_as<C>(p));
    };
    const auto load_row = [](const X* p) __attribute__((always_inline)) {
        if constexpr (pairs) return load_pairs(p);
        else return in_register<(J > 1)>(load(p));
    };
    const auto add = [&](Vec<C>(&sum)[R][J], int64_t d) __attribute__((always_inline)) {
        Vec<C> column[J];
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) column[j] = load_column(w + j * stride + d);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Vec<C> z = load_row(x + r * D + d);
#pragma GCC unroll 4
            for (int j = 0; j < J; ++j)
                if constexpr (pairs) sum[r][j] = add_pairs(sum[r][j], column[j], z);
                else sum[r][j] += column[j] * z;
        }
    };
    int64_t d = 0;
    for (; d + U * W <= D; d += U * W)
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
#pragma GCC unroll 4
            for (int j = 0; ahead && j < J; ++j)
                __builtin_prefetch(reinterpret_cast<const char*>(w + j * stride + d + u * W) + ahead);
            add(acc[u], d + u * W);
        }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u, d += W) {
        if (d + W > D) break;
        add(acc[u], d);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
            for (int u = 1; u < U; ++u) acc[0][r][j] += acc[u][r][j];
            y[r * J + j] = sum<C>(acc[0][r][j]);
        }
}

// Columns [begin, end) of the output of one matrix, for R rows of x in the compute type, or as bfloat16 for products of pairs,
// J of them at a time.
template <class C, class E, int R, int J = columns_at_once<R>(), class X>
void multiply_rows(const Linear& l, const LinearPart& part, const X* x, int64_t begin, int64_t end) {
    constexpr int64_t W = kMultiplied<C, X>;
    const E *w = reinterpret_cast<const E*>(part.w), *bias = reinterpret_cast<const E*>(part.bias);
    const E* residual = reinterpret_cast<const E*>(part.residual);
    E* out = reinterpret_cast<E*>(part.out);
    const int64_t whole = l.D / W * W, ahead = ask_ahead<C, E, R>();
    int64_t first = begin;
    for (; first + J <= end; first += J) {
        C y[R * J];
        multiply_row<C, E, R, J>(x, w + first * part.stride, part.stride, l.D, ahead, y);
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < J; ++j) {
                const E* row = w + (first + j) * part.stride;
                C& total = y[r * J + j];
                for (int64_t d = whole; d < l.D; ++d) total += C(widen(x[r * l.D + d])) * C(widen(row[d]));
                if (bias) total += C(widen(bias[first + j]));
                const int64_t at = r * part.N + first + j;
                if (residual) total += C(widen(residual[at]));
                out[at] = narrow<E>(total);
            }
    }
    if constexpr (J > 1)
        if (first < end) multiply_rows<C, E, R, 1>(l, part, x, first, end);
}

// The same for all rows of x: eight at once, then those that are left.
template <class C, class E, class X>
void multiply(const Linear& l, const LinearPart& part, const X* x, int64_t begin, int64_t end) {
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
    [[maybe_unused]] const bool pairs = multiplies_pairs<C>(l.type, l.type, l.D);
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
        if constexpr (kKnowsPairs<C>)
            if (pairs) return multiply<C, bf16>(l, part, reinterpret_cast<const bf16*>(l.x), begin, end);
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
