// Attention for one task, compiled once for each instruction set.
#include "kernels.h"

#include "column_questions.h"
#include "gradient.h"
#include "limits.h"
#include "linear.h"
#include "row_questions.h"

namespace limelight {
namespace LIMELIGHT_ISA {

template <class C> void arrange(Cut& c, int64_t rows) {
    c.rows = rows;
    c.vectors = ceil_div(c.rows, kWidth<C>);
    c.strips = ceil_div(c.vectors, 3);
    c.even = c.strips > 1 && c.vectors % 3 == 1;
}

// So few tasks are cut along the keys too, into chunks that are not too short.
inline void cut_keys(Cut& c, int64_t M, int64_t tasks, int64_t shortest) {
    constexpr int64_t enough = 32;
    c.chunks = most(1, least(ceil_div(enough, most(tasks, 1)), M / shortest));
    c.chunk = ceil_div(ceil_div(M, c.chunks), kBlock) * kBlock;
    c.chunks = most(1, ceil_div(M, most(c.chunk, 1)));
}

template <class C> Cut cut(const Problem& p) {
    Cut c;
    c.group = p.Hq / p.Hkv;
    c.grouped = c.group > 1 && p.N < kMaxLanes<C>;
    c.units = c.grouped ? p.Hkv : p.Hq;
    c.abreast = 1;
    arrange<C>(c, c.grouped ? c.group * p.N : p.N);
    const bool few = is_few<C>(c);
    c.together = !few && (copied<C>(p.k, few) || copied<C>(p.v, few)) ? kTogether : 1;
    // With few tasks, smaller ones keep all threads busy to the end.
    if (p.B * c.units * ceil_div(c.strips, c.together) < 128) c.together = ceil_div(c.together, 2);
    cut_keys(c, p.M, p.B * c.units * ceil_div(c.strips, c.together), 512);
    return c;
}

template <class C> Cut cut_columns(const Problem& p, const Questions& a) {
    Cut c = cut<C>(p);
    if (a.products) {
        c.grouped = false;
        c.units = c.together = 1;
        c.abreast = p.Hq;
        arrange<C>(c, p.N);
    }
    cut_keys(c, p.M, p.B * c.units, 1024);  // every chunk turns all queries
    return c;
}

template <class C>
void write_row(const Problem& p, int64_t batch, const Row& row, const Ending<C>& end, const C* o) {
    with_type(p.out.type, [&](auto e) {
        using E = decltype(e);
        E* to = reinterpret_cast<E*>(address(p.out, batch, row.head, row.query));
        for (int64_t d = 0; d < p.Dv; ++d) to[d] = narrow<E>(end.nothing ? C(0) : o[d] * end.inverse);
    });
    if (p.lse) put_normalisers(p, batch, row, end);
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

template <class C> size_t scratch(const Problem& p, const Cut& c) {
    Arena arena{0};
    lay_out_party<C>(p, c, arena);
    return arena.next;
}

template <class C> void attend_task(const Problem& p, const Cut& c, const Task& t, char* memory) {
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    Party<C> party = lay_out_party<C>(p, c, arena);
    gather_party(p, c, t, party);
    const auto see = [&](int64_t, const Strip<C>& x, const Operand& k, const Operand& v, const Block<C>& b, Range partial) {
        attend(x, k, v, b, partial, party.spare);
    };
    walk(p, party, t, see, [](Range) {});
    for (int64_t i = 0; i < party.count; ++i)
        finish(p, t, party.strips[i], party.first_row + party.strips[i].rows - party.rows, party.turning);
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

size_t row_scratch_any(const Problem& p, const Questions& a, const Cut& c) {
    Arena arena{0};
    p.wide() ? void(lay_out_rows<double>(p, a, c, arena)) : void(lay_out_rows<float>(p, a, c, arena));
    return arena.next;
}
size_t record_any(const Problem& p, const Questions& a) {
    return p.wide() ? record_bytes<double>(a) : record_bytes<float>(a);
}
void ask_rows_any(const Problem& p, const Questions& a, const Cut& c, const Task& t, char* scratch) {
    p.wide() ? ask_rows<double>(p, a, c, t, scratch) : ask_rows<float>(p, a, c, t, scratch);
}
void join_records_any(const Problem& p, const Questions& a, const Cut& c, int64_t batch, int64_t unit, char* records) {
    p.wide() ? join_records<double>(p, a, c, batch, unit, records) : join_records<float>(p, a, c, batch, unit, records);
}
Cut cut_columns_any(const Problem& p, const Questions& a) {
    return p.wide() ? cut_columns<double>(p, a) : cut_columns<float>(p, a);
}
size_t column_scratch_any(const Problem& p, const Questions& a, const Cut& c) {
    Arena arena{0};
    p.wide() ? void(lay_out_columns<double>(p, a, c, arena)) : void(lay_out_columns<float>(p, a, c, arena));
    return arena.next;
}
void ask_columns_any(const Problem& p, const Questions& a, const Cut& c, const Task& t, const Share& share, char* scratch) {
    p.wide() ? ask_columns<double>(p, a, c, t, share, scratch) : ask_columns<float>(p, a, c, t, share, scratch);
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

size_t linear_scratch_any(const Linear& l) {
    const auto bytes = [&](auto c) { return (l.rows * l.D + kLinearScratch<decltype(c)>) * sizeof(c); };
    return l.type == Type::f64 ? bytes(double{}) : bytes(float{});
}
void multiply_any(const Linear& l, int64_t begin, int64_t end, char* scratch) {
    const auto at = [&](auto c) {
        using C = decltype(c);
        C* x = reinterpret_cast<C*>(scratch) + kLinearScratch<C>;
        for (int64_t r = 0; r < l.rows; ++r)
            widen_row(l.x + r * l.D * int64_t(size_of(l.type)), l.type, l.D, C(1), x + r * l.D, l.D);
        multiply(l, x, begin, end, reinterpret_cast<C*>(scratch));
    };
    l.type == Type::f64 ? at(double{}) : at(float{});
}

double spin_any(int64_t rounds, bool wide) { return wide ? spin<double>(rounds) : spin<float>(rounds); }

}  // namespace LIMELIGHT_ISA

#define LIMELIGHT_NAME_(isa) isa##_kernels
#define LIMELIGHT_NAME(isa) LIMELIGHT_NAME_(isa)
#define LIMELIGHT_TEXT_(isa) #isa
#define LIMELIGHT_TEXT(isa) LIMELIGHT_TEXT_(isa)

const Kernels LIMELIGHT_NAME(LIMELIGHT_ISA) = {
    LIMELIGHT_TEXT(LIMELIGHT_ISA),  LIMELIGHT_ISA::cut_any,    LIMELIGHT_ISA::scratch_any,
    LIMELIGHT_ISA::partial_any,     LIMELIGHT_ISA::attend_any, LIMELIGHT_ISA::join_any,
    LIMELIGHT_ISA::row_scratch_any, LIMELIGHT_ISA::record_any, LIMELIGHT_ISA::ask_rows_any,
    LIMELIGHT_ISA::join_records_any, LIMELIGHT_ISA::cut_columns_any, LIMELIGHT_ISA::column_scratch_any,
    LIMELIGHT_ISA::ask_columns_any,
    LIMELIGHT_ISA::has_reach_any,   LIMELIGHT_ISA::measure_keys_any,
    LIMELIGHT_ISA::visitors_any,    LIMELIGHT_ISA::gradient_scratch_any,
    LIMELIGHT_ISA::differentiate_any, LIMELIGHT_ISA::linear_scratch_any, LIMELIGHT_ISA::multiply_any,
    LIMELIGHT_ISA::spin_any, LIMELIGHT_ISA::read_all,
};

}  // namespace limelight
