// A tile of query rows and its running softmax over blocks of keys.
//
// For each row: m the largest logit so far, l = Σ 2^(logit − m), o = Σ 2^(logit − m) v. A block with a
// new maximum m′ multiplies l and o by 2^(m − m′) first: the result is exact softmax in one pass.
#pragma once

#include "alibi_skip.h"
#include "decode_pairs.h"
#include "decode_values.h"
#include "dropout.h"
#include "edges.h"
#include "seen_keys.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct QueryTile {
    int vectors, row_count;
    bool decode;                // features in the lanes: q and o are (row, feature), otherwise (feature, lane)
    bool pairs;                 // q is bfloat16, in pairs of features and without the factor of queries
    PrefetchDistance distance;  // of K and V
    int64_t kv;                 // the head of its keys
    int64_t chain;              // features of a score that are summed in one chain
    const Row* rows;
    SeenKeys seen;
    LaneSpans<C>* lane_spans;  // null where rows have no span or several
    C *q, *o, *m, *l;
    C* sums;                // of a block of values, where it decodes: as many as o
    LogitBound<C>* bounds;  // by row, or null

    int lanes() const { return vectors * kWidth<C>; }
    bool consecutive() const { return !decode && are_consecutive(rows, row_count, lanes()); }
};

// top = max(top, s), lane by lane.
template <class C, int NV> void maximum(const C* s, int64_t n, C* top) {
    constexpr int W = kWidth<C>;
    Vec<C> t[NV];
    for (int b = 0; b < NV; ++b) t[b] = load(top + b * W);
    for (int64_t j = 0; j < n; ++j)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) t[b] = larger(load(s + (j * NV + b) * W), t[b]);
    for (int b = 0; b < NV; ++b) store(top + b * W, t[b]);
}

// s = 2^(s − top), summed into l; m becomes `top`, and decay = 2^(m before − m). If asked for, `moment` is kept as
// Σ 2^(s − m) · (s − m), in which a new maximum shifts every s − m. A block is summed apart first, as its values are.
template <class C, int NV, bool with_moment = false>
void exponentials(const QueryTile<C>& x, C* s, int64_t n, const C* top, C* decay, C* moment = nullptr) {
    constexpr int W = kWidth<C>;
    Vec<C> m[NV], sums[NV] = {}, moments[NV] = {};
    for (int b = 0; b < NV; ++b) {
        const Vec<C> before = load(x.m + b * W), now = load(top + b * W);
        store(x.m + b * W, now);
        m[b] = now == -kInf<C> ? Vec<C>{} : now;  // nothing allowed yet: 2^(−∞ − 0) = 0
        const Vec<C> d = exp2(before - m[b]), l = load(x.l + b * W) * d;
        store(decay + b * W, d);
        store(x.l + b * W, l);
        if constexpr (with_moment)
            store(moment + b * W, load(moment + b * W) * d + l * larger(before - m[b], broadcast(kLowest<C>)));
    }
    const auto exponential = [&](int64_t j, int b, Vec<C>& z_times_e) __attribute__((always_inline)) {
        C* at = s + (j * NV + b) * W;
        const Vec<C> z = load(at) - m[b], e = exp2(z);
        store(at, e);
        if constexpr (with_moment) z_times_e = e * larger(z, broadcast(kLowest<C>));  // 0 · −∞ would be NaN
        return e;
    };
    // Four keys are added up before they join the sum: chains a quarter as long lose fewer digits.
    int64_t j = 0;
    for (; j + 4 <= n; j += 4)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) {
            Vec<C> e[4], t[4];
#pragma GCC unroll 4
            for (int a = 0; a < 4; ++a) e[a] = exponential(j + a, b, t[a]);
            sums[b] += (e[0] + e[1]) + (e[2] + e[3]);
            if constexpr (with_moment) moments[b] += (t[0] + t[1]) + (t[2] + t[3]);
        }
    for (; j < n; ++j)
        for (int b = 0; b < NV; ++b) {
            Vec<C> t;
            sums[b] += exponential(j, b, t);
            if constexpr (with_moment) moments[b] += t;
        }
    for (int b = 0; b < NV; ++b) {
        store(x.l + b * W, load(x.l + b * W) + sums[b]);
        if constexpr (with_moment) store(moment + b * W, load(moment + b * W) + moments[b]);
    }
}

template <class C> C* sum_of(const QueryTile<C>& x, int row, int64_t d, int64_t Dv) {
    return x.decode ? x.o + row * Dv + d : x.o + d * x.lanes() + row;
}

// Values that are not finite must not reach rows that may not attend to them, though their weight
// there is 0. Rare, so without vectors: such keys are added row by row, where allowed.
template <class C> void add_values_where_allowed(const QueryTile<C>& x, const Block<C>& b, const Operand& v,
                                                 const C* decay) {
    for (int r = 0; r < x.row_count; ++r)
        for (int64_t d = 0; d < b.p.Dv; ++d) *sum_of(x, r, d, b.p.Dv) *= decay[r];
    with_readable_type<C>(v.type, [&](auto e) {
        using E = decltype(e);
        for (int64_t j = 0; j < b.n; ++j)
            for (int r = 0; r < x.row_count; ++r) {
                if (!allows(b.p, x.rows[r], b.batch, b.first + j)) continue;
                for (int64_t d = 0; d < b.p.Dv; ++d)
                    *sum_of(x, r, d, b.p.Dv) += b.s[j * b.lanes + r] * C(widen(v.as_matrix<E>().row(j)[d]));
            }
    });
}

// Where decoding keeps the scores and weights of a block in tiles: behind those that lie in lanes.
template <class C> C* in_tiles(const Block<C>& b) { return b.s + kDecodeStep * kWidth<C>; }

template <class C> void tiles_to_lanes(const Block<C>& b) {
    std::memset(b.s, 0, b.n * b.lanes * sizeof(C));  // lanes without a row
    for_each_score<C>(b.row_count, b.n, [&](int r, int64_t j, int64_t at) { b.s[j * b.lanes + r] = in_tiles(b)[at]; });
}

template <class C> void lanes_to_tiles(const Block<C>& b) {
    for_each_score<C>(b.row_count, b.n, [&](int r, int64_t j, int64_t at) { in_tiles(b)[at] = b.s[j * b.lanes + r]; });
}

// Multiplies the scores of each key by its scale.
template <class C> void scale_keys(const Block<C>& b, const float* scale) {
    constexpr int W = kWidth<C>;
    alignas(64) C factors[kDecodeStep + W];
    for (int64_t j = 0; j < b.n; ++j) factors[j] = C(scale[j]);
    for (int64_t j = b.n; j < b.n + W; ++j) factors[j] = 0;
    by_rows<kTileRows<C>>(b.row_count, [&](int r, auto R) {
        constexpr int K = kTileKeys<C, R>;
        C* s = in_tiles(b) + tiles_at(r);
        for (int64_t j = 0; j < b.n; j += K, s += W) {
            const Vec<C> x = load(factors + j);
            store(s, load(s) * shuffle<C>(x, x, [](auto i) { return i % K; }));
        }
    });
}

template <class C> void scores_in_tiles(const QueryTile<C>& x, const Operand& k, const Block<C>& b) {
    const int64_t D = b.p.D;
    if (x.pairs)
        return decode_pairs<C>(reinterpret_cast<const bf16*>(x.q), k.as_matrix<bf16>(), D, b.n, x.row_count,
                               query_factor<C>(b.p), in_tiles(b), x.distance);
    with_readable_type<C>(k.type, [&](auto e) {
        using E = decltype(e);
        decode_scores<C, E>(x.q, k.as_matrix<E>(), D, b.n, x.row_count, in_tiles(b), x.distance);
    });
    if (k.scale) scale_keys(b, k.scale);
}

// s = 2^(s − m) for the tiles of R rows and n keys, where m grows to the rows' maxima and l to their sums;
// decay = 2^(m before − m).
template <class C, int R> LIMELIGHT_INLINE void tile_exponentials(C* s, int64_t n, C* m, C* l, C* decay) {
    constexpr int W = kWidth<C>, K = kTileKeys<C, R>;
    const int64_t end = ceil_div(n, K) * W;
    for (int64_t j = n; j % K; ++j)
        for (int r = 0; r < R; ++r) s[j / K * W + r * K + j % K] = -kInf<C>;
    Vec<C> before;
    for (int i = 0; i < W; ++i) before[i] = m[i / K < R ? i / K : R - 1];
    Vec<C> tops[4] = {before, before, before, before};
    int64_t i = 0;
    for (; i + 4 * W <= end; i += 4 * W)
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) tops[u] = larger(load(s + i + u * W), tops[u]);
    for (; i < end; i += W) tops[0] = larger(load(s + i), tops[0]);
    Vec<C> top = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
    top = join_lanes<C, K>(top, [](Vec<C> a, Vec<C> b) { return larger(a, b); });
    const Vec<C> base = top == -kInf<C> ? Vec<C>{} : top;  // nothing allowed yet: 2^(−∞ − 0) = 0
    const auto exponential = [&](int64_t i) __attribute__((always_inline)) {
        const Vec<C> e = exp2(load(s + i) - base);
        store(s + i, e);
        return e;
    };
    Vec<C> total{};
    for (i = 0; i < end;) {  // as many as a block has with the most rows: longer chains lose digits
        const int64_t apart = min(i + kBlock * min(4, kTileRows<C>), end);
        Vec<C> sum{};
        for (; i + 4 * W <= apart; i += 4 * W)
            sum += (exponential(i) + exponential(i + W)) + (exponential(i + 2 * W) + exponential(i + 3 * W));
        for (; i < apart; i += W) sum += exponential(i);
        total += sum;
    }
    total = join_lanes<C, K>(total, [](Vec<C> a, Vec<C> b) { return a + b; });
    const Vec<C> shrunk = exp2(before - base);
    for (int r = 0; r < R; ++r) {
        m[r] = top[r * K];
        decay[r] = shrunk[r * K];
        l[r] = l[r] * shrunk[r * K] + total[r * K];
    }
}

// The logits of a block, and in `top`, unless it is null, the larger of m and their maximum.
template <class C, int NV>
void logits(const QueryTile<C>& x, const Operand& k, const Block<C>& b, Range partial, C* top, C* scratch) {
    const Problem& p = b.p;
    constexpr size_t all = NV * kWidth<C> * sizeof(C);
    if (top) std::memcpy(top, x.m, all);
    const bool has_alibi = !x.decode && !p.softcap;                            // a softcap comes before the slopes
    const bool raw = partial.empty() && plain(p) && (has_alibi || !p.slopes);  // the products are the logits
    if (x.decode) scores_in_tiles(x, k, b), tiles_to_lanes(b);
    else
        products_in_lanes<C, NV>(b, partial, x.q, query_factor<C>(p), k, p.D, b.s, top,
                                 has_alibi ? alibi_bias(b, scratch) : AlibiBias<C>{}, x.chain);
    if (!raw) to_logits(b, has_alibi, partial, scratch);
    if (!top || (raw && !x.decode)) return;
    std::memcpy(top, x.m, all);
    maximum<C, NV>(b.s, b.n, top);
}

// Values outside of `partial` are allowed to every row; those inside may be added to all rows if they are finite.
template <class C> bool may_add_values(const Block<C>& b, const Operand& v, Range partial) {
    if (b.p.mask.data) partial = {b.first, b.first + b.n};
    return partial.empty() || all_finite<C>(v.from(partial.begin - b.first), partial.end - partial.begin, b.p.Dv);
}

template <class C, int NV>
void attend_lanes(const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial,
                  C* scratch) {
    alignas(64) C decay[NV * kWidth<C>], top[NV * kWidth<C>];
    logits<C, NV>(x, k, b, partial, top, scratch);
    exponentials<C, NV>(x, b.s, b.n, top, decay);
    if (b.p.dropout) drop_weights(b);
    if (may_add_values(b, v, partial)) visible_values<C, NV>(b, partial, b.s, v, b.p.Dv, x.o, decay);
    else add_values_where_allowed(x, b, v, decay);
}

// The same with scores in tiles of few rows. Biases, masks and dropout work on lanes, so scores are moved for them.
template <class C>
void attend_decode(const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial,
                   C* scratch) {
    const Problem& p = b.p;
    alignas(64) C decay[kWidth<C>];
    C* s = in_tiles(b);
    scores_in_tiles(x, k, b);
    if (!partial.empty() || !plain(p) || p.slopes) {
        tiles_to_lanes(b);
        to_logits(b, false, partial, scratch);
        lanes_to_tiles(b);
    }
    by_rows<kTileRows<C>>(x.row_count, [&](int r, auto R) {
        tile_exponentials<C, R>(s + tiles_at(r), b.n, x.m + r, x.l + r, decay + r);
    });
    if (p.dropout) tiles_to_lanes(b), drop_weights(b), lanes_to_tiles(b);
    if (v.scale) scale_keys(b, v.scale);
    if (!may_add_values(b, v, partial)) return tiles_to_lanes(b), add_values_where_allowed(x, b, v, decay);
    with_readable_type<C>(v.type, [&](auto e) {
        using E = decltype(e);
        decode_values<C, E>(s, v.as_matrix<E>(), p.Dv, b.n, x.row_count, x.o, decay, x.sums, x.distance);
    });
}

template <class C>
void attend(const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial, C* scratch) {
    if (x.decode) attend_decode(x, k, v, b, partial, scratch);
    else if (x.vectors == 3) attend_lanes<C, 3>(x, k, v, b, partial, scratch);
    else if (x.vectors == 2) attend_lanes<C, 2>(x, k, v, b, partial, scratch);
    else attend_lanes<C, 1>(x, k, v, b, partial, scratch);
}

}  // namespace limelight::LIMELIGHT_ISA
