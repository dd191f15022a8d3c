// The gradient, cut into squares of query rows × keys of one key head.
//
// A square adds to dQ of its rows and to dK and dV of its keys. With both axes cut into R ranges, the
// squares (row range (c + round) mod R, key range c) of one round share neither rows nor keys, as in a
// Latin square: they run at once, the rounds follow one another, and every sum has one order, whatever
// the number of threads is.
#include "backward.h"

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pages.h"
#include "pool.h"

namespace limelight {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// parts[0] + parts[1] + … of n numbers each.
template <class C> void add_up(const std::vector<char>& parts, int64_t n, char* to) {
    const C* from = reinterpret_cast<const C*>(parts.data());
    for (size_t i = 0; i < parts.size() / sizeof(C); ++i) reinterpret_cast<C*>(to)[i % n] += from[i];
}

}  // namespace

void backward(const Problem& problem, const Gradients& g, int threads) {
    const Kernels& k = kernels();
    Problem p = problem;
    const std::unique_ptr<char[]> reach = find_reach(p, k, threads);
    const int64_t rows = p.Hq / p.Hkv * p.N, units = p.B * p.Hkv;
    // A bias that several units share receives from one of them at a time.
    const bool shared = g.bias.data && ((p.B > 1 && !g.bias.batch) || (p.Hkv > 1 && !g.bias.head));
    const int64_t at_once = shared ? 1 : units;
    constexpr int64_t enough = 16, least_keys = 4 * kBlock;
    const int64_t least_rows = 2 * k.visitors(p);
    int64_t ranges = std::min({ceil_div(enough, at_once), rows / least_rows, p.M / least_keys});
    // A bias without an axis of keys receives from every square of a row; where it has no rows either, or rows
    // that several heads of a unit share, squares of one round would meet.
    const bool rows_meet = !g.bias.row || (p.Hq > p.Hkv && !g.bias.head);
    if (g.bias.data && !g.bias.col && rows_meet) ranges = 1;
    ranges = std::max<int64_t>(ranges, 1);
    const int64_t row_range = ceil_div(ceil_div(rows, ranges), k.visitors(p)) * k.visitors(p);
    const int64_t key_range = ceil_div(ceil_div(p.M, ranges), kBlock) * kBlock;

    ask_for_large_pages(g.dq, p.B, p.Hq, p.N, p.D);
    ask_for_large_pages(g.dk, p.B, p.Hkv, p.M, p.D);
    ask_for_large_pages(g.dv, p.B, p.Hkv, p.M, p.Dv);
    // Diagonals and heads cross the squares: each batch element and key range has sums of its own.
    const int64_t number = p.wide() ? 8 : 4, diagonals = p.Hq * (p.N + p.M - 1);
    std::vector<char> offsets(g.offsets ? p.B * ranges * diagonals * number : 0);
    std::vector<char> slopes(g.slopes ? p.B * ranges * p.Hq * number : 0);
    const double work = double(p.B) * p.Hq * p.N * p.M * (p.D + p.Dv);
    if (work < kWorthAThread) threads = 1;

    for (int64_t first = 0; first < units; first += at_once)
        for (int64_t round = 0; round < ranges; ++round)
            parallel(at_once * ranges, threads, k.gradient_scratch(p, g), [&](int64_t index, char* scratch) {
                const int64_t unit = first + index / ranges, column = index % ranges, row = (column + round) % ranges;
                Square s;
                s.batch = unit / p.Hkv;
                s.head = unit % p.Hkv;
                s.row_begin = row * row_range;
                s.row_end = std::min(s.row_begin + row_range, rows);
                s.key_begin = column * key_range;
                s.key_end = std::min(s.key_begin + key_range, p.M);
                const int64_t part = s.batch * ranges + column;
                s.offsets = offsets.data() + (g.offsets ? part * diagonals * number : 0);
                s.slopes = slopes.data() + (g.slopes ? part * p.Hq * number : 0);
                if (s.row_begin < s.row_end && s.key_begin < s.key_end) k.differentiate(p, g, s, scratch);
            });
    const auto add = p.wide() ? add_up<double> : add_up<float>;
    if (g.offsets) add(offsets, diagonals, g.offsets);
    if (g.slopes) add(slopes, p.Hq, g.slopes);
}

}  // namespace limelight
