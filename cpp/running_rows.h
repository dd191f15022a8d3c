// The running softmax of rows, between calls in memory and in the lanes of a tile.
#pragma once

#include "tile_group.h"

namespace limelight::LIMELIGHT_ISA {

// The place of a row in m and l.
inline int64_t running_place(const RunningRows& y, int64_t batch, const Row& row) {
    return batch * y.batch + row.head * y.head + row.query;
}

// Loads the running sums of a tile's rows, from which it continues; `scratch` has room for its rows.
template <class C>
void load_running(const Problem& p, const RunningRows& y, int64_t batch, const QueryTile<C>& x, C* scratch) {
    load_lanes(y.o, p.Dv, C(1), batch, x, x.o, scratch);
    for (int r = 0; r < x.row_count; ++r) {
        const int64_t at = running_place(y, batch, x.rows[r]);
        x.m[r] = reinterpret_cast<const C*>(y.m)[at];
        x.l[r] = reinterpret_cast<const C*>(y.l)[at];
    }
}

template <class C> void store_running(const RunningRows& y, int64_t batch, const Row& row, C m, C l) {
    const int64_t at = running_place(y, batch, row);
    reinterpret_cast<C*>(y.m)[at] = m;
    reinterpret_cast<C*>(y.l)[at] = l;
}

template <class C>
void store_running(const Problem& p, const RunningRows& y, int64_t batch, const Row& row, C m, C l, const C* o) {
    store_running(y, batch, row, m, l);
    std::memcpy(address(y.o, batch, row.head, row.query), o, p.Dv * sizeof(C));
}

// Stores a whole tile of consecutive rows, transposed in one step; returns whether it could.
template <class C> bool store_running_squares(const Problem& p, const RunningRows& y, int64_t batch,
                                              const QueryTile<C>& x) {
    if (!is_square<C>(y.o, p.Dv, x.consecutive())) return false;
    for (int r = 0; r < x.row_count; ++r) store_running(y, batch, x.rows[r], x.m[r], x.l[r]);
    C* to = reinterpret_cast<C*>(address(y.o, batch, x.rows[0].head, x.rows[0].query));
    transpose_squares<C>(x.o, x.lanes(), p.Dv, x.lanes(), to, y.o.row, [](Vec<C> o, int64_t) { return o; });
    return true;
}

}  // namespace limelight::LIMELIGHT_ISA
