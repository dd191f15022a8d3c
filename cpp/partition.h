// How a problem is cut into tasks.
//
// A unit is a query head, or a key head with its whole group of query heads where those have few rows. The rows of a
// unit are cut into tiles of up to three vectors (tiling.h), and with few tasks the keys are cut into chunks as well. The cut
// depends on the problem alone, never on the number of threads, so neither do the results.
#pragma once

#include <algorithm>

#include "tiling.h"
#include "thread_pool.h"

namespace limelight::LIMELIGHT_ISA {

struct Partition {
    bool grouped;                 // a unit is a key head with its whole group of query heads
    int64_t group_size;           // query heads to a key head
    int64_t units;                // in a batch element
    int64_t query_begin;          // the first query of a head
    int64_t queries;              // of a head
    int64_t rows;                 // in a unit
    bool decode;                  // so few that features lie in the lanes (decode.h)
    int64_t vectors;              // in a unit
    int64_t tiles;                // in a unit
    std::vector<int64_t> starts;  // the first rows of the tiles and their end, or empty: tiles of three vectors
    bool balanced;                // the last two tiles share four vectors, because one alone would remain
    int64_t tiles_per_task;       // tiles that share converted copies of K and V
    int64_t heads_abreast;        // heads that are computed side by side: 1, or all of them where they are compared
    int64_t key_begin, key_end;
    int64_t chunk;  // keys in one task
    int64_t chunks;
};

// Some tiles of the rows of one unit against the keys [begin, end).
struct Task {
    int64_t index;  // among all tasks
    int64_t batch, unit;
    int64_t tile, tiles;  // the first of the unit's tiles, and how many
    int64_t begin, end;   // keys
    int64_t chunk;        // number of the chunk of keys
};

// The least number of tasks where there are enough keys, so that as many threads have work.
constexpr int64_t kThreadsServed = 128;

// Tiles that share one copy of a block of K and V.
constexpr int64_t kTilesPerTask = 8;

// Tiles that meet K and V together where these have more bytes than this: they would leave the second cache from one tile to
// the next. That cache has half a megabyte or more; with AVX-512, a megabyte.
constexpr int64_t kTilesTogether = 4, kStaysNear = LIMELIGHT_REGISTERS < 32 ? 1 << 19 : 1 << 20;

// The bytes of K and V.
inline int64_t bytes_of_cache(const Problem& p) {
    return p.B * p.Hkv * p.M * int64_t(p.D * size_of(p.k.type) + p.Dv * size_of(p.v.type));
}

// True if so many rows are computed with features in the lanes (decode.h), which prefetches and converts as it reads. For
// as many rows as lanes that is better where numbers have to be converted or come from memory.
template <class C> bool is_decode(const Problem& p, int64_t rows) {
    if (rows != kWidth<C>) return rows < kWidth<C>;
    const bool converted = p.k.type != kType<C> || p.v.type != kType<C>;
    return bytes_of_cache(p) > (converted ? 1 << 20 : 8 << 20);
}

template <class C> void set_queries(const Problem& p, Partition& c, int64_t begin, int64_t end) {
    c.query_begin = begin;
    c.queries = end - begin;
    c.rows = c.grouped ? c.group_size * c.queries : c.queries;
    c.decode = is_decode<C>(p, c.rows);
    c.vectors = ceil_div(c.rows, kWidth<C>);
    c.starts = c.grouped ? std::vector<int64_t>{} : tile_starts<C>(p, begin, end);
    c.tiles = c.starts.empty() ? ceil_div(c.vectors, 3) : int64_t(c.starts.size()) - 1;
    c.balanced = c.tiles > 1 && c.vectors % 3 == 1;
}

// The first of a unit's rows in a tile.
template <class C> int64_t tile_begin(const Partition& c, int64_t tile) {
    if (!c.starts.empty()) return c.starts[tile];
    return min((c.balanced && tile == c.tiles - 1 ? c.vectors - 2 : 3 * tile) * kWidth<C>, c.rows);
}

// Cuts the keys into chunks of at least `shortest` until there are `enough` tasks.
inline void split_keys(Partition& c, int64_t tasks, int64_t enough, int64_t shortest) {
    const int64_t keys = c.key_end - c.key_begin;
    c.chunks = max(1, min(ceil_div(enough, max(tasks, 1)), keys / shortest));
    c.chunk = ceil_div(ceil_div(keys, c.chunks), kBlock) * kBlock;
    c.chunks = max(1, ceil_div(keys, max(c.chunk, 1)));
}

// Tiles in a task. With few tasks, smaller ones keep all threads busy to the end.
template <class C> int64_t tiles_per_task(const Problem& p, const Partition& c) {
    if (c.decode) return 1;
    const int64_t all = p.B * c.units * c.tiles;
    if (copies_keys<C>(p, false) || copied<C>(p.v, false))
        return all < kTilesPerTask * kThreadsServed ? kTilesPerTask / 2 : kTilesPerTask;
    // Where rows have several spans, tiles have too few keys in common.
    const bool near = p.M * (p.D + p.Dv) * int64_t(sizeof(C)) <= kStaysNear;
    return near || p.spans.count > 1 ? 1 : min(max(all / (2 * kThreadsServed), 1), kTilesTogether);
}

template <class C> Partition partition(const Problem& p) {
    Partition c;
    c.group_size = p.Hq / p.Hkv;
    c.grouped = c.group_size > 1 && p.N < kMaxLanes<C>;
    c.units = c.grouped ? p.Hkv : p.Hq;
    c.heads_abreast = 1;
    c.key_begin = 0, c.key_end = p.M;
    set_queries<C>(p, c, 0, p.N);
    c.tiles_per_task = tiles_per_task<C>(p, c);
    split_keys(c, p.B * c.units * ceil_div(c.tiles, c.tiles_per_task), kThreadsServed, 512);
    return c;
}

inline int64_t count_tasks(const Problem& p, const Partition& c) {
    return p.B * c.units * ceil_div(c.tiles, c.tiles_per_task) * c.chunks;
}

template <class C> Cut cut(const Problem& p) {
    const Partition c = partition<C>(p);
    const int64_t rows = min(c.tiles_per_task * kMaxLanes<C>, c.rows);
    return {count_tasks(p, c), rows, min(c.chunk, p.M), c.chunks};
}

// The r-th row of a unit.
inline Row row_of_unit(const Problem& p, const Partition& c, int64_t batch, int64_t unit, int64_t r) {
    const int64_t member = r / max(c.queries, 1);
    return row_at(p, batch, (c.grouped ? unit * c.group_size : unit) + member, c.query_begin + r - member * c.queries);
}

// The n rows of a unit from the `first` on.
inline void fill_rows(const Problem& p, const Partition& c, int64_t batch, int64_t unit, int64_t first, int n,
                      Row* rows) {
    Row next = row_of_unit(p, c, batch, unit, first);
    for (int r = 0; r < n; ++r) {
        rows[r] = next;
        const bool last = next.query + 1 == c.query_begin + c.queries;
        if (last) next = row_at(p, batch, next.head + 1, c.query_begin);
        else next = row_at(p, batch, next.head, next.query + 1);
    }
}

inline Task task_at(const Partition& c, int64_t index) {
    const int64_t pieces = ceil_div(c.tiles, c.tiles_per_task);  // of a unit's rows
    const int64_t of_rows = index / c.chunks, unit = of_rows / pieces;
    Task t;
    t.index = index;
    t.batch = unit / c.units;
    t.unit = unit % c.units;
    // Late rows first: under a causal mask they have the most keys.
    t.tile = (pieces - 1 - of_rows % pieces) * c.tiles_per_task;
    t.tiles = min(c.tiles_per_task, c.tiles - t.tile);
    t.chunk = index % c.chunks;
    t.begin = c.key_begin + t.chunk * c.chunk;
    t.end = min(t.begin + c.chunk, c.key_end);
    return t;
}

// f(task, its unit among all, scratch) for every task.
template <class F> void for_each_task(const Problem& p, const Partition& c, int threads, size_t scratch_bytes, F&& f) {
    parallel(count_tasks(p, c), threads, scratch_bytes, [&](int64_t index, char* scratch) {
        const Task t = task_at(c, index);
        f(t, t.batch * c.units + t.unit, scratch);
    });
}

}  // namespace limelight::LIMELIGHT_ISA
