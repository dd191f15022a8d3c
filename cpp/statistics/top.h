// top: the k largest weights of each row and their keys, ties by the lower key.
// outputs: {weights (B, Hq, N, k), keys (B, Hq, N, k) in int64}, numbers: {k}
#pragma once

#include <algorithm>

#include "row_statistic.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct Candidate {
    C logit;
    int32_t key;

    bool operator<(const Candidate& other) const {  // the better one first
        return logit > other.logit || (logit == other.logit && key < other.key);
    }
};

// Keeps the k best of n, in the order of their keys, and returns the lowest of their logits. The limit that k of them
// reach is found by halving, without branches that depend on the data.
template <class C> C keep_best(C* logits, int32_t* keys, int n, int k) {
    C limit = kInf<C>, above = -kInf<C>;
    for (int i = 0; i < n; ++i) {
        limit = logits[i] < limit ? logits[i] : limit;
        above = logits[i] > above ? logits[i] : above;
    }
    int surplus = n - k;  // of those that reach the limit
    if (above == kInf<C>) above = std::numeric_limits<C>::max();
    for (C middle; surplus && (middle = limit / 2 + above / 2) > limit;) {
        int count = 0;
        for (int i = 0; i < n; ++i) count += logits[i] >= middle;
        if (count >= k) limit = middle, surplus = count - k;
        else if (above == middle) break;
        else above = middle;
    }
    int ties = -surplus;  // that may stay: the lower keys
    for (int i = 0; i < n; ++i) ties += logits[i] == limit;
    for (int i = 0, kept = 0; i < n; ++i) {
        const C x = logits[i];
        const int32_t key = keys[i];
        const int tie = x == limit, stays = (x > limit) | (tie & (ties > 0));
        ties -= tie;
        if (kept < k) logits[kept] = x, keys[kept] = key;
        kept += stays;
    }
    return *std::min_element(logits, logits + k);
}

// The largest weights have the largest logits, whatever the maximum is. Candidates of a lane gather until its room is
// full; then all but the best are dropped, and the bar rises above which a logit must be to become a candidate.
template <class C> class TopK : public RowStatistic<C> {
public:
    TopK(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : weights_(reinterpret_cast<C*>(request.outputs.at(0))),
          out_keys_(reinterpret_cast<int64_t*>(request.outputs.at(1))),
          k_(int64_t(request.numbers.at(0))),
          room_(min(2 * k_ + 16, max(p.M, k_ + 1))),
          first_key_(p.first_key) {
        const int64_t lanes = c.tiles_per_task * kMaxLanes<C>;
        logits_ = arena.take<C>(lanes * room_);
        keys_ = arena.take<int32_t>(lanes * room_);
        count_ = arena.take<int32_t>(lanes);
        bar_ = arena.take<C>(lanes);
    }

    bool needs_every_key() const override { return true; }

    void start(const QueryTile<C>&, int64_t, int64_t i) override {
        std::fill_n(bar_ + i * kMaxLanes<C>, kMaxLanes<C>, -kInf<C>);
        std::fill_n(count_ + i * kMaxLanes<C>, kMaxLanes<C>, 0);
    }

    // A logit below the k best so far is not a candidate. One that equals their lowest is, for its key may be lower.
    void set_earlier(int64_t i, int r, const char* state) override {
        const State& s = *reinterpret_cast<const State*>(state);
        if (s.count == k_) bar_[i * kMaxLanes<C> + r] = std::nextafter(s.best()[k_ - 1].logit, -kInf<C>);
    }

    void add_logits(const QueryTile<C>& x, const Block<C>& b, int64_t i) override {
        if (x.vectors == 3) choose<3>(b, i);
        else if (x.vectors == 2) choose<2>(b, i);
        else choose<1>(b, i);
    }

    size_t state_bytes() const override { return sizeof(State) + k_ * sizeof(Candidate<C>); }

    void save(int64_t i, int r, char* state) override {
        const int64_t lane = i * kMaxLanes<C> + r;
        C* logits = logits_ + lane * room_;
        int32_t* keys = keys_ + lane * room_;
        if (count_[lane] > k_) keep_best(logits, keys, count_[lane], int(k_));
        State& s = *reinterpret_cast<State*>(state);
        s.count = int32_t(min(count_[lane], k_));
        for (int32_t n = 0; n < s.count; ++n) s.best()[n] = {logits[n], keys[n]};
        std::sort(s.best(), s.best() + s.count);
    }

    void shrink(char*, C) const override {}  // logits do not

    void join(char* total, const char* part, C) const override {
        State& a = *reinterpret_cast<State*>(total);
        const State& b = *reinterpret_cast<const State*>(part);
        for (int32_t n = 0; n < b.count; ++n) {
            Candidate<C>* at = std::upper_bound(a.best(), a.best() + a.count, b.best()[n]);
            if (at == a.best() + k_) break;  // the others are worse
            a.count = int32_t(min(a.count + 1, k_));
            std::copy_backward(at, a.best() + a.count - 1, a.best() + a.count);
            *at = b.best()[n];
        }
    }

    // The keys that are not there have a weight of 0: the lowest of them follow.
    void write(int64_t row, char* state, const RowSums<C>&, const RowResult<C>& result) const override {
        State& s = *reinterpret_cast<State*>(state);
        C* weights = weights_ + row * k_;
        int64_t* keys = out_keys_ + row * k_;
        for (int32_t n = 0; n < s.count; ++n) {
            // From the normalisers of the whole row, so that equal logits have equal weights in all of its parts.
            weights[n] = std::exp2(s.best()[n].logit - result.m) / result.l;
            keys[n] = s.best()[n].key;
        }
        if (s.count == k_) return;
        std::sort(s.best(), s.best() + s.count, [](const auto& x, const auto& y) { return x.key < y.key; });
        int32_t passed = 0;
        int64_t key = 0;
        for (int64_t n = s.count; n < k_; ++n, ++key) {
            for (; passed < s.count && s.best()[passed].key == key; ++passed) ++key;
            weights[n] = result.factor * C(0);  // NaN where the row is
            keys[n] = key;
        }
    }

private:
    struct alignas(8) State {
        int32_t count;
        Candidate<C>* best() { return reinterpret_cast<Candidate<C>*>(this + 1); }
        const Candidate<C>* best() const { return reinterpret_cast<const Candidate<C>*>(this + 1); }
    };

    // The keys of a row come in order, so that one with the logit of the bar loses to those that are there.
    template <int NV> void choose(const Block<C>& b, int64_t i) {
        constexpr int W = kWidth<C>;
        const uint64_t rows = ~uint64_t(0) >> (64 - b.row_count);
        C* bar = bar_ + i * kMaxLanes<C>;
        for (int64_t j = 0; j < b.n; ++j) {
            const C* s = b.s + j * b.lanes;
            uint64_t above = 0;
#pragma GCC unroll 3
            for (int v = 0; v < NV; ++v) above |= uint64_t(bits<C>(load(s + v * W) > load(bar + v * W))) << (v * W);
            for (above &= rows; above; above &= above - 1) {
                const int r = __builtin_ctzll(above);
                const int64_t lane = i * kMaxLanes<C> + r;
                C* logits = logits_ + lane * room_;
                int32_t* keys = keys_ + lane * room_;
                const int n = count_[lane]++;
                logits[n] = s[r];
                keys[n] = int32_t(first_key_ + key_place(b.p, b.first + j));
                if (n + 1 < room_) continue;
                bar[r] = keep_best(logits, keys, n + 1, int(k_));
                count_[lane] = int32_t(k_);
            }
        }
    }

    C* weights_;
    int64_t* out_keys_;
    int64_t k_, room_, first_key_;
    C* logits_;  // (tile, lane, room)
    int32_t *keys_, *count_;
    C* bar_;  // (tile, lane)
};

}  // namespace limelight::LIMELIGHT_ISA
