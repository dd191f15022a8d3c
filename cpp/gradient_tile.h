// The tiles of query rows that a task of the gradient works on, and their memory.
#pragma once

#include <memory>
#include <vector>

#include "alibi_skip.h"
#include "diagonals.h"
#include "seen_keys.h"

namespace limelight::LIMELIGHT_ISA {

// Tiles that meet a block together: their 96 rows make one long sum for dK and dV.
template <class C> constexpr int kGradientTiles = 96 / kMaxLanes<C>;

template <class C> constexpr C kLog2 = C(0.69314718055994530942);

template <class C> struct GradientTile {
    int vectors, row_count;
    bool not_finite;  // some normaliser is NaN
    bool decode;      // so few rows that features lie in the lanes of products with K and V (decode.h)
    bool one_block;   // all keys that the rows attend to are in one block, where δ can be summed
    const Row* rows;
    SeenKeys seen;
    LaneSpans<C>* lane_spans;    // null where rows have no span or several
    C *q, *dout;                 // (feature, lane) or, in pairs, (pair, lane); packed for few rows where `decode`
    C* dq;                       // (feature, lane)
    C *q_rows, *dout_rows;       // (row, feature), with the factors of dK and dV
    C *m, *l;                    // by lane: largest logit, log₂ Σ 2^(logit − m)
    C *inverse, *rest;           // by lane: 1 / Σ, and what rounding took from it
    C *lse, *delta, *dlse;       // by lane: m + l, δ, the gradient of the log-sum-exp
    C *d_temperature, *d_slope;  // by lane: Σ dx · x, Σ dx · |distance|
    C* sums;                     // by lane: Σ over the keys of P times the terms of statistics that need it
    C *weights, *dx;             // (key, lane) of a block
    C *logits, *softcap_slope;   // the same, where they are needed
    LogitBound<C>* bounds;       // by row, or null

    int lanes() const { return vectors * kWidth<C>; }
    bool consecutive() const { return !decode && are_consecutive(rows, row_count, lanes()); }
};

// What the gradient of one statistic adds to dP, the gradient of the weights.
template <class C> class GradientTerm {
public:
    virtual ~GradientTerm() = default;

    // The sum over a row of weights times terms does not follow from the statistic itself.
    virtual bool needs_sum() const { return false; }
    // The block may have terms that are not 0.
    virtual bool wants(const Block<C>&) const { return true; }
    virtual void start(const GradientTile<C>&, int64_t /*batch*/, int /*tile*/) {}
    // Adds the terms of a block to dp (key, lane); b.s holds the logits. Where a logit is −∞ the term may
    // be anything.
    virtual void add(const GradientTile<C>& x, int tile, const Block<C>& b, C* dp) = 0;
};

template <class C> using GradientTerms = std::vector<std::unique_ptr<GradientTerm<C>>>;

template <class C> struct GradientScratch {
    Row *rows, *distinct;
    GradientTile<C> tiles[kGradientTiles<C>];
    C *k, *v;  // copies of a block
    C* spare;  // for the logits, and a panel of dx with its margins
    C* ones;   // by lane
    GradientTerms<C> terms;
};

template <class C, class Make>
GradientScratch<C> lay_out_gradient(const Problem& p, const Gradients& g, Arena& arena, Make&& make) {
    constexpr int lanes = kMaxLanes<C>;
    const int64_t D = whole_vectors<C>(p.D), Dv = whole_vectors<C>(p.Dv);
    GradientScratch<C> scratch;
    scratch.rows = arena.take<Row>(kGradientTiles<C> * lanes);
    scratch.distinct = arena.take<Row>(kGradientTiles<C> * lanes);
    for (GradientTile<C>& x : scratch.tiles) {
        x.q = arena.take<C>(lanes * p.D);
        x.dout = arena.take<C>(lanes * p.Dv);
        x.dq = arena.take<C>(lanes * p.D);
        C* by_lane = arena.take<C>(10 * lanes);
        for (C** to :
             {&x.m, &x.l, &x.inverse, &x.rest, &x.lse, &x.delta, &x.dlse, &x.d_temperature, &x.d_slope, &x.sums})
            *to = by_lane, by_lane += lanes;
        x.weights = arena.take<C>(kBlock * lanes);
        x.dx = arena.take<C>(kBlock * lanes);
        x.logits = g.d_temperature ? arena.take<C>(kBlock * lanes) : nullptr;
        x.bounds = p.key_norms ? arena.take<LogitBound<C>>(lanes) : nullptr;
        x.softcap_slope = p.softcap ? arena.take<C>(kBlock * lanes) : nullptr;
        x.lane_spans = p.spans.count == 1 && p.spans.data ? arena.take<LaneSpans<C>>(1) : nullptr;
    }
    C* q_rows = arena.take<C>(kGradientTiles<C> * lanes * D);
    C* dout_rows = arena.take<C>(kGradientTiles<C> * lanes * Dv);
    for (int i = 0; i < kGradientTiles<C>; ++i) {
        scratch.tiles[i].q_rows = q_rows + i * lanes * D;
        scratch.tiles[i].dout_rows = dout_rows + i * lanes * Dv;
    }
    scratch.k = arena.take<C>(kBlock * p.D);
    scratch.v = arena.take<C>(kBlock * p.Dv);
    const int64_t panel = g.offsets ? kDiagonalPanel<C> : g.bias.data ? kBlock * lanes : 0;
    scratch.spare =
        arena.take<C>(max(max(logits_scratch(p, lanes), panel), lanes * max(max(p.D, p.Dv) + 2, kDecodeStep)));
    scratch.ones = arena.take<C>(lanes);
    for (const Request& term : g.terms) scratch.terms.push_back(make(p, term, arena));
    return scratch;
}

// Some rows of the query heads of one key head, one head after the other, against a range of keys.
template <class C> struct GradientTask {
    int64_t batch, head;  // of the keys
    int64_t row_begin, row_end, key_begin, key_end;
    const std::vector<int64_t>* starts;   // of the tiles of a head, as in Partition
    const Rows *k_in_pairs, *v_in_pairs;  // where scores, or dP, are products of pairs of bfloat16; otherwise null
    C *offsets, *slopes;                  // sums of its own, as in Gradients
    C* sums;                              // (B, Hq, N): Σ P ∘ term, of the terms that need it, or null
};

// The end of the tile of a task's rows that begins at `row`.
template <class C> int64_t tile_end(const Problem& p, const GradientTask<C>& task, int64_t row) {
    if (task.starts->empty()) return min(row + kMaxLanes<C>, task.row_end);
    const int64_t query = row % p.N;
    return min(row - query + *std::upper_bound(task.starts->begin(), task.starts->end(), query), task.row_end);
}

// dx times this and times K or Q, summed, is dQ or dK: the derivative of x by a raw product of features.
template <class C> C gradient_factor(const Problem& p) {
    return p.softcap ? kLog2<C> : C(p.scale / p.temperature);  // a softcap's slope has the rest, in units of log 2
}

// Loads rows, times a factor, as one side of a product with K or V, and times another one row by row.
template <class C>
void load_side(const Rows& from, int64_t batch, const GradientTile<C>& x, int64_t width, bool in_pairs, C factor,
               C row_factor, C* side, C* rows) {
    if (x.decode) {
        gather(from, batch, x.rows, x.row_count, x.row_count, width, factor, rows, width);
        pack_rows(rows, width, x.row_count, side);
    } else if (in_pairs) {
        load_lanes_of_pairs(from, width, batch, x, side, rows);
    } else {
        load_lanes(from, width, factor, batch, x, side, rows);
    }
    gather(from, batch, x.rows, x.row_count, x.lanes(), width, row_factor, rows, whole_vectors<C>(width));
}

// Loads the queries of a tile, their bounds and the normalisers of their rows, in units of log 2.
template <class C> void load_rows(const Problem& p, const GradientTask<C>& task, GradientTile<C>& x, C* spare) {
    const int64_t batch = task.batch;
    const int64_t all = p.B * p.Hq * p.N;
    const int lanes = x.lanes();
    x.decode = p.Hq / p.Hkv * p.N < kWidth<C>;
    load_side(p.q, batch, x, p.D, task.k_in_pairs, query_factor<C>(p), gradient_factor<C>(p), x.q, x.q_rows);
    x.not_finite = false;
    for (int r = 0; r < lanes; ++r) {
        const Row& row = x.rows[min(r, x.row_count - 1)];
        const C* found = reinterpret_cast<const C*>(p.normalisers) + (batch * p.Hq + row.head) * p.N + row.query;
        x.m[r] = found[0];  // 0 where nothing is allowed: 2^(−∞ − 0) = 0
        x.l[r] = std::log2(found[all]);
        const Rounded<C> inverse(1 / double(found[all]));
        x.inverse[r] = inverse.value, x.rest[r] = inverse.rest;
        x.lse[r] = x.m[r] + x.l[r];
        const bool finite = x.l[r] - x.l[r] == C(0);
        x.not_finite |= !finite;
        if (!x.bounds || r >= x.row_count) continue;
        x.bounds[r] = logit_bound(p, batch, row, spare);
        if (!finite) x.bounds[r].norm = kInf<C>;  // what is not finite reaches all keys
    }
}

// Loads dO and δ, and empties the sums of the tile.
template <class C>
void load_gradients(const Problem& p, const Gradients& g, const GradientTask<C>& task, GradientTile<C>& x, C* spare) {
    const int64_t batch = task.batch;
    const int64_t Dv = whole_vectors<C>(p.Dv);
    const int lanes = x.lanes();
    load_side(g.dout, batch, x, p.Dv, task.v_in_pairs, C(1), C(1), x.dout, x.dout_rows);
    std::memset(x.dq, 0, lanes * p.D * sizeof(C));
    x.one_block = p.M <= kBlock && !g.part && g.terms.empty() && !p.dropout &&
                  x.seen.next_run(x.seen.next_run(0, p.M).end, p.M).empty();
    for (int r = 0; r < lanes; ++r) {
        const Row& row = x.rows[min(r, x.row_count - 1)];
        const int64_t at = (batch * p.Hq + row.head) * p.N + row.query;
        widen_row(address(p.out, batch, row.head, row.query), p.out.type, p.Dv, C(1), spare, p.Dv);
        C delta;
        dot<C, C, 1>({spare}, x.dout_rows + r * Dv, p.Dv, &delta);
        x.dlse[r] = g.dlse ? reinterpret_cast<const C*>(g.dlse)[at] : C(0);
        delta -= x.dlse[r];
        if (task.sums) delta += task.sums[at];
        if (g.delta) reinterpret_cast<C*>(g.delta)[at] = delta;
        x.delta[r] = delta;
        x.d_temperature[r] = x.d_slope[r] = 0;
        if (x.bounds && r < x.row_count && !(delta - delta == C(0))) x.bounds[r].norm = kInf<C>;
    }
}

}  // namespace limelight::LIMELIGHT_ISA
