"""The equation, dense and readable: the oracle of the tests, and every step of it to look at.

It shares nothing with the backends that it judges: masks and biases come from their definitions, as dense tensors.

scores = q kᵀ                              (…, heads, queries, keys)
scaled = scale · scores
capped = c · tanh(scaled / c)              where there is a softcap
biased = capped + bias
masked = biased, or −∞ where the mask forbids
weights = softmax(masked / temperature)    a sink is one more logit in the sum
output = weights v
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.core.biases import Bias
from limelight.core.masks import Mask


@dataclass(frozen=True)
class Steps:
    """Every step from queries and keys to the output; ``output`` is None without values."""

    scores: Tensor
    scaled: Tensor
    capped: Tensor
    biased: Tensor
    masked: Tensor
    weights: Tensor
    logsumexp: Tensor
    output: Tensor | None


def steps(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | float | None = None,
    temperature: float | Tensor = 1.0,
) -> Steps:
    """Compute all steps for ``q (…, Hq, N, D)``, ``k (…, Hkv, M, D)`` and ``v (…, Hkv, M, Dv)`` in their own type."""
    heads, N, M = q.shape[-3], q.shape[-2], k.shape[-2]
    scores = q @ _for_every_head(k, heads).mT
    scaled = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    i, j = torch.arange(N, device=q.device)[:, None], torch.arange(M, device=q.device)[None, :]
    biased = capped if bias is None else capped + _fit_lead(bias.values(i, j, N, M, scores.dtype), scores)
    allowed = None if mask is None else _fit_lead(mask.dense(N, M, q.device), scores)
    masked = biased if allowed is None else biased.masked_fill(~allowed, -torch.inf)
    weights, logsumexp = _softmax(masked, sink, temperature)
    output = None if v is None else _mix(weights, _for_every_head(v, heads), allowed)
    return Steps(scores, scaled, capped, biased, masked, weights, logsumexp, output)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | float | None = None,
    temperature: float | Tensor = 1.0,
) -> Tensor:
    """Compute dense attention, with the options of ``limelight.attention``."""
    output = steps(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink, temperature=temperature
    ).output
    assert output is not None
    return output


def _for_every_head(x: Tensor, heads: int) -> Tensor:
    """Repeat key heads so that there is one for every query head."""
    return x.repeat_interleave(heads // x.shape[-3], -3)


def _fit_lead(x: Tensor, scores: Tensor) -> Tensor:
    """Give a mask or bias ``(N, M)``, ``(H, N, M)`` or ``(batch, H, N, M)`` the batch axes of the scores."""
    if x.ndim < 4 or scores.ndim == 4:
        return x
    return x.expand(scores.shape[:-3].numel(), *x.shape[1:]).reshape(*scores.shape[:-3], *x.shape[1:])


def _softmax(masked: Tensor, sink: Tensor | float | None, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the keys and its log-sum-exp; a row that may attend to nothing has weights 0 and −∞."""
    removed = masked == -torch.inf
    empty = removed.all(-1, keepdim=True)
    # Dividing 0 instead of −∞ keeps the temperature's gradient finite.
    logits = (masked.masked_fill(removed, 0.0) / temperature).masked_fill(removed, -torch.inf)
    if sink is not None:
        extra = torch.as_tensor(sink, dtype=masked.dtype, device=masked.device) / temperature
        extra = extra.expand(masked.shape[-3])[:, None, None].expand(*masked.shape[:-1], 1)
        logits = torch.cat([logits, extra], -1)
    logits = logits.masked_fill(empty, 0.0)  # softmax of −∞ alone would be NaN
    weights = torch.softmax(logits, -1)[..., : masked.shape[-1]].masked_fill(removed, 0.0)
    logsumexp = torch.logsumexp(logits, -1) if logits.shape[-1] else logits.sum(-1)
    return weights, logsumexp.masked_fill(empty[..., 0], -torch.inf)


def _mix(weights: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """``weights @ v``, in which a value that is not finite reaches only the queries that may attend to it."""
    if allowed is None or bool(torch.isfinite(v).all()):
        return weights @ v
    terms = weights[..., None] * v[..., None, :, :]  # (…, heads, queries, keys, width)
    return torch.where(allowed[..., None], terms, 0.0).sum(-2)
