"""Random matrices, their float64 truth and questions to the explorer, for several test files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import limelight as ll
from limelight.core.masks import Mask
from limelight.explorer.questions import Answer, Arguments
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.subject import Subject

B, H, HKV, D = 2, 6, 3, 5


def random_weights(N: int, M: int, seed: int = 0, **options: Any) -> ll.Weights:
    g = torch.Generator().manual_seed(seed)
    return ll.weights(torch.randn(B, H, N, D, generator=g), torch.randn(B, HKV, M, D, generator=g), **options)


def truth_of(N: int, M: int, batch: int, head: int, mask: Mask | None = None) -> np.ndarray:
    """One head of ``random_weights(N, M)`` by the equation, in float64."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(B, H, N, D, generator=g), torch.randn(B, HKV, M, D, generator=g)
    logits = q[batch, head].double() @ k[batch, head // (H // HKV)].double().T / D**0.5
    if mask is not None:
        logits = logits.masked_fill(~allowed_of(N, M, batch, mask), -torch.inf)
    return logits.softmax(-1).nan_to_num(0.0).numpy()


def allowed_of(N: int, M: int, batch: int, mask: Mask) -> torch.Tensor:
    return mask.dense(N, M).expand(B, 1, N, M)[batch, 0]


def ask(subject: Subject, name: str, **arguments: Any) -> Answer:
    return QUESTIONS[name].ask(subject, Arguments(arguments))


def pooled(x: np.ndarray, cell: int, reduce: str) -> np.ndarray:
    """Means or maxima of cells; those at the ends are filled up with what does not count."""
    rows, cols = (-(-n // cell) for n in x.shape)
    full = np.full((rows * cell, cols * cell), np.nan)
    full[: x.shape[0], : x.shape[1]] = x
    return {"mean": np.nanmean, "max": np.nanmax}[reduce](full.reshape(rows, cell, cols, cell), (1, 3))
