#include <algorithm>
#include <chrono>
#include <memory>

#include "machine_limits.h"
#include "kernels.h"
#include "thread_pool.h"

namespace limelight {
namespace {

template <class F> double seconds(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void multiply_adds(int threads, double flops, bool wide) {
    const double rounds = flops / kernels().multiply_add_loop(1, wide) / threads;
    parallel(threads, threads, 0, [&](int64_t, char*) {
        volatile double keep = kernels().multiply_add_loop(std::max<int64_t>(int64_t(rounds), 1), wide);
        (void)keep;
    });
}

double peak_flops(int threads, bool wide) {
    const double flops = threads * 2000000.0 * kernels().multiply_add_loop(1, wide);
    double best = 0;
    for (int i = 0; i < 8; ++i) best = std::max(best, flops / seconds([&] { multiply_adds(threads, flops, wide); }));
    return best;
}

void read_once(int threads, const void* data, int64_t bytes) {
    const float* from = static_cast<const float*>(data);
    const int64_t part = bytes / int64_t(sizeof(float)) / threads;
    parallel(threads, threads, 0, [&](int64_t i, char*) {
        volatile float keep = kernels().sum_all(from + i * part, part);
        (void)keep;
    });
}

double read_bandwidth(int threads, int64_t bytes) {
    const int64_t n = std::max<int64_t>(bytes / int64_t(sizeof(float)) / threads, 64) * threads;
    const std::unique_ptr<float[]> data(new float[n]);
    std::fill_n(data.get(), n, 1.0f);
    const int64_t rounds = std::max<int64_t>(1, (int64_t(64) << 20) / (n * int64_t(sizeof(float))));
    double best = 0;
    for (int i = 0; i < 6; ++i) {
        const double t = seconds([&] {
            parallel(threads, threads, 0, [&](int64_t part, char*) {
                for (int64_t r = 0; r < rounds; ++r) {
                    volatile float keep = kernels().sum_all(data.get() + n / threads * part, n / threads);
                    (void)keep;
                }
            });
        });
        best = std::max(best, double(rounds * n) * sizeof(float) / t);
    }
    return best;
}

}  // namespace limelight
