// What is asked of the columns and of the whole of the weights, once the log-sum-exp of every row is known.
//
// A block of weights is P = 2^((logit − m) − log₂ Σ), in one step, and everything is a sum over it. Entropies and
// distances, which are sums over rows, come along where the normalisers are known beforehand.
#pragma once

#include <type_traits>

#include "cells.h"
#include "diagonals.h"
#include "product.h"
#include "row_questions.h"
#include "walk.h"

namespace limelight::LIMELIGHT_ISA {

// What a thread works with.
template <class C> struct ColumnDesk {
    Party<C> party;
    C* received;        // (heads abreast, keys of the task, vector): sums that are folded at the end
    C* u;               // (strip, lane, feature)
    C* panel;           // for diagonals
    C *spread, *distance;  // by strip and lane: Σ a log₂ a, Σ a |position − key|
    C* ones;
    bool *strange;      // by strip: some log-sum-exp is not finite
    bool *finite;       // by strip: all of u
    int32_t *up, *down; // by strip and lane: the first and the last cell of the picture that the row is in
    int32_t *left, *right;  // by cell of the task: its first key and the one after its last
};

template <class C> ColumnDesk<C> lay_out_columns(const Problem& p, const Questions& a, const Cut& c, Arena& arena) {
    constexpr int lanes = kMaxLanes<C>;
    const int64_t strips = c.together * c.abreast;
    ColumnDesk<C> desk;
    desk.party = lay_out_party<C>(p, c, arena);
    desk.received = arena.take<C>(a.received ? c.abreast * c.chunk * kWidth<C> : 0);
    desk.u = arena.take<C>(strips * lanes * whole_vectors<C>(a.width));
    desk.panel = arena.take<C>(a.diagonals ? kDiagonalPanel<C> : 0);
    desk.spread = arena.take<C>(a.entropy ? strips * lanes : 0);
    desk.distance = arena.take<C>(a.distance ? strips * lanes : 0);
    desk.ones = arena.take<C>(lanes);
    desk.strange = arena.take<bool>(strips);
    desk.finite = arena.take<bool>(strips);
    desk.up = arena.take<int32_t>(a.pool ? strips * lanes : 0);
    desk.down = arena.take<int32_t>(a.pool ? strips * lanes : 0);
    const int64_t cells = a.pool ? Cells{p.M, a.pool_cols}.most_of(c.chunk) : 0;
    desk.left = arena.take<int32_t>(cells);
    desk.right = arena.take<int32_t>(cells);
    return desk;
}

// Everything that a strip needs beside its queries: m is the largest logit and l the logarithm of the sum here, in
// units of log 2. Lanes without a row have m = ∞, so that their weights are 0.
template <class C>
void prepare(const Problem& p, const Questions& a, const Task& t, const ColumnDesk<C>& desk, int64_t i) {
    const Strip<C>& x = desk.party.strips[i];
    desk.strange[i] = false;
    for (C* sums : {a.entropy ? desk.spread : nullptr, a.distance ? desk.distance : nullptr})
        if (sums) std::fill_n(sums + i * kMaxLanes<C>, kMaxLanes<C>, C(0));
    const int64_t all = p.B * p.Hq * p.N;
    for (int r = 0; r < x.lanes(); ++r) {
        if (r >= x.row_count) {
            x.m[r] = kInf<C>, x.l[r] = 0;
            continue;
        }
        const Row& row = x.rows[r];
        const C* found = reinterpret_cast<const C*>(p.lse) + (t.batch * p.Hq + row.head) * p.N + row.query;
        x.m[r] = found[all];  // 0 where nothing is allowed: 2^(−∞ − 0) = 0
        x.l[r] = found[2 * all];
        if (!(x.l[r] - x.l[r] == C(0))) {
            desk.strange[i] = true;
            if (x.reach) x.reach[r].norm = kInf<C>;  // what is not finite reaches all keys
        }
        if (!a.pool) continue;
        const Cells rows{p.N, a.pool_rows};
        desk.up[i * kMaxLanes<C> + r] = int32_t(rows.first(row.query));
        desk.down[i * kMaxLanes<C> + r] = int32_t(rows.last(row.query));
    }
    if (!a.sent.data) return;
    const int64_t pitch = whole_vectors<C>(a.width);
    C* u = desk.u + i * kMaxLanes<C> * pitch;
    gather(a.u, t.batch, x.rows, x.row_count, x.row_count, a.width, C(1), u, pitch);
    desk.finite[i] = all_finite<C>({reinterpret_cast<const char*>(u), kType<C>, pitch}, x.row_count, a.width);
}

// s = 2^((s − m) − l), whose sums over the lanes are added to `received` unless that is null, and the sums of
// s log₂ s, lane by lane, to `spread` where they are asked for.
template <class C, int NV, bool kSpread> void weights(const Strip<C>& x, const Block<C>& b, C* received, C* spread) {
    constexpr int W = kWidth<C>;
    Vec<C> m[NV], l[NV], sums[NV] = {};
    for (int v = 0; v < NV; ++v) m[v] = load(x.m + v * W), l[v] = load(x.l + v * W);
    for (int64_t j = 0; j < b.n; ++j) {
        Vec<C> total{};
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) {
            C* s = b.s + (j * NV + v) * W;
            const Vec<C> log = load(s) - m[v] - l[v], weight = exp2(log);
            if constexpr (kSpread) sums[v] += weight * larger(log, Vec<C>{} + kLowest<C>);
            store(s, weight);
            total += weight;
        }
        if (received) store(received + j * W, load(received + j * W) + total);
    }
    for (int v = 0; kSpread && v < NV; ++v) store(spread + v * W, load(spread + v * W) + sums[v]);
}

template <class C> void weights(const Strip<C>& x, const Block<C>& b, C* received, C* spread) {
    const auto of = [&](auto with) {
        constexpr bool kSpread = decltype(with)::value;
        (x.vectors == 3 ? weights<C, 3, kSpread> : x.vectors == 2 ? weights<C, 2, kSpread> : weights<C, 1, kSpread>)(
            x, b, received, spread);
    };
    spread ? of(std::true_type{}) : of(std::false_type{});
}

// f(first row, one after the last, head) for every run of rows of one head.
template <class C, class F> void for_heads(const Block<C>& b, F&& f) {
    for (int r = 0, end; r < b.row_count; r = end) {
        for (end = r + 1; end < b.row_count && b.rows[end].head == b.rows[r].head;) ++end;
        f(r, end, b.rows[r].head);
    }
}

template <class C> void send(const Problem& p, const Questions& a, const Block<C>& b, const C* u, bool contained) {
    const int64_t pitch = whole_vectors<C>(a.width);
    for_heads(b, [&](int from, int end, int64_t head) {
        C* to = reinterpret_cast<C*>(address(a.sent, b.batch, head, b.first));
        const Term<C> term{b.s + from, b.lanes, u + from * pitch, pitch, end - from};
        if (contained) return product(&term, 1, b.n, a.width, to, a.sent.row);
        // What is not finite must not reach keys that the mask forbids, though its weight there is 0. Rare, so plain.
        for (int64_t j = 0; j < b.n; ++j)
            for (int r = from; r < end; ++r)
                for (int64_t d = 0; d < a.width && allows(p, b.rows[r], b.batch, b.first + j); ++d)
                    to[j * a.sent.row + d] += b.s[j * b.lanes + r] * u[r * pitch + d];
    });
}

// Lane by lane the sum of keys [from, end) of the block, or the largest.
template <class C> void reduce_keys(const Block<C>& b, int64_t from, int64_t end, bool largest, bool strange, C* to) {
    for (int r = 0; r < b.lanes; r += kWidth<C>) {
        Vec<C> total{}, top{};
        for (int64_t j = from; j < end; ++j) {
            const Vec<C> weight = load(b.s + j * b.lanes + r);
            if (largest) top = larger(weight, top);
            if (!largest || strange) total += weight;
        }
        store(to + r, largest ? top + (strange ? total * C(0) : Vec<C>{}) : total);  // a maximum would lose a NaN
    }
}

inline void paint(double& cell, double x, bool largest) {
    if (!largest) cell += x;
    else if (x > cell || x != x) cell = x;
}

template <class C>
void draw(const Questions& a, const Block<C>& b, const ColumnDesk<C>& desk, int64_t i, const Picture& picture) {
    alignas(64) C sums[kMaxLanes<C>];
    const int32_t *up = desk.up + i * kMaxLanes<C>, *down = desk.down + i * kMaxLanes<C>;
    const Cells cols{b.p.M, a.pool_cols};
    const int64_t last = cols.last(b.first + b.n - 1);
    for (int64_t c = cols.first(b.first); c <= last; ++c) {
        const int64_t here = c - picture.first;
        const int64_t from = most(desk.left[here] - b.first, 0), end = least(desk.right[here] - b.first, b.n);
        reduce_keys(b, from, end, a.largest, desk.strange[i], sums);
        const auto cell = [&](int64_t head, int64_t row) -> double& {
            return picture.cells[(head * a.pool_rows + row) * picture.cols + here];
        };
        for (int r = 0, next; r < b.row_count; r = next) {
            const int64_t head = b.rows[r].head;
            double x = sums[r];
            next = r + 1;
            if (up[r] == down[r])  // rows that lie in one cell alone go there together
                for (; next < b.row_count && up[next] == up[r] && down[next] == up[r] && b.rows[next].head == head; ++next)
                    paint(x, sums[next], a.largest);
            for (int64_t row = up[r]; row <= down[r]; ++row) paint(cell(head, row), x, a.largest);
        }
    }
}

// products[a][b] += Σ of the products of the n weights of heads a and b, for b ≤ a.
template <class C> void multiply_heads(const C* weights, int64_t panel, int64_t heads, int64_t n, double* products) {
    constexpr int W = kWidth<C>, T = 3;
    for (int64_t a = 0; a < heads; a += T)
        for (int64_t b = 0; b <= a; b += T) {
            const C *x[T], *y[T];
            for (int i = 0; i < T; ++i) {
                x[i] = weights + least(a + i, heads - 1) * panel;
                y[i] = weights + least(b + i, heads - 1) * panel;
            }
            Vec<C> acc[T][T] = {};
            for (int64_t at = 0; at < n; at += W) {
                Vec<C> v[T];
#pragma GCC unroll 3
                for (int i = 0; i < T; ++i) v[i] = load(y[i] + at);
#pragma GCC unroll 3
                for (int i = 0; i < T; ++i)
#pragma GCC unroll 3
                    for (int j = 0; j < T; ++j) acc[i][j] += load(x[i] + at) * v[j];
            }
            for (int64_t i = 0; i < T && a + i < heads; ++i)
                for (int64_t j = 0; j < T && b + j <= a + i; ++j) products[(a + i) * heads + b + j] += sum<C>(acc[i][j]);
        }
}

// Whether a strip is further than the radius from a block.
template <class C> bool beyond(const Strip<C>& x, const Block<C>& b, int64_t radius) {
    for (int r = 0; r < x.row_count; ++r)
        if (x.rows[r].position >= b.first - radius && x.rows[r].position < b.first + b.n + radius) return false;
    return true;
}

template <class C>
void ask_columns(const Problem& p, const Questions& a, const Cut& c, const Task& task, const Share& share, char* memory) {
    constexpr int W = kWidth<C>;
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    ColumnDesk<C> desk = lay_out_columns<C>(p, a, c, arena);
    Party<C>& party = desk.party;
    const Cells cols{p.M, a.pool_cols};
    for (int64_t i = 0; a.pool && i < share.picture.cols; ++i) {
        desk.left[i] = int32_t(cols.begin(share.picture.first + i));
        desk.right[i] = int32_t(cols.end(share.picture.first + i));
    }
    std::fill_n(desk.ones, kMaxLanes<C>, C(1));
    const bool one_head = !c.grouped;  // to a strip
    const bool sums = a.received && one_head;
    const int64_t keys = task.end - task.begin;
    if (sums) std::memset(desk.received, 0, c.abreast * keys * W * sizeof(C));
    const bool only_diagonals = a.diagonals && !a.received && !a.sent.data && !a.pool && !a.products && !a.entropy && !a.distance;

    const auto see = [&](int64_t i, const Strip<C>& x, const Operand& k, const Operand&, const Block<C>& b, Range partial) {
        if (only_diagonals && beyond(x, b, a.radius)) return;
        const auto logits_of = x.vectors == 3 ? logits<C, 3> : x.vectors == 2 ? logits<C, 2> : logits<C, 1>;
        const int64_t side = c.abreast > 1 ? i : 0;
        C* received = sums ? desk.received + (side * keys + b.first - task.begin) * W : nullptr;
        const bool strange = desk.strange[i];
        logits_of(x, k, b, partial, nullptr, party.spare);
        weights(x, b, strange ? nullptr : received, a.entropy ? desk.spread + i * kMaxLanes<C> : nullptr);
        if (a.distance) add_distances(b, desk.ones, desk.distance + i * kMaxLanes<C>);
        if (strange) clear_forbidden(b, b.s);
        if (a.received && (strange || !one_head))
            for_heads(b, [&](int from, int end, int64_t head) {
                C* to = reinterpret_cast<C*>(a.received) + (b.batch * p.Hq + head) * p.M + b.first;
                for (int64_t j = 0; j < b.n; ++j)
                    for (int r = from; r < end; ++r) to[j] += b.s[j * b.lanes + r];
            });
        if (a.diagonals && !beyond(x, b, a.radius))
            add_diagonals(b, b.s, C(1), reinterpret_cast<C*>(share.diagonals), desk.panel);
        if (a.sent.data) {
            const C* u = desk.u + i * kMaxLanes<C> * whole_vectors<C>(a.width);
            send(p, a, b, u, desk.finite[i] || (partial.empty() && !p.mask.data));
        }
        if (a.pool) draw(a, b, desk, i, share.picture);
    };
    const auto done = [&](Range seen) {
        if (a.products && !seen.empty())
            multiply_heads(party.s, party.panel, c.abreast, (seen.end - seen.begin) * party.strips[0].lanes(), share.products);
    };
    Task t = task;
    for (t.strip = 0; t.strip < c.strips; t.strip += c.together) {
        t.strips = least(c.together, c.strips - t.strip);
        gather_party(p, c, t, party);
        for (int64_t i = 0; i < party.count; ++i) prepare(p, a, t, desk, i);
        walk(p, party, t, see, done);
        for (int64_t i = 0; (a.entropy || a.distance) && i < party.count; ++i)
            for (int r = 0; r < party.strips[i].row_count; ++r) {
                const Row& row = party.strips[i].rows[r];
                const int64_t from = i * kMaxLanes<C> + r, to = row.head * p.N + row.query;
                if (a.entropy) reinterpret_cast<C*>(share.entropy)[to] = -desk.spread[from] / kLog2e<C>;
                if (a.distance) reinterpret_cast<C*>(share.distance)[to] = desk.distance[from];
            }
    }
    for (int64_t side = 0; sums && side < c.abreast; ++side) {
        C* to = reinterpret_cast<C*>(a.received) + (t.batch * p.Hq + t.unit + side) * p.M + t.begin;
        for (int64_t j = 0; j < keys; ++j) to[j] += sum<C>(load(desk.received + (side * keys + j) * W));
    }
}

}  // namespace limelight::LIMELIGHT_ISA
