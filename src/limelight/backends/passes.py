"""Attention in several passes over disjoint pairs of queries and keys, merged by their log-sum-exp.

Two passes with outputs ``o``, ``o'`` and log-sum-exps ``l``, ``l'`` make ``l + log(1 + exp(l' - l))`` and
``o + (o' - o) sigmoid(l' - l)``. Every step can be differentiated, so the gradient of a pass is that of attention on
its own queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from limelight.core.masks import Spans
from limelight.core.masks.passes import Pass, plan
from limelight.core.problem import Problem
from limelight.core.tracing import has_subclass, is_traced

Attend = Callable[[Problem, Tensor], tuple[Tensor, Tensor]]
_LARGE = 40.0  # log(1 + exp(x)) is x from here on, in float64 as well


def passes_of(p: Problem) -> list[Pass] | None:
    """Return the passes of a problem, or None where its mask is computed in one, in the order of the tokens."""
    if p.mask is None or not p.mask.reorders or p.bias is not None or 0 in p.sizes:
        return None
    if is_traced() or has_subclass(p.q, p.k):
        return None
    return plan(p.mask, p.sizes.N, p.sizes.M)


def describe(p: Problem) -> str:
    """Say in which passes a problem is computed, or why it is not."""
    found = passes_of(p)
    if found is not None:
        return f"in {len(found)} pass{'' if len(found) == 1 else 'es'}: {', '.join(x.order for x in found)}"
    why = "the mask" if p.bias is None else "a bias by position"
    return f"as many short spans of keys for each query (slow): {why} keeps queries and keys in their order"


def attention(p: Problem, v: Tensor, passes: Sequence[Pass], attend: Attend) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each row; ``attend`` computes those of a pass."""
    N = p.sizes.N
    total: tuple[Tensor, Tensor] | None = None
    for x in sorted(passes, key=lambda x: x.queries is not None and len(x.queries) < N):  # of all queries first
        out, lse = attend(_problem_of(p, x), _take(v, x.keys))
        out = out.to(lse.dtype)
        if x.queries is None or len(x.queries) == N:
            places = None if x.queries is None else _inverse(x.queries)
            found = _take(out, places), _take(lse, places)
            total = found if total is None else _merge(*total, *found)
            continue
        if total is None:
            total = out.new_zeros(*out.shape[:2], N, out.shape[3]), lse.new_full((*lse.shape[:2], N), -torch.inf)
        before = _select(total[0], x.queries), _select(total[1], x.queries)
        rows = _merge(*before, out, lse)
        total = _put(total[0], x.queries, rows[0]), _put(total[1], x.queries, rows[1])
    assert total is not None
    out, lse = total if p.sink is None else _join_sink(*total, p.sink.to(total[1].dtype)[:, None] / p.temperature)
    return out.to(v.dtype), lse


def _merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp over the keys of both; those without keys are 0 and −∞.

    No −∞ leads to a NaN, here or in the gradient.
    """
    ahead = torch.where(other_lse == -torch.inf, -torch.inf, other_lse - lse)
    total = torch.where(lse == -torch.inf, other_lse, lse + softplus(ahead, threshold=_LARGE))
    return torch.lerp(out, other, torch.sigmoid(ahead)[..., None]), total


def _join_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Let the sink take its weight from the rows that have a key."""
    total = torch.where(lse == -torch.inf, lse, lse + softplus(sink - lse, threshold=_LARGE))
    return out * torch.sigmoid(lse - sink)[..., None], total


def _problem_of(p: Problem, x: Pass) -> Problem:
    spec = p.spec._replace(mask=None if x.spans is None else Spans(x.spans), sink=None)
    return Problem(_take(p.q, x.queries), _take(p.k, x.keys), spec)


def _take(x: Tensor, places: Tensor | None) -> Tensor:
    if places is None:
        return x
    if len(places) == x.shape[2]:
        return _reorder(x, places, _inverse(places))
    return _select(x, places)


def _select(x: Tensor, places: Tensor) -> Tensor:
    """``x.index_select(2, places)``, which torch computes several times as fast along the first axis."""
    if not x.is_contiguous():
        return x.index_select(2, places)
    B, H, M = x.shape[:3]
    rows = M * torch.arange(B * H)[:, None] + places
    found: Tensor = x.flatten(0, 2).index_select(0, rows.flatten()).unflatten(0, (B, H, -1))
    return found


class _Reorder(torch.autograd.Function):
    """``x`` in another order, whose gradient is put back in order: quicker than the sum that torch makes of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(places, back)
        return _select(x, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        places, back = ctx.saved_tensors
        return _reorder(gradient, back, places), None, None


_reorder: Callable[[Tensor, Tensor, Tensor], Tensor] = _Reorder.apply


def _inverse(places: Tensor) -> Tensor:
    """The places of 0, 1, 2, … in a permutation."""
    return torch.empty_like(places).scatter_(0, places, torch.arange(len(places)))


def _put(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Replace some rows of ``x``, in place where no gradient is asked for."""
    put = x.index_copy if x.requires_grad or rows.requires_grad else x.index_copy_
    return put(2, places, rows)
