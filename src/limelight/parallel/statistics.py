"""Statistics of the weights over several processes, without gradients: passes around the ring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Normalisers, Statistic, rectangles
from limelight.core.problem import Sizes
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.matrix.statistics.mass import Mass
from limelight.parallel.layouts import Run
from limelight.parallel.partials import KEYS, ROWS, WHOLE, KeyPart, MaskPart, RowPart, WholePart
from limelight.parallel.ring import ReturnPath, packed, packed_size, unpacked
from limelight.parallel.ring_attention import KeyValueBlocks, make_ring
from limelight.parallel.shards import Shards, Subproblem


def compute(shards: Shards, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics: those of rows for the own queries, those of keys for the own keys, others for the whole.

    Statistics of rows come with the normalisers in one pass; those of keys and of the whole need the normalisers
    first, and come in a second pass unless these are known.
    """
    rows = {n: x for n, x in enumerate(asked) if type(x) in ROWS}
    keys = {n: KEYS[type(x)](x, shards) for n, x in enumerate(asked) if type(x) in KEYS}
    whole = {n: WHOLE[type(x)](x, shards) for n, x in enumerate(asked) if type(x) in WHOLE}
    assert len(rows) + len(keys) + len(whole) == len(asked)
    results: dict[int, Any] = {}
    sums: dict[int, RowPart] = {}
    if known is not None and (keys or whole) and _are_sums(rows.values(), known):
        sums = {n: RowPart(x, shards) for n, x in rows.items()}
    elif known is None or rows:
        found, known = _row_pass(shards, list(rows.values()))
        results |= dict(zip(rows, found, strict=True))
    if keys or whole:
        of_keys = _known_pass(shards, known, list(sums.values()), list(keys.values()), list(whole.values()))
        results |= {n: part.result(own) for (n, part), own in zip(keys.items(), of_keys, strict=True)}
    results |= {n: part.total for n, part in sums.items()}
    results |= {n: part.result(shards.processes) for n, part in whole.items()}
    return [results[n] for n in range(len(asked))], known


def _are_sums(rows: Iterable[Statistic], known: Normalisers) -> bool:
    """Return True where the kernels compute statistics of rows in the pass over columns, from known normalisers."""
    return all(isinstance(x, (Entropy, Distance)) for x in rows) and bool(known.scaled.isfinite().all())


def _row_pass(shards: Shards, asked: list[Statistic]) -> tuple[list[Any], Normalisers]:
    """Find statistics of the own queries' rows, and their normalisers."""
    q, k = shards.q, shards.k
    B, Hq, n, D = q.shape
    blocks = KeyValueBlocks(shards, make_ring(shards, D), [k])
    masks = {id(x): MaskPart(x.mask, shards) for x in asked if x.mask is not None}
    running = rectangles.RunningStatistics(q, k.shape[1], shards.lowered, asked)
    for _, keys, tensors, among, _ in blocks.schedule():
        for where, rows in () if keys is None else shards.subproblems(keys, among):
            parts = [Mass(masks[id(x)].of(where)) if id(x) in masks else x for x in asked]
            running.add(rows, tensors[0], where.spec, parts, where.place)
    outputs, normalisers = running.outputs()
    sizes = Sizes(B, Hq, k.shape[1], n, shards.M, D)
    return [x.result(out, sizes) for x, out in zip(asked, outputs, strict=True)], normalisers


def _known_pass(
    shards: Shards,
    known: Normalisers,
    row_parts: list[RowPart],
    key_parts: list[KeyPart],
    whole_parts: list[WholePart],
) -> list[Tensor]:
    """Add up statistics with known normalisers; return the sums of the own keys."""
    q, k = shards.q, shards.k
    dtype = shards.problem.compute_dtype
    ring = make_ring(shards, q.shape[3])
    blocks = KeyValueBlocks(shards, ring, [k])
    parts: list[Any] = [*row_parts, *whole_parts, *key_parts]

    def compute_with(among: slice, keys: Run, k_block: Tensor) -> list[Tensor]:
        sums = {id(x): torch.zeros(x.shape(keys), dtype=dtype) for x in key_parts}
        for where, rows in shards.subproblems(keys, among):
            normalisers = Normalisers(known.lse[:, :, rows], known.scaled[:, :, :, rows])
            for part, written in _outputs(shards, where, rows, k_block, parts, normalisers):
                if isinstance(part, RowPart):
                    part.add(rows, written)
                elif isinstance(part, WholePart):
                    part.add(where, written)
                else:
                    sums[id(part)] += written[0].reshape(sums[id(part)].shape)
        return list(sums.values())

    own = [torch.zeros(*x.shape(Run(0, k.shape[2])), dtype=dtype) for x in key_parts]
    back = _return_path(ring, blocks, key_parts, own, dtype) if key_parts else None
    for tick, keys, tensors, among, at in blocks.schedule():
        found = None if keys is None else compute_with(among, keys, *tensors)
        if at is not None and found is not None:
            for total, x in zip(own, found, strict=True):
                total[:, :, at] += x
        elif tick is not None and back is not None:
            back.step(tick, None if found is None else packed(found))
    if back is not None:
        back.finish()
    return own


def _return_path(
    ring: Any, blocks: KeyValueBlocks, parts: list[KeyPart], own: list[Tensor], dtype: torch.dtype
) -> ReturnPath:
    """Make the ``ReturnPath`` that sends sums back to the processes that hold the keys."""
    runs = ring.blocks[ring.processes.rank]

    def shapes(run: Run) -> list[tuple[list[int], torch.dtype]]:
        return [(x.shape(run), dtype) for x in parts]

    def take(b: int, message: Tensor) -> None:
        _, at = blocks.own[b]
        for total, x in zip(own, unpacked(message, shapes(runs[b])), strict=True):
            total[:, :, at] += x

    return ReturnPath(ring, lambda run: packed_size(shapes(run)), take)


def _outputs(
    shards: Shards, where: Subproblem, rows: slice, k: Tensor, parts: list[Any], known: Normalisers
) -> list[tuple[Any, list[Tensor]]]:
    """Return the statistics that a rectangle contributes to, and what the kernels write for each."""
    asked = [(x, x.part(where, rows)) for x in parts]
    present = [(x, statistic) for x, statistic in asked if statistic is not None]
    if not present:
        return []
    q = shards.q[:, :, rows]
    statistics = [statistic for _, statistic in present]
    outputs, _ = rectangles.statistics_outputs(q, k, where.spec, where.sizes(q, k), statistics, known, where.place)
    return [(part, written) for (part, _), written in zip(present, outputs, strict=True)]
