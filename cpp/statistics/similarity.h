// similarity: Σ over all weights of the products of every two heads.
// outputs: {products (B, Hq, Hq), exponents (B, Hq)}; the sum for heads a and b is products[a][b] · 2^(e[a] + e[b]).
#pragma once

#include <algorithm>
#include <cmath>

#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// All heads are computed side by side, so that the same block of each is there at once. Where a sink takes nearly all of
// a head's attention, the squares of its weights would underflow: such a head counts in units of 2^e, e the exponent of
// its largest weight so far.
template <class C> class Similarity : public ColumnStatistic<C> {
public:
    Similarity(const Problem& p, const Request& request, const Partition& c)
        : p_(p),
          chunks_(c.chunks),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          exponents_(reinterpret_cast<C*>(request.outputs.at(1))) {}

    bool needs_every_key() const override { return true; }
    // products (heads, heads), then exponents (heads)
    size_t part_bytes() const override { return p_.Hq * (p_.Hq + 1) * sizeof(double); }
    void start_task(const Task&, char* part) override { part_ = reinterpret_cast<double*>(part); }
    void add(const WeightBlock<C>&) override {}

    void after_block(const TileGroup<C>& group, Range keys) override {
        if (keys.empty()) return;
        const int64_t n = (keys.end - keys.begin) * group.tiles[0].lanes();
        for (int64_t head = 0; head < p_.Hq; ++head) set_unit(head, group.s + head * group.panel, n);
        multiply_heads(group.s, group.panel, n);
    }

    void join(int64_t batch, const char* parts) override {
        const int64_t heads = p_.Hq;
        const auto part = [&](int64_t i) { return reinterpret_cast<const double*>(parts) + i * heads * (heads + 1); };
        C *to = out_ + batch * heads * heads, *exponents = exponents_ + batch * heads;
        for (int64_t a = 0; a < heads; ++a) {
            double top = kNoWeight;
            for (int64_t i = 0; i < chunks_; ++i)
                if (part(i)[a * heads + a] != 0) top = std::max(top, part(i)[heads * heads + a]);
            exponents[a] = C(top == kNoWeight ? 0 : top);
        }
        for (int64_t a = 0; a < heads; ++a)
            for (int64_t b = 0; b <= a; ++b) {
                double total = 0;
                for (int64_t i = 0; i < chunks_; ++i) {
                    const double *units = part(i) + heads * heads, x = part(i)[a * heads + b];
                    if (x != 0) total += std::ldexp(x, int(units[a] + units[b] - exponents[a] - exponents[b]));
                }
                to[a * heads + b] = to[b * heads + a] = C(total);
            }
    }

private:
    static constexpr double kNoWeight = -1e4;
    // Squares of weights above 2^kSmall do not underflow; 2^−kSmallest is in range.
    static constexpr int kSmall = sizeof(C) == 4 ? -40 : -400, kSmallest = sizeof(C) == 4 ? -120 : -1000;

    // Scales the n weights of a head to its unit, which a larger weight than all before raises.
    void set_unit(int64_t head, C* weights, int64_t n) {
        Vec<C> lanes{};
        for (int64_t at = 0; at < n; at += kWidth<C>) lanes = larger(load(weights + at), lanes);
        C most = 0;
        for (int i = 0; i < kWidth<C>; ++i) most = larger(C(lanes[i]), most);
        if (most == C(0)) return;
        const int64_t heads = p_.Hq;
        const int found = most > std::ldexp(C(1), kSmall) ? 0 : std::max(std::ilogb(most), kSmallest);
        double &unit = part_[heads * heads + head], &square = part_[head * heads + head];
        if (square == 0) unit = found;
        if (found > unit) {
            const double factor = std::ldexp(1.0, int(unit) - found);
            for (int64_t b = 0; b <= head; ++b) part_[head * heads + b] *= factor;
            for (int64_t a = head; a < heads; ++a) part_[a * heads + head] *= factor;
            unit = found;
        }
        if (unit == 0) return;
        const Vec<C> factor = broadcast(std::ldexp(C(1), int(-unit)));
        for (int64_t at = 0; at < n; at += kWidth<C>) store(weights + at, Vec<C>(load(weights + at) * factor));
    }

    // part[a][b] += Σ of the products of the n weights of heads a and b, for b ≤ a.
    void multiply_heads(const C* weights, int64_t panel, int64_t n) {
        constexpr int W = kWidth<C>, T = 3;
        const int64_t heads = p_.Hq;
        for (int64_t a = 0; a < heads; a += T)
            for (int64_t b = 0; b <= a; b += T) {
                const C *x[T], *y[T];
                for (int i = 0; i < T; ++i) {
                    x[i] = weights + min(a + i, heads - 1) * panel;
                    y[i] = weights + min(b + i, heads - 1) * panel;
                }
                Vec<C> acc[T][T] = {};
                for (int64_t at = 0; at < n; at += W) {
                    Vec<C> v[T];
#pragma GCC unroll 3
                    for (int i = 0; i < T; ++i) v[i] = load(y[i] + at);
#pragma GCC unroll 3
                    for (int i = 0; i < T; ++i)
#pragma GCC unroll 3
                        for (int j = 0; j < T; ++j) acc[i][j] += load(x[i] + at) * v[j];
                }
                for (int64_t i = 0; i < T && a + i < heads; ++i)
                    for (int64_t j = 0; j < T && b + j <= a + i; ++j)
                        part_[(a + i) * heads + b + j] += sum<C>(acc[i][j]);
            }
    }

    const Problem& p_;
    int64_t chunks_;
    C *out_, *exponents_;
    double* part_ = nullptr;
};

}  // namespace limelight::LIMELIGHT_ISA
