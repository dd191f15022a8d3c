// pool: the mean or the maximum of the weights that each cell of a picture covers.
// outputs: {cells (B, Hq, rows, cols)}, numbers: {rows, cols, 1 for the maximum, side}; the crop is what the picture
// shows. With a side, cells are squares of so many queries and keys, of which those at the end cover what is left.
// Where the crop is a part of what the picture shows, its place there follows: {…, first query, queries, first key,
// keys}. Where queries and keys have places of their own, the crop is all of them, and these count from −(first query)
// and −(first key); the others are not in the picture.
#pragma once

#include "cells.h"
#include "column_statistic.h"

namespace limelight::LIMELIGHT_ISA {

// Sums are made in double: a cell of a large matrix covers millions of weights.
template <class C> class Pool : public ColumnStatistic<C> {
public:
    Pool(const Problem& p, const Request& request, const Partition& c, Arena& arena)
        : p_(p),
          c_(c),
          out_(reinterpret_cast<C*>(request.outputs.at(0))),
          first_query_(number(request, 4, 0)),
          first_key_(number(request, 6, 0)),
          rows_(cells(request, 0, number(request, 5, c.queries))),
          cols_(cells(request, 1, number(request, 7, c.key_end - c.key_begin))),
          maximum_(request.numbers.at(2) != 0),
          width_(p.places.keys ? cols_.count : min(cols_.most_of(c.chunk), cols_.count)),
          of_lane_(arena.take<Cells::Run>(c.tiles_per_task * c.heads_abreast * kMaxLanes<C>)),
          of_key_(arena.take<Cells::Run>(c.chunk)) {}

    size_t part_bytes() const override { return p_.Hq * rows_.count * width_ * sizeof(double); }

    void start_task(const Task& t, char* part) override {
        part_ = reinterpret_cast<double*>(part);
        first_ = first_cell(t.chunk);
        begin_ = t.begin;
        for (int64_t key = t.begin; key < t.end; ++key)
            of_key_[key - t.begin] = cols_.around(key_place(p_, key) - c_.key_begin + first_key_);
    }

    void start(const QueryTile<C>& x, int64_t, int64_t i) override {
        for (int r = 0; r < x.row_count; ++r)
            of_lane_[i * kMaxLanes<C> + r] =
                rows_.around(query_place(p_, x.rows[r].query) - c_.query_begin + first_query_);
    }

    void add(const WeightBlock<C>& w) override {
        alignas(64) C sums[kMaxLanes<C>];
        const Block<C>& b = w.block;
        const Cells::Run *of_lane = of_lane_ + w.tile * kMaxLanes<C>, *of_key = of_key_ + (b.first - begin_);
        for (int64_t j = 0, next; j < b.n; j = next) {  // keys of the same cells at a time
            for (next = j + 1; next < b.n && of_key[next] == of_key[j];) ++next;
            if (of_key[j].empty()) continue;
            reduce_keys(b, j, next, w.not_finite, sums);
            for (int r = 0, after; r < b.row_count; r = after) {  // and so with rows
                const int64_t head = b.rows[r].head;
                double x = sums[r];
                for (after = r + 1; after < b.row_count && of_lane[after] == of_lane[r] && b.rows[after].head == head;)
                    join_to(x, sums[after++]);
                for (int64_t row = of_lane[r].first; row <= of_lane[r].last; ++row)
                    for (int64_t c = of_key[j].first; c <= of_key[j].last; ++c)
                        join_to(part_[(head * rows_.count + row) * width_ + c - first_], x);
            }
        }
    }

    void join(int64_t batch, const char* parts) override {
        const int64_t of_part = p_.Hq * rows_.count * width_;
        for (int64_t line = 0; line < p_.Hq * rows_.count; ++line) {
            C* to = out_ + (batch * p_.Hq * rows_.count + line) * cols_.count;
            const int64_t row = line % rows_.count;
            const double height = double(rows_.end(row) - rows_.begin(row));
            for (int64_t c = 0; c < cols_.count; ++c) {
                double total = 0;
                for (int64_t i = 0; i < c_.chunks; ++i) {
                    const int64_t at = c - first_cell(i);
                    if (at >= 0 && c <= last_cell(i))
                        join_to(total, reinterpret_cast<const double*>(parts)[i * of_part + line * width_ + at]);
                }
                to[c] = C(maximum_ ? total : total / (height * double(cols_.end(c) - cols_.begin(c))));
            }
        }
    }

private:
    static int64_t number(const Request& request, size_t i, int64_t otherwise) {
        return i < request.numbers.size() ? int64_t(request.numbers[i]) : otherwise;
    }
    static Cells cells(const Request& request, int axis, int64_t places) {
        return Cells::over(places, int64_t(request.numbers.at(axis)), int64_t(request.numbers.at(3)));
    }
    // Of those that the keys of a chunk may be in.
    int64_t first_cell(int64_t chunk) const { return p_.places.keys ? 0 : cols_.first(first_key_ + chunk * c_.chunk); }
    int64_t last_cell(int64_t chunk) const {
        if (p_.places.keys) return cols_.count - 1;
        return cols_.last(first_key_ + min((chunk + 1) * c_.chunk, c_.key_end - c_.key_begin) - 1);
    }

    void join_to(double& cell, double x) const {
        if (!maximum_) cell += x;
        else if (x > cell || x != x) cell = x;
    }

    // Lane by lane the sum of keys [from, end) of the block, or the maximum.
    void reduce_keys(const Block<C>& b, int64_t from, int64_t end, bool not_finite, C* to) const {
        for (int r = 0; r < b.lanes; r += kWidth<C>) {
            Vec<C> total{}, top{};
            for (int64_t j = from; j < end; ++j) {
                const Vec<C> weight = load(b.s + j * b.lanes + r);
                if (maximum_) top = larger(weight, top);
                if (!maximum_ || not_finite) total += weight;
            }
            store(to + r,
                  maximum_ ? top + (not_finite ? total * C(0) : Vec<C>{}) : total);  // a maximum would lose a NaN
        }
    }

    const Problem& p_;
    const Partition& c_;
    C* out_;
    int64_t first_query_, first_key_;
    Cells rows_, cols_;
    bool maximum_;
    int64_t width_;                  // cells of a part, along the keys
    Cells::Run *of_lane_, *of_key_;  // (tile, lane) and by key of the task: the cells that it is in
    double* part_ = nullptr;         // (head, row, width)
    int64_t first_ = 0;              // cell of the part
    int64_t begin_ = 0;              // key of the task
};

}  // namespace limelight::LIMELIGHT_ISA
