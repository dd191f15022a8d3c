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

struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
};

LIMELIGHT_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
LIMELIGHT_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// The first maximal run of keys at or after `from` in which every key is allowed to some row: what
// lies between two runs is never computed. Spans are sorted, so a row's later spans only extend it.
inline Range next_run(const Row* rows, int n, int64_t spans, int64_t from, int64_t end) {
    if (!rows[0].spans) return {from, end};
    int64_t begin = end;
    for (int r = 0; r < n; ++r)
        for (int64_t s = 0; s < spans; ++s) {
            const int64_t a = rows[r].spans[2 * s], b = rows[r].spans[2 * s + 1];
            if (b > a && b > from) {
                begin = min(begin, max(a, from));
                break;
            }
        }
    int64_t reach = begin;
    for (bool grows = begin < end; grows;) {
        grows = false;
        for (int r = 0; r < n; ++r)
            for (int64_t s = 0; s < spans; ++s) {
                const int64_t a = rows[r].spans[2 * s], b = rows[r].spans[2 * s + 1];
                if (a <= reach && b > reach) reach = b, grows = true;
            }
    }
    return {begin, min(reach, end)};
}

// The part of a block that the rows of a tile see: `keys`, the part that some row may attend to, and
// `partial`, the part of it outside of which every row sees every key.
struct Visible {
    Range keys, partial;
};

inline Visible visible(const Row* rows, int n, int64_t spans, Range block) {
    if (!rows[0].spans) return {block, {0, 0}};
    Range keys{block.end, block.begin};
    for (int r = 0; r < n; ++r)
        for (int64_t s = 0; s < spans; ++s) {
            const int64_t a = max(rows[r].spans[2 * s], block.begin);
            const int64_t b = min(rows[r].spans[2 * s + 1], block.end);
            if (a < b) keys = {min(keys.begin, a), max(keys.end, b)};
        }
    Range partial{keys.end, keys.begin};
    for (int r = 0; r < n; ++r) {
        int64_t first = keys.begin, last = keys.end;  // the row's first and last keys that it does not see
        for (int64_t s = 0; s < spans; ++s)
            if (rows[r].spans[2 * s] <= first) first = max(first, rows[r].spans[2 * s + 1]);
        for (int64_t s = spans - 1; s >= 0; --s)
            if (rows[r].spans[2 * s + 1] >= last) last = min(last, rows[r].spans[2 * s]);
        if (first < keys.end) partial = {min(partial.begin, first), max(partial.end, last)};
    }
    return {keys, partial};
}

inline bool allows(const Problem& p, const Row& row, int64_t batch, int64_t key) {
    if (row.spans) {
        bool inside = false;
        for (int64_t s = 0; s < p.spans.count; ++s) inside |= row.spans[2 * s] <= key && key < row.spans[2 * s + 1];
        if (!inside) return false;
    }
    const Grid& m = p.mask;
    return !m.data || m.data[batch * m.batch + row.head * m.head + row.query * m.row + key * m.col];
}

}  // namespace limelight::LIMELIGHT_ISA
