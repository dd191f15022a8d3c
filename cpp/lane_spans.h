// The spans of the rows of a tile by lane, for rows with one span each: what masks compare with, and where along the edges of
// a band a vector of rows begins and ends to see keys.
#pragma once

#include "rows.h"

namespace limelight::LIMELIGHT_ISA {

template <class C> struct LaneSpans {
    // The outermost spans of a vector of rows. Empty spans take no part in the keys [first_begin, last_end) that some row
    // sees, but every row sees [last_begin, first_end), which they make empty.
    struct Bounds {
        int64_t first_begin, last_begin, first_end, last_end;
    };

    alignas(64) typename Simd<C>::Bit begin[kMaxLanes<C>], end[kMaxLanes<C>];
    Bounds of_vector[3];

    // Lanes without a row repeat the last one.
    void set(const Row* rows, int row_count, int vectors) {
        constexpr int W = kWidth<C>;
        for (int v = 0; v < vectors; ++v) {
            const int32_t* first = rows[v * W].spans;
            Bounds x{std::numeric_limits<int32_t>::max(), first[0], first[1], 0};
            for (int lane = v * W; lane < v * W + W; ++lane) {
                const int32_t* span = rows[min(lane, row_count - 1)].spans;
                begin[lane] = span[0], end[lane] = span[1];
                x.last_begin = max(x.last_begin, span[0]), x.first_end = min(x.first_end, span[1]);
                if (span[0] < span[1])
                    x.first_begin = min(x.first_begin, span[0]), x.last_end = max(x.last_end, span[1]);
            }
            of_vector[v] = x;
        }
    }

    LIMELIGHT_INLINE IntVec<C> begins(int lane) const { return load_lanes(begin + lane); }
    LIMELIGHT_INLINE IntVec<C> ends(int lane) const { return load_lanes(end + lane); }

private:
    static LIMELIGHT_INLINE IntVec<C> load_lanes(const typename Simd<C>::Bit* p) {
        IntVec<C> v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
};

}  // namespace limelight::LIMELIGHT_ISA
