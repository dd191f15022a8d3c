// The keys that the rows of a tile may attend to.
#pragma once

#include "problem.h"
#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

// One query row: a lane of a tile.
struct Row {
    int64_t head, query, position;
    const int32_t* spans;  // its `count` spans, or null for every key
};

// The rows are consecutive queries of one head and fill every lane.
inline bool are_consecutive(const Row* rows, int n, int lanes) {
    const Row &a = rows[0], &b = rows[n - 1];
    return n == lanes && a.head == b.head && b.query - a.query == lanes - 1;
}

struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
    bool has(int64_t x) const { return begin <= x && x < end; }
};

LIMELIGHT_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
LIMELIGHT_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// The part of a block that the rows of a tile see: `keys`, the part that some row may attend to, and
// `partial`, the part of it outside of which every row sees every key.
struct Visible {
    Range keys, partial;
};

// The outermost spans of rows with one span each. Where these spans hang together, as under Causal(), Window, Padding and
// what & makes of them, they answer both questions below at once for every block.
struct SpanBounds {
    int64_t first_begin, last_begin, first_end, last_end;
    bool one_run;  // every row has one span that is not empty, and all keys from the first to the last are in some span

    void join(const SpanBounds& other) {
        one_run &= other.one_run && first_begin <= other.last_end && other.first_begin <= last_end;
        first_begin = min(first_begin, other.first_begin), last_begin = max(last_begin, other.last_begin);
        first_end = min(first_end, other.first_end), last_end = max(last_end, other.last_end);
    }

    // As next_run.
    Range run(int64_t from, int64_t end) const { return {max(first_begin, from), min(last_end, end)}; }

    // As visible. Every row sees the keys [last_begin, first_end), if there are any.
    Visible visible(Range block) const {
        const Range keys{max(first_begin, block.begin), min(last_end, block.end)};
        const bool left = keys.begin < last_begin, right = first_end < keys.end;
        if (keys.empty() || !(left || right)) return {keys, {0, 0}};
        return {keys, {left ? keys.begin : max(first_end, keys.begin), right ? keys.end : min(last_begin, keys.end)}};
    }
};

// The bounds of rows with `spans` spans each.
inline SpanBounds span_bounds(const Row* rows, int n, int64_t spans) {
    if (!rows[0].spans) {
        constexpr int64_t all = std::numeric_limits<int64_t>::max();
        return {0, 0, all, all, true};
    }
    const int64_t a = rows[0].spans[0], b = rows[0].spans[1];
    SpanBounds x{a, a, b, b, spans == 1};
    for (int r = 0; x.one_run && r < n; ++r) {
        const int64_t begin = rows[r].spans[0], end = rows[r].spans[1];
        x.join({begin, begin, end, end, begin < end});
    }
    return x;
}

// The first of a row's spans that ends after `key`; spans are sorted, the empty ones last.
LIMELIGHT_INLINE int64_t first_span(const int32_t* spans, int64_t count, int64_t key) {
    if (count <= 8) {
        int64_t s = 0;
        while (s < count && spans[2 * s + 1] <= key) ++s;
        return s;
    }
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (spans[2 * middle + 1] <= key) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The first maximal run of keys at or after `from` in which every key is allowed to some row: what
// lies between two runs is never computed. Spans are sorted, so a row's later spans only extend it.
inline Range next_run(const Row* rows, int n, int64_t spans, int64_t from, int64_t end) {
    if (!rows[0].spans) return {from, end};
    int64_t begin = end;
    for (int r = 0; r < n; ++r) {
        const int32_t* span = rows[r].spans + 2 * first_span(rows[r].spans, spans, from);
        if (span < rows[r].spans + 2 * spans && span[0] < span[1]) begin = min(begin, max(span[0], from));
    }
    int64_t reach = begin;
    for (bool grows = begin < end; grows;) {
        grows = false;
        for (int r = 0; r < n; ++r)
            for (int64_t s = first_span(rows[r].spans, spans, reach); s < spans && rows[r].spans[2 * s] <= reach; ++s)
                if (rows[r].spans[2 * s + 1] > reach) reach = rows[r].spans[2 * s + 1], grows = true;
    }
    return {begin, min(reach, end)};
}

inline Visible visible(const Row* rows, int n, int64_t spans, Range block) {
    if (!rows[0].spans) return {block, {0, 0}};
    Range keys{block.end, block.begin};
    for (int r = 0; r < n; ++r)
        for (int64_t s = first_span(rows[r].spans, spans, block.begin); s < spans; ++s) {
            if (rows[r].spans[2 * s] >= block.end) break;
            const int64_t a = max(rows[r].spans[2 * s], block.begin);
            const int64_t b = min(rows[r].spans[2 * s + 1], block.end);
            if (a < b) keys = {min(keys.begin, a), max(keys.end, b)};
        }
    Range partial{keys.end, keys.begin};
    for (int r = 0; r < n; ++r) {
        int64_t first = keys.begin, last = keys.end;  // the row's first and last keys that it does not see
        int64_t s = first_span(rows[r].spans, spans, first);
        for (int64_t t = s; t < spans && rows[r].spans[2 * t] <= first; ++t)
            first = max(first, rows[r].spans[2 * t + 1]);
        if (first >= keys.end) continue;
        while (s < spans && rows[r].spans[2 * s] < last) ++s;
        for (--s; s >= 0 && rows[r].spans[2 * s + 1] >= last; --s) last = min(last, rows[r].spans[2 * s]);
        partial = {min(partial.begin, first), max(partial.end, last)};
    }
    return {keys, partial};
}

// The range from the first to the last row that sees one of the keys, for rows with one span each.
inline Range seeing_rows(const Row* rows, int64_t n, Range keys) {
    const auto sees = [&](int64_t r) { return rows[r].spans[0] < keys.end && keys.begin < rows[r].spans[1]; };
    Range seen{0, n};
    while (!seen.empty() && !sees(seen.begin)) ++seen.begin;
    while (!seen.empty() && !sees(seen.end - 1)) --seen.end;
    return seen;
}

inline bool allows(const Problem& p, const Row& row, int64_t batch, int64_t key) {
    if (row.spans) {
        const int64_t s = first_span(row.spans, p.spans.count, key);
        if (s == p.spans.count || key < row.spans[2 * s]) return false;
    }
    const Grid& m = p.mask;
    return !m.data || m.data[batch * m.batch + row.head * m.head + row.query * m.row + key * m.col];
}

}  // namespace limelight::LIMELIGHT_ISA
