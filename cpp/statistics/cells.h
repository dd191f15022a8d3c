// A row of `count` cells over n places: cell c covers [c · n / count, (c + 1) · n / count), and parts of places count
// as whole ones, so that neighbours may share one. Of the n places only the first `there` need exist.
#pragma once

#include <algorithm>
#include <cstdint>

namespace limelight {

struct Cells {
    int64_t n, count, there;

    // `count` cells that share all places, or, with a side, cells of so many places each.
    static Cells over(int64_t places, int64_t count, int64_t side) {
        return {side ? side * count : places, count, places};
    }

    int64_t begin(int64_t c) const { return c * n / count; }
    int64_t end(int64_t c) const { return std::min(there, ((c + 1) * n + count - 1) / count); }
    // The first and the last cell that cover a place.
    int64_t first(int64_t place) const { return place * count / n; }
    int64_t last(int64_t place) const { return ((place + 1) * count - 1) / n; }

    // Neighbouring cells.
    struct Run {
        int64_t first, last;
        bool empty() const { return last < first; }
        bool operator==(const Run& other) const { return first == other.first && last == other.last; }
    };
    // Those that cover a place, none where it does not exist.
    Run around(int64_t place) const {
        return place < 0 || place >= there ? Run{0, -1} : Run{first(place), last(place)};
    }
    // The most cells that a run of so many places can meet.
    int64_t most_of(int64_t places) const { return (places * count + n - 1) / n + 2; }
};

}  // namespace limelight
