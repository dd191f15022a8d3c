// The keys that the rows of tiles may attend to.
#pragma once

#include "tiling.h"

namespace limelight::LIMELIGHT_ISA {

struct SeenKeys {
    SpanBounds bounds;
    int64_t spans;                  // of each row
    const Row* distinct = nullptr;  // where `bounds` are not one run: the rows with spans of their own
    int distinct_count = 0;

    // As in spans.h.
    Range next_run(int64_t from, int64_t end) const {
        if (bounds.one_run) return bounds.run(from, end);
        return LIMELIGHT_ISA::next_run(distinct, distinct_count, spans, from, end);
    }
    Visible visible(Range block) const {
        if (bounds.one_run) return bounds.visible(block);
        return LIMELIGHT_ISA::visible(distinct, distinct_count, spans, block);
    }
};

// The keys that the rows of all tiles may attend to. Each tile knows the bounds of its own, and learns of its distinct rows
// where one is not one run with the others; `kept` has room for the rows of all.
template <class Tile> SeenKeys join_seen_keys(Tile* tiles, int64_t count, Row* kept) {
    SeenKeys all = tiles[0].seen;
    for (int64_t i = 1; i < count; ++i) all.bounds.join(tiles[i].seen.bounds);
    all.distinct = kept;
    for (int64_t i = 0; i < count && !all.bounds.one_run; ++i) {
        SeenKeys& own = tiles[i].seen;
        Row* distinct = kept + all.distinct_count;
        own.distinct = distinct;
        own.distinct_count = keep_distinct(tiles[i].rows, tiles[i].row_count, own.spans, distinct);
        all.distinct_count += own.distinct_count;
    }
    return all;
}

}  // namespace limelight::LIMELIGHT_ISA
