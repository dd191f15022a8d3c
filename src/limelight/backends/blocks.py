"""The same attention in blocks of plain torch: any device, any float type, and gradients of any order.

A block of queries meets only the keys between the first and the last that it may attend to, and its scores
are made, used and dropped before the next block, so memory grows with n. Under autograd each block is
computed again in the backward pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from limelight.backends.statistic import Statistic, WeightsBlock
from limelight.core.dropout import factors
from limelight.core.problem import LoweredSpec, Problem
from limelight.core.torch_modes import is_traced

_MAX_SCORES = 2**22  # scores in memory at a time
_MAX_WEIGHTS = 2**20  # weights that a statistic gets at a time; it makes several copies of them


def forward(p: Problem, v: Tensor, lowered: LoweredSpec) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp of each row; only spans and dropout are taken from ``lowered``."""
    B, H, _, N, M, _ = p.sizes
    step = max(1, min(N, _MAX_SCORES // max(1, B * H * M)))
    needs_grad = torch.is_grad_enabled() and (v.requires_grad or p.requires_grad)
    recompute = needs_grad and not is_traced()  # checkpoint does not work under torch.func

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        cols = _seen_keys(lowered.spans, rows, M)
        i, j = torch.arange(N, device=q.device)[rows], torch.arange(M, device=q.device)[cols]
        weights, lse, allowed = _weights(p, rows, cols, i, j)
        if lowered.dropout:
            i = i if lowered.queries is None else lowered.queries[i]
            j = j if lowered.keys is None else lowered.keys[j]
            weights = weights * factors(lowered.dropout, lowered.seed, B, H, i, j, p.compute_dtype)
        out = _mix(weights, v[:, :, cols].to(p.compute_dtype), allowed)
        return out.to(v.dtype), lse

    outs, lses = [], []
    for first in range(0, max(N, 1), step):
        rows = slice(first, min(first + step, N))
        if recompute:
            out, lse = checkpoint(block, p.q, p.k, v, rows, use_reentrant=False)
        else:
            out, lse = block(p.q, p.k, v, rows)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def statistics(p: Problem, asked: Sequence[Statistic], needs_grad: bool) -> list[Any]:
    """Compute statistics of the weights of a problem."""
    B, H, _, N, M, _ = p.sizes
    # A stride reaches over all keys, and its spans are as many as the pairs that it allows.
    mask = None if p.mask is None or p.mask.reorders else p.lowered_mask()
    spans = None if mask is None else mask.spans

    def block(rows: slice) -> WeightsBlock:
        cols = _seen_keys(spans, rows, M)
        i, j = torch.arange(N, device=p.q.device)[rows], torch.arange(M, device=p.q.device)[cols]
        return WeightsBlock(_weights(p, rows, cols, i, j)[0], i, j, N, M)

    return statistics_of_blocks(block, (B, H, N, M), asked, needs_grad and not is_traced())


def statistics_of_blocks(
    block: Callable[[slice], WeightsBlock],
    sizes: tuple[int, int, int, int],
    asked: Sequence[Statistic],
    recompute: bool,
) -> list[Any]:
    """Compute statistics from blocks of rows of any matrix; ``recompute`` them in a backward pass."""
    B, H, N, M = sizes
    step = max(1, min(N, _MAX_WEIGHTS // max(1, B * H * M)))

    def parts(rows: slice) -> tuple[Tensor, ...]:
        b = block(rows)
        return tuple(statistic.of_block(b) for statistic in asked)

    found = []
    for first in range(0, max(N, 1), step):
        rows = slice(first, min(first + step, N))
        found.append(checkpoint(parts, rows, use_reentrant=False) if recompute else parts(rows))
    return [statistic.join(part) for statistic, part in zip(asked, zip(*found, strict=True), strict=True)]


def dense_weights(p: Problem) -> Tensor:
    """Compute the whole matrix ``(B, H, N, M)``."""
    i, j = (torch.arange(n, device=p.q.device) for n in (p.sizes.N, p.sizes.M))
    return _weights(p, slice(None), slice(None), i, j)[0]


def masked_logits(
    p: Problem, scores: Tensor, i: Tensor, j: Tensor, pick: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return logits / temperature and the mask for the scores of queries ``i`` and keys ``j``, indices that broadcast.

    ``pick`` selects the batch elements and heads of the scores from a bias or mask that covers all of them.
    """
    N, M = p.sizes.N, p.sizes.M
    logits = scores * p.scale
    if p.softcap is not None:
        logits = p.softcap * torch.tanh(logits / p.softcap)
    if p.bias is not None:
        values = p.bias.values(i, j, N, M, scores.dtype)
        logits = logits + (values if pick is None else pick(values))
    allowed = None if p.mask is None else p.mask.allows(i, j, N, M)
    if allowed is not None:
        allowed = allowed if pick is None else pick(allowed)
        logits = logits.masked_fill(~allowed, -torch.inf)
    return apply_temperature(logits, p.temperature), allowed


def apply_temperature(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Divide by the temperature; −∞ stays −∞ and gives the temperature no gradient."""
    removed = logits == -torch.inf
    return (logits.masked_fill(removed, 0.0) / temperature).masked_fill(removed, -torch.inf)


def grouped_matmul(x: Tensor, y: Tensor) -> Tensor:
    """``x @ y`` where each head of ``y`` serves a group of heads of ``x``; nothing is repeated in memory."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    B, H, N, _ = x.shape
    groups = x.reshape(B, y.shape[1], H // y.shape[1], N, x.shape[3])
    return (groups @ y[:, :, None]).reshape(B, H, N, y.shape[3])


def _weights(p: Problem, rows: slice, cols: slice, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return weights, log-sum-exp and mask of some queries; ``cols`` must hold every key that they may attend to."""
    return weights_of(p, p.q[:, :, rows], p.k[:, :, cols], i, j)


def weights_of(p: Problem, q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return weights, log-sum-exp and mask of the queries ``q`` at places ``i`` for the keys ``k`` at places ``j``."""
    q, k = q.to(p.compute_dtype), k.to(p.compute_dtype)
    logits, allowed = masked_logits(p, grouped_matmul(q, k.mT), i[:, None], j[None, :])
    sink = None if p.sink is None else p.sink.to(q.dtype)[:, None, None] / p.temperature
    weights, lse = _softmax(logits, sink)
    return weights, lse, allowed


def _softmax(logits: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
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


def _mix(weights: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """``weights @ v``, in which a value that is not finite reaches only the queries that may attend to it."""
    not_finite = ~torch.isfinite(v).all(-1)
    if allowed is None or v.is_meta or is_traced() or not bool(not_finite.any()):
        return grouped_matmul(weights, v)
    out = grouped_matmul(weights, v.masked_fill(not_finite[..., None], 0.0))
    allowed = allowed.expand(weights.shape)
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    for j in not_finite.flatten(0, 1).any(0).nonzero().flatten().tolist():
        part = weights[..., j, None] * v[..., j, None, :]
        finite = torch.isfinite(v[..., j, None, :]).all(-1, keepdim=True)
        out = torch.where(allowed[..., j, None] & ~finite, out + part, out)
    return out


def _seen_keys(spans: Tensor | None, rows: slice, M: int) -> slice:
    """The keys from the first to the last that some of these queries may attend to."""
    if spans is None or spans.is_meta or is_traced():
        return slice(0, M)
    begin, end = spans[:, rows].unbind(-1)
    seen = begin < end
    return slice(int(begin[seen].min()), int(end[seen].max())) if bool(seen.any()) else slice(0, 0)
