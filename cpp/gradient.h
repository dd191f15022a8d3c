// The gradient of attention for some rows of queries against a range of keys.
//
// With x = logits / temperature, P = exp(x − lse) the weights and F the factors of dropout (0 or 1 / (1 − rate)):
//
//   dV = (P ∘ F)ᵀ dO,   dP = F ∘ (dO Vᵀ),   dx = P ∘ (dP − δ),   δ = Σ dO ∘ O − dlse   (a number a row),
//   dQ = dx K · scale / temperature,   dK = dxᵀ Q · scale / temperature.
//
// P is made again from the log-sum-exp, block by block. As x is kept in units of log 2, so is dx: as
// dx · log 2, which the factor log₂e of the query rows takes back in dQ and dK.
#pragma once

#include "diagonals.h"
#include "dropout.h"
#include "product.h"
#include "alibi_skip.h"

namespace limelight::LIMELIGHT_ISA {

// Some rows of the query heads of one key head, one head after the other, against a range of keys.
template <class C> struct GradientTask {
    int64_t batch, head;  // of the keys
    int64_t row_begin, row_end, key_begin, key_end;
    C *offsets, *slopes;  // sums of its own, as in Gradients
};

// Tiles that meet a block together: their rows make one long sum for dK and dV.
constexpr int kGradientTiles = 2;

template <class C> constexpr C kLog2 = C(0.69314718055994530942);

template <class C> struct GradientTile {
    int vectors, row_count;
    bool not_finite;  // some log-sum-exp is NaN
    const Row* rows;
    C *q, *dout, *dq;            // (feature, lane); dout times log 2
    C *q_rows, *dout_rows;       // (row, feature)
    C *lse, *delta;              // by lane: log-sum-exp in units of log 2, δ times log 2
    C *d_temperature, *d_slope;  // by lane: Σ dx · x, Σ dx · |distance|
    C *weights, *dx;             // (key, lane) of a block
    C *logits, *softcap_slope;   // the same, where they are needed
    LogitBound<C>* bounds;       // by row, or null

    int lanes() const { return vectors * kWidth<C>; }
};

template <class C> struct GradientScratch {
    Row* rows;
    GradientTile<C> tiles[kGradientTiles];
    C *k, *v;  // copies of a block
    C* spare;  // for the logits, and a panel of dx with its margins
    C* ones;   // by lane
};

template <class C> GradientScratch<C> lay_out_gradient(const Problem& p, const Gradients& g, Arena& arena) {
    constexpr int lanes = kMaxLanes<C>;
    const int64_t D = whole_vectors<C>(p.D), Dv = whole_vectors<C>(p.Dv);
    GradientScratch<C> scratch;
    scratch.rows = arena.take<Row>(kGradientTiles * lanes);
    for (GradientTile<C>& x : scratch.tiles) {
        x.q = arena.take<C>(lanes * p.D);
        x.dout = arena.take<C>(lanes * p.Dv);
        x.dq = arena.take<C>(lanes * p.D);
        x.lse = arena.take<C>(4 * lanes);
        x.delta = x.lse + lanes, x.d_temperature = x.lse + 2 * lanes, x.d_slope = x.lse + 3 * lanes;
        x.weights = arena.take<C>(kBlock * lanes);
        x.dx = arena.take<C>(kBlock * lanes);
        x.logits = g.d_temperature ? arena.take<C>(kBlock * lanes) : nullptr;
        x.bounds = p.key_norms ? arena.take<LogitBound<C>>(lanes) : nullptr;
        x.softcap_slope = p.softcap ? arena.take<C>(kBlock * lanes) : nullptr;
    }
    C* q_rows = arena.take<C>(kGradientTiles * lanes * D);
    C* dout_rows = arena.take<C>(kGradientTiles * lanes * Dv);
    for (int i = 0; i < kGradientTiles; ++i) {
        scratch.tiles[i].q_rows = q_rows + i * lanes * D;
        scratch.tiles[i].dout_rows = dout_rows + i * lanes * Dv;
    }
    scratch.k = arena.take<C>(kBlock * p.D);
    scratch.v = arena.take<C>(kBlock * p.Dv);
    const int64_t panel = g.offsets ? kDiagonalPanel<C> : g.bias.data ? kBlock * lanes : 0;
    scratch.spare = arena.take<C>(max(max(logits_scratch(p, lanes), panel), lanes * max(p.D, p.Dv) + 2 * lanes));
    scratch.ones = arena.take<C>(lanes);
    return scratch;
}

template <class C> void load_tile(const Problem& p, const Gradients& g, int64_t batch, GradientTile<C>& x, C* spare) {
    const int64_t D = whole_vectors<C>(p.D), Dv = whole_vectors<C>(p.Dv);
    const int lanes = x.lanes();
    gather(p.q, batch, x.rows, x.row_count, lanes, p.D, query_factor<C>(p), x.q_rows, D);
    transpose(x.q_rows, D, lanes, p.D, x.q, lanes);
    gather(g.dout, batch, x.rows, x.row_count, lanes, p.Dv, C(1), x.dout_rows, Dv);
    transpose(x.dout_rows, Dv, lanes, p.Dv, x.dout, lanes);
    for (int64_t i = 0; i < lanes * p.Dv; i += kWidth<C>) store(x.dout + i, load(x.dout + i) * kLog2<C>);
    std::memset(x.dq, 0, lanes * p.D * sizeof(C));
    x.not_finite = false;
    for (int r = 0; r < lanes; ++r) {
        const Row& row = x.rows[min(r, x.row_count - 1)];
        const int64_t at = (batch * p.Hq + row.head) * p.N + row.query;
        widen_row(address(p.out, batch, row.head, row.query), p.out.type, p.Dv, C(1), spare, p.Dv);
        C delta;
        dot<C, C, 1>(spare, x.dout_rows + r * Dv, p.Dv, &delta);
        if (g.dlse) delta -= reinterpret_cast<const C*>(g.dlse)[at];
        if (g.delta) reinterpret_cast<C*>(g.delta)[at] = delta;
        const C lse = reinterpret_cast<const C*>(p.lse)[at];
        x.not_finite |= lse != lse;
        x.lse[r] = lse == -kInf<C> ? C(0) : lse * kLog2e<C>;  // nothing allowed: 2^(−∞ − 0) = 0
        x.delta[r] = delta * kLog2<C>;
        x.d_temperature[r] = x.d_slope[r] = 0;
        if (x.bounds && r < x.row_count) {
            x.bounds[r] = logit_bound(p, batch, row, spare);
            if (!(delta - delta == C(0))) x.bounds[r].norm = kInf<C>;  // what is not finite reaches all keys
        }
    }
}

// b.s = P ∘ F and x.dx = dx from logits in b.s and dO Vᵀ in x.dx. What has no weight has no gradient, even
// where its value is not finite.
template <class C, int NV> void logit_gradients(const GradientTile<C>& x, const Block<C>& b, C* dx) {
    constexpr int W = kWidth<C>, lanes = NV * W;
    const bool drops = b.p.dropout > 0;
    for (int64_t j = 0; j < b.n; ++j)
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) {
            const int64_t i = j * lanes + v * W;
            // No weight is above 1; a log-sum-exp that is large is too coarse to say so itself.
            const Vec<C> z = load(b.s + i) - load(x.lse + v * W), weight = exp2(z > C(0) ? Vec<C>{} : z);
            store(b.s + i, weight);
            if (!drops) store(dx + i, weight == C(0) ? Vec<C>{} : weight * (load(dx + i) - load(x.delta + v * W)));
        }
    if (!drops) return;
    const C factor = C(1 / (1 - b.p.dropout));
    for_kept(b, [&](int64_t i, IntVec<C> kept) {
        const Vec<C> weight = load(b.s + i), dweight = kept ? load(dx + i) * factor : Vec<C>{};
        store(dx + i, weight == C(0) ? Vec<C>{} : weight * (dweight - load(x.delta + i % lanes)));
        store(b.s + i, kept ? weight * factor : Vec<C>{});
    });
}

// Σ dx · x by row, for the temperature.
template <class C> void add_d_temperature(const GradientTile<C>& x, const Block<C>& b, const C* dx, const C* logits) {
    for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) {
        C* to = x.d_temperature + i % b.lanes;
        const Vec<C> d = load(dx + i);
        store(to, load(to) + (d == C(0) ? Vec<C>{} : d * load(logits + i)));
    }
}

// Σ dx · |position − key| by row, for the slopes.
template <class C> void add_d_slope(const GradientTile<C>& x, const Block<C>& b, const C* dx, C* spare) {
    const AlibiBias<C> t = alibi_bias(b, spare);
    for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) {
        const int r = int(i % b.lanes);
        C* to = x.d_slope + r;
        store(to, load(to) + load(dx + i) * magnitude<C>(load(t.distance + r) - C(i / b.lanes)));
    }
}

// The gradient of a dense bias, row by row; a broadcast axis of keys is summed.
template <class C> void add_rows_of(const Grid& g, const Block<C>& b, const C* dx, C unit, C* panel) {
    transpose(dx, b.lanes, b.n, b.lanes, panel, kBlock);
    for (int r = 0; r < b.row_count; ++r) {
        const Row& row = b.rows[r];
        C* to = reinterpret_cast<C*>(const_cast<char*>(g.data)) + b.batch * g.batch + row.head * g.head +
                row.query * g.row + b.first * g.col;
        const C* from = panel + r * kBlock;
        if (g.col == 1)
            for (int64_t j = 0; j < b.n; ++j) to[j] += from[j] * unit;
        else
            for (int64_t j = 0; j < b.n; ++j) to[j * g.col] += from[j] * unit;
    }
}

// Computes the weights and dx of one tile in one block, and adds to every gradient but dQ, dK and dV.
template <class C, int NV>
void differentiate_tile(const Problem& p, const Gradients& g, const GradientTask<C>& task, const GradientTile<C>& x,
                        const Operand& k, const Operand& v, const Block<C>& b, C* dx, C* logits, Range partial,
                        C* spare) {
    const bool has_alibi = !p.softcap;
    all_scores<C, NV>(x.q, k.as_matrix<C>().data, k.stride, p.D, b.n, b.s, nullptr,
                      has_alibi ? alibi_bias(b, spare) : AlibiBias<C>{});
    if (!plain(p) || !partial.empty()) to_logits(b, has_alibi, partial, spare);
    if (logits) std::memcpy(logits, b.s, b.n * b.lanes * sizeof(C));
    all_scores<C, NV>(x.dout, v.as_matrix<C>().data, v.stride, p.Dv, b.n, dx, nullptr, AlibiBias<C>{});
    logit_gradients<C, NV>(x, b, dx);
    if (x.not_finite) clear_forbidden(b, b.s), clear_forbidden(b, dx);
    const C unit = kLog2e<C> / C(p.temperature);
    if (g.d_temperature) add_d_temperature(x, b, dx, logits);
    if (g.slopes) add_d_slope(x, b, dx, spare);
    if (g.offsets) add_diagonals(b, dx, unit, task.offsets, spare);
    if (g.bias.data) add_rows_of(g.bias, b, dx, unit, spare);
    if (b.softcap_slope)
        for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) store(dx + i, load(dx + i) * load(b.softcap_slope + i));
}

// dQ, dK and dV of a block in which something is not finite, which must not reach rows that may not attend to it
// though its weight there is 0. Rare, so plain.
template <class C>
void multiply_where_allowed(const Problem& p, int64_t batch, const GradientTile<C>* tiles, int count, Range keys,
                            const Operand& k, C* dk, int64_t dk_stride, C* dv, int64_t dv_stride) {
    const int64_t D = whole_vectors<C>(p.D), Dv = whole_vectors<C>(p.Dv);
    for (int i = 0; i < count; ++i) {
        const GradientTile<C>& x = tiles[i];
        for (int64_t j = 0; j < keys.end - keys.begin; ++j)
            for (int r = 0; r < x.row_count; ++r) {
                if (!allows(p, x.rows[r], batch, keys.begin + j)) continue;
                const C weight = x.weights[j * x.lanes() + r], dx = x.dx[j * x.lanes() + r];
                for (int64_t d = 0; d < p.D; ++d) {
                    x.dq[d * x.lanes() + r] += dx * k.as_matrix<C>().row(j)[d];
                    dk[j * dk_stride + d] += dx * x.q_rows[r * D + d];
                }
                for (int64_t d = 0; d < p.Dv; ++d) dv[j * dv_stride + d] += weight * x.dout_rows[r * Dv + d];
            }
    }
}

// Differentiates all tiles in one block of keys.
template <class C>
void differentiate_block(const Problem& p, const Gradients& g, const GradientTask<C>& task,
                         const GradientScratch<C>& scratch, int count, bool finite, Range block) {
    Visible seen[kGradientTiles];
    Range keys{block.end, block.begin};  // that some tile sees
    for (int i = 0; i < count; ++i) {
        const GradientTile<C>& x = scratch.tiles[i];
        seen[i] = visible(x.rows, x.row_count, p.spans.count, block);
        if (have_no_weight(p, task.batch, task.head, x.rows, x.row_count, x.bounds, x.lse, seen[i].keys))
            seen[i].keys = {0, 0};
        if (!seen[i].keys.empty()) keys = {min(keys.begin, seen[i].keys.begin), max(keys.end, seen[i].keys.end)};
    }
    if (keys.empty()) return;
    const int64_t n = keys.end - keys.begin;
    Operand k = in_place(p.k, task.batch, task.head).from(keys.begin);
    Operand v = in_place(p.v, task.batch, task.head).from(keys.begin);
    if (copied<C>(p.k, false)) k = copy(k, n, p.D, scratch.k);
    if (copied<C>(p.v, false)) v = copy(v, n, p.Dv, scratch.v);

    bool whole = !p.mask.data;  // every row may attend to every key
    Term<C> of_q[kGradientTiles], of_dout[kGradientTiles];
    int terms = 0;
    for (int i = 0; i < count; ++i) {
        const GradientTile<C>& x = scratch.tiles[i];
        const int64_t lanes = x.lanes(), m = seen[i].keys.empty() ? 0 : seen[i].keys.end - seen[i].keys.begin;
        const int64_t skip = m ? seen[i].keys.begin - keys.begin : 0;
        whole &= m == n && seen[i].partial.empty();
        for (C* s : {x.weights, x.dx}) {
            std::memset(s, 0, skip * lanes * sizeof(C));
            std::memset(s + (skip + m) * lanes, 0, (n - skip - m) * lanes * sizeof(C));
        }
        if (!m) continue;
        of_q[terms] = {x.dx, lanes, x.q_rows, whole_vectors<C>(p.D), x.row_count};
        of_dout[terms++] = {x.weights, lanes, x.dout_rows, whole_vectors<C>(p.Dv), x.row_count};
        const auto at = [&](C* s) { return s ? s + skip * lanes : s; };
        const Block<C> b{p, x.rows,        x.row_count,        int(lanes), task.batch, seen[i].keys.begin,
                         m, at(x.weights), at(x.softcap_slope)};
        const auto visit_block = x.vectors == 3   ? differentiate_tile<C, 3>
                                 : x.vectors == 2 ? differentiate_tile<C, 2>
                                                  : differentiate_tile<C, 1>;
        visit_block(p, g, task, x, k.from(skip), v.from(skip), b, at(x.dx), at(x.logits), seen[i].partial,
                    scratch.spare);
    }

    C* dk = reinterpret_cast<C*>(address(g.dk, task.batch, task.head, keys.begin));
    C* dv = reinterpret_cast<C*>(address(g.dv, task.batch, task.head, keys.begin));
    if (!whole && !(finite && all_finite<C>(k, n, p.D)))
        return multiply_where_allowed(p, task.batch, scratch.tiles, count, keys, k, dk, g.dk.row, dv, g.dv.row);
    for (int i = 0; i < count; ++i) {
        if (seen[i].keys.empty()) continue;
        const GradientTile<C>& x = scratch.tiles[i];
        const int64_t skip = seen[i].keys.begin - keys.begin, m = seen[i].keys.end - seen[i].keys.begin;
        const Operand mine = k.from(skip);
        const auto add = x.vectors == 3 ? all_values<C, 3> : x.vectors == 2 ? all_values<C, 2> : all_values<C, 1>;
        add(x.dx + skip * x.lanes(), mine.as_matrix<C>().data, mine.stride, m, p.D, x.dq, scratch.ones);
    }
    product(of_q, terms, n, p.D, dk, g.dk.row);
    product(of_dout, terms, n, p.Dv, dv, g.dv.row);
}

// Adds the sums of a tile that has met all keys of the task to the gradients.
template <class C>
void store_gradients(const Problem& p, const Gradients& g, const GradientTask<C>& task, const GradientTile<C>& x,
                     C* rows) {
    transpose(x.dq, x.lanes(), p.D, x.lanes(), rows, p.D);
    for (int r = 0; r < x.row_count; ++r) {
        const Row& row = x.rows[r];
        C* dq = reinterpret_cast<C*>(address(g.dq, task.batch, row.head, row.query));
        for (int64_t d = 0; d < p.D; ++d) dq[d] += rows[r * p.D + d] * query_factor<C>(p);
        if (g.d_temperature)
            reinterpret_cast<C*>(g.d_temperature)[(task.batch * p.Hq + row.head) * p.N + row.query] +=
                x.d_temperature[r];
        if (g.slopes) task.slopes[row.head] -= x.d_slope[r] * kLog2e<C> / C(p.temperature);
    }
}

template <class C> void differentiate(const Problem& p, const Gradients& g, const GradientTask<C>& task, char* memory) {
    constexpr int W = kWidth<C>, lanes = kMaxLanes<C>;
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    GradientScratch<C> scratch = lay_out_gradient<C>(p, g, arena);
    for (int i = 0; i < lanes; ++i) scratch.ones[i] = 1;
    const bool masked = p.spans.data || p.mask.data;
    const int64_t first_head = task.head * (p.Hq / p.Hkv);
    for (int64_t from = task.row_begin; from < task.row_end; from += kGradientTiles * lanes) {
        const int64_t rows = min(task.row_end - from, kGradientTiles * lanes);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t head = (from + r) / p.N;
            scratch.rows[r] = row_at(p, task.batch, first_head + head, from + r - head * p.N);
        }
        const int count = int(ceil_div(rows, lanes));
        bool finite = true;  // of no interest where nothing is masked
        for (int i = 0; i < count; ++i) {
            GradientTile<C>& x = scratch.tiles[i];
            x.rows = scratch.rows + i * lanes;
            x.row_count = int(min(rows - i * lanes, lanes));
            x.vectors = int(ceil_div(x.row_count, W));
            load_tile(p, g, task.batch, x, scratch.spare);
            const auto plain = [&](const C* data, int64_t width) {
                return all_finite<C>({reinterpret_cast<const char*>(data), kType<C>, whole_vectors<C>(width)},
                                     x.row_count, width);
            };
            finite = finite && (!masked || (plain(x.q_rows, p.D) && plain(x.dout_rows, p.Dv)));
        }
        for (Range run{task.key_begin, task.key_begin};;) {
            run = next_run(scratch.rows, int(rows), p.spans.count, run.end, task.key_end);
            if (run.empty()) break;
            for (int64_t j = run.begin; j < run.end; j += kBlock)
                differentiate_block(p, g, task, scratch, count, finite, {j, min(j + kBlock, run.end)});
        }
        for (int i = 0; i < count; ++i) store_gradients(p, g, task, scratch.tiles[i], scratch.spare);
    }
}

}  // namespace limelight::LIMELIGHT_ISA
