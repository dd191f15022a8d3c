// The gradients of statistics, each as a term that it adds to dP, the gradient of the weights.
//
//   entropy, −Σ a log a:   −(log a + 1) g[row]         received, Σ of a column:    g[key]
//   distance, Σ a |d|:     |position − key| g[row]     profile, Σ of a diagonal:   g[position − key]
//   mass, Σ a of a mask:   g[row] where it allows      pool, means of cells:       Σ g[cell] of the cells around a
//   top, the largest a:    g[row, n] at the n-th key
//
// A request has the same name, numbers and mask as in statistics.h, and its output holds g. For a picture, whose
// crop its numbers name, g is divided by the number of weights in a cell. The second output of top are the keys.
#pragma once

#include <stdexcept>

#include "../gradient_tile.h"
#include "cells.h"
#include "distance.h"

namespace limelight::LIMELIGHT_ISA {

// A term that is a multiple of a number g for each row.
template <class C> class RowTerm : public GradientTerm<C> {
public:
    RowTerm(const Problem& p, const Request& request, Arena& arena)
        : p_(p),
          g_(reinterpret_cast<const C*>(request.outputs.at(0))),
          lanes_(arena.take<C>(kGradientTiles<C> * kMaxLanes<C>)) {}

    void start(const GradientTile<C>& x, int64_t batch, int tile) override {
        for (int r = 0; r < x.lanes(); ++r) {
            const Row& row = x.rows[min(r, x.row_count - 1)];
            lanes_[tile * kMaxLanes<C> + r] = g_[(batch * p_.Hq + row.head) * p_.N + row.query];
        }
    }

protected:
    const C* lanes(int tile) const { return lanes_ + tile * kMaxLanes<C>; }

    // dp += g · factor(first lane, key of the block, place in the block)
    template <class Factor> void add_multiple(int tile, const Block<C>& b, C* dp, Factor&& factor) const {
        for (int r = 0; r < b.lanes; r += kWidth<C>) {
            const Vec<C> g = load(lanes(tile) + r);
            for (int64_t j = 0; j < b.n; ++j) {
                C* to = dp + j * b.lanes + r;
                store(to, load(to) + g * factor(r, j, j * b.lanes + r));
            }
        }
    }

    const Problem& p_;

private:
    const C* g_;
    C* lanes_;
};

template <class C> class EntropyTerm : public RowTerm<C> {
public:
    using RowTerm<C>::RowTerm;

    void add(const GradientTile<C>& x, int tile, const Block<C>& b, C* dp) override {
        this->add_multiple(tile, b, dp, [&](int r, int64_t, int64_t i) {
            return (load(x.m + r) - load(b.s + i) + load(x.l + r)) * kLog2<C> - C(1);
        });
    }
};

template <class C> class DistanceTerm : public RowTerm<C> {
public:
    using RowTerm<C>::RowTerm;

    void add(const GradientTile<C>&, int tile, const Block<C>& b, C* dp) override {
        const Distances<C> distances(b);
        this->add_multiple(tile, b, dp, [&](int r, int64_t j, int64_t) { return distances.at(r, j); });
    }
};

template <class C> class MassTerm : public RowTerm<C> {
public:
    MassTerm(const Problem& p, const Request& request, Arena& arena) : RowTerm<C>(p, request, arena), other_(p) {
        other_.spans = request.spans;
        other_.mask = request.mask;
        rows_ = arena.take<Row>(kGradientTiles<C> * kMaxLanes<C>);
        allowed_ = arena.take<C>(kBlock * kMaxLanes<C>);
        scratch_ = arena.take<C>(logits_scratch(other_, kMaxLanes<C>));
    }

    void start(const GradientTile<C>& x, int64_t batch, int tile) override {
        RowTerm<C>::start(x, batch, tile);
        for (int r = 0; r < x.row_count; ++r)
            rows_[tile * kMaxLanes<C> + r] = row_at(other_, batch, x.rows[r].head, x.rows[r].query);
    }

    void add(const GradientTile<C>&, int tile, const Block<C>& b, C* dp) override {
        const Row* rows = rows_ + tile * kMaxLanes<C>;
        const Visible seen = visible(rows, b.row_count, other_.spans.count, {b.first, b.first + b.n});
        if (seen.keys.empty()) return;
        const Block<C> part{
            other_, rows, b.row_count, b.lanes, b.batch, seen.keys.begin, seen.keys.end - seen.keys.begin, allowed_};
        dp += (seen.keys.begin - b.first) * b.lanes;
        if (!other_.mask.data && seen.partial.empty())
            return this->add_multiple(tile, part, dp, [](int, int64_t, int64_t) { return C(1); });
        std::fill_n(allowed_, part.n * part.lanes, C(1));
        if (other_.mask.data) mask_dense(part, scratch_);
        if (!seen.partial.empty()) mask_spans(part, seen.partial, scratch_);
        // What is masked is −∞.
        this->add_multiple(tile, part, dp,
                           [&](int, int64_t, int64_t i) { return larger(load(allowed_ + i), Vec<C>{}); });
    }

private:
    Problem other_;  // the problem with the other mask
    Row* rows_;      // (tile, lane), with the spans of the other mask
    C *allowed_, *scratch_;
};

// A term that follows from head, query and key, through a table of g.
template <class C> class TableTerm : public GradientTerm<C> {
public:
    TableTerm(const Problem& p, const Request& request, Arena&)
        : p_(p),
          table_(reinterpret_cast<const C*>(request.outputs.at(0))) {}

    bool needs_sum() const override { return true; }

protected:
    // Every row of the block belongs to one head.
    static bool one_head(const Block<C>& b) { return b.rows[0].head == b.rows[b.row_count - 1].head; }
    // The part of a table with `width` numbers for each head.
    const C* of_head(const Block<C>& b, int64_t head, int64_t width) const {
        return table_ + (b.batch * p_.Hq + head) * width;
    }

    const Problem& p_;

private:
    const C* table_;
};

template <class C> class ReceivedTerm : public TableTerm<C> {
public:
    using TableTerm<C>::TableTerm;

    void add(const GradientTile<C>&, int, const Block<C>& b, C* dp) override {
        if (this->one_head(b)) {
            const C* g = this->of_head(b, b.rows[0].head, this->p_.M) + b.first;
            for (int64_t j = 0; j < b.n; ++j)
                for (int r = 0; r < b.lanes; r += kWidth<C>) {
                    C* to = dp + j * b.lanes + r;
                    store(to, load(to) + broadcast(g[j]));
                }
            return;
        }
        for (int r = 0; r < b.row_count; ++r) {
            const C* g = this->of_head(b, b.rows[r].head, this->p_.M) + b.first;
            for (int64_t j = 0; j < b.n; ++j) dp[j * b.lanes + r] += g[j];
        }
    }
};

template <class C> class ProfileTerm : public TableTerm<C> {
public:
    ProfileTerm(const Problem& p, const Request& request, Arena& arena)
        : TableTerm<C>(p, request, arena),
          radius_(int64_t(request.numbers.at(0))) {}

    bool wants(const Block<C>& b) const override { return comes_near(b, radius_); }

    void add(const GradientTile<C>&, int, const Block<C>& b, C* dp) override {
        if (wants(b)) add_by_diagonal(b, this->of_head(b, 0, diagonals(this->p_)), dp);
    }

private:
    int64_t radius_;
};

template <class C> class PoolTerm : public TableTerm<C> {
public:
    // numbers: rows and columns of cells, the crop that they show, and the side of a cell or 0
    PoolTerm(const Problem& p, const Request& request, Arena& arena)
        : TableTerm<C>(p, request, arena),
          queries_{at(request, 2), at(request, 3)},
          keys_{at(request, 4), at(request, 5)},
          rows_(Cells::over(queries_.end - queries_.begin, at(request, 0), at(request, 6))),
          cols_(Cells::over(keys_.end - keys_.begin, at(request, 1), at(request, 6))) {}

    bool wants(const Block<C>& b) const override {
        if (!b.p.places.keys && (b.first >= keys_.end || b.first + b.n <= keys_.begin)) return false;
        for (int r = 0; r < b.row_count; ++r)
            if (queries_.has(query_place(b.p, b.rows[r].query))) return true;
        return false;
    }

    void add(const GradientTile<C>&, int, const Block<C>& b, C* dp) override {
        if (!wants(b)) return;
        alignas(64) C g[kMaxLanes<C>];
        const auto cells_of = [&](int64_t j) { return cols_.around(key_place(b.p, b.first + j) - keys_.begin); };
        for (int64_t j = 0, next; j < b.n; j = next) {  // keys of the same cells at a time
            const Cells::Run cells = cells_of(j);
            for (next = j + 1; next < b.n && cells_of(next) == cells;) ++next;
            if (cells.empty()) continue;
            gather_cells(b, cells, g);
            for (int64_t i = j * b.lanes; i < next * b.lanes; i += kWidth<C>)
                store(dp + i, load(dp + i) + load(g + i % b.lanes));
        }
    }

private:
    static int64_t at(const Request& request, size_t i) { return int64_t(request.numbers.at(i)); }

    // For each lane the sum of g over the cells of some columns that cover its query.
    void gather_cells(const Block<C>& b, Cells::Run columns, C* to) const {
        std::fill_n(to, b.lanes, C(0));
        for (int r = 0; r < b.row_count; ++r) {
            const C* g = this->of_head(b, b.rows[r].head, rows_.count * cols_.count);
            const Cells::Run rows = rows_.around(query_place(b.p, b.rows[r].query) - queries_.begin);
            for (int64_t i = rows.first; i <= rows.last; ++i)
                for (int64_t c = columns.first; c <= columns.last; ++c) to[r] += g[i * cols_.count + c];
        }
    }

    Range queries_, keys_;
    Cells rows_, cols_;
};

template <class C> class TopTerm : public GradientTerm<C> {
public:
    TopTerm(const Problem& p, const Request& request, Arena&)
        : p_(p),
          g_(reinterpret_cast<const C*>(request.outputs.at(0))),
          keys_(reinterpret_cast<const int64_t*>(request.outputs.at(1))),
          k_(int64_t(request.numbers.at(0))) {}

    void add(const GradientTile<C>&, int, const Block<C>& b, C* dp) override {
        for (int r = 0; r < b.row_count; ++r) {
            const int64_t begin = ((b.batch * p_.Hq + b.rows[r].head) * p_.N + b.rows[r].query) * k_;
            for (int64_t i = begin; i < begin + k_; ++i) {
                const int64_t j = keys_[i] - b.first;
                if (j >= 0 && j < b.n) dp[j * b.lanes + r] += g_[i];
            }
        }
    }

private:
    const Problem& p_;
    const C* g_;
    const int64_t* keys_;
    int64_t k_;
};

template <class C>
std::unique_ptr<GradientTerm<C>> make_gradient_term(const Problem& p, const Request& r, Arena& arena) {
    if (r.name == "entropy") return std::make_unique<EntropyTerm<C>>(p, r, arena);
    if (r.name == "distance") return std::make_unique<DistanceTerm<C>>(p, r, arena);
    if (r.name == "mass") return std::make_unique<MassTerm<C>>(p, r, arena);
    if (r.name == "received") return std::make_unique<ReceivedTerm<C>>(p, r, arena);
    if (r.name == "profile") return std::make_unique<ProfileTerm<C>>(p, r, arena);
    if (r.name == "pool") return std::make_unique<PoolTerm<C>>(p, r, arena);
    if (r.name == "top") return std::make_unique<TopTerm<C>>(p, r, arena);
    throw std::invalid_argument("the statistic '" + r.name + "' has no gradient here");
}

}  // namespace limelight::LIMELIGHT_ISA
