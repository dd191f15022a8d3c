// K and V in the compute type and one row after the other, copied once for all tasks of a call.
//
// The products read K and V where they lie if they can. They cannot if numbers have another type, or if rows are far apart.
// Then either each task copies every block that it meets (tile_group.h), with several tiles of queries that take turns, or
// all of K and V is copied beforehand, which is less work where many tiles meet the same keys.
#pragma once

#include <memory>

#include "large_pages.h"
#include "partition.h"

namespace limelight::LIMELIGHT_ISA {

// So many bytes a call may take for its copies; memory must not grow much beyond that of the inputs.
constexpr int64_t kMostConverted = 32 << 20;

// Keys that one task converts.
constexpr int64_t kConvertedKeys = 4 * kBlock;

// True if copying K and V at once is worth it: there are several tiles of rows for each key, and room for the copies. Under
// a mask there may be keys that no row meets, as under a window with few queries at the end of many keys.
template <class C> bool pays_to_convert(const Problem& p) {
    const int64_t rows = p.Hq / p.Hkv * p.N, numbers = p.B * p.Hkv * p.M * (p.D + p.Dv);
    return rows > kMaxLanes<C> && numbers * int64_t(sizeof(C)) <= kMostConverted && (!p.spans.data || 4 * p.N >= p.M);
}

// Copies x (B, Hkv, M, width) to `to`, and makes it point there.
template <class C> void convert(const Problem& p, Rows& x, int64_t width, C* to, int threads) {
    const int64_t parts = ceil_div(p.M, kConvertedKeys);
    Rows copies;
    copies.data = reinterpret_cast<const char*>(to);
    copies.type = kType<C>;
    copies.row = width, copies.head = p.M * width, copies.batch = p.Hkv * copies.head;
    advise_large_pages(copies, p.B, p.Hkv, p.M, width);
    parallel(p.B * p.Hkv * parts, threads, 0, [&](int64_t task, char*) {
        const int64_t unit = task / parts, first = task % parts * kConvertedKeys;
        copy(in_place(x, unit / p.Hkv, unit % p.Hkv).from(first), min(kConvertedKeys, p.M - first), width,
             to + (unit * p.M + first) * width);
    });
    x = copies;
}

// Replaces p.k and p.v, those that are to be, by copies where that is worth it; returns the memory of the copies.
template <class C> std::unique_ptr<C[]> convert(Problem& p, bool keys, bool values, int threads) {
    if (!(keys || values) || !pays_to_convert<C>(p)) return nullptr;
    const int64_t rows = p.B * p.Hkv * p.M, of_k = keys ? rows * p.D : 0;
    std::unique_ptr<C[]> memory(new C[of_k + (values ? rows * p.Dv : 0)]);
    if (keys) convert(p, p.k, p.D, memory.get(), threads);
    if (values) convert(p, p.v, p.Dv, memory.get() + of_k, threads);
    return memory;
}

}  // namespace limelight::LIMELIGHT_ISA
