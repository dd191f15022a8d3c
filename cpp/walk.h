// Strips that walk over the keys together and share what is copied of them.
#pragma once

#include "kernels.h"
#include "strip.h"

namespace limelight::LIMELIGHT_ISA {

// The first vector of a strip.
inline int64_t strip_begin(const Cut& c, int64_t strip) {
    return c.even && strip == c.strips - 1 ? c.vectors - 2 : least(3 * strip, c.vectors);
}

// Strips that share one copy of a block of K and V.
constexpr int64_t kTogether = 8;

template <class C> bool is_few(const Cut& c) { return c.rows < kWidth<C>; }

// Few rows go back and forth between K and V, in short steps that keep both streams from memory alive,
// or in longer ones where all of it lies in a cache.
constexpr int64_t kFewBlock = 32, kFewStream = 8;

inline bool near(const Problem& p) {
    return p.B * p.Hkv * p.M * int64_t(p.D * size_of(p.k.type) + p.Dv * size_of(p.v.type)) <= 1 << 20;
}

template <class C> struct Party {
    int64_t first_row, row_count;  // the unit's first row here; the rows of all strips
    int64_t count;                 // strips
    Strip<C>* strips;
    Row* rows;
    C* s;            // a block of scores; a panel for each strip where heads walk abreast
    int64_t panel;   // from one strip's scores to the next one's
    C *k, *v;        // copies of a block
    C *spare;        // for the logits
    C *turning;      // for rows that are turned
    C *q, *o, *m;    // of all strips
    Reach<C>* reach;
};

template <class C> Party<C> lay_out_party(const Problem& p, const Cut& c, Arena& arena) {
    constexpr int lanes = kMaxLanes<C>;
    const int64_t strips = c.together * c.abreast;
    Party<C> y;
    y.strips = arena.take<Strip<C>>(strips);
    y.rows = arena.take<Row>(strips * lanes);
    y.panel = c.abreast > 1 ? kBlock * lanes : 0;
    y.s = arena.take<C>(kBlock * lanes * c.abreast);
    y.k = arena.take<C>(kBlock * p.D);
    y.v = arena.take<C>(kBlock * p.Dv);
    y.spare = arena.take<C>(logits_scratch(p, lanes));
    y.turning = arena.take<C>(lanes * most(p.D, p.Dv) + 2 * lanes);
    y.q = arena.take<C>(strips * lanes * p.D);
    y.o = arena.take<C>(strips * lanes * p.Dv);
    y.m = arena.take<C>(strips * 2 * lanes);
    y.reach = p.reach ? arena.take<Reach<C>>(strips * lanes) : nullptr;
    return y;
}

template <class C> void load_queries(const Problem& p, int64_t batch, const Strip<C>& x, C* rows) {
    if (x.few) return gather(p.q, batch, x.rows, x.row_count, x.row_count, p.D, query_factor<C>(p), x.q, p.D);
    gather(p.q, batch, x.rows, x.row_count, x.lanes(), p.D, query_factor<C>(p), rows, p.D);
    transpose(rows, p.D, x.lanes(), p.D, x.q, x.lanes());
}

// The strips of a task, which have seen nothing yet.
template <class C> void gather_party(const Problem& p, const Cut& c, const Task& t, Party<C>& y) {
    constexpr int W = kWidth<C>, lanes = kMaxLanes<C>;
    y.first_row = strip_begin(c, t.strip) * W;
    const int64_t rows = least(strip_begin(c, t.strip + t.strips) * W, c.rows) - y.first_row;  // of one head
    y.row_count = rows * c.abreast;
    y.count = t.strips * c.abreast;
    for (int64_t i = 0; i < y.count; ++i) {
        const int64_t side = i / t.strips, strip = t.strip + i % t.strips;
        const int64_t a = strip_begin(c, strip), b = strip_begin(c, strip + 1);
        const int64_t head = (c.grouped ? t.unit * c.group : t.unit) + side;
        Row* row = y.rows + side * rows + a * W - y.first_row;
        Strip<C>& x = y.strips[i];
        x.vectors = int(b - a);
        x.row_count = int(least(b * W, c.rows) - a * W);
        x.few = is_few<C>(c);
        x.near = near(p);
        x.kv = head / c.group;
        for (int r = 0; r < x.row_count; ++r) row[r] = row_of(p, t.batch, head, a * W + r);
        x.rows = row;
        x.q = y.q + i * lanes * p.D;
        x.o = y.o + i * lanes * p.Dv;
        x.m = y.m + i * 2 * lanes;
        x.l = x.m + x.lanes();
        x.reach = y.reach ? y.reach + i * lanes : nullptr;
        for (int r = 0; y.reach && r < x.row_count; ++r) x.reach[r] = reach_of(p, t.batch, x.rows[r], y.turning);
        load_queries(p, t.batch, x, y.turning);
        std::memset(x.o, 0, (x.few ? x.row_count : x.lanes()) * p.Dv * sizeof(C));
        for (int r = 0; r < x.lanes(); ++r) x.m[r] = -kInf<C>, x.l[r] = 0;
        if (x.few) std::memset(y.s + i * y.panel, 0, least(kFewBlock, p.M) * W * sizeof(C));  // lanes without a row
    }
}

// see(i, strip, k, v, block, partial) for every block of the task's keys of which the i-th strip sees something, and
// done(keys) after all strips.
template <class C, class See, class Done>
void walk(const Problem& p, const Party<C>& y, const Task& t, See&& see, Done&& done) {
    const bool few = y.strips[0].few;
    const bool copy_k = copied<C>(p.k, few), copy_v = copied<C>(p.v, few);
    const int64_t step = !few ? kBlock : y.strips[0].near ? kFewBlock : kFewStream;
    for (Range run{t.begin, t.begin};;) {
        run = next_run(y.rows, int(y.row_count), p.spans.count, run.end, t.end);
        if (run.empty()) break;
        for (int64_t j = run.begin; j < run.end; j += step) {
            const Range block{j, least(j + step, run.end)};
            const int64_t n = block.end - block.begin;
            Operand k{}, v{};
            int64_t held = -1;  // the head whose keys these are
            Range keys{0, 0};
            for (int64_t i = 0; i < y.count; ++i) {
                const Strip<C>& x = y.strips[i];
                const Visible seen = visible(x.rows, x.row_count, p.spans.count, block);
                if (seen.keys.empty() || vanish(p, t.batch, x.kv, x.rows, x.row_count, x.reach, x.m, seen.keys)) continue;
                if (x.kv != held) {
                    held = x.kv;
                    k = in_place(p.k, t.batch, held).from(j), v = in_place(p.v, t.batch, held).from(j);
                    if (copy_k) k = copy(k, n, p.D, y.k);
                    if (copy_v) v = copy(v, n, p.Dv, y.v);
                }
                keys = seen.keys;
                const int64_t skip = keys.begin - j;
                const Block<C> b{p, x.rows, x.row_count, x.lanes(), t.batch, keys.begin, keys.end - keys.begin,
                                 y.s + i * y.panel};
                see(i, x, k.from(skip), v.from(skip), b, seen.partial);
            }
            done(keys);
        }
    }
}

// The last step of a row: the sink joins the sum, and o / l becomes the output.
template <class C> struct Ending {
    bool nothing;  // the row may attend to nothing
    C inverse;     // what o is multiplied by
    C m, l;        // with the sink

    C lse() const { return nothing ? -kInf<C> : (m + std::log2(l)) / kLog2e<C>; }
};

template <class C> Ending<C> ending(const Problem& p, int64_t head, C m, C l) {
    if (l == C(0)) return {true, C(0), m, l};
    C grown = 1;
    if (p.sink) {
        const C sink = reinterpret_cast<const C*>(p.sink)[head] * kLog2e<C> / C(p.temperature);
        const C top = sink > m ? sink : m;
        grown = std::exp2(m - top);
        l = l * grown + std::exp2(sink - top);
        m = top;
    }
    return {false, grown / l * C(1 / (1 - p.dropout)), m, l};
}

// What weights are made from: the log-sum-exp of a row and, apart, its largest logit and the logarithm of its sum, in
// units of log 2.
template <class C> void put_normalisers(const Problem& p, int64_t batch, const Row& row, const Ending<C>& end) {
    const int64_t all = p.B * p.Hq * p.N;
    C* to = reinterpret_cast<C*>(p.lse) + (batch * p.Hq + row.head) * p.N + row.query;
    to[0] = end.lse();
    to[all] = end.nothing ? C(0) : end.m;
    to[2 * all] = end.nothing ? C(0) : std::log2(end.l);
}

}  // namespace limelight::LIMELIGHT_ISA
