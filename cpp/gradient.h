// The gradient of attention for some rows of queries against a range of keys.
//
// With x = logits / temperature, P = exp(x − lse) the weights and F the factors of dropout (0 or 1 / (1 − rate)):
//
//   dV = (P ∘ F)ᵀ dO,   dP = F ∘ (dO Vᵀ),   dx = P ∘ (dP − δ),   δ = Σ dO ∘ O − dlse   (a number a row),
//   dQ = dx K · scale / temperature,   dK = dxᵀ Q · scale / temperature.
//
// P = 2^(x − m) / Σ is made again from the normalisers, block by block. Only logits are in units of log 2.
//
// The gradients of statistics of P are terms that are added to dP (statistics/gradient_terms.h). Their part of
// δ, Σ P ∘ term of a row, is known where it follows from the statistic itself; otherwise a pass over the keys sums it
// first. Dropout has no part in statistics, and a problem has the one or the other.
#pragma once

#include "dropout.h"
#include "gradient_tile.h"
#include "product.h"
#include "statistics/gradient_terms.h"

namespace limelight::LIMELIGHT_ISA {

// dx = P (dP − δ). What has no weight has no gradient, even where its value is not finite.
template <class C> LIMELIGHT_INLINE Vec<C> gradient_of_weight(Vec<C> weight, Vec<C> difference) {
    return weight == C(0) ? Vec<C>{} : weight * difference;
}

// b.s = P ∘ F and x.dx = dx from logits in b.s and dO Vᵀ in x.dx.
template <class C, int NV> void logit_gradients(const GradientTile<C>& x, const Block<C>& b, C* dx) {
    constexpr int W = kWidth<C>, lanes = NV * W;
    const bool drops = b.p.dropout > 0, later = drops || x.one_block;
    Vec<C> sums[NV] = {};
    for (int64_t j = 0; j < b.n; ++j)
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) {
            const int64_t i = j * lanes + v * W;
            // No logit is above m; the largest of large ones may be rounded differently here.
            const Vec<C> e = exp2(smaller(opaque(Vec<C>{}), load(b.s + i) - load(x.m + v * W)));
            const Vec<C> weight = e * load(x.inverse + v * W) + e * load(x.rest + v * W);
            store(b.s + i, weight);
            if (!later) store(dx + i, gradient_of_weight<C>(weight, load(dx + i) - load(x.delta + v * W)));
            else if (!drops) sums[v] += weight == C(0) ? Vec<C>{} : weight * load(dx + i);
        }
    if (!later) return;
    if (!drops) {
        // Made of the same dP, δ cancels its roundings: with few keys, Σ dO ∘ O would add as many of its own.
        for (int64_t i = 0; i < b.n * lanes; i += W) {
            const Vec<C> weight = load(b.s + i),
                         delta = sums[i / W % NV] - load(x.dlse + i % lanes) +
                                 load(x.delta + i % lanes) * C(0);  // NaN where that is
            store(dx + i, gradient_of_weight<C>(weight, load(dx + i) - delta));
        }
        return;
    }
    const C factor = C(1 / (1 - b.p.dropout));
    for_kept(b, [&](int64_t i, IntVec<C> kept) {
        const Vec<C> weight = load(b.s + i), dweight = kept ? load(dx + i) * factor : Vec<C>{};
        store(dx + i, gradient_of_weight<C>(weight, dweight - load(x.delta + i % lanes)));
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
                query_place(b.p, row.query) * g.row;
        const C* from = panel + r * kBlock;
        if (g.col == 1 && !b.p.places.keys)
            for (int64_t j = 0; j < b.n; ++j) to[b.first + j] += from[j] * unit;
        else
            for (int64_t j = 0; j < b.n; ++j) to[key_place(b.p, b.first + j) * g.col] += from[j] * unit;
    }
}

// to[key][lane] = factor · side · k, where `side` is x.q or x.dout, which have the factor already unless they are in pairs, and
// k the keys or values of the block.
template <class C, int NV>
void block_products(const GradientTile<C>& x, const C* side, C factor, const Operand& k, int64_t width,
                    const Block<C>& b, Range partial, C* to, AlibiBias<C> alibi_bias, C* spare) {
    if (!x.decode) {
        const int64_t chain = score_chain<C>(b.p.Hq / b.p.Hkv * b.p.N, b.p.M, width);
        return products_in_lanes<C, NV>(b, partial, side, factor, k, width, to, nullptr, alibi_bias, chain);
    }
    std::memset(to, 0, b.n * b.lanes * sizeof(C));  // lanes without a row
    for (int64_t j = 0; j < b.n; j += kDecodeStep) {
        const int64_t n = min(kDecodeStep, b.n - j);
        decode_scores<C, C>(side, k.from(j).template as_matrix<C>(), width, n, x.row_count, spare, PrefetchDistance{});
        for_each_score<C>(x.row_count, n, [&](int r, int64_t i, int64_t at) { to[(j + i) * b.lanes + r] = spare[at]; });
    }
}

// b.s = the logits of a block.
template <class C, int NV>
void block_logits(const GradientTile<C>& x, const Operand& k, const Block<C>& b, Range partial, C* spare) {
    const Problem& p = b.p;
    const bool has_alibi = !p.softcap && !x.decode;
    block_products<C, NV>(x, x.q, query_factor<C>(p), k, p.D, b, partial, b.s,
                          has_alibi ? alibi_bias(b, spare) : AlibiBias<C>{}, spare);
    if (!plain(p) || (p.slopes && !has_alibi) || !partial.empty()) to_logits(b, has_alibi, partial, spare);
}

// Computes the weights and dx of one tile in one block, and adds to every gradient but dQ, dK and dV.
template <class C, int NV>
void differentiate_tile(const Gradients& g, const GradientTask<C>& task, const GradientScratch<C>& scratch, int tile,
                        const Operand& k, const Operand& v, const Block<C>& b, C* dx, C* logits, Range partial) {
    const Problem& p = b.p;
    const GradientTile<C>& x = scratch.tiles[tile];
    C* spare = scratch.spare;
    block_logits<C, NV>(x, k, b, partial, spare);
    if (logits) std::memcpy(logits, b.s, b.n * b.lanes * sizeof(C));
    block_products<C, NV>(x, x.dout, C(1), v, p.Dv, b, partial, dx, AlibiBias<C>{}, spare);
    for (const auto& term : scratch.terms) term->add(x, tile, b, dx);
    logit_gradients<C, NV>(x, b, dx);
    if (x.not_finite) clear_forbidden(b, b.s), clear_forbidden(b, dx);
    const C unit = C(1 / p.temperature);
    if (g.d_temperature) add_d_temperature(x, b, dx, logits);
    if (g.slopes) add_d_slope(x, b, dx, spare);
    if (g.offsets) add_diagonals(b, dx, unit, task.offsets, spare);
    if (g.bias.data) add_rows_of(g.bias, b, dx, unit, spare);
    if (b.softcap_slope)
        for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) store(dx + i, load(dx + i) * load(b.softcap_slope + i));
}

// dQ, dK and dV of a block in which something is not finite, which must not reach rows that may not attend to it
// though its weight there is 0. Rare, so without vectors.
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

// The part of one block of keys that the tiles of a task see.
template <class C> struct SeenBlock {
    Visible seen[kGradientTiles<C>];
    Range keys;                  // that some tile sees
    Operand k;                   // in the compute type
    Operand scored_k, scored_v;  // as scores and dP read them: in the compute type, or in pairs

    int64_t n() const { return keys.end - keys.begin; }
    int64_t n(int tile) const { return seen[tile].keys.empty() ? 0 : seen[tile].keys.end - seen[tile].keys.begin; }
    int64_t skip(int tile) const { return n(tile) ? seen[tile].keys.begin - keys.begin : 0; }
};

template <class C>
SeenBlock<C> see_block(const Problem& p, const GradientTask<C>& task, const GradientScratch<C>& scratch, int count,
                       Range block) {
    SeenBlock<C> s;
    s.keys = {block.end, block.begin};
    for (int i = 0; i < count; ++i) {
        const GradientTile<C>& x = scratch.tiles[i];
        Range& keys = (s.seen[i] = x.seen.visible(block)).keys;
        if (have_no_weight(p, task.batch, task.head, x.rows, x.row_count, x.bounds, x.lse, keys)) keys = {0, 0};
        if (!keys.empty()) s.keys = {min(s.keys.begin, keys.begin), max(s.keys.end, keys.end)};
    }
    if (s.keys.empty()) return s;
    const auto keys_of = [&](const Rows& x) { return in_place(x, task.batch, task.head).from(s.keys.begin); };
    s.k = keys_of(p.k);
    if (copied<C>(p.k, false)) s.k = copy(s.k, s.n(), p.D, scratch.k);
    s.scored_k = task.k_in_pairs ? keys_of(*task.k_in_pairs) : s.k;
    s.scored_v = keys_of(p.v);
    if (!task.v_in_pairs && copied<C>(p.v, false)) s.scored_v = copy(s.scored_v, s.n(), p.Dv, scratch.v);
    return s;
}

template <class C>
Block<C> block_of_tile(const Problem& p, const GradientTask<C>& task, const GradientTile<C>& x, const SeenBlock<C>& s,
                       int tile) {
    const int64_t place = s.skip(tile) * x.lanes();
    return {p,
            x.rows,
            x.row_count,
            x.lanes(),
            task.batch,
            s.seen[tile].keys.begin,
            s.n(tile),
            x.weights + place,
            x.lane_spans,
            nullptr,
            x.softcap_slope ? x.softcap_slope + place : nullptr};
}

// Differentiates all tiles in one block of keys.
template <class C>
void differentiate_block(const Problem& p, const Gradients& g, const GradientTask<C>& task,
                         const GradientScratch<C>& scratch, int count, bool finite, Range block) {
    const SeenBlock<C> s = see_block(p, task, scratch, count, block);
    if (s.keys.empty()) return;
    const int64_t n = s.n();
    bool whole = !p.mask.data;  // every row may attend to every key
    Term<C> of_q[kGradientTiles<C>], of_dout[kGradientTiles<C>];
    const Row* rows_of[kGradientTiles<C>];
    int terms = 0;
    for (int i = 0; i < count; ++i) {
        const GradientTile<C>& x = scratch.tiles[i];
        const int64_t lanes = x.lanes(), m = s.n(i), skip = s.skip(i);
        whole &= m == n && s.seen[i].partial.empty();
        for (C* to : {x.weights, x.dx}) {
            std::memset(to, 0, skip * lanes * sizeof(C));
            std::memset(to + (skip + m) * lanes, 0, (n - skip - m) * lanes * sizeof(C));
        }
        if (!m) continue;
        rows_of[terms] = x.rows;
        of_q[terms] = {x.dx, lanes, x.q_rows, whole_vectors<C>(p.D), x.row_count};
        of_dout[terms++] = {x.weights, lanes, x.dout_rows, whole_vectors<C>(p.Dv), x.row_count};
        const auto visit = x.vectors == 3   ? differentiate_tile<C, 3>
                           : x.vectors == 2 ? differentiate_tile<C, 2>
                                            : differentiate_tile<C, 1>;
        visit(g, task, scratch, i, s.scored_k.from(skip), s.scored_v.from(skip), block_of_tile(p, task, x, s, i),
              x.dx + skip * lanes, x.logits ? x.logits + skip * lanes : nullptr, s.seen[i].partial);
    }

    C* dk = reinterpret_cast<C*>(address(g.dk, task.batch, task.head, s.keys.begin));
    C* dv = reinterpret_cast<C*>(address(g.dv, task.batch, task.head, s.keys.begin));
    if (!whole && !(finite && all_finite<C>(s.k, n, p.D)))
        return multiply_where_allowed(p, task.batch, scratch.tiles, count, s.keys, s.k, dk, g.dk.row, dv, g.dv.row);
    for (int i = 0; i < count; ++i) {
        if (!s.n(i)) continue;
        const GradientTile<C>& x = scratch.tiles[i];
        const Operand mine = s.k.from(s.skip(i));
        const auto add = x.vectors == 3   ? visible_values<C, 3>
                         : x.vectors == 2 ? visible_values<C, 2>
                                          : visible_values<C, 1>;
        add(block_of_tile(p, task, x, s, i), s.seen[i].partial, x.dx + s.skip(i) * x.lanes(), mine, p.D, x.dq,
            scratch.ones);
    }
    const int64_t rows = p.Hq / p.Hkv * p.N, chain = rows < kFewRows ? few_rows_chain(rows) : rows;
    // Along the edges of a band, some keys at a time with the rows that see one of them.
    const int64_t step = whole || p.spans.count != 1 ? n : kProductKeys;
    for (int64_t a = 0; a < n; a += step) {
        const Range keys{s.keys.begin + a, min(s.keys.begin + a + step, s.keys.end)};
        Term<C> some_q[kGradientTiles<C>], some_dout[kGradientTiles<C>];
        for (int t = 0; t < terms; ++t) {
            const Range rows = step < n ? seeing_rows(rows_of[t], of_q[t].n, keys) : Range{0, of_q[t].n};
            some_q[t] = of_q[t].part(a, rows), some_dout[t] = of_dout[t].part(a, rows);
        }
        product_in_chains(some_q, terms, chain, keys.end - keys.begin, p.D, dk + a * g.dk.row, g.dk.row);
        product_in_chains(some_dout, terms, chain, keys.end - keys.begin, p.Dv, dv + a * g.dv.row, g.dv.row);
    }
}

// Adds Σ P ∘ term over the keys of one block, for the terms that need it, to the sums of one tile.
template <class C, int NV>
void sum_terms_of_tile(const GradientScratch<C>& scratch, int tile, const Operand& k, const Block<C>& b, C* dp,
                       Range partial) {
    constexpr int W = kWidth<C>, lanes = NV * W;
    const GradientTile<C>& x = scratch.tiles[tile];
    block_logits<C, NV>(x, k, b, partial, scratch.spare);
    std::memset(dp, 0, b.n * lanes * sizeof(C));
    for (const auto& term : scratch.terms)
        if (term->needs_sum()) term->add(x, tile, b, dp);
    Vec<C> m[NV], sums[NV] = {};
    for (int v = 0; v < NV; ++v) m[v] = load(x.m + v * W);
    for (int64_t j = 0; j < b.n; ++j)
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) {
            const int64_t i = j * lanes + v * W;
            const Vec<C> weight = exp2(load(b.s + i) - m[v]);
            sums[v] += weight == C(0) ? Vec<C>{} : weight * load(dp + i);
        }
    for (int v = 0; v < NV; ++v) store(x.sums + v * W, load(x.sums + v * W) + sums[v] * load(x.inverse + v * W));
}

template <class C>
void sum_terms_of_block(const Problem& p, const GradientTask<C>& task, const GradientScratch<C>& scratch, int count,
                        Range keys) {
    const SeenBlock<C> s = see_block(p, task, scratch, count, keys);
    for (int i = 0; i < count; ++i) {
        if (!s.n(i)) continue;
        const GradientTile<C>& x = scratch.tiles[i];
        const Block<C> b = block_of_tile(p, task, x, s, i);
        bool wanted = false;
        for (const auto& term : scratch.terms) wanted |= term->needs_sum() && term->wants(b);
        if (!wanted) continue;
        const auto visit = x.vectors == 3   ? sum_terms_of_tile<C, 3>
                           : x.vectors == 2 ? sum_terms_of_tile<C, 2>
                                            : sum_terms_of_tile<C, 1>;
        visit(scratch, i, s.scored_k.from(s.skip(i)), b, x.dx, s.seen[i].partial);
    }
}

// Adds the sums of a tile that has met all keys of the task to the gradients.
template <class C>
void store_gradients(const Problem& p, const Gradients& g, const GradientTask<C>& task, const GradientTile<C>& x,
                     C* rows) {
    transpose(x.dq, x.lanes(), p.D, x.lanes(), rows, p.D);
    for (int r = 0; r < x.row_count; ++r) {
        const Row& row = x.rows[r];
        C* dq = reinterpret_cast<C*>(address(g.dq, task.batch, row.head, row.query));
        for (int64_t d = 0; d < p.D; ++d) dq[d] += rows[r * p.D + d] * gradient_factor<C>(p);
        if (g.d_temperature)
            reinterpret_cast<C*>(g.d_temperature)[(task.batch * p.Hq + row.head) * p.N + row.query] +=
                x.d_temperature[r] * kLog2<C>;
        if (g.slopes) task.slopes[row.head] -= x.d_slope[r] / C(p.temperature);
    }
}

// True if no row of a tile may attend to any key of the task: under a window, most tasks are far from most rows.
template <class C> bool sees_nothing(const GradientTile<C>& x, const GradientTask<C>& task) {
    const SpanBounds& b = x.seen.bounds;
    return (b.one_run ? b.run(task.key_begin, task.key_end)
                      : next_run(x.rows, x.row_count, x.seen.spans, task.key_begin, task.key_end))
        .empty();
}

// Loads the rows of a task, some tiles at a time, and calls start(number of tiles), block(number of tiles, keys) for all
// keys that some row may attend to, and finish(number of tiles). Tiles that see no key of the task are left out, unless
// something has to be known of every row.
template <class C, class Start, class VisitBlock, class Finish>
void for_each_tile(const Problem& p, const GradientTask<C>& task, GradientScratch<C>& scratch, bool may_skip,
                   Start&& start, VisitBlock&& visit, Finish&& finish) {
    const int64_t first_head = task.head * (p.Hq / p.Hkv);
    for (int64_t from = task.row_begin; from < task.row_end;) {
        int count = 0;
        for (Row* rows = scratch.rows; count < kGradientTiles<C> && from < task.row_end;) {
            GradientTile<C>& x = scratch.tiles[count];
            const int64_t end = tile_end<C>(p, task, from);
            x.rows = rows;
            x.row_count = int(end - from);
            x.vectors = int(ceil_div(x.row_count, kWidth<C>));
            for (; from < end; ++from) *rows++ = row_at(p, task.batch, first_head + from / p.N, from % p.N);
            x.seen = {span_bounds(x.rows, x.row_count, p.spans.count), p.spans.count};
            if (may_skip && sees_nothing(x, task)) {
                rows -= x.row_count;
                continue;
            }
            if (x.lane_spans) x.lane_spans->set(x.rows, x.row_count, x.vectors);
            ++count;
        }
        if (!count) break;
        const SeenKeys seen = join_seen_keys(scratch.tiles, count, scratch.distinct);
        for (int i = 0; i < count; ++i) {
            load_rows(p, task, scratch.tiles[i], scratch.spare);
            for (const auto& term : scratch.terms) term->start(scratch.tiles[i], task.batch, i);
        }
        start(count);
        for (Range run{task.key_begin, task.key_begin};;) {
            run = seen.next_run(run.end, task.key_end);
            if (run.empty()) break;
            for (int64_t j = run.begin; j < run.end; j += kBlock) visit(count, Range{j, min(j + kBlock, run.end)});
        }
        finish(count);
    }
}

template <class C> GradientScratch<C> lay_out_gradient(const Problem& p, const Gradients& g, Arena& arena) {
    return lay_out_gradient<C>(p, g, arena, make_gradient_term<C>);
}

template <class C> void differentiate(const Problem& p, const Gradients& g, const GradientTask<C>& task, char* memory) {
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    GradientScratch<C> scratch = lay_out_gradient<C>(p, g, arena);
    for (int i = 0; i < kMaxLanes<C>; ++i) scratch.ones[i] = 1;
    const bool masked = p.spans.data || p.mask.data;
    bool finite = true;  // of no interest where nothing is masked
    const auto start = [&](int count) {
        finite = true;
        for (int i = 0; i < count; ++i) {
            GradientTile<C>& x = scratch.tiles[i];
            load_gradients(p, g, task, x, scratch.spare);
            const auto plain = [&](const C* data, int64_t width) {
                return all_finite<C>({reinterpret_cast<const char*>(data), kType<C>, whole_vectors<C>(width)},
                                     x.row_count, width);
            };
            finite = finite && (!masked || (plain(x.q_rows, p.D) && plain(x.dout_rows, p.Dv)));
        }
    };
    const auto visit = [&](int count, Range keys) { differentiate_block(p, g, task, scratch, count, finite, keys); };
    const auto finish = [&](int count) {
        for (int i = 0; i < count; ++i) store_gradients(p, g, task, scratch.tiles[i], scratch.spare);
    };
    for_each_tile(p, task, scratch, !g.delta, start, visit, finish);
}

// Adds Σ P ∘ term over the keys of a task to the sums of its rows, for the terms that need it.
template <class C> void sum_terms(const Problem& p, const Gradients& g, const GradientTask<C>& task, char* memory) {
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    GradientScratch<C> scratch = lay_out_gradient<C>(p, g, arena);
    const auto start = [&](int count) {
        for (int i = 0; i < count; ++i) std::fill_n(scratch.tiles[i].sums, kMaxLanes<C>, C(0));
    };
    const auto visit = [&](int count, Range keys) { sum_terms_of_block(p, task, scratch, count, keys); };
    const auto finish = [&](int count) {
        for (int i = 0; i < count; ++i) {
            const GradientTile<C>& x = scratch.tiles[i];
            for (int r = 0; r < x.row_count; ++r)
                task.sums[(task.batch * p.Hq + x.rows[r].head) * p.N + x.rows[r].query] += x.sums[r];
        }
    };
    for_each_tile(p, task, scratch, true, start, visit, finish);
}

}  // namespace limelight::LIMELIGHT_ISA
