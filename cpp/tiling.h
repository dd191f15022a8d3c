// Where the tiles of a head's queries begin.
//
// All rows of a tile compute every key that one of them may attend to. Mostly neighbours have nearly the same keys, and
// tiles of three vectors follow one another. Under a layout of blocks, keys change all at once from one row to the next;
// tiles then begin at such rows, wherever that leaves less to compute.
#pragma once

#include <cstring>
#include <vector>

#include "rows.h"

namespace limelight::LIMELIGHT_ISA {

constexpr int64_t kRunCost = 8;  // beginning a run of keys costs as much as so many keys

inline const int32_t* spans_of(const Problem& p, int64_t batch, int64_t query) {
    return p.spans.data + batch * p.spans.batch + query * p.spans.count * 2;
}

inline bool same_spans(const int32_t* a, const int32_t* b, int64_t count) {
    return !std::memcmp(a, b, 2 * count * sizeof(int32_t));
}

// The sum of the differences between the bounds of two rows' spans: at least different_keys.
inline int64_t moved_keys(const int32_t* a, const int32_t* b, int64_t count) {
    int64_t keys = 0;
    for (int64_t i = 0; i < 2 * count; ++i) keys += a[i] < b[i] ? b[i] - a[i] : a[i] - b[i];
    return keys;
}

// The number of keys that one of two rows has and the other has not.
inline int64_t different_keys(const int32_t* a, const int32_t* b, int64_t count) {
    int64_t keys = 0;
    for (int64_t s = 0; s < count; ++s) keys += (a[2 * s + 1] - a[2 * s]) + (b[2 * s + 1] - b[2 * s]);
    for (int64_t s = 0, t = 0; s < count && t < count;) {
        keys -= 2 * max(min(a[2 * s + 1], b[2 * t + 1]) - max(a[2 * s], b[2 * t]), 0);
        if (a[2 * s + 1] < b[2 * t + 1]) ++s;
        else ++t;
    }
    return keys;
}

// The keys of a tile: the union of the spans of its rows, for every batch element whose spans differ.
class TileKeys {
public:
    explicit TileKeys(const Problem& p) : p_(&p), all_(p.spans.batch ? p.B : 1) {}

    void clear() {
        for (auto& runs : all_) runs.clear();
        rows_ = 0;
    }

    void add(int64_t begin, int64_t end) {
        rows_ += end - begin;
        for (size_t b = 0; b < all_.size(); ++b)
            for (int64_t q = begin; q < end; ++q) {
                const int32_t* spans = spans_of(*p_, int64_t(b), q);
                if (q > begin && same_spans(spans, spans - 2 * p_->spans.count, p_->spans.count)) continue;
                join(all_[b], spans);
            }
    }

    int64_t rows() const { return rows_; }

    // The cost of computing them, in keys times vectors of `width` rows.
    int64_t cost(int64_t width) const {
        int64_t keys = 0;
        for (const auto& runs : all_)
            for (const Range& run : runs) keys += run.end - run.begin + kRunCost;
        return ceil_div(rows_, width) * keys;
    }

private:
    // Both are sorted.
    void join(std::vector<Range>& runs, const int32_t* spans) {
        joined_.clear();
        const auto put = [&](Range x) {
            if (x.empty()) return;
            if (!joined_.empty() && x.begin <= joined_.back().end) joined_.back().end = max(joined_.back().end, x.end);
            else joined_.push_back(x);
        };
        size_t i = 0;
        for (int64_t s = 0; s < p_->spans.count; ++s) {
            const Range span{spans[2 * s], spans[2 * s + 1]};
            while (i < runs.size() && runs[i].begin <= span.begin) put(runs[i++]);
            put(span);
        }
        while (i < runs.size()) put(runs[i++]);
        std::swap(runs, joined_);
    }

    const Problem* p_;
    std::vector<std::vector<Range>> all_;
    std::vector<Range> joined_;
    int64_t rows_ = 0;
};

// The first queries whose keys differ from those of the query before in a vector's width or more, and `end`.
inline std::vector<int64_t> jumps(const Problem& p, int64_t begin, int64_t end, int64_t width) {
    std::vector<int64_t> found;
    const int64_t count = p.spans.count, batches = p.spans.batch ? p.B : 1;
    for (int64_t q = begin + 1; q < end; ++q)
        for (int64_t b = 0; b < batches; ++b) {
            const int32_t *now = spans_of(p, b, q), *before = now - 2 * count;
            if (moved_keys(now, before, count) < width || different_keys(now, before, count) < width) continue;
            found.push_back(q);
            break;
        }
    found.push_back(end);
    return found;
}

// How many of so many rows the next tile takes: three vectors, but two of four, so that none is left alone.
template <class C> int64_t rows_of_tile(int64_t rows) {
    const int64_t vectors = ceil_div(rows, kWidth<C>);
    return min(rows, (vectors == 4 ? 2 : 3) * kWidth<C>);
}

// The first rows of the tiles of the queries [begin, end), counted from `begin`, and their end; empty where tiles of three
// vectors are as good.
template <class C> std::vector<int64_t> tile_starts(const Problem& p, int64_t begin, int64_t end) {
    constexpr int64_t W = kWidth<C>, lanes = kMaxLanes<C>;
    // Where every row has one span, products are left out vector by vector already (edges.h).
    if (!p.spans.data || p.spans.count == 1 || end - begin <= lanes) return {};
    const std::vector<int64_t> ends = jumps(p, begin, end, W);
    if (ends.size() == 1) return {};
    std::vector<int64_t> starts{0};
    TileKeys tile(p), piece(p), both(p);
    int64_t cost = 0, first = begin, last = begin;  // of all tiles before; the queries of the present one
    for (const int64_t jump : ends)
        while (last < jump) {
            const int64_t next = last + rows_of_tile<C>(jump - last);
            piece.clear(), piece.add(last, next);
            both = tile, both.add(last, next);
            const bool joins = both.rows() <= lanes && both.cost(W) <= tile.cost(W) + piece.cost(W);
            if (!joins && last > first) cost += tile.cost(W), starts.push_back(last - begin), first = last;
            std::swap(tile, joins ? both : piece);
            last = next;
        }
    cost += tile.cost(W);
    starts.push_back(end - begin);
    int64_t plain = 0;
    for (int64_t q = begin; q < end; q += lanes) {
        tile.clear(), tile.add(q, min(q + lanes, end));
        plain += tile.cost(W);
    }
    return 20 * cost < 19 * plain ? starts : std::vector<int64_t>{};
}

// Keeps the rows whose spans differ from those of the row before: for questions of spans they stand for all.
inline int keep_distinct(const Row* rows, int n, int64_t spans, Row* kept) {
    int count = 0;
    for (int r = 0; r < n; ++r)
        if (!r || (rows[r].spans && !same_spans(rows[r].spans, rows[r - 1].spans, spans))) kept[count++] = rows[r];
    return count;
}

}  // namespace limelight::LIMELIGHT_ISA
