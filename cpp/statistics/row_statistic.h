// Statistics of each row of the weights, in one pass over the keys.
//
// With e = 2^(logit − m) for a running maximum m, as in the forward pass, most of them are a sum over the keys that
// shrinks by 2^(m − m′) when the maximum grows. A statistic keeps its running sums in lanes while its task meets the
// blocks of keys. At the end it saves them row by row as a state of fixed size; states of rows whose keys were split
// over several tasks are joined, and the result is written from the joined state.
#pragma once

#include <memory>
#include <vector>

#include "../tile_group.h"

namespace limelight::LIMELIGHT_ISA {

// The running sums of a row: those of the forward pass, and Σ e (logit − m), from which the entropy is made.
template <class C> struct RowSums {
    C m, l, moment;
};

template <class C> class RowStatistic {
public:
    virtual ~RowStatistic() = default;

    // True if the statistic needs Σ e (logit − m).
    virtual bool needs_moment() const { return false; }
    // True if keys without weight count as well, so that none may be skipped.
    virtual bool needs_every_key() const { return false; }
    // True if one task has to meet all keys of its rows.
    virtual bool needs_whole_rows() const { return false; }

    // Empties the sums of the i-th tile of a task.
    virtual void start(const QueryTile<C>& x, int64_t batch, int64_t i) = 0;
    // Gives the state of the r-th row of the i-th tile over the keys of earlier calls; what is saved joins it.
    virtual void set_earlier(int64_t, int, const char*) {}
    // b.s holds the logits of a block.
    virtual void add_logits(const QueryTile<C>&, const Block<C>&, int64_t) {}
    // b.s holds e; sums of earlier blocks shrink by `decay`, lane by lane.
    virtual void add_weights(const QueryTile<C>&, const Block<C>&, const C*, int64_t) {}

    virtual size_t state_bytes() const = 0;
    virtual void save(int64_t i, int r, char* state) = 0;
    // Multiplies the weights in a state by `share`.
    virtual void shrink(char* state, C share) const = 0;
    // Adds a part, whose weights shrink by `share`, to a total.
    virtual void join(char* total, const char* part, C share) const = 0;
    // `row` is the row's place among (B, Hq, N).
    virtual void write(int64_t row, char* state, const RowSums<C>& sums, const RowResult<C>& result) const = 0;
};

// A statistic whose running sum is one number a row.
template <class C> class RowSum : public RowStatistic<C> {
public:
    RowSum(const Request& request, const Partition& c, Arena& arena)
        : out_(reinterpret_cast<C*>(request.outputs.at(0))),
          sum_(arena.take<C>(c.tiles_per_task * kMaxLanes<C>)) {}

    void start(const QueryTile<C>&, int64_t, int64_t i) override { std::fill_n(lanes(i), kMaxLanes<C>, C(0)); }
    size_t state_bytes() const override { return sizeof(C); }
    void save(int64_t i, int r, char* state) override { std::memcpy(state, lanes(i) + r, sizeof(C)); }
    void shrink(char* state, C share) const override { *reinterpret_cast<C*>(state) *= share; }
    void join(char* total, const char* part, C share) const override {
        *reinterpret_cast<C*>(total) += *reinterpret_cast<const C*>(part) * share;
    }
    void write(int64_t row, char* state, const RowSums<C>&, const RowResult<C>& result) const override {
        out_[row] = *reinterpret_cast<const C*>(state) * result.factor;
    }

protected:
    C* lanes(int64_t i) const { return sum_ + i * kMaxLanes<C>; }

    // sum = decay · sum + Σ over the keys of term(lane, key of the block, e), lane by lane. The block is summed apart
    // first: a sum over all keys in one chain would lose digits.
    template <class Term> void add(const Block<C>& b, const C* decay, int64_t i, Term&& term) {
        constexpr int W = kWidth<C>;
        C* sum = lanes(i);
        for (int r = 0; r < b.lanes; r += W) {
            Vec<C> total{};
            for (int64_t j = 0; j < b.n; ++j) total += term(r, j, load(b.s + j * b.lanes + r));
            store(sum + r, load(sum + r) * load(decay + r) + total);
        }
    }

    C* out_;

private:
    C* sum_;
};

template <class C> using RowStatistics = std::vector<std::unique_ptr<RowStatistic<C>>>;

// The sums and states of one row, one after the other, each on 8 bytes.
template <class C> class RowRecord {
public:
    explicit RowRecord(const RowStatistics<C>& statistics) {
        size_t next = ceil_div(sizeof(RowSums<C>), 8) * 8;
        for (const auto& s : statistics) {
            offsets_.push_back(next);
            next += ceil_div(s->state_bytes(), 8) * 8;
        }
        bytes_ = next;
    }

    size_t bytes() const { return bytes_; }
    RowSums<C>& sums(char* record) const { return *reinterpret_cast<RowSums<C>*>(record); }
    char* state(char* record, size_t statistic) const { return record + offsets_[statistic]; }

private:
    std::vector<size_t> offsets_;
    size_t bytes_;
};

template <class C> struct RowScratch {
    TileGroup<C> group;
    RowStatistics<C> statistics;
    C* moment;  // (tile, lane), or null
    char* record;
};

template <class C, class Make>
RowScratch<C> lay_out_rows(const Problem& p, const Partition& c, const std::vector<Request>& requests, Arena& arena,
                           Make&& make) {
    RowScratch<C> y;
    y.group = lay_out_group<C>(p, c, arena);
    bool moment = false;
    for (const Request& request : requests) {
        y.statistics.push_back(make(p, c, request, arena));
        moment |= y.statistics.back()->needs_moment();
    }
    y.moment = moment ? arena.take<C>(c.tiles_per_task * kMaxLanes<C>) : nullptr;
    y.record = arena.take<char>(RowRecord<C>(y.statistics).bytes());
    return y;
}

template <class C, int NV>
void add_block(const RowScratch<C>& y, int64_t i, const QueryTile<C>& x, const Operand& k, const Block<C>& b,
               Range masked) {
    alignas(64) C decay[NV * kWidth<C>], top[NV * kWidth<C>];
    logits<C, NV>(x, k, b, masked, top, y.group.spare);
    for (const auto& s : y.statistics) s->add_logits(x, b, i);
    if (y.moment) exponentials<C, NV, true>(x, b.s, b.n, top, decay, y.moment + i * kMaxLanes<C>);
    else exponentials<C, NV>(x, b.s, b.n, top, decay);
    for (const auto& s : y.statistics) s->add_weights(x, b, decay, i);
}

// A row whose normalisers are known: the keys that it has met here may be a part of all that they stand for.
template <class C> RowResult<C> finish_part(const Problem& p, int64_t batch, const Row& row, const RowSums<C>& sums) {
    const int64_t all = p.B * p.Hq * p.N, at = (batch * p.Hq + row.head) * p.N + row.query;
    const C* found = reinterpret_cast<const C*>(p.normalisers) + at;
    const C m = found[0], l = found[all];
    if (sums.l == C(0)) return {true, C(0), C(0), m, l};
    const Rounded<C> factor(std::exp2(double(sums.m) - double(m)) / double(l));
    return {false, factor.value, factor.rest, m, l};
}

template <class C>
void write_record(const Problem& p, const RowStatistics<C>& statistics, const RowRecord<C>& record, int64_t batch,
                  const Row& row, char* at, bool known) {
    const RowSums<C>& sums = record.sums(at);
    const RowResult<C> result = known ? finish_part(p, batch, row, sums) : finish_row(p, row.head, sums.m, sums.l);
    if (!known) write_normalisers(p, batch, row, result);
    for (size_t s = 0; s < statistics.size(); ++s)
        statistics[s]->write((batch * p.Hq + row.head) * p.N + row.query, record.state(at, s), sums, result);
}

// Adds a record of a row to another one, over other keys. A record of zeros has seen no key.
template <class C>
void join_record(const RowStatistics<C>& statistics, const RowRecord<C>& record, char* total, char* part) {
    const RowSums<C> a = record.sums(total), b = record.sums(part);
    if (b.l == C(0)) return;
    const C top = a.l == C(0) ? b.m : larger(a.m, b.m);
    RowSums<C> sums{top, 0, 0};
    const auto add = [&](const RowSums<C>& x) {
        if (x.l == C(0)) return C(1);
        const C shift = x.m - top, share = shift == C(0) ? C(1) : std::exp2(shift);
        sums.l += x.l * share;
        sums.moment += (x.moment + x.l * larger(shift, kLowest<C>)) * share;
        return share;
    };
    const C of_total = add(a), of_part = add(b);
    record.sums(total) = sums;
    for (size_t s = 0; s < statistics.size(); ++s) {
        statistics[s]->shrink(record.state(total, s), of_total);
        statistics[s]->join(record.state(total, s), record.state(part, s), of_part);
    }
}

// Ends a row that has met all keys of the call: its statistics are written, or its record joins the running one.
template <class C>
void finish_record(const Problem& p, const RowStatistics<C>& statistics, const RowRecord<C>& record,
                   const RunningRecords* running, int64_t batch, const Row& row, char* at, bool known) {
    if (running) join_record(statistics, record, running->at(batch, row.head, row.query), at);
    else write_record(p, statistics, record, batch, row, at, known);
}

template <class C>
void set_earlier(const RowStatistics<C>& statistics, const RowRecord<C>& record, const RunningRecords& running,
                 int64_t batch, const QueryTile<C>& x, int64_t i) {
    for (int r = 0; r < x.row_count; ++r) {
        char* at = running.at(batch, x.rows[r].head, x.rows[r].query);
        for (size_t s = 0; s < statistics.size(); ++s) statistics[s]->set_earlier(i, r, record.state(at, s));
    }
}

// `records` (row) belong to the task's chunk of keys, or are null where the keys are not split.
template <class C>
void compute_rows(const Problem& p, const Partition& c, const Task& t, const RowScratch<C>& y, char* records,
                  const RunningRecords* running, bool known) {
    TileGroup<C> group = y.group;
    load_group(p, c, t, group);
    const RowRecord<C> record(y.statistics);
    for (int64_t i = 0; i < group.count; ++i) {
        if (y.moment) std::fill_n(y.moment + i * kMaxLanes<C>, kMaxLanes<C>, C(0));
        for (const auto& s : y.statistics) s->start(group.tiles[i], t.batch, i);
        if (running) set_earlier(y.statistics, record, *running, t.batch, group.tiles[i], i);
    }
    const auto visit = [&](int64_t i, const QueryTile<C>& x, const Operand& k, const Operand&, const Block<C>& b,
                           Range masked) {
        (x.vectors == 3 ? add_block<C, 3> : x.vectors == 2 ? add_block<C, 2> : add_block<C, 1>)(y, i, x, k, b, masked);
    };
    for_each_block(p, group, t, visit, [](Range) {});
    for (int64_t i = 0; i < group.count; ++i) {
        const QueryTile<C>& x = group.tiles[i];
        for (int r = 0; r < x.row_count; ++r) {
            char* at = records ? records + (group.first_row + (x.rows - group.rows) + r) * record.bytes() : y.record;
            record.sums(at) = {x.m[r], x.l[r], y.moment ? y.moment[i * kMaxLanes<C> + r] : C(0)};
            for (size_t s = 0; s < y.statistics.size(); ++s) y.statistics[s]->save(i, r, record.state(at, s));
            if (!records) finish_record(p, y.statistics, record, running, t.batch, x.rows[r], at, known);
        }
    }
}

// Joins the records (chunk, row) of one unit; those of the first chunk receive the others'.
template <class C>
void join_records(const Problem& p, const Partition& c, const RowStatistics<C>& statistics, int64_t batch, int64_t unit,
                  char* records, const RunningRecords* running, bool known) {
    const RowRecord<C> record(statistics);
    for (int64_t r = 0; r < c.rows; ++r) {
        const auto part = [&](int64_t i) { return records + (i * c.rows + r) * record.bytes(); };
        for (int64_t i = 1; i < c.chunks; ++i) join_record(statistics, record, part(0), part(i));
        finish_record(p, statistics, record, running, batch, row_of_unit(p, c, batch, unit, r), part(0), known);
    }
}

}  // namespace limelight::LIMELIGHT_ISA
