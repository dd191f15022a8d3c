// Questions to the weights, in at most two passes: rows, each task with rows of its own, then columns, each task
// with keys of its own. What tasks share, they add up apart, and the parts are joined in one order, so that no
// answer depends on the number of threads.
#include "questions.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cells.h"
#include "kernels.h"
#include "pages.h"
#include "tasks.h"

namespace limelight {
namespace {

void ask_rows(const Problem& p, const Questions& a, const Kernels& k, int threads) {
    const Cut cut = k.cut(p);
    const size_t record = k.record(p, a);
    std::unique_ptr<char[]> records(cut.chunks > 1 ? new char[record * p.B * cut.units * cut.chunks * cut.rows] : nullptr);
    const auto of_unit = [&](int64_t unit) {
        return records ? records.get() + unit * cut.chunks * cut.rows * record : nullptr;
    };
    for_tasks(p, cut, threads, k.row_scratch(p, a, cut), [&](Task t, int64_t unit, int64_t chunk, char* scratch) {
        if (records) t.partial = of_unit(unit) + chunk * cut.rows * record;
        k.ask_rows(p, a, cut, t, scratch);
    });
    for (int64_t unit = 0; records && unit < p.B * cut.units; ++unit)
        k.join_records(p, a, cut, unit / cut.units, unit % cut.units, of_unit(unit));
}

// parts (chunk, n) of one batch element to one sum.
template <class C> void add_up(const char* parts, int64_t chunks, int64_t n, char* to) {
    for (int64_t i = 0; i < chunks * n; ++i)
        reinterpret_cast<C*>(to)[i % n] += reinterpret_cast<const C*>(parts)[i];
}

template <class C> void put_products(const double* parts, int64_t chunks, int64_t heads, char* to) {
    for (int64_t a = 0; a < heads; ++a)
        for (int64_t b = 0; b <= a; ++b) {
            double total = 0;
            for (int64_t i = 0; i < chunks; ++i) total += parts[(i * heads + a) * heads + b];
            reinterpret_cast<C*>(to)[a * heads + b] = reinterpret_cast<C*>(to)[b * heads + a] = C(total);
        }
}

// One row of cells from what the chunks have of it.
template <class C>
void put_cells(const Questions& a, const std::vector<Picture>& pictures, int64_t head, int64_t row, double height,
               const Cells& cols, C* to) {
    for (int64_t c = 0; c < cols.count; ++c) {
        double total = 0;
        for (const Picture& x : pictures) {
            if (c < x.first || c >= x.first + x.cols) continue;
            const double part = x.cells[(head * a.pool_rows + row) * x.cols + c - x.first];
            if (!a.largest) total += part;
            else if (part > total || part != part) total = part;
        }
        to[c] = C(a.largest ? total : total / (height * double(cols.end(c) - cols.begin(c))));
    }
}

void ask_columns(const Problem& p, const Questions& a, const Kernels& k, int threads) {
    const Cut cut = k.cut_columns(p, a);
    const int64_t number = p.wide() ? 8 : 4, all = p.N + p.M - 1;
    const size_t diagonals = a.diagonals ? p.Hq * all * number : 0;
    const int64_t products = a.products ? p.Hq * p.Hq : 0;
    std::vector<char> diagonal_parts(diagonals * p.B * cut.chunks);
    const size_t rows = p.Hq * p.N * number;
    std::vector<char> entropy_parts(a.entropy ? rows * p.B * cut.chunks : 0);
    std::vector<char> distance_parts(a.distance ? rows * p.B * cut.chunks : 0);
    std::vector<double> product_parts(products * p.B * cut.chunks);

    const Cells cols{p.M, a.pool_cols};
    std::vector<Picture> pictures;  // of one batch element, then of the next
    int64_t cells = 0;
    for (int64_t i = 0; a.pool && i < p.B * cut.chunks; ++i) {
        const int64_t begin = i % cut.chunks * cut.chunk, end = std::min(begin + cut.chunk, p.M);
        Picture x{nullptr, cols.first(begin), 0};
        x.cols = cols.last(end - 1) - x.first + 1;
        pictures.push_back(x);
        cells += p.Hq * a.pool_rows * x.cols;
    }
    std::vector<double> picture_parts(cells);
    double* next = picture_parts.data();
    for (Picture& x : pictures) x.cells = next, next += p.Hq * a.pool_rows * x.cols;

    parallel(p.B * cut.units * cut.chunks, threads, k.column_scratch(p, a, cut), [&](int64_t index, char* scratch) {
        const int64_t chunk = index % cut.chunks, unit = index / cut.chunks;
        Task t{};
        t.batch = unit / cut.units;
        t.unit = unit % cut.units;
        t.begin = chunk * cut.chunk;
        t.end = std::min(t.begin + cut.chunk, p.M);
        const int64_t part = t.batch * cut.chunks + chunk;
        Share share{};
        share.diagonals = diagonal_parts.data() + part * diagonals;
        if (a.entropy) share.entropy = entropy_parts.data() + part * rows;
        if (a.distance) share.distance = distance_parts.data() + part * rows;
        if (a.pool) share.picture = pictures[part];
        share.products = product_parts.data() + part * products;
        k.ask_columns(p, a, cut, t, share, scratch);
    });

    for (int64_t batch = 0; batch < p.B; ++batch) {
        if (a.diagonals)
            (p.wide() ? add_up<double> : add_up<float>)(diagonal_parts.data() + batch * cut.chunks * diagonals, cut.chunks,
                                                        p.Hq * all, a.diagonals + batch * diagonals);
        const auto put_rows = [&](const std::vector<char>& parts, char* to) {
            (p.wide() ? add_up<double> : add_up<float>)(parts.data() + batch * cut.chunks * rows, cut.chunks, p.Hq * p.N,
                                                        to + batch * rows);
        };
        if (a.entropy) put_rows(entropy_parts, a.entropy);
        if (a.distance) put_rows(distance_parts, a.distance);
        if (a.products)
            (p.wide() ? put_products<double> : put_products<float>)(product_parts.data() + batch * cut.chunks * products,
                                                                    cut.chunks, p.Hq, a.products + batch * products * number);
        if (!a.pool) continue;
        const std::vector<Picture> mine(pictures.begin() + batch * cut.chunks, pictures.begin() + (batch + 1) * cut.chunks);
        const Cells rows{p.N, a.pool_rows};
        parallel(p.Hq * a.pool_rows, threads, 0, [&](int64_t at, char*) {
            const int64_t head = at / a.pool_rows, row = at % a.pool_rows;
            const double height = double(rows.end(row) - rows.begin(row));
            char* to = a.pool + (batch * p.Hq * a.pool_rows + at) * a.pool_cols * number;
            if (p.wide()) put_cells(a, mine, head, row, height, cols, reinterpret_cast<double*>(to));
            else put_cells(a, mine, head, row, height, cols, reinterpret_cast<float*>(to));
        });
    }
}

}  // namespace

namespace {

template <class C> bool finite_normalisers(const Problem& p) {
    const int64_t all = p.B * p.Hq * p.N;
    const C* l = reinterpret_cast<const C*>(p.lse) + 2 * all;
    return std::all_of(l, l + all, [](C x) { return x - x == C(0); });
}

constexpr size_t kParts = 32 << 20;

// Whether what is asked of rows can come along with the columns: sums alone, of rows whose normalisers are known, and
// not too much of what the chunks of keys have of them.
bool rows_come_along(const Problem& p, const Questions& a, const Kernels& k) {
    if (!a.known || !(a.entropy || a.distance) || a.mass || a.top || !a.of_columns()) return false;
    const size_t parts = p.B * p.Hq * p.N * (p.wide() ? 8 : 4) * k.cut_columns(p, a).chunks;
    return parts <= kParts && (p.wide() ? finite_normalisers<double> : finite_normalisers<float>)(p);
}

}  // namespace

void ask(const Problem& problem, const Questions& a, int threads) {
    const Kernels& k = kernels();
    Problem p = problem;
    if (double(p.B) * p.Hq * p.N * p.M * p.D < kWorthAThread) threads = 1;
    const std::unique_ptr<char[]> reach = find_reach(p, k, threads);
    Problem unreached = p;  // for questions in which weights that vanish have a part, or a place
    unreached.reach = nullptr;
    const bool along = rows_come_along(p, a, k);
    Questions columns = a;
    if (!along) columns.entropy = columns.distance = nullptr;
    if (a.of_rows() && !along) ask_rows(a.top ? unreached : p, a, k, threads);
    const bool everywhere = a.products || (a.sent.data && !a.finite);
    if (a.of_columns()) ask_columns(everywhere ? unreached : p, columns, k, threads);
}

}  // namespace limelight
