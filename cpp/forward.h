// Attention over a whole problem: tasks, and the sums of rows whose keys are split over tasks.
#pragma once

#include "converted.h"
#include "running_rows.h"

namespace limelight::LIMELIGHT_ISA {

// o · (factor + rest); a sum that values made infinite stays so.
template <class X> LIMELIGHT_INLINE X scaled(X o, X factor, X rest) {
    return o * factor + (o - o == X{} ? o * rest : X{});
}

template <class C>
void write_row(const Problem& p, int64_t batch, const Row& row, const RowResult<C>& end, const C* o) {
    with_element_type(p.out.type, [&](auto e) {
        using E = decltype(e);
        E* to = reinterpret_cast<E*>(address(p.out, batch, row.head, row.query));
        const Vec<C> factor = broadcast(end.factor), rest = broadcast(end.rest);
        int64_t d = 0;
        if (!end.empty)
            for (; d + kWidth<C> <= p.Dv; d += kWidth<C>) store_as<C>(to + d, scaled(load(o + d), factor, rest));
        for (; d < p.Dv; ++d) to[d] = narrow<E>(end.empty ? C(0) : scaled(o[d], end.factor, end.rest));
    });
    write_normalisers(p, batch, row, end);
}

// Writes the result of a row that has met all keys of the call: its output, or its running softmax.
template <class C>
void write_sums(const Problem& p, const RunningRows* running, int64_t batch, const Row& row, C m, C l, const C* o) {
    if (running) store_running(p, *running, batch, row, m, l, o);
    else write_row(p, batch, row, finish_row(p, row.head, m, l), o);
}

// The running sums of a row whose keys are split: m, l and o, one after the other.
inline int64_t partial_width(const Problem& p) { return p.Dv + 2; }

// Writes a whole tile of consecutive rows, scaled and transposed in one step; returns whether it could.
template <class C> bool write_squares(const Problem& p, int64_t batch, const QueryTile<C>& x) {
    if (!is_square<C>(p.out, p.Dv, x.consecutive())) return false;
    alignas(64) C factor[kMaxLanes<C>], rest[kMaxLanes<C>];
    for (int r = 0; r < x.row_count; ++r) {
        const RowResult<C> end = finish_row(p, x.rows[r].head, x.m[r], x.l[r]);
        if (end.empty) return false;
        factor[r] = end.factor, rest[r] = end.rest;
        write_normalisers(p, batch, x.rows[r], end);
    }
    with_readable_type<C>(p.out.type, [&](auto e) {
        auto* to = reinterpret_cast<decltype(e)*>(address(p.out, batch, x.rows[0].head, x.rows[0].query));
        transpose_squares<C>(x.o, x.lanes(), p.Dv, x.lanes(), to, p.out.row,
                             [&](Vec<C> o, int64_t r) { return scaled(o, load(factor + r), load(rest + r)); });
    });
    return true;
}

// Writes the rows of a tile that has met all keys, or their running sums to `partial`, which belongs to the chunk.
template <class C>
void finish_tile(const Problem& p, const RunningRows* running, int64_t batch, const QueryTile<C>& x, int64_t first_row,
                 C* rows, C* partial) {
    if (!partial && (running ? store_running_squares(p, *running, batch, x) : write_squares(p, batch, x))) return;
    if (x.decode) rows = x.o;
    else transpose(x.o, x.lanes(), p.Dv, x.lanes(), rows, p.Dv);
    for (int r = 0; r < x.row_count; ++r) {
        const C* o = rows + r * p.Dv;
        if (!partial) {
            write_sums(p, running, batch, x.rows[r], x.m[r], x.l[r], o);
            continue;
        }
        C* to = partial + (first_row + r) * partial_width(p);
        to[0] = x.m[r];
        to[1] = x.l[r];
        std::memcpy(to + 2, o, p.Dv * sizeof(C));
    }
}

// The keys from the first to the last that the rows of a task may attend to, if rows follow one another as in a band.
template <class C> Range keys_of(const Problem& p, const Partition& c, const Task& t) {
    const int64_t first = tile_begin<C>(c, t.tile), last = tile_begin<C>(c, t.tile + t.tiles) - 1;
    if (!p.spans.data) return {t.begin, t.end};
    const int32_t* spans = p.spans.data + t.batch * p.spans.batch;
    return {max(spans[first * p.spans.count * 2], t.begin), min(spans[(last + 1) * p.spans.count * 2 - 1], t.end)};
}

// What is prefetched during a task: where its output goes, and of the `next` task the queries and those keys and values
// that this one does not meet.
template <class C> Upcoming upcoming(const Problem& p, const Partition& c, const Task& t, const Task& next) {
    const auto add = [](Upcoming& to, const Rows& x, int64_t batch, int64_t head, Range rows, int64_t width) {
        const int64_t size = size_of(x.type);
        to.add(address(x, batch, head, rows.begin), x.row * size, width * size, rows.end - rows.begin);
    };
    const auto rows = [&](const Task& of) {
        return Range{tile_begin<C>(c, of.tile), tile_begin<C>(c, of.tile + of.tiles)};
    };
    Upcoming all;
    const Range now = keys_of<C>(p, c, t);
    if (p.out.data) add(all, p.out, t.batch, t.unit, rows(t), p.Dv);
    if (next.index != t.index) {
        add(all, p.q, next.batch, next.unit, rows(next), p.D);
        const int64_t head = next.unit / c.group_size;
        Range keys = keys_of<C>(p, c, next);
        if (next.batch == t.batch && head == t.unit / c.group_size) {
            if (keys.begin < now.begin) keys.end = min(keys.end, now.begin);
            else keys.begin = max(keys.begin, now.end);
        }
        keys.end = min(keys.end, keys.begin + kBlock);
        add(all, p.k, next.batch, head, keys, p.D);
        add(all, p.v, next.batch, head, keys, p.Dv);
    }
    const int64_t met = max(now.end - now.begin, 1);
    all.spread((met / kTile<3> + ceil_div(met, kBlock) * (p.Dv / kTile<3>)) * t.tiles);
    return all;
}

// Meets the keys of a task with a group that has loaded its queries.
template <class C>
void attend_task(const Problem& p, const RunningRows* running, const Task& t, TileGroup<C>& group, C* partial) {
    const bool goes_on = running && t.chunk == 0;  // the other chunks of keys join it
    for (int64_t i = 0; goes_on && i < group.count; ++i)
        load_running(p, *running, t.batch, group.tiles[i], group.transposing);
    const auto visit = [&](int64_t, const QueryTile<C>& x, const Operand& k, const Operand& v, const Block<C>& b,
                           Range masked) { attend(x, k, v, b, masked, group.spare); };
    for_each_block(p, group, t, visit, [](Range) {});
    for (int64_t i = 0; i < group.count; ++i) {
        const QueryTile<C>& x = group.tiles[i];
        finish_tile(p, running, t.batch, x, group.first_row + (x.rows - group.rows), group.transposing, partial);
    }
}

// Tasks that a thread takes at once. With few rows, beginning a task takes as long as reading many keys, and chunks of the same
// rows follow one another; every thread has a few runs, so that all end at about the same time.
inline int64_t tasks_in_a_run(const Partition& c, int64_t tasks, int threads) {
    return c.decode ? max(1, min(c.chunks, tasks / (4 * threads))) : 1;
}

// Joins the running sums (chunk, row) of one unit; those of the first chunk receive the others'.
template <class C> void join_chunks(const Problem& p, const Partition& c, const RunningRows* running, int64_t batch,
                                    int64_t unit, C* chunks) {
    const int64_t width = partial_width(p);
    for (int64_t r = 0; r < c.rows; ++r) {
        C* total = chunks + r * width;
        const auto part = [&](int64_t i) { return chunks + (i * c.rows + r) * width; };
        C top = total[0];
        for (int64_t i = 1; i < c.chunks; ++i) top = larger(part(i)[0], top);
        const C safe = top == -kInf<C> ? C(0) : top;
        for (int64_t i = 0; i < c.chunks; ++i) {
            const C share = std::exp2(part(i)[0] - safe);
            for (int64_t d = 1; d < width; ++d) total[d] = (i ? total[d] : C(0)) + part(i)[d] * share;
        }
        const Row row = row_of_unit(p, c, batch, unit, r);
        write_sums(p, running, batch, row, top, total[1], total + 2);
    }
}

// The largest norms of the keys of every block, where they let blocks be skipped; p.key_norms points to them.
template <class C> std::unique_ptr<C[]> measure_key_norms(Problem& p, int threads) {
    if (!can_skip_by_distance(p)) return nullptr;
    const int64_t blocks = ceil_div(p.M, kBlock);
    std::unique_ptr<C[]> norms(new C[p.B * p.Hkv * blocks]);
    p.key_norms = reinterpret_cast<const char*>(norms.get());
    parallel(p.B * p.Hkv, threads, max(p.D, p.Dv) * sizeof(C), [&](int64_t unit, char* scratch) {
        block_key_norms(p, unit / p.Hkv, unit % p.Hkv, norms.get() + unit * blocks, reinterpret_cast<C*>(scratch));
    });
    return norms;
}

// With `running`, rows continue from those sums and are not normalised at the end.
template <class C> void forward(Problem p, const RunningRows* running, int threads) {
    if (p.multiplications() < kWorthAThread) threads = 1;
    const std::unique_ptr<C[]> copies = convert<C>(p, copies_keys<C>(p, false), copied<C>(p.v, false), threads);
    const std::unique_ptr<C[]> key_norms = measure_key_norms<C>(p, threads);
    const Partition c = partition<C>(p);
    advise_large_pages(running ? running->o : p.out, p.B, p.Hq, p.N, p.Dv);

    const bool split = c.chunks > 1;
    const int64_t of_chunk = c.rows * partial_width(p);
    const std::unique_ptr<C[]> partials(split ? new C[p.B * c.units * c.chunks * of_chunk] : nullptr);
    const auto partial = [&](int64_t unit, int64_t chunk) {
        return split ? partials.get() + (unit * c.chunks + chunk) * of_chunk : nullptr;
    };
    Arena measure{0};
    lay_out_group<C>(p, c, measure);
    const bool prefetches = !c.decode && !c.grouped && bytes_of_cache(p) > kInCache;  // decoding does so by itself
    const bool in_steps =
        c.decode && plain(p) && !p.slopes && !p.dropout && !copied<C>(p.k, true) && !copied<C>(p.v, true);
    const int64_t tasks = count_tasks(p, c), run = tasks_in_a_run(c, tasks, threads);
    parallel(ceil_div(tasks, run), threads, measure.next, [&](int64_t index, char* scratch) {
        Arena arena{reinterpret_cast<uintptr_t>(scratch)};
        TileGroup<C> group = lay_out_group<C>(p, c, arena);
        if (in_steps)
            group.step = kDecodeStep;  // otherwise there are passes over a block that have room for kBlock keys
        for (int64_t i = index * run; i < min((index + 1) * run, tasks); ++i) {
            const Task t = task_at(c, i);
            if (i == index * run || t.chunk == 0) load_group(p, c, t, group);
            else empty_sums(p, group);
            Upcoming soon;
            // Threads take tasks in turns, so the next one of this thread is about so many later.
            if (prefetches) soon = upcoming<C>(p, c, t, task_at(c, min(t.index + threads, tasks - 1)));
            group.upcoming = &soon;
            attend_task(p, running, t, group, partial(t.batch * c.units + t.unit, t.chunk));
        }
    });
    for (int64_t unit = 0; split && unit < p.B * c.units; ++unit)
        join_chunks(p, c, running, unit / c.units, unit % c.units, partial(unit, 0));
}

}  // namespace limelight::LIMELIGHT_ISA
