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

from limelight.backends import native
from limelight.core.masks import Spans
from limelight.core.masks.passes import Pass, plan
from limelight.core.pass_biases import carry
from limelight.core.problem import LoweredSpec, Problem
from limelight.core.torch_modes import has_subclass, is_traced

Attend = Callable[[Problem, Tensor], tuple[Tensor, Tensor]]
_LARGE = 40.0  # log(1 + exp(x)) is x from here on, in float64 as well


def passes_of(p: Problem) -> list[Pass] | None:
    """Return the passes of a problem, or None where its mask is computed in one, in the order of the tokens."""
    if p.mask is None or not p.mask.reorders or 0 in p.sizes:
        return None
    if is_traced() or has_subclass(p.q, p.k):
        return None
    return plan(p.mask, p.sizes.N, p.sizes.M)


def describe(p: Problem) -> str:
    """Say in which passes a problem is computed, or why it is not."""
    found = passes_of(p)
    if found is not None:
        return f"in {len(found)} pass{'' if len(found) == 1 else 'es'}: {', '.join(x.order for x in found)}"
    return "as many short spans of keys for each query (slow): no order of queries and keys has few spans for this mask"


def attention(p: Problem, v: Tensor, passes: Sequence[Pass], attend: Attend) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each row; ``attend`` computes those of a pass."""
    N = p.sizes.N
    total: tuple[Tensor, Tensor] | None = None
    merged = len(passes) > 1 or p.sink is not None
    values = v.to(p.compute_dtype) if merged else v  # the output is rounded to a half type once, after merging
    for x in sorted(passes, key=lambda x: x.queries is not None and len(x.queries) < N):  # of all queries first
        out, lse = attend(problem_of(p, x), take(values, x.keys))
        if total is None:
            total = _spread(out, lse, x.queries, N)
        else:
            total = _join(total, out, lse, x.queries)
    assert total is not None
    out, lse = total if p.sink is None else _join_sink(*total, p.sink.to(total[1].dtype)[:, None] / p.temperature)
    return out.to(v.dtype), lse


def _spread(out: Tensor, lse: Tensor, queries: Tensor | None, N: int) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of all N rows, of which some queries have a part."""
    if queries is None:
        return out, lse
    if len(queries) == N:
        places = inverse(queries)
        return take(out, places), take(lse, places)
    nothing = out.new_zeros(*out.shape[:2], N, out.shape[3]), lse.new_full((*lse.shape[:2], N), -torch.inf)
    return _join(nothing, out, lse, queries)


def _join(total: tuple[Tensor, Tensor], out: Tensor, lse: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor]:
    """Merge what some queries found in a pass into all rows, in place where no gradient is asked for."""
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (*total, out, lse)):
        native.merge_rows(*total, out, lse, queries)
        return total
    if queries is None or len(queries) == total[1].shape[2]:
        return _merge(*total, *_spread(out, lse, queries, total[1].shape[2]))
    rows = _merge(take(total[0], queries), take(total[1], queries), out, lse)
    return total[0].index_copy(2, queries, rows[0]), total[1].index_copy(2, queries, rows[1])


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


def problem_of(p: Problem, x: Pass, *, sink: Tensor | None = None) -> Problem:
    """Make the problem of the queries and keys of a pass, without the sink unless one is given."""
    bias = None if p.bias is None else carry(p.bias, x, p.sizes.N, p.sizes.M, p.compute_dtype)
    spec = p.spec._replace(mask=None if x.spans is None else Spans(x.spans), bias=bias, sink=sink)
    if x.places is None:
        return Problem(p.q, p.k, spec)
    part = _ChosenProblem(take(p.q, x.queries), take(p.k, x.keys), spec)
    part.places, part.whole = x.places, (p.sizes.N, p.sizes.M)
    return part


class _ChosenProblem(Problem):
    """The problem of queries and keys chosen from a matrix of ``whole`` sizes; the kernels get their places in it."""

    __slots__ = ("places", "whole")
    places: tuple[Tensor, Tensor]
    whole: tuple[int, int]

    def lower(self, dropout: float = 0.0, seed: Tensor | None = None) -> LoweredSpec:
        queries, keys = self.places
        return super().lower(dropout, seed)._replace(queries=queries, keys=keys, whole=self.whole)


def take(x: Tensor, places: Tensor | None) -> Tensor:
    """``x.index_select(2, places)``; None stands for all in their order."""
    if places is None:
        return x
    return take(x[..., None], places)[..., 0] if x.ndim == 3 else _take(x, places)


class _Take(torch.autograd.Function):
    """Rows ``places`` of a tensor, each at most once, so that no sums are made of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[2]
        return native.take_rows(x, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        if len(places) == ctx.rows:
            return _take(gradient, inverse(places)), None
        B, H, _, width = gradient.shape
        return gradient.new_zeros(B, H, ctx.rows, width).index_copy(2, places, gradient), None


_take: Callable[[Tensor, Tensor], Tensor] = _Take.apply


def inverse(places: Tensor) -> Tensor:
    """Return the places of 0, 1, 2, … in a permutation."""
    return torch.empty_like(places).scatter_(0, places, torch.arange(len(places)))
