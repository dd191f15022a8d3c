// A problem as tasks: some strips of a unit's rows against some keys.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "pool.h"

namespace limelight {

// f(task, its unit among all, its chunk of keys, scratch) for every task.
template <class F> void for_tasks(const Problem& p, const Cut& cut, int threads, size_t scratch_bytes, F&& f) {
    const int64_t pieces = (cut.strips + cut.together - 1) / cut.together;  // of a unit's rows
    parallel(p.B * cut.units * pieces * cut.chunks, threads, scratch_bytes, [&](int64_t index, char* scratch) {
        // Late rows first: under a causal mask they have the most keys.
        const int64_t chunk = index % cut.chunks, strips = index / cut.chunks;
        const int64_t piece = pieces - 1 - strips % pieces, unit = strips / pieces;
        Task t;
        t.batch = unit / cut.units;
        t.unit = unit % cut.units;
        t.strip = piece * cut.together;
        t.strips = std::min(cut.together, cut.strips - t.strip);
        t.begin = chunk * cut.chunk;
        t.end = std::min(t.begin + cut.chunk, p.M);
        t.partial = nullptr;
        f(t, unit, chunk, scratch);
    });
}

}  // namespace limelight
