// mass: Σ a of each row over the keys that another mask allows.   outputs: {mass (B, Hq, N)}, spans and mask: that mask
#pragma once

#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> class Mass : public RowSum<C> {
public:
    Mass(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : RowSum<C>(request, c, arena),
          other_(p) {
        other_.spans = request.spans;
        other_.mask = request.mask;
        rows_ = arena.take<Row>(c.tiles_per_task * kMaxLanes<C>);
        copy_ = arena.take<C>(kBlock * kMaxLanes<C>);
        scratch_ = arena.take<C>(logits_scratch(other_, kMaxLanes<C>));
    }

    void start(const QueryTile<C>& x, int64_t batch, int64_t i) override {
        RowSum<C>::start(x, batch, i);
        for (int r = 0; r < x.row_count; ++r)
            rows_[i * kMaxLanes<C> + r] = row_at(other_, batch, x.rows[r].head, x.rows[r].query);
    }

    void add_weights(const QueryTile<C>&, const Block<C>& b, const C* decay, int64_t i) override {
        const Row* rows = rows_ + i * kMaxLanes<C>;
        const Visible seen = visible(rows, b.row_count, other_.spans.count, {b.first, b.first + b.n});
        const int64_t n = max(seen.keys.end - seen.keys.begin, 0);
        Block<C> part{other_, rows, b.row_count, b.lanes, b.batch, seen.keys.begin, n, b.s};
        if (n) part.s += (seen.keys.begin - b.first) * b.lanes;
        if (n && (other_.mask.data || !seen.partial.empty())) {
            std::memcpy(copy_, part.s, n * part.lanes * sizeof(C));
            part.s = copy_;
            if (other_.mask.data) mask_dense(part, scratch_);
            if (!seen.partial.empty()) mask_spans(part, seen.partial, scratch_);
        }
        // What is masked is −∞, and no e is below 0.
        this->add(part, decay, i, [](int, int64_t, Vec<C> e) { return larger(e, Vec<C>{}); });
    }

private:
    Problem other_;  // the problem with the other mask
    Row* rows_;      // (tile, lane), with the spans of the other mask
    C *copy_, *scratch_;
};

}  // namespace limelight::LIMELIGHT_ISA
