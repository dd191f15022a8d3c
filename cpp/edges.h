// The products of a tile along the edges of a band, without the vectors of queries that see nothing there.
//
// Under a causal mask or a window the rows of a tile begin and end at different keys. A run of keys is cut where a whole
// vector of rows begins or ends, and each piece is computed for the vectors that see some of it.
#pragma once

#include "logits.h"

namespace limelight::LIMELIGHT_ISA {

// Keys of a block, counted from its first, and the vectors [first, first + count) of the tile that see some of them.
struct Piece {
    int64_t begin, end;
    int first, count;
};

// f(piece) for the pieces of a block, of which `partial` is seen by some rows only.
template <class C, int NV, class F> void for_each_piece(const Block<C>& b, Range partial, F&& f) {
    // Where scores are capped, those that are masked have to be numbers.
    if (NV == 1 || partial.empty() || !b.lane_spans || b.p.softcap) return f(Piece{0, b.n, 0, NV});
    int64_t begin[NV], end[NV], cuts[2 * NV];
    int n = 0;
    for (int v = 0; v < NV; ++v) {
        const auto& x = b.lane_spans->of_vector[v];
        begin[v] = min(max(x.first_begin - b.first, 0), b.n), end[v] = max(min(x.last_end - b.first, b.n), 0);
        for (const int64_t cut : {begin[v], end[v]}) {
            int at = n++;
            for (; at && cuts[at - 1] > cut; --at) cuts[at] = cuts[at - 1];
            cuts[at] = cut;
        }
    }
    for (int i = 0; i + 1 < n; ++i) {
        if (cuts[i] >= cuts[i + 1]) continue;
        int first = NV, last = -1;
        for (int v = 0; v < NV; ++v)
            if (begin[v] <= cuts[i] && cuts[i + 1] <= end[v]) first = int(min(first, v)), last = v;
        if (last >= 0) f(Piece{cuts[i], cuts[i + 1], first, last + 1 - first});
    }
}

// f(the number of vectors as a constant), of at most NV.
template <int NV, class F> LIMELIGHT_INLINE void with_vectors(int count, F&& f) {
    if constexpr (NV > 1)
        if (count < NV) return with_vectors<NV - 1>(count, f);
    f(std::integral_constant<int, NV>{});
}

// As all_scores, for all keys of a block that rows see. What no row of a vector sees becomes 0: the backward multiplies it
// by a weight of 0, and numbers of an earlier block that are not finite would spread from there.
template <class C, int NV, class Products = NumberProducts<C>>
void visible_scores(const Block<C>& b, Range partial, const C* q, Matrix<C> k, int64_t D, C* s, C* top,
                    AlibiBias<C> alibi_bias, int64_t chain, Products products = {}) {
    constexpr int W = kWidth<C>;
    const auto clear = [&](int64_t begin, int64_t end, int first, int last) {
        for (int64_t j = begin; j < end; ++j)
            for (int v = first; v < last; ++v) store(s + (j * NV + v) * W, Vec<C>{});
    };
    int64_t done = 0;  // keys
    for_each_piece<C, NV>(b, partial, [&](const Piece& piece) {
        const int lane = piece.first * W;
        clear(done, piece.begin, 0, NV);
        clear(piece.begin, piece.end, 0, piece.first);
        clear(piece.begin, piece.end, piece.first + piece.count, NV);
        with_vectors<NV>(piece.count, [&](auto count) {
            all_scores<C, count, NV>(products, q + lane, k.data, k.stride, D, piece.end, s + lane,
                                     top ? top + lane : nullptr, alibi_bias.from(lane), chain, b.upcoming, piece.begin);
        });
        done = piece.end;
    });
    clear(done, b.n, 0, NV);
}

// The same where k is in the compute type or in pairs of bfloat16, which q is then, too, without its factor.
template <class C, int NV>
void products_in_lanes(const Block<C>& b, Range partial, const C* q, C factor, const Operand& k, int64_t D, C* s,
                       C* top, AlibiBias<C> alibi_bias, int64_t chain) {
    if constexpr (kKnowsPairs<C>)
        if (k.type == Type::bf16)
            return visible_scores<C, NV>(b, partial, q, {reinterpret_cast<const C*>(k.data), k.stride / 2}, D / 2, s,
                                         top, alibi_bias, chain / 2, PairProducts{factor});
    visible_scores<C, NV>(b, partial, q, k.as_matrix<C>(), D, s, top, alibi_bias, chain);
}

// As all_values, for all keys of a block that rows see; elsewhere p may be anything.
template <class C, int NV>
void visible_values(const Block<C>& b, Range partial, const C* p, const Operand& v, int64_t Dv, C* o, const C* decay) {
    constexpr int W = kWidth<C>;
    alignas(64) C ones[NV * W];
    bool decayed = false;
    const auto add = [&](const Piece& piece, const C* factor) {
        const int lane = piece.first * W;
        with_vectors<NV>(piece.count, [&](auto count) {
            all_values<C, count, NV>(p + piece.begin * NV * W + lane, v.as_matrix<C>().row(piece.begin), v.stride,
                                     piece.end - piece.begin, Dv, o + lane, factor + lane, b.upcoming);
        });
    };
    for_each_piece<C, NV>(b, partial, [&](const Piece& piece) {
        if (!decayed && piece.count == NV) {
            decayed = true;
            return add(piece, decay);
        }
        if (!decayed) add({0, 0, 0, NV}, decay), decayed = true;
        for (C& one : ones) one = 1;
        add(piece, ones);
    });
    if (!decayed) add({0, 0, 0, NV}, decay);
}

}  // namespace limelight::LIMELIGHT_ISA
