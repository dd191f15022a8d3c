// Sums of a block along its diagonals.
#pragma once

#include "logits.h"

namespace limelight::LIMELIGHT_ISA {

// Sums over the diagonals, position − key. Every key's lanes are laid one place further right than those of
// the key before, between margins of zeros, so that a diagonal is a column.
template <class C> void add_diagonals(const Block<C>& b, const C* x, C unit, C* offsets, C* panel) {
    constexpr int W = kWidth<C>;
    const int64_t all = b.p.N + b.p.M - 1;
    if (!b.consecutive()) {
        for (int r = 0; r < b.row_count; ++r) {
            const Row& row = b.rows[r];
            C* to = offsets + row.head * all + b.p.N - 1 - b.p.shift + row.position - b.first;
            for (int64_t j = 0; j < b.n; ++j) to[-j] += x[j * b.lanes + r] * unit;
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
    // Column c holds lane c − (n − 1) + j of key j: that is, position − key = position of lane 0 − first + c − (n − 1).
    const int64_t columns = b.n + b.lanes - 1;
    C* to = offsets + b.rows[0].head * all + b.p.N - 1 - b.p.shift + b.rows[0].position - b.first - (b.n - 1);
    for (int64_t c = 0; c < columns; c += W) {
        Vec<C> total{};
        const int64_t begin = max(0, b.n - 1 - c - (W - 1)), end = min(b.n, b.n - 1 - c + b.lanes);
        for (int64_t j = begin; j < end; ++j) total += load(panel + j * pitch + W + c - (b.n - 1) + j);
        for (int i = 0; i < min(W, columns - c); ++i) to[c + i] += total[i] * unit;
    }
}

// Elements of `panel` that this needs.
template <class C> constexpr int64_t kDiagonalPanel = kBlock * (kMaxLanes<C> + 2 * kWidth<C>);

}  // namespace limelight::LIMELIGHT_ISA
