#include "torch_threads.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#endif

// The race detector does not see into the runtime and would report its hand-over of a job.
#if defined(__SANITIZE_THREAD__)
#define LIMELIGHT_OWN_THREADS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LIMELIGHT_OWN_THREADS
#endif
#endif

namespace limelight {

#if defined(__linux__) && !defined(LIMELIGHT_OWN_THREADS)
namespace {

// The entry of GCC's runtime, which Intel's and LLVM's have too.
constexpr const char* kEntry = "GOMP_parallel";

// Looks into a library that is loaded already; `found` receives the entry of PyTorch's own, or else the first one.
int look_into(dl_phdr_info* library, size_t, void* found) {
    const char* name = library->dlpi_name;
    const bool is_runtime = std::strstr(name, "libgomp") || std::strstr(name, "libiomp5");
    const bool of_torch = std::strstr(name, "/torch");
    void*& entry = *static_cast<void**>(found);
    if (!is_runtime || (entry && !of_torch)) return 0;
    if (void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
        if (void* symbol = dlsym(handle, kEntry)) entry = symbol;
        dlclose(handle);
    }
    return 0;
}

std::atomic<bool> forked{false};
[[maybe_unused]] const int note_fork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

ParallelRegion torch_threads() {
    static const ParallelRegion region = [] {
        void* entry = nullptr;
        dl_iterate_phdr(look_into, &entry);
        return reinterpret_cast<ParallelRegion>(entry);
    }();
    return forked.load(std::memory_order_relaxed) ? nullptr : region;
}
#else
ParallelRegion torch_threads() { return nullptr; }
#endif

}  // namespace limelight
