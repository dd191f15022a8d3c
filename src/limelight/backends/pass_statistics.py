"""Statistics of the weights in several passes over disjoint pairs of queries and keys.

Statistics of rows, and the normalisers of whole rows, are joined pass by pass in a record of each row. With the
normalisers the kernels compute in each pass its part of any other statistic, and ``Statistic.add_pass`` puts the parts
together. The weight of a row on the keys that another mask allows needs no weights: it is the ratio of two sums, over
the keys that both masks allow and over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import native
from limelight.backends.gradients import Normalisers
from limelight.backends.passes import inverse, passes_of, problem_of
from limelight.backends.statistic import Crop, Statistic
from limelight.core.masks.merged_pass import merge
from limelight.core.masks.passes import Pass
from limelight.core.problem import Problem


def reorders(p: Problem, asked: Sequence[Statistic]) -> bool:
    """Return True if the mask of a problem, or one that a statistic takes, may be computed in passes."""
    masks = (p.mask, *(x.mask for x in asked))
    return any(mask is not None and mask.reorders for mask in masks)


def statistics(p: Problem, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics, and the normalisers of each row on the way unless they are known. No size is 0."""
    passes = _passes(p) or None  # what allows nothing has no passes
    shares = {n: both for n, x in enumerate(asked) if x.mask is not None and (both := _restricted(p, x)) is not None}
    spanned = {n: x for n, x in enumerate(asked) if n not in shares and (passes is None or x.mask is not None)}
    results: dict[int, Any] = {}
    if passes is not None:
        joined = {n: x for n, x in enumerate(asked) if n not in shares and n not in spanned}
        outputs, known = _in_passes(p, passes, list(joined.values()), known)
        results |= {n: x.result(out, p.sizes) for (n, x), out in zip(joined.items(), outputs, strict=True)}
    if spanned or known is None:
        found, known = native.statistics(p.q, p.k, p.lower(), p.sizes, list(spanned.values()), known)
        results |= zip(spanned, found, strict=True)
    results |= {n: _share(both, known) for n, both in shares.items()}
    return [results[n] for n in range(len(asked))], known


def _passes(p: Problem) -> list[Pass] | None:
    """Return the passes that have queries and keys, or None where the mask is computed in one, in its own order."""
    found = passes_of(p)
    return None if found is None else [x for x in found if all(y is None or len(y) for y in (x.queries, x.keys))]


def _in_passes(
    p: Problem, passes: Sequence[Pass], asked: Sequence[Statistic], known: Normalisers | None
) -> tuple[list[list[Tensor]], Normalisers]:
    """Return what the kernels would write for the whole, and the normalisers of whole rows."""
    N, M = p.sizes.N, p.sizes.M
    cropped = any(x.crop is not None for x in asked)
    if len(passes) == 1 and not cropped and (passes[0].queries is None or len(passes[0].queries) == N):
        return _of_one_pass(p, passes[0], asked, known)
    outputs: dict[int, list[Tensor]] = {}
    in_one = {n: x for n, x in enumerate(asked) if x.needs_whole_rows}
    of_rows = {n: x for n, x in enumerate(asked) if x.of_rows}
    if in_one:
        found, known = _of_one_pass(p, merge(passes, N, M), list(in_one.values()), known)
        outputs |= zip(in_one, found, strict=True)
    if of_rows or known is None:
        found, normalisers = _of_rows(p, passes, list(of_rows.values()))
        outputs |= zip(of_rows, found, strict=True)
        known = normalisers if known is None else known
    others = {n: x for n, x in enumerate(asked) if n not in outputs}
    outputs |= {n: x.outputs(p.sizes, p.compute_dtype) for n, x in others.items()}
    for whole in passes if others else ():
        x = _inside(whole, [y.crop for y in others.values()])
        if x.queries is not None and not len(x.queries):
            continue
        found = _of_part(p, x, list(others.values()), rows_at(known, x.queries))[0]
        for (n, statistic), part in zip(others.items(), found, strict=True):
            statistic.add_pass(outputs[n], part, x)
    return [outputs[n] for n in range(len(asked))], known


def _inside(x: Pass, crops: Sequence[Crop | None]) -> Pass:
    """The queries of a pass that are in the crop of all statistics, where they have one."""
    crop = crops[0]
    if x.places is None or crop is None or None in crops:
        return x
    queries, keys = x.places
    inside = (crop.query_begin <= queries) & (queries < crop.query_end)
    spans = None if x.spans is None else x.spans[:, inside]
    return x._replace(queries=queries[inside], spans=spans, places=(queries[inside], keys))


def _of_one_pass(
    p: Problem, x: Pass, asked: Sequence[Statistic], known: Normalisers | None
) -> tuple[list[list[Tensor]], Normalisers]:
    """Compute statistics in a pass that has all queries and their keys; its normalisers are those of whole rows."""
    found, rows = _of_part(p, x, asked, None if known is None else rows_at(known, x.queries))
    outputs = [y.outputs(p.sizes, p.compute_dtype) for y in asked]
    for y, total, part in zip(asked, outputs, found, strict=True):
        y.add_pass(total, part, x)
    if known is None:
        known = rows if x.queries is None else rows_at(rows, inverse(x.queries))
    return outputs, known


def _of_part(
    p: Problem, x: Pass, asked: Sequence[Statistic], known: Normalisers | None
) -> tuple[list[list[Tensor]], Normalisers]:
    """Return what the kernels write for a pass, and the normalisers of its rows."""
    part = problem_of(p, x, sink=p.sink)
    return native.statistics_outputs(
        part.q, part.k, part.lower(), part.sizes, [y.of_pass(x, p.sizes) for y in asked], known
    )


def _of_rows(p: Problem, passes: Sequence[Pass], asked: Sequence[Statistic]) -> tuple[list[list[Tensor]], Normalisers]:
    """Return what the kernels write for statistics of rows, and the normalisers of whole rows."""
    plain = Problem(p.q, p.k, p.spec._replace(mask=None, bias=None)).lower()  # the mask would become its spans
    running = native.RunningStatistics(p.q, p.sizes.Hkv, plain, asked)
    for x in passes:
        part = problem_of(p, x)
        running.add_at(x.queries, part.q, part.k, part.lower())
    return running.outputs()


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
    part = _of_rows(*both, [])[1]
    (m, total), (whole_m, whole) = part.scaled, known.scaled
    nothing = 0.0 * whole  # NaN where the row is
    return torch.where(part.lse == -torch.inf, nothing, torch.exp2(m - whole_m) * (total / whole))
