// Memory that a task will need soon, prefetched while it computes.
//
// Rows of queries, outputs and keys come from memory or a far cache once for a tile, and the machine's own prefetching does
// not know them in advance. They are asked for between the register tiles of the task before, a few at a time: requests in
// bursts stall. They go into the second cache, since the first one is full of what is being computed.
#pragma once

#include "simd.h"

namespace limelight::LIMELIGHT_ISA {

class Upcoming {
public:
    // Adds `count` rows of `bytes` bytes each, which lie `pitch` bytes apart.
    void add(const char* data, int64_t pitch, int64_t bytes, int64_t count) {
        if (count > 0 && parts_ < kParts) part_[parts_++] = {data, pitch, bytes, count}, rows_ += count;
    }

    // Spreads the rows evenly over so many calls of `fetch`.
    void spread(int64_t calls) { at_once_ = (rows_ + calls - 1) / (calls > 0 ? calls : 1); }

    // Prefetches the next few rows.
    void fetch() {
        for (int64_t i = 0; i < at_once_ && next_ < parts_; ++i) {
            Part& part = part_[next_];
            for (int64_t byte = 0; byte < part.bytes; byte += 64) __builtin_prefetch(part.data + byte, 0, 2);
            part.data += part.pitch;
            if (--part.count == 0) ++next_;
        }
    }

private:
    struct Part {
        const char* data;
        int64_t pitch, bytes, count;
    };
    static constexpr int kParts = 4;  // queries, outputs, keys and values
    Part part_[kParts];
    int parts_ = 0, next_ = 0;
    int64_t rows_ = 0, at_once_ = 0;
};

}  // namespace limelight::LIMELIGHT_ISA
