"""Weights of random problems, their dense float64 matrix, and how far the two may differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import limelight as ll
from limelight.core import reference


def dense_of(p: dict[str, Any]) -> Tensor:
    """The matrix in float64, by the definition."""
    options = {n: x for n, x in p.items() if n not in ("q", "k", "v")}
    with torch.no_grad():
        return reference.steps(p["q"].double(), p["k"].double(), **options).weights


def weights_of(p: dict[str, Any]) -> ll.Weights:
    return ll.weights(**{n: x for n, x in p.items() if n != "v"})


def close(got: Tensor, want: Tensor, p: dict[str, Any], scale: float = 1.0) -> None:
    """Compare what follows from a problem's weights; ``scale`` is how much more inexact it may be than a weight."""
    near(got, want, scale * inexactness(p))


def inexactness(p: dict[str, Any]) -> float:
    """How far the weights of a problem may differ: a weight is as inexact as its logit."""
    options = {n: x for n, x in p.items() if n not in ("q", "k", "v")}
    logits = reference.steps(p["q"].detach().double(), p["k"].double(), **options).masked
    hottest = float(logits[logits.isfinite()].abs().max()) if logits.isfinite().any() else 0.0
    eps = 2.0**-52 if p["q"].dtype == torch.float64 else 2.0**-23
    return eps * (16 + 8 * hottest / min(1.0, p.get("temperature", 1.0)))


def near(got: Tensor, want: Tensor, within: float | Tensor) -> None:
    """Compare shapes and values, which may differ by ``within`` of the largest, or of 1."""
    assert got.shape == want.shape
    error = (got.detach().double() - want).abs()
    within = within * max(1.0, float(want.abs().max()) if want.numel() else 0.0)
    assert bool((error <= within).all()), f"{error.max():.1e} > {within}"


def lost_of_cosines(dense: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the cosines of two heads may be off because weights below the smallest number of a type are 0."""
    tiny = 2**0.5 * torch.finfo(dtype).tiny  # below it the kernels take a weight for 0
    lost = dense[0, 0].numel() ** 0.5 * tiny / dense.flatten(2).norm(dim=-1).clamp(min=tiny)
    return 2 * (lost[:, :, None] + lost[:, None])
