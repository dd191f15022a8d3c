"""Attention in several passes over disjoint pairs of queries and keys, merged by their log-sum-exp.

For passes s with outputs ``o_s`` and log-sum-exps ``l_s``: ``l = log Σ exp(l_s)`` and ``o = Σ exp(l_s - l) o_s``. Every
step can be differentiated, so the gradient of a pass is that of attention on its own queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from limelight.core.masks import Spans
from limelight.core.masks.passes import Pass, plan
from limelight.core.problem import Problem
from limelight.core.tracing import has_subclass, is_traced

Attend = Callable[[Problem, Tensor], tuple[Tensor, Tensor]]


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
    found = [(x.queries, *attend(_problem_of(p, x), _take(v, x.keys))) for x in passes]
    if len(found) == 1 and p.sink is None:
        queries, out, lse = found[0]
        return _put(out, queries, N, 0.0), _put(lse, queries, N, -torch.inf)
    lses = [_put(lse, queries, N, -torch.inf) for queries, _, lse in found]
    if p.sink is not None:
        lses.append((p.sink.to(lses[0].dtype)[:, None] / p.temperature).expand_as(lses[0]))
    total, safe = _logsumexp(lses, len(found))
    outs = [
        _put(out.to(lse.dtype) * torch.exp(lse - _take(safe, queries))[..., None], queries, N, 0.0)
        for queries, out, lse in found
    ]
    return _sum(outs).to(v.dtype), total


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _logsumexp(lses: Sequence[Tensor], passes: int) -> tuple[Tensor, Tensor]:
    """``log Σ exp`` of what may be −∞ everywhere, without NaN in its gradient; and the same with 0 for −∞.

    A row of which no pass allows a key is −∞, with a sink as well.
    """
    top = torch.stack([x.detach() for x in lses]).amax(0)
    top = torch.where(top == -torch.inf, 0.0, top)
    sums = _sum([torch.exp(x - top) for x in lses])
    empty = _sum([(x.detach() != -torch.inf).int() for x in lses[:passes]]) == 0
    safe = torch.where(empty, 0.0, top + torch.log(torch.where(empty, 1.0, sums)))
    return torch.where(empty, -torch.inf, safe), safe


def _problem_of(p: Problem, x: Pass) -> Problem:
    spec = p.spec._replace(mask=None if x.spans is None else Spans(x.spans), sink=None)
    return Problem(_take(p.q, x.queries), _take(p.k, x.keys), spec)


def _take(x: Tensor, places: Tensor | None) -> Tensor:
    return x if places is None else x.index_select(2, places)


def _put(x: Tensor, places: Tensor | None, N: int, fill: float) -> Tensor:
    """Undo ``_take`` for queries; the others get ``fill``."""
    if places is None:
        return x
    return x.new_full((*x.shape[:2], N, *x.shape[3:]), fill).index_copy(2, places, x)
