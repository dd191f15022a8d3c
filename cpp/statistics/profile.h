// profile: Σ a on each diagonal, by position − key from −(N − 1) up.
// outputs: {sums (B, Hq, N + M − 1)}, numbers: {radius}; diagonals further out than the radius are not complete
#pragma once

#include "../diagonals.h"
#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> class Profile : public ColumnStatistic<C> {
public:
    Profile(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : p_(p),
          chunks_(c.chunks),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          radius_(int64_t(request.numbers.at(0))),
          panel_(arena.take<C>(kDiagonalPanel<C>)) {}

    size_t part_bytes() const override { return p_.Hq * diagonals(p_) * sizeof(C); }
    void start_task(const Task&, char* part) override { part_ = reinterpret_cast<C*>(part); }

    bool wants(const Block<C>& b) const override { return comes_near(b, radius_); }

    void add(const WeightBlock<C>& w) override { add_diagonals(w.block, w.block.s, C(1), part_, panel_); }

    void join(int64_t batch, const char* parts) override {
        const int64_t n = p_.Hq * diagonals(p_);
        for (int64_t i = 0; i < chunks_ * n; ++i) out_[batch * n + i % n] += reinterpret_cast<const C*>(parts)[i];
    }

private:
    const Problem& p_;
    int64_t chunks_;
    C* out_;
    int64_t radius_;
    C *panel_, *part_ = nullptr;
};

}  // namespace limelight::LIMELIGHT_ISA
