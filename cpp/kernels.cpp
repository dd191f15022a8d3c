// Attention for one task, compiled once for each instruction set.
#include "kernels.h"

#include "gradient.h"
#include "limits.h"
#include "strip.h"

namespace limelight {
namespace LIMELIGHT_ISA {

// The first vector of a strip.
int64_t strip_begin(const Cut& c, int64_t strip) {
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

template <class C> Cut cut(const Problem& p) {
    Cut c;
    c.group = p.Hq / p.Hkv;
    c.grouped = c.group > 1 && p.N < kMaxLanes<C>;
    c.units = c.grouped ? p.Hkv : p.Hq;
    c.rows = c.grouped ? c.group * p.N : p.N;
    c.vectors = ceil_div(c.rows, kWidth<C>);
    c.strips = ceil_div(c.vectors, 3);
    c.even = c.strips > 1 && c.vectors % 3 == 1;
    const bool few = is_few<C>(c);
    c.together = !few && (copied<C>(p.k, few) || copied<C>(p.v, few)) ? kTogether : 1;
    // With few tasks, smaller ones keep all threads busy to the end.
    if (p.B * c.units * ceil_div(c.strips, c.together) < 128) c.together = ceil_div(c.together, 2);
    // Few tasks are cut along the keys too.
    const int64_t tasks = p.B * c.units * ceil_div(c.strips, c.together);
    constexpr int64_t enough = 32, shortest = 512;
    c.chunks = most(1, least(ceil_div(enough, most(tasks, 1)), p.M / shortest));
    c.chunk = ceil_div(ceil_div(p.M, c.chunks), kBlock) * kBlock;
    c.chunks = most(1, ceil_div(p.M, most(c.chunk, 1)));
    return c;
}

template <class C> size_t scratch(const Problem& p, const Cut& c) {
    const int64_t lanes = kMaxLanes<C>;
    const int64_t per_strip =
        lanes * (p.D + p.Dv + 2) * sizeof(C) + lanes * (sizeof(Row) + (p.reach ? sizeof(Reach<C>) : 0));
    const int64_t shared =
        (kBlock * (lanes + p.D + p.Dv) + lanes * most(p.D, p.Dv) + logits_scratch(p, lanes)) * sizeof(C);
    return c.together * (per_strip + 4 * 64) + shared + 6 * 64;
}

template <class C> void load_queries(const Problem& p, int64_t batch, const Strip<C>& x, C* rows) {
    if (x.few) return gather(p.q, batch, x.rows, x.row_count, x.row_count, p.D, query_factor<C>(p), x.q, p.D);
    gather(p.q, batch, x.rows, x.row_count, x.lanes(), p.D, query_factor<C>(p), rows, p.D);
    transpose(rows, p.D, x.lanes(), p.D, x.q, x.lanes());
}

// The last step of a row: the sink joins the sum, and o / l becomes the output.
template <class C> struct Ending {
    bool nothing;  // the row may attend to nothing
    C inverse;     // what o is multiplied by
    C lse;
};

template <class C> Ending<C> ending(const Problem& p, int64_t head, C m, C l) {
    if (l == C(0)) return {true, C(0), -kInf<C>};
    C grown = 1;
    if (p.sink) {
        const C sink = reinterpret_cast<const C*>(p.sink)[head] * kLog2e<C> / C(p.temperature);
        const C top = sink > m ? sink : m;
        grown = std::exp2(m - top);
        l = l * grown + std::exp2(sink - top);
        m = top;
    }
    return {false, grown / l * C(1 / (1 - p.dropout)), p.lse ? (m + std::log2(l)) / kLog2e<C> : C(0)};
}

template <class C>
void write_row(const Problem& p, int64_t batch, const Row& row, const Ending<C>& end, const C* o) {
    with_type(p.out.type, [&](auto e) {
        using E = decltype(e);
        E* to = reinterpret_cast<E*>(address(p.out, batch, row.head, row.query));
        for (int64_t d = 0; d < p.Dv; ++d) to[d] = narrow<E>(end.nothing ? C(0) : o[d] * end.inverse);
    });
    if (p.lse) reinterpret_cast<C*>(p.lse)[(batch * p.Hq + row.head) * p.N + row.query] = end.lse;
}

// Running sums of a row, when the keys are split: m, l, o.
template <class C> size_t partial_bytes(const Problem& p, const Cut& c) { return c.rows * (p.Dv + 2) * sizeof(C); }

template <class C> void finish(const Problem& p, const Task& t, const Strip<C>& x, int64_t first_row, C* rows) {
    if (x.few) rows = x.o;
    else transpose(x.o, x.lanes(), p.Dv, x.lanes(), rows, p.Dv);
    for (int r = 0; r < x.row_count; ++r) {
        const C* o = rows + r * p.Dv;
        if (!t.partial) {
            write_row(p, t.batch, x.rows[r], ending(p, x.rows[r].head, x.m[r], x.l[r]), o);
            continue;
        }
        C* to = reinterpret_cast<C*>(t.partial) + (first_row + r) * (p.Dv + 2);
        to[0] = x.m[r];
        to[1] = x.l[r];
        std::memcpy(to + 2, o, p.Dv * sizeof(C));
    }
}

template <class C> void attend_task(const Problem& p, const Cut& c, const Task& t, char* memory) {
    constexpr int W = kWidth<C>;
    const bool few = is_few<C>(c);
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    const int64_t first_row = strip_begin(c, t.strip) * W;
    const int64_t rows = least(strip_begin(c, t.strip + t.strips) * W, c.rows) - first_row;
    Row* row = arena.take<Row>(rows);
    C* turning = arena.take<C>(kMaxLanes<C> * most(p.D, p.Dv));
    const int64_t head = c.grouped ? t.unit * c.group : t.unit;
    for (int64_t r = 0; r < rows; ++r) row[r] = row_of(p, t.batch, head, first_row + r);

    Strip<C> strips[kTogether];
    for (int64_t i = 0; i < t.strips; ++i) {
        Strip<C>& x = strips[i];
        const int64_t a = strip_begin(c, t.strip + i), b = strip_begin(c, t.strip + i + 1);
        x.vectors = int(b - a);
        x.row_count = int(least(b * W, c.rows) - a * W);
        x.few = few;
        x.near = near(p);
        x.rows = row + a * W - first_row;
        x.q = arena.take<C>(x.lanes() * p.D);
        x.o = arena.take<C>(x.lanes() * p.Dv);
        x.m = arena.take<C>(2 * x.lanes());
        x.l = x.m + x.lanes();
        x.reach = p.reach ? arena.take<Reach<C>>(x.lanes()) : nullptr;
        for (int r = 0; p.reach && r < x.row_count; ++r) x.reach[r] = reach_of(p, t.batch, x.rows[r], turning);
        load_queries(p, t.batch, x, turning);
        std::memset(x.o, 0, (few ? x.row_count : x.lanes()) * p.Dv * sizeof(C));
        for (int r = 0; r < x.lanes(); ++r) x.m[r] = -kInf<C>, x.l[r] = 0;
    }

    C* s = arena.take<C>(kBlock * kMaxLanes<C>);
    if (few) std::memset(s, 0, least(kFewBlock, p.M) * W * sizeof(C));  // lanes without a row
    C* k_buffer = arena.take<C>(kBlock * p.D);
    C* v_buffer = arena.take<C>(kBlock * p.Dv);
    C* spare = arena.take<C>(logits_scratch(p, kMaxLanes<C>));
    const int64_t kv = c.grouped || c.group == 1 ? t.unit : t.unit / c.group;
    const Operand keys = in_place(p.k, t.batch, kv), values = in_place(p.v, t.batch, kv);
    const bool copy_k = copied<C>(p.k, few), copy_v = copied<C>(p.v, few);
    const int64_t step = !few ? kBlock : strips[0].near ? kFewBlock : kFewStream;

    for (Range run{t.begin, t.begin};;) {
        run = next_run(row, int(rows), p.spans.count, run.end, t.end);
        if (run.empty()) break;
        for (int64_t j = run.begin; j < run.end; j += step) {
            const Range block{j, least(j + step, run.end)};
            const int64_t n = block.end - block.begin;
            Operand k = keys.from(j), v = values.from(j);
            if (copy_k) k = copy(k, n, p.D, k_buffer);
            if (copy_v) v = copy(v, n, p.Dv, v_buffer);
            for (int64_t i = 0; i < t.strips; ++i) {
                const Strip<C>& x = strips[i];
                const Visible seen = visible(x.rows, x.row_count, p.spans.count, block);
                if (seen.keys.empty() || vanish(p, t.batch, kv, x.rows, x.row_count, x.reach, x.m, seen.keys)) continue;
                const int64_t skip = seen.keys.begin - j;
                const Block<C> b{p, x.rows, x.row_count, x.lanes(), t.batch, seen.keys.begin,
                                 seen.keys.end - seen.keys.begin, s};
                attend(x, k.from(skip), v.from(skip), b, seen.partial, spare);
            }
        }
    }
    for (int64_t i = 0; i < t.strips; ++i) finish(p, t, strips[i], strips[i].rows - row + first_row, turning);
}

template <class C> void join_rows(const Problem& p, const Cut& c, int64_t batch, int64_t unit, const char* partial) {
    const int64_t width = p.Dv + 2;
    const C* chunks = reinterpret_cast<const C*>(partial);
    for (int64_t r = 0; r < c.rows; ++r) {
        C* total = const_cast<C*>(chunks) + r * width;  // the first chunk's sums receive the others'
        C top = total[0];
        for (int64_t i = 1; i < c.chunks; ++i) top = chunks[(i * c.rows + r) * width] > top ? chunks[(i * c.rows + r) * width] : top;
        const C safe = top == -kInf<C> ? C(0) : top;
        for (int64_t i = 0; i < c.chunks; ++i) {
            const C* part = chunks + (i * c.rows + r) * width;
            const C share = std::exp2(part[0] - safe);
            for (int64_t d = 1; d < width; ++d) total[d] = (i ? total[d] : C(0)) + part[d] * share;
        }
        const Row row = row_of(p, batch, c.grouped ? unit * c.group : unit, r);
        write_row(p, batch, row, ending(p, row.head, top, total[1]), total + 2);
    }
}

Cut cut_any(const Problem& p) { return p.wide() ? cut<double>(p) : cut<float>(p); }
size_t scratch_any(const Problem& p, const Cut& c) { return p.wide() ? scratch<double>(p, c) : scratch<float>(p, c); }
size_t partial_any(const Problem& p, const Cut& c) {
    return p.wide() ? partial_bytes<double>(p, c) : partial_bytes<float>(p, c);
}
void attend_any(const Problem& p, const Cut& c, const Task& t, char* scratch) {
    p.wide() ? attend_task<double>(p, c, t, scratch) : attend_task<float>(p, c, t, scratch);
}
void join_any(const Problem& p, const Cut& c, int64_t batch, int64_t unit, const char* partial) {
    p.wide() ? join_rows<double>(p, c, batch, unit, partial) : join_rows<float>(p, c, batch, unit, partial);
}

bool has_reach_any(const Problem& p) { return has_reach(p); }
void measure_keys_any(const Problem& p, int64_t batch, int64_t head, char* scratch) {
    const auto at = [&](auto c) {
        using C = decltype(c);
        C* reach = reinterpret_cast<C*>(const_cast<char*>(p.reach)) + (batch * p.Hkv + head) * ceil_div(p.M, kBlock);
        measure_keys(p, batch, head, reach, reinterpret_cast<C*>(scratch));
    };
    p.wide() ? at(double{}) : at(float{});
}
size_t gradient_scratch_any(const Problem& p, const Gradients& g) {
    Arena arena{0};
    p.wide() ? void(lay_out<double>(p, g, arena)) : void(lay_out<float>(p, g, arena));
    return arena.next;
}
void differentiate_any(const Problem& p, const Gradients& g, const Square& task, char* scratch) {
    p.wide() ? differentiate<double>(p, g, task, scratch) : differentiate<float>(p, g, task, scratch);
}
int64_t visitors_any(const Problem& p) { return kVisitors * (p.wide() ? kMaxLanes<double> : kMaxLanes<float>); }

double spin_any(int64_t rounds, bool wide) { return wide ? spin<double>(rounds) : spin<float>(rounds); }

}  // namespace LIMELIGHT_ISA

#define LIMELIGHT_NAME_(isa) isa##_kernels
#define LIMELIGHT_NAME(isa) LIMELIGHT_NAME_(isa)
#define LIMELIGHT_TEXT_(isa) #isa
#define LIMELIGHT_TEXT(isa) LIMELIGHT_TEXT_(isa)

const Kernels LIMELIGHT_NAME(LIMELIGHT_ISA) = {
    LIMELIGHT_TEXT(LIMELIGHT_ISA),  LIMELIGHT_ISA::cut_any,    LIMELIGHT_ISA::scratch_any,
    LIMELIGHT_ISA::partial_any,     LIMELIGHT_ISA::attend_any, LIMELIGHT_ISA::join_any,
    LIMELIGHT_ISA::has_reach_any,   LIMELIGHT_ISA::measure_keys_any,
    LIMELIGHT_ISA::visitors_any,    LIMELIGHT_ISA::gradient_scratch_any,
    LIMELIGHT_ISA::differentiate_any, LIMELIGHT_ISA::spin_any, LIMELIGHT_ISA::read_all,
};

}  // namespace limelight
