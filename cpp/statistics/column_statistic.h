// Statistics of the columns and of the whole of the weights, once the normalisers of every row are known.
//
// A task owns a chunk of the keys of one unit and meets all queries. A block of weights is made in one step,
// a = 2^((logit − m) − log₂ Σ), and every statistic adds it to its sums. What several tasks add to, each adds up in a
// part of its own; the parts are joined in one order, so that no result depends on the number of threads.
#pragma once

#include <memory>
#include <vector>

#include "../tile_group.h"

namespace limelight::LIMELIGHT_ISA {

// A block whose b.s holds the weights.
template <class C> struct WeightBlock {
    int64_t tile;  // its number in the group
    const QueryTile<C>& x;
    const Block<C>& block;
    bool not_finite;  // some row has a normaliser that is not finite
    bool unmasked;    // every row may attend to every key
    bool summed;      // the column sums have been added already
};

template <class C> class ColumnStatistic {
public:
    virtual ~ColumnStatistic() = default;

    // True if keys without weight count as well, so that none may be skipped.
    virtual bool needs_every_key() const { return false; }
    // Bytes, zero at first, of the sums that a chunk of the keys of a batch element has for itself.
    virtual size_t part_bytes() const { return 0; }

    virtual void start_task(const Task&, char* /*part*/) {}
    virtual void start(const QueryTile<C>&, int64_t /*batch*/, int64_t /*tile*/) {}
    // True if the block contributes to this statistic.
    virtual bool wants(const Block<C>&) const { return true; }
    // Where the sums over the lanes are added while weights are made, (key, vector), or null.
    virtual C* column_sums(int64_t /*tile*/, const Block<C>&) { return nullptr; }
    // Where Σ a log₂ a of every lane is added while weights are made, or null.
    virtual C* log_moments(int64_t /*tile*/) { return nullptr; }
    virtual void add(const WeightBlock<C>& w) = 0;
    // Called when all tiles of the group have met the keys.
    virtual void after_block(const TileGroup<C>&, Range /*keys*/) {}
    virtual void finish_tiles(const TileGroup<C>&) {}
    virtual void finish_task(const Task&) {}
    // Joins the parts (chunk) of a batch element.
    virtual void join(int64_t /*batch*/, const char* /*parts*/) {}
};

template <class C> using ColumnStatistics = std::vector<std::unique_ptr<ColumnStatistic<C>>>;

// A sum over each row's weights, (B, Hq, N), that is computed in the same pass as columns.
template <class C> class SumOfWeights : public ColumnStatistic<C> {
public:
    SumOfWeights(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : p_(p),
          chunks_(c.chunks),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          sum_(arena.take<C>(c.tiles_per_task * c.heads_abreast * kMaxLanes<C>)) {}

    size_t part_bytes() const override { return p_.Hq * p_.N * sizeof(C); }
    void start_task(const Task&, char* part) override { part_ = reinterpret_cast<C*>(part); }
    void start(const QueryTile<C>&, int64_t, int64_t i) override { std::fill_n(lanes(i), kMaxLanes<C>, C(0)); }
    void finish_tiles(const TileGroup<C>& group) override {
        for (int64_t i = 0; i < group.count; ++i)
            for (int r = 0; r < group.tiles[i].row_count; ++r) {
                const Row& row = group.tiles[i].rows[r];
                part_[row.head * p_.N + row.query] = finished(lanes(i)[r]);
            }
    }
    void join(int64_t batch, const char* parts) override {
        const int64_t n = p_.Hq * p_.N;
        for (int64_t i = 0; i < chunks_ * n; ++i) out_[batch * n + i % n] += reinterpret_cast<const C*>(parts)[i];
    }

    virtual C finished(C sum) const = 0;

protected:
    C* lanes(int64_t i) const { return sum_ + i * kMaxLanes<C>; }

private:
    const Problem& p_;
    int64_t chunks_;
    C *out_, *sum_, *part_ = nullptr;
};

// f(first row, one after the last, head) for every run of rows of one head.
template <class C, class F> void for_each_head(const Block<C>& b, F&& f) {
    for (int r = 0, end; r < b.row_count; r = end) {
        for (end = r + 1; end < b.row_count && b.rows[end].head == b.rows[r].head;) ++end;
        f(r, end, b.rows[r].head);
    }
}

template <class C> struct ColumnScratch {
    TileGroup<C> group;
    ColumnStatistics<C> statistics;
    bool* not_finite;  // by tile
};

template <class C, class Make>
ColumnScratch<C> lay_out_columns(const Problem& p, const Partition& c, const std::vector<Request>& requests,
                                 Arena& arena, Make&& make) {
    ColumnScratch<C> y;
    y.group = lay_out_group<C>(p, c, arena);
    for (const Request& request : requests) y.statistics.push_back(make(p, c, request, arena));
    y.not_finite = arena.take<bool>(c.tiles_per_task * c.heads_abreast);
    return y;
}

// Sets m to the largest logit and l to the logarithm of the sum, in units of log 2. Lanes without a row have m = ∞, so
// that their weights are 0. Returns true where some normaliser is not finite.
template <class C> bool load_normalisers(const Problem& p, int64_t batch, const QueryTile<C>& x) {
    const int64_t all = p.B * p.Hq * p.N;
    bool not_finite = false;
    for (int r = 0; r < x.lanes(); ++r) {
        if (r >= x.row_count) {
            x.m[r] = kInf<C>, x.l[r] = 0;
            continue;
        }
        const C* found =
            reinterpret_cast<const C*>(p.normalisers) + (batch * p.Hq + x.rows[r].head) * p.N + x.rows[r].query;
        x.m[r] = found[0];  // 0 where nothing is allowed: 2^(−∞ − 0) = 0
        x.l[r] = std::log2(found[all]);
        if (x.l[r] - x.l[r] == C(0)) continue;
        not_finite = true;
        if (x.bounds) x.bounds[r].norm = kInf<C>;  // what is not finite reaches all keys
    }
    return not_finite;
}

// s = 2^((s − m) − l), whose sums over the lanes are added to `column_sums` unless that is null, and the sums of
// s log₂ s, lane by lane, to `log_moments` where they are asked for.
template <class C, int NV, bool kMoments>
void to_weights(const QueryTile<C>& x, const Block<C>& b, C* column_sums, C* log_moments) {
    constexpr int W = kWidth<C>;
    Vec<C> m[NV], l[NV], sums[NV] = {};
    for (int v = 0; v < NV; ++v) m[v] = load(x.m + v * W), l[v] = load(x.l + v * W);
    for (int64_t j = 0; j < b.n; ++j) {
        Vec<C> total{};
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) {
            C* s = b.s + (j * NV + v) * W;
            const Vec<C> log = load(s) - m[v] - l[v], weight = exp2(log);
            if constexpr (kMoments) sums[v] += weight * larger(log, Vec<C>{} + kLowest<C>);
            store(s, weight);
            total += weight;
        }
        if (column_sums) store(column_sums + j * W, load(column_sums + j * W) + total);
    }
    for (int v = 0; kMoments && v < NV; ++v) store(log_moments + v * W, load(log_moments + v * W) + sums[v]);
}

template <class C, int NV>
void to_weights(const QueryTile<C>& x, const Operand& k, const Block<C>& b, Range masked, C* spare, C* column_sums,
                C* log_moments) {
    logits<C, NV>(x, k, b, masked, nullptr, spare);
    if (log_moments) to_weights<C, NV, true>(x, b, column_sums, log_moments);
    else to_weights<C, NV, false>(x, b, column_sums, log_moments);
}

template <class C> void compute_columns(const Problem& p, const Partition& c, Task t, const ColumnScratch<C>& y) {
    TileGroup<C> group = y.group;
    const auto visit = [&](int64_t i, const QueryTile<C>& x, const Operand& k, const Operand&, const Block<C>& b,
                           Range masked) {
        bool wanted = false;
        C *sums = nullptr, *moments = nullptr;
        for (const auto& s : y.statistics) {
            wanted |= s->wants(b);
            if (!y.not_finite[i] && !sums) sums = s->column_sums(i, b);
            if (!moments) moments = s->log_moments(i);
        }
        if (!wanted) return;
        (x.vectors == 3   ? to_weights<C, 3>
         : x.vectors == 2 ? to_weights<C, 2>
                          : to_weights<C, 1>)(x, k, b, masked, group.spare, sums, moments);
        if (y.not_finite[i]) clear_forbidden(b, b.s);
        const WeightBlock<C> w{i, x, b, y.not_finite[i], masked.empty() && !p.mask.data, sums != nullptr};
        for (const auto& s : y.statistics)
            if (s->wants(b)) s->add(w);
    };
    const auto after = [&](Range keys) {
        for (const auto& s : y.statistics) s->after_block(group, keys);
    };
    for (t.tile = 0; t.tile < c.tiles; t.tile += c.tiles_per_task) {
        t.tiles = min(c.tiles_per_task, c.tiles - t.tile);
        load_group(p, c, t, group);
        for (int64_t i = 0; i < group.count; ++i) {
            y.not_finite[i] = load_normalisers(p, t.batch, group.tiles[i]);
            for (const auto& s : y.statistics) s->start(group.tiles[i], t.batch, i);
        }
        for_each_block(p, group, t, visit, after);
        for (const auto& s : y.statistics) s->finish_tiles(group);
    }
    for (const auto& s : y.statistics) s->finish_task(t);
}

}  // namespace limelight::LIMELIGHT_ISA
