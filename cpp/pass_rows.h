// Rows of queries, keys and outputs in the order of a pass (limelight/backends/passes.py), on the threads of the kernels.
#pragma once

#include "problem.h"

namespace limelight {

// Copies the rows places[0], places[1], … of x (B, heads, any, width) to out (B, heads, count, width), contiguous.
struct TakenRows {
    int64_t B, heads, width;
    Rows x;
    const int64_t* places;
    int64_t count;
    char* out;
};

void take_rows(const TakenRows& t, int threads);

// Joins the softmax of rows over other keys to that in `out` and `lse` (B, heads, rows), in place: row i of `other` and
// `other_lse` (B, heads, count) belongs to row places[i], or i where that is null. All are floats, or all doubles.
struct MergedRows {
    int64_t B, heads, width;
    Rows out, other;
    char* lse;
    const char* other_lse;
    int64_t rows, count;
    const int64_t* places;
};

void merge_rows(const MergedRows& m, int threads);

}  // namespace limelight
