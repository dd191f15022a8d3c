"""Gradients of statistics where tensors depend on each other, or change before the backward pass, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll

B, H, N, D, CELLS = 1, 2, 21, 5, 7
U = torch.randn(B, H, N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
MASKS = {"all": ll.Window(N), "causal": ll.Causal(), "strided": ll.Strided(3), "union": ll.Strided(5) | ll.Window(2)}


def entropy(weights: Tensor) -> Tensor:
    """The entropy of dense weights, whose gradient is a number where a weight is 0."""
    return -(weights * weights.clamp_min(1e-300).log()).sum(-1)


def largest_of_cells(weights: Tensor) -> Tensor:
    return weights.unflatten(-1, (CELLS, N // CELLS)).unflatten(-3, (CELLS, N // CELLS)).amax((-1, -3))


# By name: on the object, and on the dense matrix.
STATISTICS: dict[str, tuple[Callable[[Any], Tensor], Callable[[Tensor], Tensor]]] = {
    "entropy": (lambda A: A.entropy(), entropy),
    "max": (lambda A: A.max(), lambda A: A.amax(-1)),
    "received": (lambda A: A.received(), lambda A: A.sum(-2)),
    "product": (lambda A: A.T @ U, lambda A: A.transpose(-1, -2) @ U),
    "largest cells": (lambda A: A.pool(CELLS, CELLS, reduce="max"), largest_of_cells),
}


def dense(q: Tensor, k: Tensor, mask: ll.Mask, temperature: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    logits = (q @ k.transpose(-1, -2) / D**0.5 + bias) / temperature
    return logits.masked_fill(~mask.dense(N, N), -torch.inf).softmax(-1)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", STATISTICS)
def test_keys_that_depend_on_the_queries(name: str, mask: str, dependent: bool, twice: bool) -> None:
    q, temperature = numbers(B, H, N, D), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    k = q.exp() if dependent else q
    lazy, exact = STATISTICS[name]

    def gradients(result: Tensor) -> list[Tensor]:
        grad = partial(torch.autograd.grad, inputs=(q, temperature), retain_graph=True)
        found = grad(result.square().sum(), create_graph=twice)
        return [*found, *(grad(sum(x.square().sum() for x in found)) if twice else ())]

    expected = gradients(exact(dense(q, k, MASKS[mask], temperature)))
    found = gradients(lazy(ll.weights(q, k, mask=MASKS[mask], temperature=temperature)))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", MASKS)
def test_a_bias_that_depends_on_another(mask: str) -> None:
    q, b = numbers(B, H, N, D).detach(), numbers(N, N)
    found = ll.weights(q, q, mask=MASKS[mask], bias=ll.DenseBias(b) + ll.DenseBias(b * b)).entropy()
    expected = entropy(dense(q, q, MASKS[mask], bias=b + b * b))
    pairs = zip(*(torch.autograd.grad(x.sum(), b) for x in (found, expected)), strict=True)
    for x, y in pairs:
        torch.testing.assert_close(x, y)


def test_one_tensor_as_sink_and_slopes() -> None:
    q, both = numbers(B, H, N, D).detach(), numbers(H)
    every = ll.Dense(torch.ones(N, N, dtype=torch.bool))  # with which nothing is computed in passes
    found, expected = (
        torch.autograd.grad(ll.weights(q, q, mask=mask, bias=ll.ALiBi(both), sink=both).entropy().sum(), both)[0]
        for mask in (ll.Strided(3), ll.Strided(3) & every)
    )
    torch.testing.assert_close(found, expected)


def test_a_learned_temperature_where_nothing_is_allowed() -> None:
    q, temperature = numbers(B, H, N, D), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    later = ll.Global([100, 102, 104, 106])
    ll.weights(q, q, mask=later, temperature=temperature).entropy().sum().backward()
    assert temperature.grad == 0


@pytest.mark.parametrize("mask", [None, ll.Strided(2)], ids=["all", "strided"])
def test_a_pattern_that_changes_before_the_backward_pass_changes_nothing(mask: ll.Mask | None) -> None:
    q, k = numbers(B, H, N, D), numbers(B, H, N, D)
    lengths = torch.tensor([5])
    A = ll.weights(q, k, mask=mask)
    expected = torch.autograd.grad(A.mass(ll.Padding(lengths.clone())).square().sum(), (q, k))
    total = A.mass(ll.Padding(lengths)).square().sum()
    lengths.fill_(17)
    for a, b in zip(torch.autograd.grad(total, (q, k)), expected, strict=True):
        torch.testing.assert_close(a, b)
