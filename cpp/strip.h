// A strip of query rows and its running softmax over blocks of keys.
//
// For each row: m the largest logit so far, l = Σ 2^(logit − m), o = Σ 2^(logit − m) v. A block with a
// new maximum m′ multiplies l and o by 2^(m − m′) first: the result is exact softmax in one pass.
#pragma once

#include "dropout.h"
#include "reach.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct Strip {
    int vectors, row_count;
    bool few;   // features in the lanes: q and o are (row, feature), otherwise (feature, lane)
    bool near;  // K and V lie in a cache
    int64_t kv; // the head of its keys
    const Row* rows;
    C *q, *o, *m, *l;
    Reach<C>* reach;  // by row, or null

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

// s = 2^(s − top), summed into l; m becomes `top`, and decay = 2^(m before − m). If asked for,
// `spread` is kept as Σ 2^(s − m) · (s − m), in which a new maximum shifts every s − m.
template <class C, int NV, bool spreads = false>
void exponentials(const Strip<C>& x, C* s, int64_t n, const C* top, C* decay, C* spread = nullptr) {
    constexpr int W = kWidth<C>;
    Vec<C> m[NV], total[NV], moment[NV];
    for (int b = 0; b < NV; ++b) {
        const Vec<C> before = load(x.m + b * W), now = load(top + b * W);
        store(x.m + b * W, now);
        m[b] = now == -kInf<C> ? Vec<C>{} : now;  // nothing allowed yet: 2^(−∞ − 0) = 0
        const Vec<C> d = exp2(before - m[b]);
        store(decay + b * W, d);
        total[b] = load(x.l + b * W) * d;
        if constexpr (spreads)
            moment[b] = load(spread + b * W) * d + total[b] * larger(before - m[b], broadcast(kLowest<C>));
    }
    for (int64_t j = 0; j < n; ++j)
#pragma GCC unroll 3
        for (int b = 0; b < NV; ++b) {
            const Vec<C> z = load(s + (j * NV + b) * W) - m[b], p = exp2(z);
            store(s + (j * NV + b) * W, p);
            total[b] += p;
            if constexpr (spreads) moment[b] += p * larger(z, broadcast(kLowest<C>));  // 0 · −∞ would be NaN
        }
    for (int b = 0; b < NV; ++b) {
        store(x.l + b * W, total[b]);
        if constexpr (spreads) store(spread + b * W, moment[b]);
    }
}

template <class C> C* sum_of(const Strip<C>& x, int row, int64_t d, int64_t Dv) {
    return x.few ? x.o + row * Dv + d : x.o + d * x.lanes() + row;
}

// Values that are not finite must not reach rows that may not attend to them, though their weight
// there is 0. Rare, so plain: such keys are added row by row, where allowed.
template <class C> void add_values_where_allowed(const Strip<C>& x, const Block<C>& b, const Operand& v, const C* decay) {
    for (int r = 0; r < x.row_count; ++r)
        for (int64_t d = 0; d < b.p.Dv; ++d) *sum_of(x, r, d, b.p.Dv) *= decay[r];
    with_element<C>(v.type, [&](auto e) {
        using E = decltype(e);
        for (int64_t j = 0; j < b.n; ++j)
            for (int r = 0; r < x.row_count; ++r) {
                if (!allows(b.p, x.rows[r], b.batch, b.first + j)) continue;
                for (int64_t d = 0; d < b.p.Dv; ++d)
                    *sum_of(x, r, d, b.p.Dv) += b.s[j * b.lanes + r] * C(widen(v.lines<E>().row(j)[d]));
            }
    });
}

// s[key] *= scale[key], for few rows: one vector a key.
template <class C> void scale_keys(C* s, int64_t n, const float* scale) {
    for (int64_t j = 0; j < n; ++j) store(s + j * kWidth<C>, load(s + j * kWidth<C>) * C(scale[j]));
}

// The logits of a block, and in `top`, unless it is null, the larger of m and their maximum.
template <class C, int NV>
void logits(const Strip<C>& x, const Operand& k, const Block<C>& b, Range partial, C* top, C* scratch) {
    const Problem& p = b.p;
    constexpr size_t all = NV * kWidth<C> * sizeof(C);
    if (top) std::memcpy(top, x.m, all);
    const bool tilted = !x.few && !p.softcap;  // a softcap comes before the slopes
    const bool raw = partial.empty() && plain(p) && (tilted || !p.slopes);  // the products are the logits
    if (!x.few)
        all_scores<C, NV>(x.q, k.lines<C>().data, k.stride, p.D, b.n, b.s, top, tilted ? tilt(b, scratch) : Tilt<C>{});
    else
        with_element<C>(k.type, [&](auto e) {
            using E = decltype(e);
            few_scores<C, E>(x.q, k.lines<E>(), p.D, b.n, x.row_count, b.s, x.near);
        });
    if (k.scale) scale_keys<C>(b.s, b.n, k.scale);
    if (!raw) to_logits(b, tilted, partial, scratch);
    if (!top || (raw && !x.few)) return;
    std::memcpy(top, x.m, all);
    maximum<C, NV>(b.s, b.n, top);
}

template <class C, int NV>
void attend_lanes(const Strip<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial, C* scratch) {
    const Problem& p = b.p;
    alignas(64) C decay[NV * kWidth<C>], top[NV * kWidth<C>];
    logits<C, NV>(x, k, b, partial, top, scratch);
    exponentials<C, NV>(x, b.s, b.n, top, decay);
    if (p.dropout) drop(b);
    if (v.scale) scale_keys<C>(b.s, b.n, v.scale);

    if (p.mask.data) partial = {b.first, b.first + b.n};
    if (!partial.empty() && !all_finite<C>(v.from(partial.begin - b.first), partial.end - partial.begin, p.Dv))
        add_values_where_allowed(x, b, v, decay);
    else if (!x.few)
        all_values<C, NV>(b.s, v.lines<C>().data, v.stride, b.n, p.Dv, x.o, decay);
    else
        with_element<C>(v.type, [&](auto e) {
            using E = decltype(e);
            few_values<C, E>(b.s, v.lines<E>(), p.Dv, b.n, x.row_count, x.o, decay);
        });
}

template <class C>
void attend(const Strip<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial, C* scratch) {
    if (x.vectors == 3) attend_lanes<C, 3>(x, k, v, b, partial, scratch);
    else if (x.vectors == 2) attend_lanes<C, 2>(x, k, v, b, partial, scratch);
    else attend_lanes<C, 1>(x, k, v, b, partial, scratch);
}

}  // namespace limelight::LIMELIGHT_ISA
