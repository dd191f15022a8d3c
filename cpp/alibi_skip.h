// Skips blocks of keys whose ALiBi weights are exactly 0.
//
// A logit is at most ‖q‖ · ‖k‖ − slope · distance, and a row's largest is at least the one at its own
// position. Where the first lies so far below the second that 2ˣ of the difference is 0, the weight is 0,
// and a block of such keys is skipped. Steep heads become local, at no cost in exactness.
#pragma once

#include "logits.h"

namespace limelight::LIMELIGHT_ISA {

// Below this exp2 is 0.
template <class C> constexpr C kLowest = sizeof(C) == 8 ? C(-1022) : C(-126);

// Below this many rows, looking at the keys costs more than it saves.
constexpr int64_t kWorthLooking = 64;

inline bool can_skip_by_distance(const Problem& p) {
    return p.slopes && !p.k.scale && !p.offsets && !p.bias.data && p.N >= kWorthLooking && p.M >= 2 * kBlock;
}

// For each block of keys of one head the largest norm, or ∞ where something is not finite.
template <class C> void block_key_norms(const Problem& p, int64_t batch, int64_t head, C* key_norms, C* row) {
    const Operand k = in_place(p.k, batch, head), v = in_place(p.v, batch, head);
    for (int64_t j = 0; j < p.M; ++j) {
        C& longest = key_norms[j / kBlock];
        if (j % kBlock == 0) longest = 0;
        C square, probe = 0;
        widen_row(k.from(j).data, k.type, p.D, C(1), row, p.D);
        dot<C, C, 1>({row}, row, p.D, &square);
        widen_row(v.from(j).data, v.type, p.Dv, C(0), row, p.Dv);  // 0 · v, which is NaN where v is not finite
        for (int64_t d = 0; d < p.Dv; ++d) probe += row[d];
        longest = square + probe < kInf<C> ? larger(longest, std::sqrt(square)) : kInf<C>;
        if (longest == kInf<C>) j = min((j / kBlock + 1) * kBlock, p.M) - 1;
    }
}

// The bound of one row's logits, in units of log 2.
template <class C> struct LogitBound {
    C norm;  // of the query; 0 with a softcap, where `cap` is the bound
    C cap;
    C slope;
    C min;  // a lower bound of the row's largest logit

    // True if none of the keys, whose norms are at most `longest`, has weight next to a logit of `top`. A negative
    // slope favours far keys, and then no key is skipped.
    bool has_no_weight(int64_t position, Range keys, C longest, C top) const {
        const int64_t distance = keys.begin > position ? keys.begin - position : max(position - (keys.end - 1), 0);
        return slope >= C(0) && norm * longest + cap - slope * C(distance) < larger(top, min) + kLowest<C>;
    }
};

template <class C> LogitBound<C> logit_bound(const Problem& p, int64_t batch, const Row& row, C* scratch) {
    C *q = scratch, *k = scratch + p.D, square, own;
    LogitBound<C> r;
    widen_row(address(p.q, batch, row.head, row.query), p.q.type, p.D, query_factor<C>(p), q, p.D);
    dot<C, C, 1>({q}, q, p.D, &square);
    r.norm = std::sqrt(square);
    r.cap = 0;
    r.slope = reinterpret_cast<const C*>(p.slopes)[row.head] * kLog2e<C> / C(p.temperature);
    r.min = -kInf<C>;
    if (row.position >= 0 && row.position < p.M && allows(p, row, batch, row.position)) {
        widen_row(address(p.k, batch, row.head / (p.Hq / p.Hkv), row.position), p.k.type, p.D, C(1), k, p.D);
        dot<C, C, 1>({q}, k, p.D, &own);
        r.min = own;
    }
    if (p.softcap && square < kInf<C>) {
        r.norm = 0;  // 0 · ∞, where keys are not finite, is NaN, and nothing is skipped
        r.cap = C(p.softcap / p.temperature) * kLog2e<C>;
        if (r.min > -kInf<C>) r.min = -r.cap;
    }
    return r;
}

// The largest norm in a range of keys of one head.
template <class C> C largest_key_norm(const Problem& p, int64_t batch, int64_t head, Range keys) {
    const C* key_norms = reinterpret_cast<const C*>(p.key_norms) + (batch * p.Hkv + head) * ceil_div(p.M, kBlock);
    C longest = 0;
    for (int64_t b = keys.begin / kBlock; b * kBlock < keys.end; ++b) longest = larger(longest, key_norms[b]);
    return longest;
}

// True if a range of keys has no weight for any of the rows, whose largest logits are at least `top`.
template <class C>
bool have_no_weight(const Problem& p, int64_t batch, int64_t head, const Row* rows, int n, const LogitBound<C>* bounds,
                    const C* top, Range keys) {
    if (!bounds) return false;
    const C longest = largest_key_norm<C>(p, batch, head, keys);
    for (int r = 0; r < n; ++r)
        if (!bounds[r].has_no_weight(rows[r].position, keys, longest, top[r])) return false;
    return true;
}

}  // namespace limelight::LIMELIGHT_ISA
