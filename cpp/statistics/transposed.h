// transposed: Aᵀ u, from queries back to keys.
// outputs: {Aᵀ u (B, Hq, M, width)}, numbers: {width, 1 where all of u is finite}, rows: u (B, Hq, N, width) in any type
#pragma once

#include "../product.h"
#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> class Transposed : public ColumnStatistic<C> {
public:
    Transposed(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : p_(p),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          u_(request.rows),
          width_(int64_t(request.numbers.at(0))),
          all_finite_(request.numbers.at(1) != 0),
          pitch_(whole_vectors<C>(width_)) {
        const int64_t tiles = c.tiles_per_task * c.heads_abreast;
        rows_ = arena.take<C>(tiles * kMaxLanes<C> * pitch_);
        finite_ = arena.take<bool>(tiles);
    }

    bool needs_every_key() const override { return !all_finite_; }

    void start(const QueryTile<C>& x, int64_t batch, int64_t i) override {
        C* u = rows_ + i * kMaxLanes<C> * pitch_;
        gather(u_, batch, x.rows, x.row_count, x.row_count, width_, C(1), u, pitch_);
        finite_[i] =
            all_finite_ || all_finite<C>({reinterpret_cast<const char*>(u), kType<C>, pitch_}, x.row_count, width_);
    }

    void add(const WeightBlock<C>& w) override {
        const Block<C>& b = w.block;
        const C* u = rows_ + w.tile * kMaxLanes<C> * pitch_;
        for_each_head(b, [&](int from, int end, int64_t head) {
            C* to = out_ + ((b.batch * p_.Hq + head) * p_.M + b.first) * width_;
            const Term<C> term{b.s + from, b.lanes, u + from * pitch_, pitch_, end - from};
            if (finite_[w.tile] || w.unmasked) return product(&term, 1, b.n, width_, to, width_);
            // What is not finite must not reach keys that the mask forbids, though its weight there is 0. Rare: no vectors.
            for (int64_t j = 0; j < b.n; ++j)
                for (int r = from; r < end; ++r)
                    for (int64_t d = 0; d < width_ && allows(p_, b.rows[r], b.batch, b.first + j); ++d)
                        to[j * width_ + d] += b.s[j * b.lanes + r] * u[r * pitch_ + d];
        });
    }

private:
    const Problem& p_;
    C* out_;
    Rows u_;
    int64_t width_;
    bool all_finite_;
    int64_t pitch_;
    C* rows_;       // (tile, lane, pitch)
    bool* finite_;  // by tile
};

}  // namespace limelight::LIMELIGHT_ISA
