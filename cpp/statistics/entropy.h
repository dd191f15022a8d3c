// entropy: −Σ a log a of each row.   outputs: {entropy (B, Hq, N)}
#pragma once

#include "column_statistic.h"
#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> class Entropy : public RowStatistic<C> {
public:
    explicit Entropy(const Request& request) : out_(reinterpret_cast<C*>(request.outputs.at(0))) {}

    bool needs_moment() const override { return true; }
    void start(const QueryTile<C>&, int64_t, int64_t) override {}
    size_t state_bytes() const override { return 0; }
    void save(int64_t, int, char*) override {}
    void shrink(char*, C) const override {}
    void join(char*, const char*, C) const override {}

    // log a = (logit − m) log 2 − above, where `above` is how far the log-sum-exp lies above the largest logit.
    void write(int64_t row, char*, const RowSums<C>& sums, const RowResult<C>& result) const override {
        const C above = (result.m - sums.m + std::log2(result.l)) / kLog2e<C>;
        const C entropy = result.factor * (sums.l * above - sums.moment / kLog2e<C>);
        out_[row] = result.empty || result.factor == C(0) ? C(0) : entropy;
    }

private:
    C* out_;
};

// The same from the weights themselves, in a pass for columns.
template <class C> class EntropyOfWeights : public SumOfWeights<C> {
public:
    using SumOfWeights<C>::SumOfWeights;

    C* log_moments(int64_t i) override { return this->lanes(i); }  // Σ a log₂ a
    void add(const WeightBlock<C>&) override {}
    C finished(C sum) const override { return -sum / kLog2e<C>; }
};

}  // namespace limelight::LIMELIGHT_ISA
