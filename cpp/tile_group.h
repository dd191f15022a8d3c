// A group of query tiles that meet the blocks of keys together and share the copies of these blocks.
#pragma once

#include "partition.h"
#include "query_tile.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct TileGroup {
    int64_t first_row, row_count;  // the first of the unit's rows; the rows of all tiles
    int64_t count;                 // of tiles
    QueryTile<C>* tiles;
    Row* rows;
    Row* distinct;
    SeenKeys seen;  // of all tiles
    LaneSpans<C>* lane_spans;
    C* s;                   // a block of scores; a panel for each tile where heads are computed side by side
    int64_t step = kBlock;  // keys in a block
    int64_t panel;          // from one tile's scores to the next one's
    C *k, *v;               // copies of a block
    C* spare;               // for the logits
    C* transposing;
    C *q, *o, *m;  // of all tiles
    C* sums;       // of the values of a block, where a tile decodes
    Upcoming* upcoming = nullptr;
    LogitBound<C>* bounds;
};

template <class C> TileGroup<C> lay_out_group(const Problem& p, const Partition& c, Arena& arena) {
    constexpr int lanes = kMaxLanes<C>;
    const int64_t tiles = c.tiles_per_task * c.heads_abreast;
    TileGroup<C> y;
    y.tiles = arena.take<QueryTile<C>>(tiles);
    y.rows = arena.take<Row>(tiles * lanes);
    y.distinct = arena.take<Row>(tiles * lanes);
    y.lane_spans = p.spans.count == 1 && p.spans.data ? arena.take<LaneSpans<C>>(tiles) : nullptr;
    const int64_t decoded = kDecodeStep * kWidth<C> + kTileNumbers<C>;  // in lanes and in tiles
    const int64_t scores = c.decode ? decoded : kBlock * lanes;
    y.panel = c.heads_abreast > 1 ? scores : 0;
    y.s = arena.take<C>(scores * c.heads_abreast);
    y.k = arena.take<C>(kBlock * p.D);
    y.v = arena.take<C>(kBlock * p.Dv);
    y.spare = arena.take<C>(logits_scratch(p, lanes));
    y.transposing = arena.take<C>(lanes * max(p.D, p.Dv) + 2 * lanes);
    y.q = arena.take<C>(tiles * lanes * p.D);
    y.o = arena.take<C>(tiles * lanes * p.Dv);
    y.m = arena.take<C>(tiles * 2 * lanes);
    y.sums = arena.take<C>(c.decode ? kWidth<C> * p.Dv : 0);
    y.bounds = p.key_norms ? arena.take<LogitBound<C>>(tiles * lanes) : nullptr;
    return y;
}

// Loads the queries of a tile as decoding reads them: packed, with their features in the order in which keys are read.
template <class C> void load_packed(const Problem& p, int64_t batch, const QueryTile<C>& x, C* scratch) {
    if (x.pairs) return pack_pairs<C>(p.q, batch, x.rows, x.row_count, p.D, reinterpret_cast<bf16*>(x.q));
    gather(p.q, batch, x.rows, x.row_count, x.row_count, p.D, query_factor<C>(p), scratch, p.D);
    if (!copied<C>(p.k, true))
        with_readable_type<C>(p.k.type, [&](auto e) {
            for (int r = 0; r < x.row_count; ++r) split_places<C, decltype(e)>(scratch + r * p.D, p.D);
        });
    pack_rows(scratch, p.D, x.row_count, x.q);
}

// Empties the running sums of a tile.
template <class C> void empty_sums(const Problem& p, const QueryTile<C>& x) {
    std::memset(x.o, 0, (x.decode ? x.row_count : x.lanes()) * p.Dv * sizeof(C));
    for (int r = 0; r < x.lanes(); ++r) x.m[r] = -kInf<C>, x.l[r] = 0;
}

// The same for all tiles, whose queries stay.
template <class C> void empty_sums(const Problem& p, const TileGroup<C>& y) {
    for (int64_t i = 0; i < y.count; ++i) empty_sums(p, y.tiles[i]);
}

// Loads the queries of a task and empties their running sums.
template <class C> void load_group(const Problem& p, const Partition& c, const Task& t, TileGroup<C>& y) {
    constexpr int W = kWidth<C>, lanes = kMaxLanes<C>;
    y.first_row = tile_begin<C>(c, t.tile);
    const int64_t rows = tile_begin<C>(c, t.tile + t.tiles) - y.first_row;  // of one head
    y.row_count = rows * c.heads_abreast;
    y.count = t.tiles * c.heads_abreast;
    for (int64_t i = 0; i < y.count; ++i) {
        const int64_t side = i / t.tiles, tile = t.tile + i % t.tiles;
        const int64_t a = tile_begin<C>(c, tile), b = tile_begin<C>(c, tile + 1);
        Row* row = y.rows + side * rows + a - y.first_row;
        QueryTile<C>& x = y.tiles[i];
        x.row_count = int(b - a);
        x.vectors = int(ceil_div(b - a, W));
        x.decode = c.decode;
        x.pairs = has_pairs<C>(p, c.decode);
        x.distance = prefetch_distance(bytes_of_cache(p), size_of(p.k.type));
        fill_rows(p, c, t.batch, t.unit + side, a, x.row_count, row);
        x.kv = row[0].head / c.group_size;
        x.chain = score_chain<C>(c.rows, p.M, p.D);
        x.rows = row;
        x.seen = {span_bounds(row, x.row_count, p.spans.count), p.spans.count};
        x.lane_spans = y.lane_spans ? y.lane_spans + i : nullptr;
        if (x.lane_spans) x.lane_spans->set(row, x.row_count, x.vectors);
        x.q = y.q + i * lanes * p.D;
        x.o = y.o + i * lanes * p.Dv;
        x.m = y.m + i * 2 * lanes;
        x.l = x.m + x.lanes();
        x.sums = y.sums;
        x.bounds = y.bounds ? y.bounds + i * lanes : nullptr;
        for (int r = 0; y.bounds && r < x.row_count; ++r)
            x.bounds[r] = logit_bound(p, t.batch, x.rows[r], y.transposing);
        if (x.decode) load_packed(p, t.batch, x, y.transposing);
        else if (x.pairs) load_lanes_of_pairs(p.q, p.D, t.batch, x, x.q, y.transposing);
        else load_lanes(p.q, p.D, query_factor<C>(p), t.batch, x, x.q, y.transposing);
        empty_sums(p, x);
    }
    y.seen = join_seen_keys(y.tiles, y.count, y.distinct);
}

// visit(i, tile, k, v, block, partial) for every block of the task's keys of which the i-th tile sees something, and
// after(keys) once all tiles have met a block.
template <class C, class Visit, class After>
void for_each_block(const Problem& p, const TileGroup<C>& y, const Task& t, Visit&& visit, After&& after) {
    const bool decode = y.tiles[0].decode;
    const bool copy_k = copies_keys<C>(p, decode), copy_v = copied<C>(p.v, decode);
    for (Range run{t.begin, t.begin};;) {
        run = y.seen.next_run(run.end, t.end);
        if (run.empty()) break;
        for (int64_t j = run.begin; j < run.end; j += y.step) {
            const Range block{j, min(j + y.step, run.end)};
            const int64_t n = block.end - block.begin;
            Operand k{}, v{};
            int64_t loaded = -1;  // the head that k and v belong to
            Range keys{0, 0};
            for (int64_t i = 0; i < y.count; ++i) {
                const QueryTile<C>& x = y.tiles[i];
                const Visible seen = x.seen.visible(block);
                if (seen.keys.empty() ||
                    have_no_weight(p, t.batch, x.kv, x.rows, x.row_count, x.bounds, x.m, seen.keys))
                    continue;
                if (x.kv != loaded) {
                    loaded = x.kv;
                    k = in_place(p.k, t.batch, loaded).from(j), v = in_place(p.v, t.batch, loaded).from(j);
                    if (copy_k) k = copy(k, n, p.D, y.k);
                    if (copy_v) v = copy(v, n, p.Dv, y.v);
                }
                keys = seen.keys;
                const int64_t skip = keys.begin - j;
                const Block<C> b{p,
                                 x.rows,
                                 x.row_count,
                                 x.lanes(),
                                 t.batch,
                                 keys.begin,
                                 keys.end - keys.begin,
                                 y.s + i * y.panel,
                                 x.lane_spans,
                                 y.upcoming};
                visit(i, x, k.from(skip), v.from(skip), b, seen.partial);
            }
            after(keys);
        }
    }
}

// The last step of a row: the sink joins the sum, and factor · o is the output.
template <class C> struct RowResult {
    bool empty;  // the row may attend to nothing
    C factor;    // 1 / l, and dropout's 1 / (1 − rate)
    C rest;      // what rounding took from the factor: it would be an error of the whole row
    C m, l;      // with the sink

    C lse() const { return empty ? -kInf<C> : (m + std::log2(l)) / kLog2e<C>; }
};

template <class C> RowResult<C> finish_row(const Problem& p, int64_t head, C m, C l) {
    if (l == C(0)) return {true, C(0), C(0), m, l};
    C grown = 1;
    if (p.sink) {
        const C sink = reinterpret_cast<const C*>(p.sink)[head] * kLog2e<C> / C(p.temperature);
        const C top = sink > m ? sink : m;
        grown = std::exp2(m - top);
        l = l * grown + std::exp2(sink - top);
        m = top;
    }
    const Rounded<C> factor(double(grown) / double(l) / (1 - p.dropout));
    return {false, factor.value, factor.rest, m, l};
}

template <class C> void write_normalisers(const Problem& p, int64_t batch, const Row& row, const RowResult<C>& end) {
    const int64_t all = p.B * p.Hq * p.N, at = (batch * p.Hq + row.head) * p.N + row.query;
    if (p.lse) reinterpret_cast<C*>(p.lse)[at] = end.lse();
    if (!p.normalisers) return;
    C* to = reinterpret_cast<C*>(p.normalisers) + at;
    to[0] = end.empty ? C(0) : end.m;
    to[all] = end.empty ? C(1) : end.l;
}

}  // namespace limelight::LIMELIGHT_ISA
