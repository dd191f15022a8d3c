// distance: Σ a |position − key| of each row.   outputs: {distance (B, Hq, N)}
#pragma once

#include "column_statistic.h"
#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// The distances of every lane and every key from the first key of a block.
template <class C> struct Distances {
    alignas(64) C of_lane[kMaxLanes<C>];
    C of_key[kBlock];

    explicit Distances(const Block<C>& b) {
        const int64_t first = key_place(b.p, b.first);
        for (int r = 0; r < b.lanes; ++r) of_lane[r] = C(true_position(b.p, b.rows[min(r, b.row_count - 1)]) - first);
        for (int64_t j = 0; j < b.n; ++j) of_key[j] = C(key_place(b.p, b.first + j) - first);
    }
    LIMELIGHT_INLINE Vec<C> at(int lane, int64_t key) const { return magnitude<C>(load(of_lane + lane) - of_key[key]); }
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
