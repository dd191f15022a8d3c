// A tile of query rows and its running softmax over blocks of keys.
//
// For each row: m the largest logit so far, l = Σ 2^(logit − m), o = Σ 2^(logit − m) v. A block with a
// new maximum m′ multiplies l and o by 2^(m − m′) first: the result is exact softmax in one pass.
#pragma once

#include "dropout.h"
#include "alibi_skip.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct QueryTile {
    int vectors, row_count;
    bool decode;    // features in the lanes: q and o are (row, feature), otherwise (feature, lane)
    bool in_cache;  // K and V lie in a cache
    int64_t kv;     // the head of its keys
    const Row* rows;
    C *q, *o, *m, *l;
    LogitBound<C>* bounds;  // by row, or null

    int lanes() const { return vectors * kWidth<C>; }
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
    for (int64_t j = 0; j < n; ++j)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) {
            const Vec<C> z = load(s + (j * NV + b) * W) - m[b], p = exp2(z);
            store(s + (j * NV + b) * W, p);
            sums[b] += p;
            if constexpr (with_moment) moments[b] += p * larger(z, broadcast(kLowest<C>));  // 0 · −∞ would be NaN
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
// there is 0. Rare, so plain: such keys are added row by row, where allowed.
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

// s[key] *= scale[key] in decoding, where a key has one vector.
template <class C> void scale_keys(C* s, int64_t n, const float* scale) {
    for (int64_t j = 0; j < n; ++j) store(s + j * kWidth<C>, load(s + j * kWidth<C>) * C(scale[j]));
}

// The logits of a block, and in `top`, unless it is null, the larger of m and their maximum.
template <class C, int NV>
void logits(const QueryTile<C>& x, const Operand& k, const Block<C>& b, Range partial, C* top, C* scratch) {
    const Problem& p = b.p;
    constexpr size_t all = NV * kWidth<C> * sizeof(C);
    if (top) std::memcpy(top, x.m, all);
    const bool has_alibi = !x.decode && !p.softcap;                            // a softcap comes before the slopes
    const bool raw = partial.empty() && plain(p) && (has_alibi || !p.slopes);  // the products are the logits
    if (!x.decode)
        all_scores<C, NV>(x.q, k.as_matrix<C>().data, k.stride, p.D, b.n, b.s, top,
                          has_alibi ? alibi_bias(b, scratch) : AlibiBias<C>{});
    else
        with_readable_type<C>(k.type, [&](auto e) {
            using E = decltype(e);
            decode_scores<C, E>(x.q, k.as_matrix<E>(), p.D, b.n, x.row_count, b.s, x.in_cache);
        });
    if (k.scale) scale_keys<C>(b.s, b.n, k.scale);
    if (!raw) to_logits(b, has_alibi, partial, scratch);
    if (!top || (raw && !x.decode)) return;
    std::memcpy(top, x.m, all);
    maximum<C, NV>(b.s, b.n, top);
}

template <class C, int NV>
void attend_lanes(const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial,
                  C* scratch) {
    const Problem& p = b.p;
    alignas(64) C decay[NV * kWidth<C>], top[NV * kWidth<C>];
    logits<C, NV>(x, k, b, partial, top, scratch);
    exponentials<C, NV>(x, b.s, b.n, top, decay);
    if (p.dropout) drop_weights(b);
    if (v.scale) scale_keys<C>(b.s, b.n, v.scale);

    if (p.mask.data) partial = {b.first, b.first + b.n};
    if (!partial.empty() && !all_finite<C>(v.from(partial.begin - b.first), partial.end - partial.begin, p.Dv))
        add_values_where_allowed(x, b, v, decay);
    else if (!x.decode) all_values<C, NV>(b.s, v.as_matrix<C>().data, v.stride, b.n, p.Dv, x.o, decay);
    else
        with_readable_type<C>(v.type, [&](auto e) {
            using E = decltype(e);
            decode_values<C, E>(b.s, v.as_matrix<E>(), p.Dv, b.n, x.row_count, x.o, decay);
        });
}

template <class C>
void attend(const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial, C* scratch) {
    if (x.vectors == 3) attend_lanes<C, 3>(x, k, v, b, partial, scratch);
    else if (x.vectors == 2) attend_lanes<C, 2>(x, k, v, b, partial, scratch);
    else attend_lanes<C, 1>(x, k, v, b, partial, scratch);
}

}  // namespace limelight::LIMELIGHT_ISA
