// Sums of a block along its diagonals.
#pragma once

#include <algorithm>

#include "logits.h"

namespace limelight::LIMELIGHT_ISA {

// A row of the block may have a key of the block within the radius.
template <class C> bool comes_near(const Block<C>& b, int64_t radius) {
    int64_t first = b.first, last = b.first + b.n - 1;
    if (b.p.places.keys) {
        const auto ends = std::minmax_element(b.p.places.keys + first, b.p.places.keys + last + 1);
        first = *ends.first, last = *ends.second;
    }
    for (int r = 0; r < b.row_count; ++r) {
        const int64_t position = true_position(b.p, b.rows[r]);
        if (position >= first - radius && position <= last + radius) return true;
    }
    return false;
}

// Sums over the diagonals, position − key. Every key's lanes are laid one place further right than those of
// the key before, between margins of zeros, so that a diagonal is a column.
template <class C> void add_diagonals(const Block<C>& b, const C* x, C unit, C* offsets, C* panel) {
    constexpr int W = kWidth<C>;
    const int64_t all = diagonals(b.p), step = b.step();
    if (!step) {
        for (int r = 0; r < b.row_count; ++r) {
            const Row& row = b.rows[r];
            C* to = offsets + row.head * all;
            for (int64_t j = 0; j < b.n; ++j) to[diagonal(b.p, row, b.first + j)] += x[j * b.lanes + r] * unit;
        }
        return;
    }
    const int64_t pitch = b.lanes + 2 * W;
    for (int64_t j = 0; j < b.n; ++j) {
        C* row = panel + j * pitch;
        store(row, Vec<C>{});
        for (int r = 0; r < b.lanes; r += W) store(row + W + r, load(x + j * b.lanes + r));
        store(row + W + b.lanes, Vec<C>{});
    }
    // Column c holds lane c − (n − 1) + j of key j: c − (n − 1) steps from the diagonal of lane 0 and the first key.
    const int64_t columns = b.n + b.lanes - 1;
    C* to = offsets + b.rows[0].head * all + diagonal(b.p, b.rows[0], b.first) - (b.n - 1) * step;
    for (int64_t c = 0; c < columns; c += W) {
        Vec<C> total{};
        const int64_t begin = max(0, b.n - 1 - c - (W - 1)), end = min(b.n, b.n - 1 - c + b.lanes);
        for (int64_t j = begin; j < end; ++j) total += load(panel + j * pitch + W + c - (b.n - 1) + j);
        for (int i = 0; i < min(W, columns - c); ++i) to[(c + i) * step] += total[i] * unit;
    }
}

// Elements of `panel` that this needs.
template <class C> constexpr int64_t kDiagonalPanel = kBlock * (kMaxLanes<C> + 2 * kWidth<C>);

}  // namespace limelight::LIMELIGHT_ISA
