#include "large_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace limelight {

#if defined(__linux__)
namespace {

// Advises on the large pages that lie wholly in a piece of memory, if there are at least two.
void advise(const char* data, int64_t bytes, int advice) {
    constexpr uintptr_t page = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (begin < end && end - begin >= 2 * page) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace
#endif

void move_to_large_pages([[maybe_unused]] const char* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
    constexpr int collapse = 25;  // MADV_COLLAPSE, which older headers do not define and older systems refuse
    advise(data, bytes, MADV_HUGEPAGE);
    advise(data, bytes, collapse);
#endif
}

void advise_large_pages([[maybe_unused]] const Rows& x, [[maybe_unused]] int64_t batch, [[maybe_unused]] int64_t heads,
                        [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t width) {
#if defined(__linux__)
    const int64_t last = (batch - 1) * x.batch + (heads - 1) * x.head + (rows - 1) * x.row + width;
    advise(x.data, last * int64_t(size_of(x.type)), MADV_HUGEPAGE);
#endif
}

}  // namespace limelight
