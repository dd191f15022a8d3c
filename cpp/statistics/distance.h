// distance: Σ a |position − key| of each row.   outputs: {distance (B, Hq, N)}
#pragma once

#include "column_statistic.h"
#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// position − first key of the block, for every lane.
template <class C> struct Distances {
    alignas(64) C from_first[kMaxLanes<C>];

    explicit Distances(const Block<C>& b) {
        for (int r = 0; r < b.lanes; ++r) from_first[r] = C(b.rows[min(r, b.row_count - 1)].position - b.first);
    }
    LIMELIGHT_INLINE Vec<C> at(int lane, int64_t key) const { return magnitude<C>(load(from_first + lane) - C(key)); }
};

template <class C> class Distance : public RowSum<C> {
public:
    using RowSum<C>::RowSum;

    void add_weights(const QueryTile<C>&, const Block<C>& b, const C* decay, int64_t i) override {
        const Distances<C> distances(b);
        this->add(b, decay, i, [&](int r, int64_t j, Vec<C> e) { return e * distances.at(r, j); });
    }
};

// The same from the weights themselves, in a pass for columns.
template <class C> class DistanceOfWeights : public SumOfWeights<C> {
public:
    using SumOfWeights<C>::SumOfWeights;

    void add(const WeightBlock<C>& w) override {
        constexpr int W = kWidth<C>;
        const Block<C>& b = w.block;
        const Distances<C> distances(b);
        C* sum = this->lanes(w.tile);
        for (int r = 0; r < b.lanes; r += W) {
            Vec<C> total{};
            for (int64_t j = 0; j < b.n; ++j) total += load(b.s + j * b.lanes + r) * distances.at(r, j);
            store(sum + r, load(sum + r) + total);
        }
    }
    C finished(C sum) const override { return sum; }
};

}  // namespace limelight::LIMELIGHT_ISA
