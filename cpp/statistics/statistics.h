// Statistics of the weights, any number of them in at most two passes: rows, then columns.
//
// A new statistic is a file in this folder and a line in `make_row_statistic` or `make_column_statistic`.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "../forward.h"
#include "cover.h"
#include "distance.h"
#include "entropy.h"
#include "mass.h"
#include "max.h"
#include "pool.h"
#include "profile.h"
#include "received.h"
#include "similarity.h"
#include "top.h"
#include "transposed.h"

namespace limelight::LIMELIGHT_ISA {

// Null for the name of a column statistic.
template <class C>
std::unique_ptr<RowStatistic<C>> make_row_statistic(const Problem& p, const Partition& c, const Request& r,
                                                    Arena& arena) {
    if (r.name == "entropy") return std::make_unique<Entropy<C>>(r);
    if (r.name == "distance") return std::make_unique<Distance<C>>(r, c, arena);
    if (r.name == "mass") return std::make_unique<Mass<C>>(p, r, c, arena);
    if (r.name == "max") return std::make_unique<Max<C>>(r);
    if (r.name == "top") return std::make_unique<TopK<C>>(p, r, c, arena);
    if (r.name == "cover") return std::make_unique<Cover<C>>(p, r, arena);
    return nullptr;
}

template <class C>
std::unique_ptr<ColumnStatistic<C>> make_column_statistic(const Problem& p, const Partition& c, const Request& r,
                                                          Arena& arena) {
    if (r.name == "received") return std::make_unique<Received<C>>(p, r, c, arena);
    if (r.name == "profile") return std::make_unique<Profile<C>>(p, r, c, arena);
    if (r.name == "transposed") return std::make_unique<Transposed<C>>(p, r, c, arena);
    if (r.name == "pool") return std::make_unique<Pool<C>>(p, r, c, arena);
    if (r.name == "similarity") return std::make_unique<Similarity<C>>(p, r, c);
    if (r.name == "entropy") return std::make_unique<EntropyOfWeights<C>>(p, r, c, arena);
    if (r.name == "distance") return std::make_unique<DistanceOfWeights<C>>(p, r, c, arena);
    throw std::invalid_argument("there is no statistic '" + r.name + "'");
}

// With `running`, the rows join the records there, and nothing else is written.
template <class C>
void row_pass(Problem p, const std::vector<Request>& requests, const RunningRecords* running, bool known, int threads) {
    Partition c = partition<C>(p);
    Arena measure{0};
    RowScratch<C> plan = lay_out_rows<C>(p, c, requests, measure, make_row_statistic<C>);
    for (const auto& s : plan.statistics) {
        if (s->needs_every_key()) p.key_norms = nullptr;
        if (s->needs_whole_rows()) c.chunk = p.M, c.chunks = 1, c.tiles_per_task = 1;
    }
    const RowRecord<C> record(plan.statistics);
    const size_t of_unit = c.chunks * c.rows * record.bytes();
    const std::unique_ptr<char[]> records(c.chunks > 1 ? new char[p.B * c.units * of_unit] : nullptr);
    for_each_task(p, c, threads, measure.next, [&](const Task& t, int64_t unit, char* scratch) {
        Arena arena{reinterpret_cast<uintptr_t>(scratch)};
        const RowScratch<C> y = lay_out_rows<C>(p, c, requests, arena, make_row_statistic<C>);
        compute_rows(p, c, t, y, records ? records.get() + unit * of_unit + t.chunk * c.rows * record.bytes() : nullptr,
                     running, known);
    });
    for (int64_t unit = 0; records && unit < p.B * c.units; ++unit)
        join_records(p, c, plan.statistics, unit / c.units, unit % c.units, records.get() + unit * of_unit, running,
                     known);
}

template <class C> Partition partition_columns(const Problem& p, const Statistics& s) {
    Partition c = partition<C>(p);
    const bool compared =
        std::any_of(s.requests.begin(), s.requests.end(), [](const Request& r) { return r.name == "similarity"; });
    if (compared) {
        c.grouped = false;
        c.units = c.tiles_per_task = 1;
        c.heads_abreast = p.Hq;
    }
    set_queries<C>(p, c, s.crop.query_begin, s.crop.query_end);
    c.key_begin = s.crop.key_begin, c.key_end = s.crop.key_end;
    constexpr int64_t enough = 32;  // every chunk loads all queries, and has parts of its own
    split_keys(c, p.B * c.units, enough, 1024);
    return c;
}

template <class C>
void column_pass(Problem p, const Partition& c, const std::vector<Request>& requests, int threads) {
    Arena measure{0};
    ColumnScratch<C> plan = lay_out_columns<C>(p, c, requests, measure, make_column_statistic<C>);
    for (const auto& s : plan.statistics)
        if (s->needs_every_key()) p.key_norms = nullptr;
    // (statistic, batch, chunk)
    std::vector<std::unique_ptr<double[]>> parts;
    for (const auto& s : plan.statistics)
        parts.emplace_back(new double[p.B * c.chunks * ceil_div(s->part_bytes(), 8)]());
    const auto part = [&](size_t s, int64_t batch, int64_t chunk) {
        return reinterpret_cast<char*>(parts[s].get()) +
               (batch * c.chunks + chunk) * ceil_div(plan.statistics[s]->part_bytes(), 8) * 8;
    };
    parallel(p.B * c.units * c.chunks, threads, measure.next, [&](int64_t index, char* scratch) {
        Task t{};
        t.chunk = index % c.chunks;
        t.batch = index / c.chunks / c.units;
        t.unit = index / c.chunks % c.units;
        t.begin = c.key_begin + t.chunk * c.chunk;
        t.end = min(t.begin + c.chunk, c.key_end);
        Arena arena{reinterpret_cast<uintptr_t>(scratch)};
        const ColumnScratch<C> y = lay_out_columns<C>(p, c, requests, arena, make_column_statistic<C>);
        for (size_t s = 0; s < y.statistics.size(); ++s) y.statistics[s]->start_task(t, part(s, t.batch, t.chunk));
        compute_columns(p, c, t, y);
    });
    for (size_t s = 0; s < plan.statistics.size(); ++s)
        for (int64_t batch = 0; batch < p.B; ++batch) plan.statistics[s]->join(batch, part(s, batch, 0));
}

template <class C> bool all_normalisers_finite(const Problem& p) {
    const int64_t all = p.B * p.Hq * p.N;
    const C* l = reinterpret_cast<const C*>(p.normalisers) + all;
    return std::all_of(l, l + all, [](C x) { return x - x == C(0); });
}

template <class C> void statistics(Problem p, const Statistics& s, int threads) {
    if (p.multiplications() < kWorthAThread) threads = 1;
    const std::unique_ptr<C[]> key_norms = measure_key_norms<C>(p, threads);
    std::vector<Request> rows, columns;
    for (const Request& r : s.requests) {
        Arena unused{0};
        (make_row_statistic<C>(p, partition<C>(p), r, unused) ? rows : columns).push_back(r);
    }
    const bool full =
        s.crop.query_begin == 0 && s.crop.query_end == p.N && s.crop.key_begin == 0 && s.crop.key_end == p.M;
    const Partition c = partition_columns<C>(p, s);
    if (!columns.empty() && s.known && full && !rows.empty()) {
        // Entropies and distances are sums over weights as well: with known normalisers they come along with the
        // columns, unless the parts of the chunks are too large.
        constexpr size_t most_bytes = 32 << 20;
        const bool only_sums = std::all_of(
            rows.begin(), rows.end(), [](const Request& r) { return r.name == "entropy" || r.name == "distance"; });
        if (only_sums && p.B * p.Hq * p.N * sizeof(C) * c.chunks <= most_bytes && all_normalisers_finite<C>(p)) {
            columns.insert(columns.end(), rows.begin(), rows.end());
            rows.clear();
        }
    }
    if (!rows.empty() || !s.known) row_pass<C>(p, rows, nullptr, s.known, threads);
    if (!columns.empty()) column_pass<C>(p, c, columns, threads);
}

// Adds the keys of a problem to the records of its rows.
template <class C>
void accumulate_records(Problem p, const std::vector<Request>& requests, const RunningRecords& running, int threads) {
    if (p.multiplications() < kWorthAThread) threads = 1;
    const std::unique_ptr<C[]> key_norms = measure_key_norms<C>(p, threads);
    row_pass<C>(p, requests, &running, false, threads);
}

// f(statistics of rows, their record)
template <class C, class F> void with_records(const Problem& p, const std::vector<Request>& requests, F&& f) {
    Arena unused{0};
    const RowScratch<C> plan = lay_out_rows<C>(p, partition<C>(p), requests, unused, make_row_statistic<C>);
    f(plan.statistics, RowRecord<C>(plan.statistics));
}

template <class C> int64_t record_bytes(const Problem& p, const std::vector<Request>& requests) {
    int64_t bytes = 0;
    with_records<C>(p, requests, [&](const auto&, const auto& record) { bytes = int64_t(record.bytes()); });
    return bytes;
}

// Writes the statistics, and `lse` and `normalisers`, of rows from their records.
template <class C>
void finish_records(const Problem& p, const std::vector<Request>& requests, const RunningRecords& running) {
    with_records<C>(p, requests, [&](const auto& statistics, const auto& record) {
        for (int64_t batch = 0; batch < p.B; ++batch)
            for (int64_t head = 0; head < p.Hq; ++head)
                for (int64_t query = 0; query < p.N; ++query)
                    write_record(p, statistics, record, batch, Row{head, query, 0, nullptr},
                                 running.at(batch, head, query), false);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
