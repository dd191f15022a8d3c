// received: Σ a of each column.   outputs: {received (B, Hq, M)}
#pragma once

#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// A task owns its keys. Where a tile has rows of one head only, its lanes are added vector by vector while the weights
// are made, and folded at the end of the task.
template <class C> class Received : public ColumnStatistic<C> {
public:
    Received(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : p_(p),
          c_(c),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          vectors_(c.grouped ? nullptr : arena.take<C>(c.heads_abreast * c.chunk * kWidth<C>)) {}

    void start_task(const Task& t, char*) override {
        begin_ = t.begin, keys_ = t.end - t.begin;
        if (!c_.grouped) std::memset(vectors_, 0, c_.heads_abreast * keys_ * kWidth<C> * sizeof(C));
    }

    C* column_sums(int64_t tile, const Block<C>& b) override {
        return c_.grouped ? nullptr : vectors(c_.heads_abreast > 1 ? tile : 0) + (b.first - begin_) * kWidth<C>;
    }

    void add(const WeightBlock<C>& w) override {
        if (w.summed) return;
        const Block<C>& b = w.block;
        for_each_head(b, [&](int from, int end, int64_t head) {
            C* to = out_ + (b.batch * p_.Hq + head) * p_.M + b.first;
            for (int64_t j = 0; j < b.n; ++j) {
                C total = 0;
                for (int r = from; r < end; ++r) total += b.s[j * b.lanes + r];
                to[j] += total;
            }
        });
    }

    void finish_task(const Task& t) override {
        for (int64_t side = 0; !c_.grouped && side < c_.heads_abreast; ++side) {
            C* to = out_ + (t.batch * p_.Hq + t.unit + side) * p_.M + t.begin;
            for (int64_t j = 0; j < keys_; ++j) to[j] += sum<C>(load(vectors(side) + j * kWidth<C>));
        }
    }

private:
    C* vectors(int64_t side) const { return vectors_ + side * keys_ * kWidth<C>; }

    const Problem& p_;
    const Partition& c_;
    C *out_, *vectors_;
    int64_t begin_ = 0, keys_ = 0;
};

}  // namespace limelight::LIMELIGHT_ISA
