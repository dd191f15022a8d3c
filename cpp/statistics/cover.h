// cover: how many of its largest weights a row needs to reach a share of its weight.
// outputs: {counts (B, Hq, N) in int64}, numbers: {share}
#pragma once

#include <cmath>

#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// The logits of all keys of a tile are kept, O(M). The smallest weight that is needed is the largest t with
// Σ (e where e ≥ t) ≥ share · Σ e. It is found by halving the interval of its bit patterns, which are ordered as the
// numbers are, for all lanes at once.
template <class C> class Cover : public RowStatistic<C> {
public:
    Cover(const Problem& p, const Request& request, Arena& arena)
        : out_(reinterpret_cast<int64_t*>(request.outputs.at(0))),
          share_(C(request.numbers.at(0))),
          e_(arena.take<C>(p.M * kMaxLanes<C>)),
          counts_(arena.take<int64_t>(kMaxLanes<C>)) {}

    bool needs_whole_rows() const override { return true; }

    void start(const QueryTile<C>& x, int64_t, int64_t) override { tile_ = &x, keys_ = 0; }

    void add_logits(const QueryTile<C>&, const Block<C>& b, int64_t) override {
        std::memcpy(e_ + keys_ * b.lanes, b.s, b.n * b.lanes * sizeof(C));
        keys_ += b.n;
    }

    size_t state_bytes() const override { return sizeof(int64_t); }
    void save(int64_t, int r, char* state) override {
        for (int v = 0; r == 0 && v < tile_->vectors; ++v) count(v * kWidth<C>);
        std::memcpy(state, counts_ + r, sizeof(int64_t));
    }
    void shrink(char*, C) const override {}
    void join(char*, const char*, C) const override {}
    void write(int64_t row, char* state, const RowSums<C>&, const RowResult<C>&) const override {
        std::memcpy(out_ + row, state, sizeof(int64_t));
    }

private:
    using Bits = typename Simd<C>::Bit;
    struct Sums {
        Vec<C> weight;
        IntVec<C> count;
    };

    // Σ e and the number of those keys whose e is at least (or, if strict, above) the limit, in blocks.
    template <bool strict> Sums sums(int lane, Vec<C> limit) const {
        const int lanes = tile_->lanes();
        Sums all{};
        for (int64_t begin = 0; begin < keys_; begin += kBlock) {
            Vec<C> block{};
            for (int64_t j = begin; j < min(begin + kBlock, keys_); ++j) {
                const Vec<C> e = load(e_ + j * lanes + lane);
                const IntVec<C> in = strict ? e > limit : e >= limit;
                block += (Vec<C>)(in & (IntVec<C>)e);
                all.count -= in;
            }
            all.weight += block;
        }
        return all;
    }

    void count(int lane) {
        const int lanes = tile_->lanes();
        const Vec<C> top = load(tile_->m + lane), m = top == -kInf<C> ? Vec<C>{} : top;
        for (int64_t j = 0; j < keys_; ++j) store(e_ + j * lanes + lane, exp2(load(e_ + j * lanes + lane) - m));
        const Vec<C> target = sums<false>(lane, Vec<C>{}).weight * share_;
        // Σ (e where e ≥ low) reaches the target, Σ (e where e ≥ high) does not.
        IntVec<C> low{}, high = (IntVec<C>)broadcast(C(1)) + 1;
        for (size_t step = 0; step < 8 * sizeof(C); ++step) {
            const IntVec<C> middle = low + ((high - low) >> 1);
            const IntVec<C> reached = sums<false>(lane, (Vec<C>)middle).weight >= target;
            low = reached ? middle : low;
            high = reached ? high : middle;
        }
        const Vec<C> smallest = (Vec<C>)low;
        const Sums above = sums<true>(lane, smallest), with = sums<false>(lane, smallest);
        for (int i = 0; i < kWidth<C>; ++i) {
            const double missing = double(target[i]) - double(above.weight[i]);
            const double more = smallest[i] > C(0) ? std::ceil(missing / double(smallest[i])) : 0.0;
            const int64_t ties = with.count[i] - above.count[i];
            const bool empty = !(with.weight[i] > C(0));
            counts_[lane + i] = empty ? 0 : above.count[i] + min(max(int64_t(more), smallest[i] > C(0)), ties);
        }
    }

    int64_t* out_;
    C share_;
    C* e_;  // (key, lane): logits, and then e
    int64_t* counts_;
    const QueryTile<C>* tile_ = nullptr;
    int64_t keys_ = 0;  // that have been met
};

}  // namespace limelight::LIMELIGHT_ISA
