"""The equation, dense and readable: the oracle of the tests, and every step of it to look at.

scores = q kᵀ                              (…, heads, queries, keys)
scaled = scale · scores
capped = c · tanh(scaled / c)              where there is a softcap
biased = capped + bias
masked = biased, or −∞ where the mask forbids
weights = softmax(masked / temperature)    a sink is one more logit in the sum
output = weights v
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.core.problem import Problem
from limelight.core.tracing import transformed


@dataclass(frozen=True)
class Steps:
    """Every step from queries and keys to the output."""

    scores: Tensor
    scaled: Tensor
    capped: Tensor
    biased: Tensor
    masked: Tensor
    weights: Tensor
    logsumexp: Tensor
    output: Tensor | None


def grouped(x: Tensor, y: Tensor) -> Tensor:
    """``x @ y`` where each head of ``y`` serves a group of heads of ``x``; nothing is repeated in memory."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    B, H, N, _ = x.shape
    groups = x.reshape(B, y.shape[1], H // y.shape[1], N, x.shape[3])
    return (groups @ y[:, :, None]).reshape(B, H, N, y.shape[3])


def softmax(logits: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax over the last axis and its log-sum-exp; a row of −∞ gives zeros and −∞, never NaN."""
    if logits.shape[-1] == 0:
        return logits, logits.new_full(logits.shape[:-1], -torch.inf)
    top = logits.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    if sink is not None:
        top = torch.maximum(top, sink.detach())
    top = torch.where(empty, 0.0, top)
    removed = logits == -torch.inf  # has no weight and no gradient, even in a row of NaN
    e = torch.exp((logits - top).masked_fill(removed, -torch.inf))
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -torch.inf, top + torch.log(total))
    return (e / total).masked_fill(removed, 0.0), lse.squeeze(-1)


def cooled(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """``logits / temperature``, in which −∞ stays −∞ and asks nothing of the temperature's gradient."""
    removed = logits == -torch.inf
    return (logits.masked_fill(removed, 0.0) / temperature).masked_fill(removed, -torch.inf)


def mix(weights: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """``weights @ v``, in which a value that is not finite reaches only the queries that may attend to it."""
    strange = ~torch.isfinite(v).all(-1)
    if allowed is None or v.is_meta or transformed() or not bool(strange.any()):
        return grouped(weights, v)
    out = grouped(weights, v.masked_fill(strange[..., None], 0.0))
    allowed = allowed.expand(weights.shape)
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    for j in strange.flatten(0, 1).any(0).nonzero().flatten().tolist():
        part = weights[..., j, None] * v[..., j, None, :]
        finite = torch.isfinite(v[..., j, None, :]).all(-1, keepdim=True)
        out = torch.where(allowed[..., j, None] & ~finite, out + part, out)
    return out


def to_masked(
    p: Problem, q: Tensor, k: Tensor, i: Tensor, j: Tensor, pick: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The steps from scores to masked logits of the queries ``i`` and keys ``j``, and what the mask allows.

    Where ``q`` and ``k`` are only some of the batch elements and heads, ``pick`` picks them from ``(B, H, …)``.
    """
    fitting = None if pick is None else lambda x: pick(x.expand(*p.sizes[:2], *x.shape[-2:]))
    return logits_of(p, grouped(q, k.mT), i[:, None], j[None, :], fitting)


def logits_of(
    p: Problem, scores: Tensor, i: Tensor, j: Tensor, pick: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The steps from the scores of queries ``i`` and keys ``j``, which broadcast, to masked logits.

    ``pick`` makes what is known for all batch elements and heads fit the scores.
    """
    _, _, _, N, M, _ = p.sizes

    def fitting(x: Tensor) -> Tensor:
        return x if pick is None else pick(x)

    scaled = scores * p.scale
    capped = scaled if p.softcap is None else p.softcap * torch.tanh(scaled / p.softcap)
    biased = capped if p.bias is None else capped + fitting(p.bias.values(i, j, N, M, scores.dtype))
    allowed = None if p.mask is None else fitting(p.mask.allows(i, j, N, M))
    masked = biased if allowed is None else biased.masked_fill(~allowed, -torch.inf)
    return scores, scaled, capped, biased, masked, allowed


def steps(
    p: Problem,
    v: Tensor | None,
    rows: slice = slice(None),
    cols: slice = slice(None),
    kept: Tensor | None = None,
) -> Steps:
    """All steps for the queries ``rows`` and the keys ``cols`` of a problem, in its compute type.

    ``kept`` is what dropout multiplies the weights with on their way to the values.
    """
    _, _, _, N, M, _ = p.sizes
    q, k = (x.to(p.compute_dtype) for x in (p.q[:, :, rows], p.k[:, :, cols]))
    i, j = torch.arange(N, device=q.device)[rows], torch.arange(M, device=q.device)[cols]
    scores, scaled, capped, biased, masked, allowed = to_masked(p, q, k, i, j)
    sink = None if p.sink is None else p.sink.to(q.dtype)[:, None, None] / p.temperature
    weights, lse = softmax(cooled(masked, p.temperature), sink)
    passed = weights if kept is None else weights * kept
    output = None if v is None else mix(passed, v[:, :, cols].to(q.dtype), allowed)
    return Steps(scores, scaled, capped, biased, masked, weights, lse, output)


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Dense attention, with the options of ``limelight.attention``."""
    p = Problem(q, k, **options)
    output = steps(p, p.check_values(v)).output
    assert output is not None
    return output.to(v.dtype).reshape(*p.lead, *output.shape[1:])


_STEPS = ("q", "k", "v", "scores", "scaled", "capped", "biased", "masked", "weights", "output")


@dataclass(frozen=True)
class Trace(Steps):
    """The steps of one attention call; ``print`` shows them as tables."""

    q: Tensor
    k: Tensor
    v: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    shown: Sequence[str]  # the names of the steps that did something

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        tensors = {name: getattr(self, name).tolist() for name in _STEPS}
        return {"queries": list(self.queries), "keys": list(self.keys), **tensors}

    def __str__(self) -> str:
        from limelight.viz.tables import trace_text

        return trace_text(self)


def trace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None,
    **options: Any,
) -> Trace:
    """Every step of ``softmax((softcap(scale · q kᵀ) + bias) / temperature) v``, to look at.

    Takes the options of ``attention``, and ``tokens``: one list of names for queries and keys, or a pair of
    lists. Plain matrices ``(N, D)``, ``(M, D)``, ``(M, Dv)`` are one head.

    >>> q = torch.tensor([[0.0, 2.0]]); k = torch.tensor([[1.0, 1.0], [0.0, 1.0]]); v = torch.eye(2)
    >>> trace(q, k, v, tokens=(["it"], ["cat", "mat"])).weights
    tensor([[0.5000, 0.5000]])
    """
    plain = all(isinstance(x, Tensor) and x.ndim == 2 for x in (q, k, v))
    if plain:
        q, k, v = q[None], k[None], v[None]
    p = Problem(q, k, **options)
    values = p.check_values(v)
    N, M = q.shape[-2], k.shape[-2]
    queries, keys = _names(tokens, N, M)
    s = steps(p, values)
    did = {"capped": p.softcap is not None, "biased": p.bias is not None, "masked": p.mask is not None}

    def shape(x: Tensor) -> Tensor:
        x = x.reshape(*p.lead, *x.shape[1:])
        return x[0] if plain else x

    tensors = {"q": p.q, "k": p.k, "v": values, **vars(s)}
    return Trace(
        **{name: shape(x) for name, x in tensors.items()},
        queries=queries,
        keys=keys,
        shown=[name for name in _STEPS if did.get(name, True)],
    )


def _names(tokens: Any, N: int, M: int) -> tuple[Sequence[str], Sequence[str]]:
    if tokens is None:
        return [f"query {i}" for i in range(N)], [f"key {j}" for j in range(M)]
    pair = isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(t, str) for t in tokens)
    queries, keys = tokens if pair else (tokens, tokens)
    if len(queries) != N or len(keys) != M:
        raise ValueError(f"tokens: {len(queries)} names for {N} queries and {len(keys)} for {M} keys")
    return list(queries), list(keys)
