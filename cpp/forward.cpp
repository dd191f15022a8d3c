#include "forward.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "kernels.h"
#include "pages.h"
#include "pool.h"
#include "tasks.h"

namespace limelight {
namespace {

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found{&baseline_kernels};
#if defined(LIMELIGHT_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found.push_back(&avx512_kernels);
#endif
    return found;
}

const Kernels* find(const std::string& name) {
    std::string names;
    for (const Kernels* k : available()) {
        if (name == k->name) return k;
        names += (names.empty() ? "" : ", ") + std::string(k->name);
    }
    throw std::invalid_argument("instruction set '" + name + "' is not one of this machine's: " + names +
                                " (set LIMELIGHT_ISA to one of them, or unset it)");
}

std::atomic<const Kernels*> chosen{nullptr};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

const Kernels& kernels() {
    if (const Kernels* k = chosen.load()) return *k;
    const char* forced = std::getenv("LIMELIGHT_ISA");
    const Kernels* k = forced && *forced ? find(forced) : available().back();
    chosen = k;
    return *k;
}

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Kernels* k : available()) names.push_back(k->name);
    return names;
}

std::string isa() { return kernels().name; }

void set_isa(const std::string& name) { chosen = find(name); }

#if defined(__linux__)
namespace {

// Advises on the large pages that lie wholly in a piece of memory, if there are at least two.
void advise([[maybe_unused]] const char* data, [[maybe_unused]] int64_t bytes, [[maybe_unused]] int advice) {
    constexpr uintptr_t page = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (begin < end && end - begin >= 2 * page) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace
#endif

void ask_for_large_pages([[maybe_unused]] const Rows& x, [[maybe_unused]] int64_t batch, [[maybe_unused]] int64_t heads,
                         [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t width) {
#if defined(__linux__)
    const int64_t last = (batch - 1) * x.batch + (heads - 1) * x.head + (rows - 1) * x.row + width;
    advise(x.data, last * int64_t(size_of(x.type)), MADV_HUGEPAGE);
#endif
}

void move_to_large_pages([[maybe_unused]] const char* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
    constexpr int collapse = 25;  // MADV_COLLAPSE, which older headers do not know and older systems refuse
    advise(data, bytes, MADV_HUGEPAGE);
    advise(data, bytes, collapse);
#endif
}

std::unique_ptr<char[]> find_reach(Problem& p, const Kernels& k, int threads) {
    if (!k.has_reach(p)) return nullptr;
    const int64_t blocks = ceil_div(p.M, kBlock), number = p.wide() ? 8 : 4;
    std::unique_ptr<char[]> reach(new char[p.B * p.Hkv * blocks * number]);
    p.reach = reach.get();
    parallel(p.B * p.Hkv, threads, std::max(p.D, p.Dv) * number,
             [&](int64_t unit, char* scratch) { k.measure_keys(p, unit / p.Hkv, unit % p.Hkv, scratch); });
    return reach;
}

void forward(const Problem& problem, int threads) {
    const Kernels& k = kernels();
    Problem p = problem;
    const std::unique_ptr<char[]> reach = find_reach(p, k, threads);
    const Cut cut = k.cut(p);
    ask_for_large_pages(p.out, p.B, p.Hq, p.N, p.Dv);
    const size_t partial = cut.chunks > 1 ? k.partial(p, cut) : 0;
    const std::unique_ptr<char[]> partials(partial ? new char[partial * p.B * cut.units * cut.chunks] : nullptr);
    const double work = double(p.B) * p.Hq * p.N * p.M * (p.D + p.Dv);
    if (work < kWorthAThread) threads = 1;

    for_tasks(p, cut, threads, k.scratch(p, cut), [&](Task t, int64_t unit, int64_t chunk, char* scratch) {
        if (partial) t.partial = partials.get() + (unit * cut.chunks + chunk) * partial;
        k.attend(p, cut, t, scratch);
    });
    if (!partial) return;
    const auto join = [&](int64_t unit, char*) {
        k.join(p, cut, unit / cut.units, unit % cut.units, partials.get() + unit * cut.chunks * partial);
    };
    parallel(p.B * cut.units, 1, 0, join);
}

}  // namespace limelight
