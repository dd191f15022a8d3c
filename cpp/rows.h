// Rows of tensors: their addresses, and copies of them in the compute type.
#pragma once

#include "bf16_pairs.h"
#include "decode.h"
#include "spans.h"
#include "transpose.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> constexpr Type kType = sizeof(C) == 8 ? Type::f64 : Type::f32;
template <class C> constexpr int kMaxLanes = 3 * kWidth<C>;

// A number in the compute type, and what rounding took from it: 0 where it is not finite.
template <class C> struct Rounded {
    C value, rest;
    explicit Rounded(double exact) : value(C(exact)), rest(value - value == C(0) ? C(exact - double(value)) : C(0)) {}
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
template <class C> int64_t whole_vectors(int64_t n) { return ceil_div(n, kWidth<C>) * kWidth<C>; }

// Rows at large strides fall into few cache sets, and a block of them then evicts itself.
constexpr int64_t kFarApart = 2048;

// Hands out aligned pieces of a thread's scratch memory; from address 0 on it only measures how much they take.
struct Arena {
    uintptr_t next;
    template <class T> T* take(int64_t n) {
        T* piece = reinterpret_cast<T*>(next);
        next += ceil_div(n * sizeof(T), 64) * 64;
        return piece;
    }
};

// f(a number of this type)
template <class F> LIMELIGHT_INLINE void with_element_type(Type type, F&& f) {
    switch (type) {
        case Type::f32: f(float{}); break;
        case Type::f64: f(double{}); break;
        case Type::bf16: f(bf16{}); break;
        case Type::f16: f(f16{}); break;
        case Type::i8: f(int8_t{}); break;
    }
}

// The same for what is read in place: doubles are computed from doubles alone, floats from the others.
template <class C, class F> LIMELIGHT_INLINE void with_readable_type(Type type, F&& f) {
    if constexpr (sizeof(C) == 8) {
        f(double{});
    } else {
        if (type == Type::bf16) f(bf16{});
        else if (type == Type::f16) f(f16{});
        else if (type == Type::i8) f(int8_t{});
        else f(float{});
    }
}

// Rows of K or V where they lie, or a copy in the compute type.
struct Operand {
    const char* data;
    Type type;
    int64_t stride;
    const float* scale = nullptr;  // by row, where the numbers are bytes

    int64_t pitch() const { return stride * int64_t(size_of(type)); }  // in bytes
    template <class E> Matrix<E> as_matrix() const { return {reinterpret_cast<const E*>(data), stride}; }
    Operand from(int64_t j) const { return {data + j * pitch(), type, stride, scale ? scale + j : nullptr}; }
};

LIMELIGHT_INLINE char* address(const Rows& x, int64_t batch, int64_t head, int64_t row = 0) {
    return const_cast<char*>(x.data) + (batch * x.batch + head * x.head + row * x.row) * int64_t(size_of(x.type));
}

LIMELIGHT_INLINE Operand in_place(const Rows& x, int64_t batch, int64_t head) {
    return {address(x, batch, head), x.type, x.row,
            x.scale ? x.scale + batch * x.scale_batch + head * x.scale_head : nullptr};
}

// to[d] = factor · x[d]
template <class C, class E> LIMELIGHT_INLINE void widen_numbers(const E* x, int64_t width, C factor, C* to) {
    int64_t d = 0;
    if constexpr (std::is_same_v<C, decltype(widen(E{}))>)
        for (; d + kWidth<C> <= width; d += kWidth<C>) store(to + d, load_as<C>(x + d) * factor);
    for (; d < width; ++d) to[d] = C(widen(x[d])) * factor;
}

// The same for numbers of any type, filled with zeros up to `pitch`.
template <class C> LIMELIGHT_INLINE void widen_row(const char* from, Type type, int64_t width, C factor, C* to,
                                                   int64_t pitch) {
    with_element_type(type,
                      [&](auto e) { widen_numbers(reinterpret_cast<const decltype(e)*>(from), width, factor, to); });
    for (int64_t d = width; d < pitch; ++d) to[d] = 0;
}

// n rows of `width` in the compute type, one after the other.
template <class C> Operand copy(const Operand& x, int64_t n, int64_t width, C* buffer) {
    with_element_type(x.type, [&](auto e) {
        const auto from = x.as_matrix<decltype(e)>();
        for (int64_t j = 0; j < n; ++j)
            widen_numbers(from.row(j), width, x.scale ? C(x.scale[j]) : C(1), buffer + j * width);
    });
    return {reinterpret_cast<const char*>(buffer), kType<C>, width};
}

// True if K or V is read from a copy.
template <class C> bool copied(const Rows& x, bool decode) {
    if (decode) return sizeof(C) == 8 ? x.type != Type::f64 : x.type == Type::f64;
    return x.type != kType<C> || x.row * int64_t(sizeof(C)) >= kFarApart;
}

// Copies the rows of a tile in the compute type. Lanes without a row repeat the last one.
template <class C>
void gather(const Rows& x, int64_t batch, const Row* rows, int row_count, int lanes, int64_t width, C factor, C* to,
            int64_t pitch) {
    for (int r = 0; r < lanes; ++r) {
        const Row& row = rows[min(r, row_count - 1)];
        widen_row(address(x, batch, row.head, row.query), x.type, width, factor, to + r * pitch, pitch);
    }
}

// Consecutive rows of x are whole squares of vectors, which are transposed where they lie.
template <class C> bool is_square(const Rows& x, int64_t width, bool consecutive) {
    return consecutive && (x.type == Type::f64) == (sizeof(C) == 8) && width % kWidth<C> == 0;
}

// Brings the rows of a tile, times a factor, to its lanes, or one after the other where it decodes; `scratch` has room
// for them.
template <class C, class Tile>
void load_lanes(const Rows& from, int64_t width, C factor, int64_t batch, const Tile& x, C* to, C* scratch) {
    if (x.decode) return gather(from, batch, x.rows, x.row_count, x.row_count, width, factor, to, width);
    if (is_square<C>(from, width, x.consecutive()))
        return with_readable_type<C>(from.type, [&](auto e) {
            const auto* rows =
                reinterpret_cast<const decltype(e)*>(address(from, batch, x.rows[0].head, x.rows[0].query));
            transpose_squares<C>(rows, from.row, x.lanes(), width, to, x.lanes(),
                                 [&](Vec<C> row, int64_t) { return row * factor; });
        });
    gather(from, batch, x.rows, x.row_count, x.lanes(), width, factor, scratch, width);
    transpose(scratch, width, x.lanes(), width, to, x.lanes());
}

// True if the products of rows in lanes with rows of K or V are made of pairs of bfloat16, for which the latter are read where
// they lie: in aligned words of two numbers.
template <class C> bool has_pairs_in_lanes(Type lanes, const Rows& x, int64_t width) {
    return multiplies_pairs<C>(lanes, x.type, width) && x.row * int64_t(sizeof(bf16)) < kFarApart &&
           reinterpret_cast<uintptr_t>(x.data) % 4 == 0 && (x.batch | x.head | x.row) % 2 == 0;
}

// True if scores are products of pairs.
template <class C> bool has_pairs(const Problem& p, bool decode) {
    return decode ? multiplies_pairs<C>(p.q.type, p.k.type, p.D) : has_pairs_in_lanes<C>(p.q.type, p.k, p.D);
}

// True if each task needs a copy of K in the compute type, or one is made beforehand.
template <class C> bool copies_keys(const Problem& p, bool decode) {
    return copied<C>(p.k, decode) && !has_pairs<C>(p, decode);
}

// Brings the rows of a tile to its lanes in pairs of features, as they are.
template <class C, class Tile>
void load_lanes_of_pairs(const Rows& from, int64_t width, int64_t batch, const Tile& x, C* to, C* scratch) {
    const int64_t words = width / 2;
    for (int r = 0; r < x.lanes(); ++r) {
        const Row& row = x.rows[min(r, x.row_count - 1)];
        std::memcpy(scratch + r * words, address(from, batch, row.head, row.query), width * sizeof(bf16));
    }
    transpose(scratch, words, x.lanes(), words, to, x.lanes());
}

// 0 · x is 0 for every finite x and NaN for the others.
template <class C> bool all_finite(const Operand& v, int64_t n, int64_t width) {
    constexpr int W = kWidth<C>;
    Vec<C> probe[4] = {};  // sums in flight
    C rest = 0;
    with_readable_type<C>(v.type, [&](auto e) {
        using E = decltype(e);
        for (int64_t j = 0; j < n; ++j) {
            const E* row = v.as_matrix<E>().row(j);
            int64_t d = 0;
            for (; d + 4 * W <= width; d += 4 * W)
#pragma GCC unroll 4
                for (int u = 0; u < 4; ++u) probe[u] += load_as<C>(row + d + u * W) * C(0);
            for (; d + W <= width; d += W) probe[0] += load_as<C>(row + d) * C(0);
            for (; d < width; ++d) rest += C(widen(row[d])) * C(0);
        }
    });
    return sum<C>((probe[0] + probe[1]) + (probe[2] + probe[3])) + rest == C(0);
}

inline Row row_at(const Problem& p, int64_t batch, int64_t head, int64_t query) {
    Row row;
    row.head = head;
    row.query = query;
    row.position = p.M - p.N + p.shift + query;
    row.spans = p.spans.data ? p.spans.data + batch * p.spans.batch + query * p.spans.count * 2 : nullptr;
    return row;
}

}  // namespace limelight::LIMELIGHT_ISA
