// max: the largest weight of each row.   outputs: {max (B, Hq, N)}
#pragma once

#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// The largest logit is m, whose e is 1, so its weight is 1 / Σ e.
template <class C> class Max : public RowStatistic<C> {
public:
    explicit Max(const Request& request) : out_(reinterpret_cast<C*>(request.outputs.at(0))) {}

    void start(const QueryTile<C>&, int64_t, int64_t) override {}
    size_t state_bytes() const override { return 0; }
    void save(int64_t, int, char*) override {}
    void shrink(char*, C) const override {}
    void join(char*, const char*, C) const override {}
    void write(int64_t row, char*, const RowSums<C>&, const RowResult<C>& result) const override {
        out_[row] = result.factor;
    }

private:
    C* out_;
};

}  // namespace limelight::LIMELIGHT_ISA
