#include "linear_call.h"

#include <algorithm>

#include "kernels.h"
#include "pages.h"
#include "pool.h"

namespace limelight {

void linear(const Linear& l, int threads) {
    const Kernels& k = kernels();
    constexpr int64_t columns = 256;
    const int64_t tasks = (l.N + columns - 1) / columns;
    if (double(l.rows) * l.N * l.D < kWorthAThread) threads = 1;
    parallel(tasks, threads, k.linear_scratch(l), [&](int64_t i, char* scratch) {
        k.multiply(l, i * columns, std::min((i + 1) * columns, l.N), scratch);
    });
}

}  // namespace limelight
