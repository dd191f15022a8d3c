// What is asked of each row of the weights, in one pass over the keys.
//
// With e = 2^(logit − m) for a running maximum m, as in the forward pass, every answer is a sum over the
// keys that shrinks by 2^(m − m′) when the maximum grows:
//
//   entropy   −Σ a log a = log Σe − Σ e (logit − m) log 2 / Σe        distance  Σ e |position − key| / Σe
//   mass      Σ e over the keys that another mask allows / Σe
//
// The strongest keys are those with the largest logits, whatever the maximum.
#pragma once

#include <algorithm>
#include <vector>

#include "walk.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct Candidate {
    C logit;
    int32_t key;

    bool operator<(const Candidate& other) const {  // the better one first
        return logit > other.logit || (logit == other.logit && key < other.key);
    }
};

// What is known of the rows of a strip beside m and l.
template <class C> struct Tally {
    C *spread, *distance, *mass;  // by lane: Σ e (logit − m), Σ e |position − key|, Σ e where the other mask allows
    Row* rows;                    // with the spans of the other mask; null where nobody asks for it
    // Candidates for the strongest keys gather until there is no more room for a lane's. Then all but the best are
    // dropped, and the bar rises, above which a logit must be to become one.
    int64_t room;
    C* logits;
    int32_t *keys, *found;  // `found` of them by lane
    C* bar;                 // by lane
    Candidate<C>* best;     // the answer, in order, for one lane
};

inline int64_t room_for(const Questions& a, int64_t M) { return a.top ? least(2 * a.top + 16, M) : 0; }

template <class C> Tally<C> lay_out_tally(const Problem& p, const Questions& a, const Cut& c, Arena& arena) {
    const int64_t lanes = c.together * kMaxLanes<C>;
    Tally<C> y;
    y.spread = arena.take<C>(lanes);
    y.distance = arena.take<C>(lanes);
    y.mass = arena.take<C>(lanes);
    y.rows = a.mass ? arena.take<Row>(lanes) : nullptr;
    y.room = room_for(a, p.M);
    y.logits = arena.take<C>(lanes * y.room);
    y.keys = arena.take<int32_t>(lanes * y.room);
    y.found = arena.take<int32_t>(lanes);
    y.bar = arena.take<C>(lanes);
    y.best = arena.take<Candidate<C>>(a.top);
    return y;
}

// The problem whose mask is the one that mass is asked for.
inline Problem other_mask(const Problem& p, const Questions& a) {
    Problem other = p;
    other.spans = a.mass_spans;
    other.mask = a.mass_mask;
    return other;
}

// The part of a tally that belongs to the i-th strip of a party, empty.
template <class C>
Tally<C> tally_of(const Problem& other, int64_t batch, const Tally<C>& all, const Strip<C>& x, int64_t i) {
    const int64_t from = i * kMaxLanes<C>;
    Tally<C> y = all;
    y.spread += from, y.distance += from, y.mass += from, y.bar += from, y.found += from;
    y.logits += from * all.room, y.keys += from * all.room;
    for (int r = 0; r < x.lanes(); ++r) {
        y.spread[r] = y.distance[r] = y.mass[r] = 0;
        y.bar[r] = -kInf<C>;
        y.found[r] = 0;
    }
    if (y.rows) y.rows += from;
    for (int r = 0; y.rows && r < x.row_count; ++r) y.rows[r] = row_of(other, batch, x.rows[r].head, x.rows[r].query);
    return y;
}

// What a thread works with.
template <class C> struct RowDesk {
    Party<C> party;
    Tally<C> tally;
    C *copy, *scratch;
};

template <class C> RowDesk<C> lay_out_rows(const Problem& p, const Questions& a, const Cut& c, Arena& arena) {
    constexpr int lanes = kMaxLanes<C>;
    RowDesk<C> desk;
    desk.party = lay_out_party<C>(p, c, arena);
    desk.tally = lay_out_tally<C>(p, a, c, arena);
    desk.copy = a.mass ? arena.take<C>(kBlock * lanes) : nullptr;
    desk.scratch = arena.take<C>(most(logits_scratch(p, lanes), logits_scratch(other_mask(p, a), lanes)));
    return desk;
}

// sum = decay · sum + Σ over the keys of weight(place in the block, e), lane by lane.
template <class C, class Weight> void add_sums(const Block<C>& b, const C* decay, C* sum, Weight&& weight) {
    constexpr int W = kWidth<C>;
    for (int r = 0; r < b.lanes; r += W) {
        Vec<C> total = load(sum + r) * load(decay + r);
        for (int64_t j = 0; j < b.n; ++j) total += weight(r, j, load(b.s + j * b.lanes + r));
        store(sum + r, total);
    }
}

template <class C> void add_distances(const Block<C>& b, const C* decay, C* distance) {
    alignas(64) C ahead[kMaxLanes<C>];
    for (int r = 0; r < b.lanes; ++r) ahead[r] = C(b.rows[least(r, b.row_count - 1)].position - b.first);
    add_sums(b, decay, distance, [&](int r, int64_t j, Vec<C> e) { return e * magnitude<C>(load(ahead + r) - C(j)); });
}

// `copy` has room for a block.
template <class C>
void add_mass(const Problem& other, const Row* rows, const Block<C>& b, const C* decay, C* mass, C* copy, C* scratch) {
    const Visible seen = visible(rows, b.row_count, other.spans.count, {b.first, b.first + b.n});
    Block<C> part{other, rows, b.row_count, b.lanes, b.batch, seen.keys.begin, most(seen.keys.end - seen.keys.begin, 0), b.s};
    if (part.n) part.s += (seen.keys.begin - b.first) * b.lanes;
    if (part.n && (other.mask.data || !seen.partial.empty())) {
        std::memcpy(copy, part.s, part.n * part.lanes * sizeof(C));
        part.s = copy;
        if (other.mask.data) mask_dense(part, scratch);
        if (!seen.partial.empty()) mask_spans(part, seen.partial, scratch);
    }
    // What is masked is −∞ and no e is below 0.
    add_sums(part, decay, mass, [](int, int64_t, Vec<C> e) { return larger(e, Vec<C>{}); });
}

// Only the k best of n remain, in the order of their keys; returns the last of their logits. The limit that k of them reach is found by halving, which
// needs no branches that nobody can foresee.
template <class C> C keep_best(C* logits, int32_t* keys, int n, int k) {
    C limit = kInf<C>, above = -kInf<C>;
    for (int i = 0; i < n; ++i) {
        limit = logits[i] < limit ? logits[i] : limit;
        above = logits[i] > above ? logits[i] : above;
    }
    int surplus = n - k;  // of those that reach the limit
    if (above == kInf<C>) above = std::numeric_limits<C>::max();
    for (C middle; surplus && (middle = limit / 2 + above / 2) > limit;) {
        int count = 0;
        for (int i = 0; i < n; ++i) count += logits[i] >= middle;
        if (count >= k) limit = middle, surplus = count - k;
        else if (above == middle) break;
        else above = middle;
    }
    int ties = -surplus;  // that may stay: the lower keys
    for (int i = 0; i < n; ++i) ties += logits[i] == limit;
    for (int i = 0, kept = 0; i < n; ++i) {
        const C x = logits[i];
        const int32_t key = keys[i];
        const int tie = x == limit, stays = (x > limit) | (tie & (ties > 0));
        ties -= tie;
        if (kept < k) logits[kept] = x, keys[kept] = key;
        kept += stays;
    }
    return *std::min_element(logits, logits + k);
}

// Keys come in order, so that one with the logit of the bar loses to those that are there.
template <class C, int NV> void choose(const Block<C>& b, const Tally<C>& y, int64_t k) {
    constexpr int W = kWidth<C>;
    const uint64_t rows = ~uint64_t(0) >> (64 - b.row_count);
    for (int64_t j = 0; j < b.n; ++j) {
        const C* s = b.s + j * b.lanes;
        uint64_t above = 0;
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) above |= uint64_t(bits<C>(load(s + v * W) > load(y.bar + v * W))) << (v * W);
        for (above &= rows; above; above &= above - 1) {
            const int r = __builtin_ctzll(above);
            C* logits = y.logits + r * y.room;
            int32_t* keys = y.keys + r * y.room;
            const int n = y.found[r]++;
            logits[n] = s[r];
            keys[n] = int32_t(b.first + j);
            if (n + 1 < y.room) continue;
            y.bar[r] = keep_best(logits, keys, n + 1, int(k));
            y.found[r] = int(k);
        }
    }
}

template <class C, int NV>
void ask_lanes(const Questions& a, const Problem& other, const Strip<C>& x, const Tally<C>& y, const Operand& k,
               const Block<C>& b, Range partial, C* copy, C* scratch) {
    alignas(64) C decay[NV * kWidth<C>], top[NV * kWidth<C>];
    logits<C, NV>(x, k, b, partial, top, scratch);
    if (a.top) choose<C, NV>(b, y, a.top);
    if (a.entropy) exponentials<C, NV, true>(x, b.s, b.n, top, decay, y.spread);
    else exponentials<C, NV>(x, b.s, b.n, top, decay);
    if (a.distance) add_distances(b, decay, y.distance);
    if (a.mass) add_mass(other, y.rows, b, decay, y.mass, copy, scratch);
}

// All that is known of a row, and then the best of its keys.
template <class C> struct Record {
    C m, l, spread, distance, mass;
    int32_t found;
};

// Of one row, with room for its best keys.
template <class C> size_t record_bytes(const Questions& a) {
    return ceil_div(sizeof(Record<C>) + a.top * sizeof(Candidate<C>), alignof(Record<C>)) * alignof(Record<C>);
}

template <class C> Candidate<C>* best_of(Record<C>* record) { return reinterpret_cast<Candidate<C>*>(record + 1); }

// A weight of 0 is all that the other keys have, so the lowest of them follow.
template <class C>
void write_top(const Questions& a, int64_t row, const Record<C>& record, Candidate<C>* best, const Ending<C>& end) {
    C* values = reinterpret_cast<C*>(a.top_values) + row * a.top;
    int64_t* keys = a.top_keys + row * a.top;
    for (int32_t i = 0; i < record.found; ++i) {
        values[i] = std::exp2(best[i].logit - record.m) * end.inverse;
        keys[i] = best[i].key;
    }
    if (record.found == a.top) return;
    std::sort(best, best + record.found, [](const auto& x, const auto& y) { return x.key < y.key; });
    int32_t passed = 0;
    int64_t key = 0;
    for (int64_t i = record.found; i < a.top; ++i, ++key) {
        for (; passed < record.found && best[passed].key == key; ++passed) ++key;
        values[i] = end.inverse * C(0);  // NaN where the row is
        keys[i] = key;
    }
}

template <class C>
void answer(const Problem& p, const Questions& a, int64_t batch, const Row& row, const Record<C>& record, Candidate<C>* best) {
    const int64_t at = (batch * p.Hq + row.head) * p.N + row.query;
    const Ending<C> end = ending(p, row.head, record.m, record.l);
    const auto put = [at](char* to, C x) { reinterpret_cast<C*>(to)[at] = x; };
    if (!a.known) put_normalisers(p, batch, row, end);
    if (a.entropy) {
        // log a = (logit − m) log 2 − above, where `above` is how far the log-sum-exp lies above the largest logit.
        const C above = (end.m - record.m + std::log2(end.l)) / kLog2e<C>;
        const C entropy = end.inverse * (record.l * above - record.spread / kLog2e<C>);
        put(a.entropy, end.nothing || end.inverse == C(0) ? C(0) : entropy);
    }
    if (a.distance) put(a.distance, record.distance * end.inverse);
    if (a.mass) put(a.mass, record.mass * end.inverse);
    if (a.top) write_top(a, at, record, best, end);
}

template <class C> void ask_rows(const Problem& p, const Questions& a, const Cut& c, const Task& t, char* memory) {
    Arena arena{reinterpret_cast<uintptr_t>(memory)};
    RowDesk<C> desk = lay_out_rows<C>(p, a, c, arena);
    Party<C>& party = desk.party;
    gather_party(p, c, t, party);
    const Problem other = other_mask(p, a);
    Tally<C> tallies[kTogether];
    for (int64_t i = 0; i < party.count; ++i) tallies[i] = tally_of(other, t.batch, desk.tally, party.strips[i], i);
    const auto see = [&](int64_t i, const Strip<C>& x, const Operand& k, const Operand&, const Block<C>& b, Range partial) {
        const auto ask = x.vectors == 3 ? ask_lanes<C, 3> : x.vectors == 2 ? ask_lanes<C, 2> : ask_lanes<C, 1>;
        ask(a, other, x, tallies[i], k, b, partial, desk.copy, desk.scratch);
    };
    walk(p, party, t, see, [](Range) {});
    for (int64_t i = 0; i < party.count; ++i) {
        const Strip<C>& x = party.strips[i];
        const Tally<C>& y = tallies[i];
        for (int r = 0; r < x.row_count; ++r) {
            if (y.found[r] > a.top) keep_best(y.logits + r * y.room, y.keys + r * y.room, y.found[r], int(a.top));
            const int32_t found = int32_t(least(y.found[r], a.top));
            for (int i = 0; i < found; ++i) y.best[i] = {y.logits[r * y.room + i], y.keys[r * y.room + i]};
            std::sort(y.best, y.best + found);
            const Record<C> record{x.m[r], x.l[r], y.spread[r], y.distance[r], y.mass[r], found};
            if (!t.partial) {
                answer(p, a, t.batch, x.rows[r], record, y.best);
                continue;
            }
            auto* to = reinterpret_cast<Record<C>*>(t.partial + (party.first_row + (x.rows - party.rows) + r) * record_bytes<C>(a));
            *to = record;
            std::memcpy(best_of(to), y.best, found * sizeof(Candidate<C>));
        }
    }
}

// Joins what the chunks of keys know of the rows of one unit.
template <class C> void join_records(const Problem& p, const Questions& a, const Cut& c, int64_t batch, int64_t unit, char* partial) {
    const size_t bytes = record_bytes<C>(a);
    std::vector<Candidate<C>> best;
    for (int64_t r = 0; r < c.rows; ++r) {
        const auto chunk = [&](int64_t i) { return reinterpret_cast<Record<C>*>(partial + (i * c.rows + r) * bytes); };
        C top = chunk(0)->m;
        for (int64_t i = 1; i < c.chunks; ++i) top = larger(chunk(i)->m, top);
        Record<C> total{top, 0, 0, 0, 0, 0};
        best.clear();
        for (int64_t i = 0; i < c.chunks; ++i) {
            Record<C>* part = chunk(i);
            best.insert(best.end(), best_of(part), best_of(part) + part->found);
            if (part->l == C(0)) continue;
            const C shift = part->m - top, share = std::exp2(shift);
            total.l += part->l * share;
            total.spread += (part->spread + part->l * larger(shift, kLowest<C>)) * share;
            total.distance += part->distance * share;
            total.mass += part->mass * share;
        }
        std::sort(best.begin(), best.end());
        total.found = int32_t(least(a.top, best.size()));
        answer(p, a, batch, row_of(p, batch, c.grouped ? unit * c.group : unit, r), total, best.data());
    }
}

}  // namespace limelight::LIMELIGHT_ISA
