// From raw scores to logits: softcap, biases and masks on one block of scores.
//
// A block is s[key][lane], one lane a query row, in units of log 2 and already divided by the
// temperature, so that the softmax needs only 2ˣ. Each step is a pass over a block that lies in the
// nearest cache, which costs far less than the products that made it.
#pragma once

#include "exp.h"
#include "lane_spans.h"
#include "places.h"
#include "register_tile.h"

namespace limelight::LIMELIGHT_ISA {

// The scores of a tile of query rows and the keys [first, first + n) of a batch element.
template <class C> struct Block {
    const Problem& p;
    const Row* rows;
    int row_count, lanes;
    int64_t batch, first, n;
    C* s;
    const LaneSpans<C>* lane_spans = nullptr;  // where every row has one span and the caller knows them
    Upcoming* upcoming = nullptr;              // to be prefetched between the products
    C* softcap_slope = nullptr;                // where the softcap's derivative goes, or null

    int64_t step() const { return common_step(p, rows, row_count, lanes, first, n); }
};

// How many of `width` features are summed in one chain, for so many rows that share their keys.
template <class C> int64_t score_chain(int64_t rows, int64_t keys, int64_t width) {
    return rows < kMaxLanes<C> || keys < kWidth<C> ? min(kShortChain, max(width / 4, 4)) : kLongestChain;
}

template <class C> constexpr C kLog2e = C(1.4426950408889634074);

// Query rows carry the scale, and log₂e / temperature where no softcap comes between.
template <class C> C query_factor(const Problem& p) {
    return p.softcap ? C(1) : C(p.scale / p.temperature) * kLog2e<C>;
}

// x · unit, in which no finite bias becomes infinite: the lowest number of a type is a usual way to
// write "hardly ever", and a row of nothing else still has weights.
template <class C> LIMELIGHT_INLINE C in_units(C x, C unit) {
    constexpr C largest = std::numeric_limits<C>::max();
    const C y = x * unit, bounded = y > largest ? largest : y < -largest ? -largest : y;
    return x - x == C(0) ? bounded : y;
}

template <class C> void cap(const Block<C>& b) {
    const C inside = C(b.p.scale / b.p.softcap);
    const C outside = C(b.p.softcap / b.p.temperature) * kLog2e<C>;
    for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) {
        const Vec<C> t = tanh(load(b.s + i) * inside);
        store(b.s + i, outside * t);
        if (b.softcap_slope) store(b.softcap_slope + i, inside * outside * (C(1) - t * t));
    }
}

// The slopes of a tile's heads, and the distances of its rows from the block's first key.
template <class C> AlibiBias<C> alibi_bias(const Block<C>& b, C* scratch) {
    if (!b.p.slopes) return {nullptr, nullptr};
    C *slope = scratch, *distance = scratch + b.lanes;
    const C unit = kLog2e<C> / C(b.p.temperature);
    const C* slopes = reinterpret_cast<const C*>(b.p.slopes);
    for (int r = 0; r < b.lanes; ++r) {
        const Row& row = b.rows[min(r, b.row_count - 1)];
        slope[r] = -slopes[row.head] * unit;
        distance[r] = C(row.position - b.first);
    }
    return {slope, distance};
}

template <class C> void add_alibi(const Block<C>& b, AlibiBias<C> t) {
    for (int64_t j = 0; j < b.n; ++j)
        for (int r = 0; r < b.lanes; r += kWidth<C>) {
            C* s = b.s + j * b.lanes + r;
            store(s, load(s) + t.at(r, j));
        }
}

// to[key][lane] += table[head][position − key]: the lanes of a tile of consecutive queries read consecutive numbers.
template <class C> void add_by_diagonal(const Block<C>& b, const C* table, C* to) {
    const int64_t all = diagonals(b.p), step = b.step();
    if (!step) {
        for (int r = 0; r < b.row_count; ++r) {
            const Row& row = b.rows[r];
            const C* o = table + row.head * all;
            for (int64_t j = 0; j < b.n; ++j) to[j * b.lanes + r] += o[diagonal(b.p, row, b.first + j)];
        }
        return;
    }
    const C* o = table + b.rows[0].head * all + diagonal(b.p, b.rows[0], b.first);
    alignas(64) C apart[kBlock + kMaxLanes<C>];  // every `step`-th of them
    if (step != 1) {
        for (int64_t i = 0; i < b.n + b.lanes - 1; ++i) apart[i] = o[(i - b.n + 1) * step];
        o = apart + b.n - 1;
    }
    for (int64_t j = 0; j < b.n; ++j)
        for (int r = 0; r < b.lanes; r += kWidth<C>) {
            C* x = to + j * b.lanes + r;
            store(x, load(x) + load(o - j + r));
        }
}

// s[key][lane] += value(row, key) of a tensor that lies row by row: a panel of rows is transposed.
template <class C, class Value> void add_rows(const Block<C>& b, C* scratch, Value&& value) {
    C *panel = scratch, *turned = scratch + b.lanes * kBlock;
    for (int r = 0; r < b.lanes; ++r) value(b.rows[min(r, b.row_count - 1)], panel + r * kBlock);
    transpose(panel, kBlock, b.lanes, b.n, turned, b.lanes);
    for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>) store(b.s + i, load(b.s + i) + load(turned + i));
}

template <class C, class E> void add_dense(const Block<C>& b, C unit, C* scratch) {
    const Grid& g = b.p.bias;
    add_rows(b, scratch, [&](const Row& row, C* to) {
        const E* from = reinterpret_cast<const E*>(g.data) + b.batch * g.batch + row.head * g.head +
                        query_place(b.p, row.query) * g.row;
        const int64_t* keys = b.p.places.keys ? b.p.places.keys + b.first : nullptr;
        if (!keys) from += b.first * g.col;
        if (keys)
            for (int64_t j = 0; j < b.n; ++j) to[j] = in_units(C(widen(from[keys[j] * g.col])), unit);
        else if (g.col == 1)
            for (int64_t j = 0; j < b.n; ++j) to[j] = in_units(C(widen(from[j])), unit);
        else
            for (int64_t j = 0; j < b.n; ++j) to[j] = in_units(C(widen(from[j * g.col])), unit);
    });
}

// A score that is NaN or +∞ must vanish too, so it is replaced, not added to.
template <class C> void mask_dense(const Block<C>& b, C* scratch) {
    const Grid& g = b.p.mask;
    C *panel = scratch, *turned = scratch + b.lanes * kBlock;
    for (int r = 0; r < b.lanes; ++r) {
        const Row& row = b.rows[min(r, b.row_count - 1)];
        const char* from = g.data + b.batch * g.batch + row.head * g.head + row.query * g.row + b.first * g.col;
        C* to = panel + r * kBlock;
        if (g.col == 1)
            for (int64_t j = 0; j < b.n; ++j) to[j] = from[j] ? C(1) : C(0);
        else
            for (int64_t j = 0; j < b.n; ++j) to[j] = from[j * g.col] ? C(1) : C(0);
    }
    transpose(panel, kBlock, b.lanes, b.n, turned, b.lanes);
    for (int64_t i = 0; i < b.n * b.lanes; i += kWidth<C>)
        store(b.s + i, load(turned + i) != C(0) ? load(b.s + i) : broadcast(-kInf<C>));
}

// As mask_spans, for rows with one span each. Along the edges of a band most vectors of rows see all of a key or nothing of
// it, and only the others are compared.
template <class C> void mask_one_span(const Block<C>& b, Range partial, const LaneSpans<C>& spans) {
    constexpr int W = kWidth<C>;
    for (int lane = 0; lane < b.lanes; lane += W) {
        const auto each = [&](int64_t from, int64_t to, auto f) {
            for (int64_t key = max(from, partial.begin); key < min(to, partial.end); ++key)
                f(key, b.s + (key - b.first) * b.lanes + lane);
        };
        const auto forbid = [](int64_t, C* s) { store(s, broadcast(-kInf<C>)); };
        const IntVec<C> begin = spans.begins(lane), end = spans.ends(lane);
        const auto compare = [&](int64_t key, C* s) {
            const IntVec<C> place = typename Simd<C>::Bit(key) - IntVec<C>{};
            const IntVec<C> inside = (begin <= place) & (place < end);
            store(s, inside ? load(s) : broadcast(-kInf<C>));
        };
        const auto& x = spans.of_vector[lane / W];
        each(partial.begin, x.first_begin, forbid);
        each(x.first_begin, min(x.last_begin, x.last_end), compare);
        each(max(max(x.last_begin, x.first_end), x.first_begin), x.last_end,
             compare);  // all lanes see the keys between
        each(max(x.first_begin, x.last_end), partial.end, forbid);
    }
}

// Key j of the block is allowed to a lane where begin ≤ j < end for one of its spans. Relative to
// the block these are small whole numbers, exact in floating point. Only the keys of `partial` differ. Of many
// spans, as of strides, only those are looked at that meet them.
template <class C> void mask_spans(const Block<C>& b, Range partial, C* scratch) {
    constexpr int64_t few = 4;
    const int64_t count = b.p.spans.count;
    if (count == 1) {
        if (b.lane_spans) return mask_one_span(b, partial, *b.lane_spans);
        LaneSpans<C> lane_spans;
        lane_spans.set(b.rows, b.row_count, b.lanes / kWidth<C>);
        return mask_one_span(b, partial, lane_spans);
    }
    const auto spans_of_lane = [&](int r) { return b.rows[min(r, b.row_count - 1)].spans; };
    const auto first_of = [&](const int32_t* of_row) {
        return count <= few ? 0 : first_span(of_row, count, partial.begin);
    };
    int64_t spans = count <= few ? count : 0;  // of the row with the most
    for (int r = 0; count > few && r < b.row_count; ++r) {
        const int32_t* of_row = spans_of_lane(r);
        const int64_t first = first_of(of_row);
        int64_t s = first;
        while (s < count && of_row[2 * s] < partial.end) ++s;
        spans = max(spans, s - first);
    }
    for (int r = 0; r < b.lanes; ++r) {
        const int32_t* of_row = spans_of_lane(r);
        const int64_t first = first_of(of_row);
        for (int64_t s = 0; s < spans; ++s) {
            C *begin = scratch + 2 * s * b.lanes + r, *end = begin + b.lanes;
            const bool has = first + s < count;
            const int32_t* span = of_row + 2 * (has ? first + s : 0);
            *begin = has ? C(min(max(span[0] - b.first, 0), b.n)) : C(0);
            *end = has ? C(min(max(span[1] - b.first, 0), b.n)) : C(0);
        }
    }
    for (int64_t j = partial.begin - b.first; j < partial.end - b.first; ++j)
        for (int r = 0; r < b.lanes; r += kWidth<C>) {
            const Vec<C> key = broadcast(C(j));
            IntVec<C> inside{};
            for (int64_t s = 0; s < spans; ++s) {
                const C* begin = scratch + 2 * s * b.lanes + r;
                inside |= (load(begin) <= key) & (key < load(begin + b.lanes));
            }
            C* s = b.s + j * b.lanes + r;
            store(s, inside ? load(s) : broadcast(-kInf<C>));
        }
}

// Sets weights to 0 where the mask forbids: in a row whose log-sum-exp is NaN they are NaN, and would reach those keys.
template <class C> void clear_forbidden(const Block<C>& b, C* x) {
    for (int64_t j = 0; j < b.n; ++j)
        for (int r = 0; r < b.row_count; ++r)
            if (!allows(b.p, b.rows[r], b.batch, b.first + j)) x[j * b.lanes + r] = 0;
}

// Elements of scratch that the steps above need.
inline int64_t logits_scratch(const Problem& p, int lanes) {
    const bool dense = p.bias.data || p.mask.data;
    return 2 * max(max(p.spans.count, 1), dense ? kBlock : 0) * lanes;
}

// True if the products, with their ALiBi slopes, are the logits already.
inline bool plain(const Problem& p) { return !p.softcap && !p.offsets && !p.bias.data && !p.mask.data; }

// Turns products into logits; with `has_alibi`, their slopes have been added already.
template <class C> void to_logits(const Block<C>& b, bool has_alibi, Range partial, C* scratch) {
    const C unit = kLog2e<C> / C(b.p.temperature);
    if (b.p.softcap) cap(b);
    if (b.p.slopes && !has_alibi) add_alibi(b, alibi_bias(b, scratch));
    if (b.p.offsets) add_by_diagonal(b, reinterpret_cast<const C*>(b.p.offsets), b.s);
    if (b.p.bias.data) with_element_type(b.p.bias.type, [&](auto e) { add_dense<C, decltype(e)>(b, unit, scratch); });
    if (b.p.mask.data) mask_dense(b, scratch);
    if (!partial.empty()) mask_spans(b, partial, scratch);
}

}  // namespace limelight::LIMELIGHT_ISA
