// The gradient, cut into tasks of query rows × keys of one key head.
//
// A task adds to dQ of its rows and to dK and dV of its keys. With both axes cut into R ranges, the
// tasks (row range (c + round) mod R, key range c) of one round share neither rows nor keys, as in a
// Latin square: they run at once, the rounds follow one another, and every sum has one order, whatever
// the number of threads is.
#pragma once

#include "forward.h"
#include "gradient.h"

namespace limelight::LIMELIGHT_ISA {

// to[i] += parts[0][i] + parts[1][i] + … of n numbers each.
template <class C> void add_parts(const std::vector<C>& parts, int64_t n, C* to) {
    for (size_t i = 0; i < parts.size(); ++i) to[int64_t(i) % n] += parts[i];
}

template <class C> void backward(Problem p, const Gradients& g, int threads) {
    constexpr int64_t tile_rows = kGradientTiles<C> * kMaxLanes<C>;  // rows that are differentiated together
    if (p.multiplications() < kWorthAThread) threads = 1;
    const int64_t rows = p.Hq / p.Hkv * p.N, units = p.B * p.Hkv;
    const Rows k = p.k, v = p.v;
    const bool lanes = rows >= kWidth<C>;
    const bool k_in_pairs = lanes && has_pairs_in_lanes<C>(p.q.type, k, p.D);
    const bool v_in_pairs = lanes && has_pairs_in_lanes<C>(g.dout.type, v, p.Dv);
    const std::unique_ptr<C[]> copies = convert<C>(p, copied<C>(k, false), copied<C>(v, false) && !v_in_pairs, threads);
    const std::unique_ptr<C[]> key_norms = measure_key_norms<C>(p, threads);
    const std::vector<int64_t> starts = tile_starts<C>(p, 0, p.N);
    // Only one unit at a time may add to the gradient of a bias that several units share.
    const bool shared = g.bias.data && ((p.B > 1 && !g.bias.batch) || (p.Hkv > 1 && !g.bias.head));
    const int64_t at_once = shared ? 1 : units;
    constexpr int64_t enough = 16, least_keys = 4 * kBlock;
    const int64_t least_rows = 2 * tile_rows;
    int64_t ranges = std::min({ceil_div(enough, at_once), rows / least_rows, p.M / least_keys});
    // Every task of a row adds to the gradient of a bias without an axis of keys. If that bias has no rows either, or
    // rows that several heads of a unit share, tasks of one round would write to the same numbers.
    const bool rows_meet = !g.bias.row || (p.Hq > p.Hkv && !g.bias.head);
    if (g.bias.data && !g.bias.col && rows_meet) ranges = 1;
    ranges = std::max<int64_t>(ranges, 1);
    const int64_t row_range = ceil_div(ceil_div(rows, ranges), tile_rows) * tile_rows;
    const int64_t key_range = ceil_div(ceil_div(p.M, ranges), kBlock) * kBlock;

    if (!g.sums) {
        advise_large_pages(g.dq, p.B, p.Hq, p.N, p.D);
        advise_large_pages(g.dk, p.B, p.Hkv, p.M, p.D);
        advise_large_pages(g.dv, p.B, p.Hkv, p.M, p.Dv);
    }
    // Tasks share diagonals and heads, so each batch element and key range has its own copy of these sums.
    const int64_t sums_by_diagonal = p.Hq * diagonals(p);
    std::vector<C> offsets(g.offsets ? p.B * ranges * sums_by_diagonal : 0);
    std::vector<C> slopes(g.slopes ? p.B * ranges * p.Hq : 0);
    Arena measure{0};
    const GradientScratch<C> plan = lay_out_gradient<C>(p, g, measure);
    const bool summed = !g.part && !g.sums && std::any_of(plan.terms.begin(), plan.terms.end(), [](const auto& term) {
        return term->needs_sum();
    });
    std::vector<C> own_sums(summed ? p.B * p.Hq * p.N : 0);
    C* sums = g.sums ? reinterpret_cast<C*>(g.sums) : summed ? own_sums.data() : nullptr;  // Σ P ∘ term of every row

    const auto run = [&](auto&& compute) {
        for (int64_t first = 0; first < units; first += at_once)
            for (int64_t round = 0; round < ranges; ++round)
                parallel(at_once * ranges, threads, measure.next, [&](int64_t index, char* scratch) {
                    const int64_t unit = first + index / ranges, column = index % ranges;
                    const int64_t row = (column + round) % ranges;
                    GradientTask<C> t;
                    t.batch = unit / p.Hkv;
                    t.head = unit % p.Hkv;
                    t.starts = &starts;
                    t.k_in_pairs = k_in_pairs ? &k : nullptr, t.v_in_pairs = v_in_pairs ? &v : nullptr;
                    t.row_begin = row * row_range;
                    t.row_end = min(t.row_begin + row_range, rows);
                    t.key_begin = column * key_range;
                    t.key_end = min(t.key_begin + key_range, p.M);
                    const int64_t part = t.batch * ranges + column;
                    t.offsets = offsets.data() + (g.offsets ? part * sums_by_diagonal : 0);
                    t.slopes = slopes.data() + (g.slopes ? part * p.Hq : 0);
                    t.sums = sums;
                    if (t.row_begin < t.row_end && t.key_begin < t.key_end) compute(p, g, t, scratch);
                });
    };
    if (sums) run(sum_terms<C>);
    if (g.sums) return;
    run(differentiate<C>);
    if (g.offsets) add_parts(offsets, sums_by_diagonal, reinterpret_cast<C*>(g.offsets));
    if (g.slopes) add_parts(slopes, p.Hq, reinterpret_cast<C*>(g.slopes));
}

}  // namespace limelight::LIMELIGHT_ISA
