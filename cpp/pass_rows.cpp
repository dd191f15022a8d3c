#include "pass_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thread_pool.h"

namespace limelight {
namespace {

constexpr double kNumbersOfATask = 1 << 16;

// f(batch, head, row) for every row, many of them in a task.
template <class F> void for_each_row(int64_t B, int64_t heads, int64_t rows, int64_t width, int threads, F&& f) {
    const int64_t all = B * heads * rows,
                  together = std::max<int64_t>(1, int64_t(kNumbersOfATask / double(width + 16)));
    if (double(all) * double(width) < kWorthAThread / 4) threads = 1;
    parallel((all + together - 1) / together, threads, 0, [&](int64_t task, char*) {
        for (int64_t i = task * together; i < std::min((task + 1) * together, all); ++i)
            f(i / rows / heads, i / rows % heads, i % rows);
    });
}

const char* at(const Rows& x, int64_t b, int64_t h, int64_t row) {
    return x.data + (b * x.batch + h * x.head + row * x.row) * int64_t(size_of(x.type));
}

// o + (o′ − o) / (1 + e^(l − l′)) and l + log(1 + e^(l′ − l)); a row without keys is 0 with −∞.
template <class T> void merge(const MergedRows& m, int threads) {
    constexpr T none = -std::numeric_limits<T>::infinity();
    for_each_row(m.B, m.heads, m.count, m.width, threads, [&](int64_t b, int64_t h, int64_t i) {
        const int64_t row = m.places ? m.places[i] : i;
        T& lse = reinterpret_cast<T*>(m.lse)[(b * m.heads + h) * m.rows + row];
        const T other_lse = reinterpret_cast<const T*>(m.other_lse)[(b * m.heads + h) * m.count + i];
        if (other_lse == none) return;
        T* out = reinterpret_cast<T*>(const_cast<char*>(at(m.out, b, h, row)));
        const T* other = reinterpret_cast<const T*>(at(m.other, b, h, i));
        if (lse == none) {
            lse = other_lse;
            if (m.width) std::memcpy(out, other, m.width * sizeof(T));
            return;
        }
        const T ahead = other_lse - lse, share = 1 / (1 + std::exp(-ahead));
        lse = ahead > 0 ? other_lse + std::log1p(std::exp(-ahead)) : lse + std::log1p(std::exp(ahead));
        for (int64_t d = 0; d < m.width; ++d) out[d] += (other[d] - out[d]) * share;
    });
}

}  // namespace

void take_rows(const TakenRows& t, int threads) {
    const int64_t bytes = t.width * int64_t(size_of(t.x.type));
    for_each_row(t.B, t.heads, t.count, t.width, threads, [&](int64_t b, int64_t h, int64_t i) {
        std::memcpy(t.out + ((b * t.heads + h) * t.count + i) * bytes, at(t.x, b, h, t.places[i]), bytes);
    });
}

void merge_rows(const MergedRows& m, int threads) {
    m.out.type == Type::f64 ? merge<double>(m, threads) : merge<float>(m, threads);
}

}  // namespace limelight
