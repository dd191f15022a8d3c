#include <algorithm>
#include <chrono>
#include <memory>

#include "forward.h"
#include "kernels.h"
#include "pool.h"

namespace limelight {
namespace {

template <class F> double seconds(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double peak_flops(int threads, bool wide) {
    double best = 0;
    for (int i = 0; i < 8; ++i) {
        const double t = seconds([&] {
            parallel(threads, threads, 0, [&](int64_t, char*) { kernels().spin(2000000, wide); });
        });
        const double done = threads * 2000000.0 * kernels().spin(1, wide);
        best = std::max(best, done / t);
    }
    return best;
}

double read_bandwidth(int threads) {
    constexpr int64_t n = 64 << 20;  // 256 MiB, more than caches hold
    const std::unique_ptr<float[]> data(new float[n]);
    std::fill_n(data.get(), n, 1.0f);
    double best = 0;
    for (int i = 0; i < 4; ++i) {
        const double t = seconds([&] {
            parallel(threads, threads, 0, [&](int64_t part, char*) {
                volatile float keep = kernels().read(data.get() + n / threads * part, n / threads);
                (void)keep;
            });
        });
        best = std::max(best, n * sizeof(float) / t);
    }
    return best;
}

}  // namespace limelight
