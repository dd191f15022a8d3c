// Where the queries and keys of a problem stand in the matrix from which they were chosen (Problem::places).
#pragma once

#include "spans.h"

namespace limelight::LIMELIGHT_ISA {

// The query or key of the whole matrix that a query or key of the problem is.
LIMELIGHT_INLINE int64_t query_place(const Problem& p, int64_t query) {
    return p.places.queries ? p.places.queries[query] : query;
}
LIMELIGHT_INLINE int64_t key_place(const Problem& p, int64_t key) { return p.places.keys ? p.places.keys[key] : key; }

// The position of a row among the keys of the whole matrix.
inline int64_t true_position(const Problem& p, const Row& row) {
    return p.places.queries ? p.places.M - p.places.N + p.places.queries[row.query] : row.position;
}

// The number of diagonals of the whole matrix, and that of a row and a key: position − key, from −(N − 1) up.
inline int64_t diagonals(const Problem& p) { return (p.places.queries ? p.places.N + p.places.M : p.N + p.M) - 1; }
inline int64_t diagonal(const Problem& p, const Row& row, int64_t key) {
    return (p.places.queries ? p.places.M : p.M) - 1 + query_place(p, row.query) - key_place(p, key);
}

// The step by which both the places of some rows and those of n keys advance, so that a diagonal of the block is one of
// the matrix: 1 in the order of the matrix; 0 where there is no such step, or where rows do not fill their lanes.
inline int64_t common_step(const Problem& p, const Row* rows, int row_count, int lanes, int64_t first, int64_t n) {
    if (!are_consecutive(rows, row_count, lanes)) return 0;
    if (!p.places.queries) return 1;
    const int64_t *queries = p.places.queries + rows[0].query, *keys = p.places.keys + first;
    const int64_t step = lanes > 1 ? queries[1] - queries[0] : n > 1 ? keys[1] - keys[0] : 1;
    for (int r = 1; r < lanes; ++r)
        if (queries[r] - queries[r - 1] != step) return 0;
    for (int64_t j = 1; j < n; ++j)
        if (keys[j] - keys[j - 1] != step) return 0;
    return step;
}

}  // namespace limelight::LIMELIGHT_ISA
