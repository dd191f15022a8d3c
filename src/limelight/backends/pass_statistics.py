"""Statistics of the weights in several passes over disjoint pairs of queries and keys.

The normalisers of whole rows are found first, from those of all passes. With them the kernels compute in each pass its
part of a statistic, and ``Statistic.add_pass`` puts the parts together. The weight of a row on the keys that another
mask allows needs no weights: it is the ratio of two sums, over the keys that both masks allow and over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import native
from limelight.backends.gradients import Normalisers
from limelight.backends.passes import passes_of, problem_of
from limelight.backends.running_rows import RunningRows
from limelight.backends.statistic import Statistic
from limelight.core.masks.merged_pass import merge
from limelight.core.masks.passes import Pass
from limelight.core.problem import Problem


def reorders(p: Problem, asked: Sequence[Statistic]) -> bool:
    """Return True if the mask of a problem, or one that a statistic takes, may be computed in passes."""
    masks = (p.mask, *(x.mask for x in asked))
    return any(mask is not None and mask.reorders for mask in masks)


def statistics(p: Problem, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics, and the normalisers of each row on the way unless they are known. No size is 0."""
    passes = _passes(p)
    shares = {n: both for n, x in enumerate(asked) if x.mask is not None and (both := _restricted(p, x)) is not None}
    others = {n: x for n, x in enumerate(asked) if n not in shares}
    in_passes = {n: x for n, x in others.items() if passes and x.mask is None}
    several = passes is not None and len(passes) > 1
    whole = {n: x for n, x in in_passes.items() if several and x.needs_whole_rows}
    joined = {n: x for n, x in in_passes.items() if n not in whole}
    results: dict[int, Any] = {}
    if passes and (joined or known is None):
        outputs, known = _join_passes(p, passes, list(joined.values()), known)
        results |= {n: x.result(out, p.sizes) for (n, x), out in zip(joined.items(), outputs, strict=True)}
    if passes and whole:
        outputs, known = _join_passes(p, [merge(passes, p.sizes.N, p.sizes.M)], list(whole.values()), known)
        results |= {n: x.result(out, p.sizes) for (n, x), out in zip(whole.items(), outputs, strict=True)}
    spanned = {n: x for n, x in others.items() if n not in in_passes}
    if spanned or known is None:
        found, known = native.statistics(p.q, p.k, p.lower(), p.sizes, list(spanned.values()), known)
        results |= zip(spanned, found, strict=True)
    results |= {n: _share(both, known) for n, both in shares.items()}
    return [results[n] for n in range(len(asked))], known


def _passes(p: Problem) -> list[Pass] | None:
    """Return the passes that have queries and keys, or None where the mask is computed in one, in its own order."""
    found = passes_of(p)
    return None if found is None else [x for x in found if all(y is None or len(y) for y in (x.queries, x.keys))]


def _join_passes(
    p: Problem, passes: Sequence[Pass], asked: Sequence[Statistic], known: Normalisers | None
) -> tuple[list[list[Tensor]], Normalisers]:
    """Return what the kernels would write for the whole; the normalisers of a single pass come along with it."""
    if known is None and len(passes) > 1:
        known = _normalisers(p, passes)
    totals = [x.outputs(p.sizes, p.compute_dtype) for x in asked]
    running = _no_rows(p)
    for x in passes if asked or known is None else ():
        part = problem_of(p, x, sink=p.sink)
        of_pass = [y.of_pass(x, p.sizes) for y in asked]
        rows = None if known is None else rows_at(known, x.queries)
        outputs, found = native.statistics_outputs(part.q, part.k, part.lower(), part.sizes, of_pass, rows)
        for y, total, output in zip(asked, totals, outputs, strict=True):
            y.add_pass(total, output, x)
        if known is None:
            _add_rows(running, x, found)
    return totals, running.normalisers() if known is None else known


def _normalisers(p: Problem, passes: Sequence[Pass]) -> Normalisers:
    """Find the normalisers of whole rows; the sink is added at the end."""
    running = _no_rows(p)
    for x in passes:
        part = problem_of(p, x)
        lowered = part.lower()
        _add_rows(running, x, native.statistics_outputs(part.q, part.k, lowered, part.sizes, [], None)[1])
        if x is passes[-1]:
            running.join_sink(lowered._replace(sink=p.sink))
    return running.normalisers()


def _no_rows(p: Problem) -> RunningRows:
    return RunningRows.empty((p.sizes.B, p.sizes.Hq, p.sizes.N), 0, p.compute_dtype)


def _add_rows(running: RunningRows, x: Pass, found: Normalisers) -> None:
    """Join the sums of a pass to those of whole rows."""
    m, total = found.scaled
    empty = found.lse == -torch.inf
    m = torch.where(empty, -torch.inf, m + 0.0 * total)  # NaN where the sum is, even if no logit was above −∞
    part = RunningRows(m, torch.where(empty, 0.0, total), m.new_zeros(*m.shape, 0))
    if x.queries is None:
        running.join(part)
        return
    rows = RunningRows(*(y[:, :, x.queries] for y in running))
    rows.join(part)
    for y, changed in zip(running, rows, strict=True):
        y[:, :, x.queries] = changed


def rows_at(known: Normalisers, queries: Tensor | None) -> Normalisers:
    """The normalisers of some rows; None stands for all."""
    if queries is None:
        return known
    return Normalisers(known.lse[:, :, queries], known.scaled[:, :, :, queries])


def parts_of(p: Problem) -> list[tuple[Problem, Pass]]:
    """The problems of the passes, without the sink, or the problem itself where it is computed in its own order."""
    passes = _passes(p)
    if passes is None:
        return [(Problem(p.q, p.k, p.spec._replace(sink=None)), Pass(None, None, None, "in order", 1))]
    return [(problem_of(p, x), x) for x in passes]


def restricted(p: Problem, x: Statistic) -> Problem:
    """The problem under the mask of a statistic as well, without the sink."""
    mask = x.mask if p.mask is None or x.mask is None else p.mask & x.mask
    return Problem(p.q, p.k, p.spec._replace(mask=mask, sink=None))


def _restricted(p: Problem, x: Statistic) -> tuple[Problem, list[Pass]] | None:
    """The problem under the mask of a statistic as well, and its passes, or None where it has none."""
    both = restricted(p, x)
    passes = _passes(both)
    return None if passes is None else (both, passes)


def _share(both: tuple[Problem, list[Pass]], known: Normalisers) -> Tensor:
    """The share of each row's weight that a narrower mask leaves."""
    part = _normalisers(*both)
    (m, total), (whole_m, whole) = part.scaled, known.scaled
    nothing = 0.0 * whole  # NaN where the row is
    return torch.where(part.lse == -torch.inf, nothing, torch.exp2(m - whole_m) * (total / whole))
