"""Statistics of the weights over several processes, without gradients: passes around the ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Normalisers, Statistic, native
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.parallel.layouts import Run
from limelight.parallel.merging import Merged, share_of
from limelight.parallel.partials import KEYS, ROWS, WHOLE, KeyPart, RowPart, WholePart
from limelight.parallel.ring import Return, packed, packed_size, unpacked
from limelight.parallel.ring_attention import KeyValueBlocks, make_ring
from limelight.parallel.shards import Rectangle, Shards


def compute(shards: Shards, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics: those of rows for the own queries, those of keys for the own keys, others for the whole.

    Statistics of rows come with the normalisers in one pass; those of keys and of the whole need the normalisers
    first, and come in a second pass unless these are known.
    """
    results: dict[int, Any] = {}
    rows = {n: ROWS[type(x)](x, shards) for n, x in enumerate(asked) if type(x) in ROWS}
    keys = {n: KEYS[type(x)](x, shards) for n, x in enumerate(asked) if type(x) in KEYS}
    whole = {n: WHOLE[type(x)](x, shards) for n, x in enumerate(asked) if type(x) in WHOLE}
    assert len(rows) + len(keys) + len(whole) == len(asked)
    if known is None:
        known = _row_pass(shards, list(rows.values()))
        late: list[RowPart] = []
    else:
        late = list(rows.values())
    if late or keys or whole:
        sums = _known_pass(shards, known, late, list(keys.values()), list(whole.values()))
        results |= {n: part.result(own) for (n, part), own in zip(keys.items(), sums, strict=True)}
    results |= {n: part.result() for n, part in rows.items()}
    results |= {n: part.result(shards.processes) for n, part in whole.items()}
    return [results[n] for n in range(len(asked))], known


def _row_pass(shards: Shards, parts: list[RowPart]) -> Normalisers:
    """Find the normalisers of the own queries and, on the way, statistics of rows."""
    q, k = shards.q, shards.k
    B, H, n, D = q.shape
    merged = Merged((B, H, n), shards.problem.compute_dtype, q.device)
    blocks = KeyValueBlocks(shards, make_ring(shards, D), [k])
    for _, _, keys, tensors in blocks.travel():
        for where, rows in _rectangles(shards, keys):
            wanted = [x.part(where, rows) for x in parts]
            present = [x for x in wanted if x is not None]
            outputs, found = native.statistics_outputs(
                q[:, :, rows], tensors[0], where.spec, where.sizes(q, k), present, None, where.place
            )
            old, new = merged.add(rows, found)
            written = iter(outputs)
            for part, asked in zip(parts, wanted, strict=True):
                if asked is None:
                    part.skip(rows, old)
                else:
                    part.add(rows, where, next(written), old, new)
    if shards.lowered.sink is not None:
        share = merged.add_sink(shards.lowered.sink, float(shards.lowered.temperature))
        for part in parts:
            part.skip(slice(0, n), share)
    return merged.normalisers()


def _known_pass(
    shards: Shards,
    known: Normalisers,
    rows_parts: list[RowPart],
    key_parts: list[KeyPart],
    whole_parts: list[WholePart],
) -> list[Tensor]:
    """Add up statistics with known normalisers; return the sums of the own keys."""
    q, k = shards.q, shards.k
    dtype = shards.problem.compute_dtype
    ring = make_ring(shards, q.shape[3])
    blocks = KeyValueBlocks(shards, ring, [k])
    alone = rows_parts if not _come_along(rows_parts, known, bool(key_parts or whole_parts)) else []
    parts: list[Any] = [*(x for x in rows_parts if x not in alone), *whole_parts, *key_parts]

    def meet(keys: Run, k_block: Tensor) -> list[Tensor]:
        sums = {id(x): torch.zeros(x.shape(keys), dtype=dtype) for x in key_parts}
        for where, rows in _rectangles(shards, keys):
            normalisers = Normalisers(known.lse[:, :, rows], known.scaled[:, :, :, rows])
            for part, written, share in _outputs(shards, where, rows, k_block, parts, alone, normalisers):
                if isinstance(part, RowPart):
                    part.add(rows, where, written, None, share)
                elif isinstance(part, WholePart):
                    part.add(where, written)
                else:
                    sums[id(part)] += written[0].reshape(sums[id(part)].shape)
        return list(sums.values())

    own = [torch.zeros(*x.shape(Run(0, k.shape[2])), dtype=dtype) for x in key_parts]
    back = _returning(ring, blocks, key_parts, own, dtype) if key_parts else None
    for tick, b, keys, tensors in blocks.travel():
        found = None if keys is None else meet(keys, *tensors)
        if tick is None and found is not None:
            _, at = blocks.own[b]
            for total, x in zip(own, found, strict=True):
                total[:, :, at] += x
        elif tick is not None and back is not None:
            back.step(tick, None if found is None else packed(found))
    if back is not None:
        back.finish()
    return own


def _returning(
    ring: Any, blocks: KeyValueBlocks, parts: list[KeyPart], own: list[Tensor], dtype: torch.dtype
) -> Return:
    """The way on which sums of keys come back to the process that holds them."""
    runs = ring.blocks[ring.processes.rank]

    def shapes(run: Run) -> list[tuple[list[int], torch.dtype]]:
        return [(x.shape(run), dtype) for x in parts]

    def take(b: int, message: Tensor) -> None:
        _, at = blocks.own[b]
        for total, x in zip(own, unpacked(message, shapes(runs[b])), strict=True):
            total[:, :, at] += x

    return Return(ring, lambda run: packed_size(shapes(run)), take)


def _come_along(parts: list[RowPart], known: Normalisers, has_columns: bool) -> bool:
    """Return True where the kernels compute statistics of rows in the pass over columns, from known normalisers.

    In a pass of their own they normalise by the keys that they see, and are weighted by these keys' share.
    """
    only_sums = all(isinstance(x.statistic, (Entropy, Distance)) for x in parts)
    return only_sums and has_columns and bool(known.scaled.isfinite().all())


def _outputs(
    shards: Shards,
    where: Rectangle,
    rows: slice,
    k: Tensor,
    parts: list[Any],
    alone: list[RowPart],
    known: Normalisers,
) -> Iterator[tuple[Any, list[Tensor], Tensor | None]]:
    """Yield what the kernels write for each part in a rectangle, and the share of its keys where that is not in it."""
    for some, normalisers in ((parts, known), (alone, None)):
        asked = [(x, x.part(where, rows)) for x in some]
        present = [(x, statistic) for x, statistic in asked if statistic is not None]
        if present:
            outputs, found = native.statistics_outputs(
                shards.q[:, :, rows],
                k,
                where.spec,
                where.sizes(shards.q, k),
                [statistic for _, statistic in present],
                normalisers,
                where.place,
            )
            share = share_of(found, known) if normalisers is None else None
            for (part, _), written in zip(present, outputs, strict=True):
                yield part, written, share


def _rectangles(shards: Shards, keys: Run | None) -> list[tuple[Rectangle, slice]]:
    """The rectangles of the own queries and a block of keys in which something is seen."""
    if keys is None or 0 in shards.q.shape[:2]:
        return []
    found = ((shards.rectangle(run, keys), rows) for run, rows in shards.query_blocks(shards.q.shape[3]))
    return [(where, rows) for where, rows in found if where is not None]
