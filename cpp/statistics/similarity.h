// similarity: Σ over all weights of the products of every two heads.   outputs: {products (B, Hq, Hq)}
#pragma once

#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// All heads are computed side by side, so that the same block of each is there at once.
template <class C> class Similarity : public ColumnStatistic<C> {
public:
    Similarity(const Problem& p, const Request& request, const Partition& c)
        : p_(p),
          chunks_(c.chunks),
          out_(reinterpret_cast<C*>(request.outputs.at(0))) {}

    bool needs_every_key() const override { return true; }
    size_t part_bytes() const override { return p_.Hq * p_.Hq * sizeof(double); }
    void start_task(const Task&, char* part) override { part_ = reinterpret_cast<double*>(part); }
    void add(const WeightBlock<C>&) override {}

    void after_block(const TileGroup<C>& group, Range keys) override {
        if (!keys.empty()) multiply_heads(group.s, group.panel, (keys.end - keys.begin) * group.tiles[0].lanes());
    }

    void join(int64_t batch, const char* parts) override {
        const int64_t heads = p_.Hq;
        C* to = out_ + batch * heads * heads;
        for (int64_t a = 0; a < heads; ++a)
            for (int64_t b = 0; b <= a; ++b) {
                double total = 0;
                for (int64_t i = 0; i < chunks_; ++i)
                    total += reinterpret_cast<const double*>(parts)[(i * heads + a) * heads + b];
                to[a * heads + b] = to[b * heads + a] = C(total);
            }
    }

private:
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
    C* out_;
    double* part_ = nullptr;
};

}  // namespace limelight::LIMELIGHT_ISA
