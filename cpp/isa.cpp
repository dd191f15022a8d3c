// Chooses the instruction set.
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(LIMELIGHT_X86)
#include <cpuid.h>
#endif

#include "kernels.h"

namespace limelight {
namespace {

#if defined(LIMELIGHT_X86)
// Conversions of float16, which every machine with AVX2 has; not every compiler knows their name.
bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// The processor multiplies pairs of bfloat16; not every compiler knows the name of that.
bool has_avx512_bf16() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

const Kernels& avx512_bf16_kernels() {
    static const Kernels all = [] {
        Kernels k = avx512_kernels;
        k.name = "avx512_bf16", k.multiplies_bf16 = true;
        return k;
    }();
    return all;
}
#endif

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found{&baseline_kernels};
#if defined(LIMELIGHT_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) found.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        found.push_back(&avx512_kernels);
        if (has_avx512_bf16()) found.push_back(&avx512_bf16_kernels());
    }
#endif
    return found;
}

const Kernels* find(const std::string& name) {
    std::string names;
    for (const Kernels* k : available()) {
        if (name == k->name) return k;
        names += (names.empty() ? "" : ", ") + std::string(k->name);
    }
    throw std::invalid_argument("instruction set '" + name + "' is not available on this machine, which has " + names +
                                " (set LIMELIGHT_ISA to one of them, or unset it)");
}

std::atomic<const Kernels*> chosen{nullptr};
std::atomic<int> forced_family{-1};

}  // namespace

int amd_family() {
    const int forced = forced_family.load(std::memory_order_relaxed);
    if (forced >= 0) return forced;
#if defined(LIMELIGHT_X86)
    static const int family = [] {
        __builtin_cpu_init();
        unsigned a = 0, b, c, d;
        if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return 0;
        return int((a >> 8 & 15) + (a >> 20 & 255));  // base and extended family; every AMD in use has both
    }();
    return family;
#else
    return 0;
#endif
}

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

void force_amd_family(int family) { forced_family = family; }

void set_isa(const std::string& name) { chosen = find(name); }

}  // namespace limelight
