"""Gradients of a call: what the backward pass needs, and the gradients that follow from the kernels' sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends.statistic import Statistic
from limelight.core.problem import LoweredSpec, Sizes


class Normalisers(NamedTuple):
    """The numbers that turn the logits of a row into its weights.

    ``lse`` is the log-sum-exp; ``scaled`` holds the largest logit m, in units of log 2, and Σ 2^(logit − m): the
    log-sum-exp has fewer digits than the two.
    """

    lse: Tensor  # (B, Hq, N)
    scaled: Tensor  # (2, B, Hq, N)

    @classmethod
    def empty(cls, sizes: Sizes, dtype: torch.dtype) -> Normalisers:
        """Allocate memory for them."""
        lse = torch.empty((sizes.B, sizes.Hq, sizes.N), dtype=dtype)
        return cls(lse, cls.empty_scaled(sizes, dtype))

    @staticmethod
    def empty_scaled(sizes: Sizes, dtype: torch.dtype) -> Tensor:
        """Allocate memory for ``scaled`` alone."""
        return torch.empty((2, sizes.B, sizes.Hq, sizes.N), dtype=dtype)


class Wanted(NamedTuple):
    """The gradients that are requested in addition to those of q, k and v."""

    slopes: bool
    offsets: bool
    bias: bool
    sink: bool
    temperature: bool


class Gradients(NamedTuple):
    """Gradients of q, k, v, …; None where not requested."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    slopes: Tensor | None
    offsets: Tensor | None
    bias: Tensor | None
    sink: Tensor | None
    temperature: Tensor | None


class Term(NamedTuple):
    """A statistic of the weights, its result, and the gradient of the loss by that result."""

    statistic: Statistic
    result: Any
    gradient: Any


def sum_terms(terms: Sequence[Term], normalisers: Normalisers, lowered: LoweredSpec) -> Tensor | None:
    """Return ``Σ_j a_ij · d_ij`` of each row, where ``d`` is the gradient that statistics give to the weights ``a``.

    For most statistics the sum follows from their result; the kernels sum the others themselves. None if all are
    others.
    """
    found = None
    total: Tensor | float = 1.0
    if lowered.sink is not None:
        total = (1.0 - sink_weight(normalisers, lowered)).to(normalisers.lse.dtype)
    for term in terms:
        sums = term.statistic.weighted_gradient(term.gradient, term.result, total)
        if sums is not None:
            found = sums if found is None else found + sums
    return found


def sink_weight(normalisers: Normalisers, lowered: LoweredSpec) -> Tensor:
    """The weight of the sink in each row, ``exp(sink / temperature - lse)``, in float64."""
    x = _sink_logit(lowered)[:, None] / math.log(2.0)
    m, total = normalisers.scaled.double()
    return torch.where(normalisers.lse == -torch.inf, 0.0, torch.exp2(x - m) / total)


def sink_gradient(normalisers: Normalisers, delta: Tensor | None, lowered: LoweredSpec) -> Tensor:
    """Return the gradient of the sinks; ``delta`` is the sum of each row's weights times their gradients."""
    assert lowered.sink is not None
    dx = _sink_logit_gradient(normalisers, delta, lowered)
    return (dx / float(lowered.temperature)).to(lowered.sink.dtype)


def temperature_gradient(
    normalisers: Normalisers, delta: Tensor | None, d_temperature: Tensor | None, lowered: LoweredSpec
) -> Tensor:
    """The gradient of the temperature, from Σ dx · x of each row, where x = logits / temperature."""
    assert d_temperature is not None
    assert isinstance(lowered.temperature, Tensor)
    total = float(d_temperature.numpy().sum(dtype="float64"))
    if lowered.sink is not None:
        dx = _sink_logit_gradient(normalisers, delta, lowered)
        total += float((dx * _sink_logit(lowered)).numpy().sum())
    return torch.full_like(lowered.temperature, -total / float(lowered.temperature))


def _sink_logit(lowered: LoweredSpec) -> Tensor:
    assert lowered.sink is not None
    return lowered.sink.detach().double() / float(lowered.temperature)


def _sink_logit_gradient(normalisers: Normalisers, delta: Tensor | None, lowered: LoweredSpec) -> Tensor:
    """The gradient of the sink's logit by head: it has a weight p and no value, so it gets ``-p δ`` from each row.

    The sum is made in the same order for any number of threads.
    """
    assert delta is not None
    return -torch.from_numpy((sink_weight(normalisers, lowered) * delta.double()).numpy().sum((0, 2)))


def sum_to(x: Tensor, like: Tensor | None) -> Tensor:
    """Return a gradient in the shape of its tensor: summed over heads where all of them share one value."""
    assert like is not None
    if x.ndim < 4 and like.shape[0] == 1 and x.shape[0] != 1:
        x = torch.from_numpy(x.numpy().sum(0, keepdims=True))
    return x.reshape(like.shape).to(like.dtype)
