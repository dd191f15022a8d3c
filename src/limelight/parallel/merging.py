"""Outputs of several sets of keys, merged by their normalisers.

The weights of a query over all keys are those over each set, scaled by the set's share of the row's sum. Sums and
outputs are float32 (float64 for float64), whatever the type of q, k and v. A row that has seen nothing has the sum 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limelight.backends import Normalisers

_LOG2E = 1 / math.log(2.0)


class Merged:
    """The normalisers of rows so far: the largest logit ``m``, in units of log 2, and ``Σ 2^(logit - m)``."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.m = torch.full(shape, -torch.inf, dtype=dtype, device=device)  # −∞ where nothing has been seen
        self.sum = torch.ones(shape, dtype=dtype, device=device)

    def add(self, rows: slice, found: Normalisers) -> tuple[Tensor, Tensor]:
        """Take in more keys of some rows, and return the shares of what was there and of what is new."""
        m = torch.where(found.lse == -torch.inf, -torch.inf, found.scaled[0])
        return self._add(rows, m, found.scaled[1])

    def add_sink(self, sink: Tensor, temperature: float) -> Tensor:
        """Take in one more logit for each head, for rows that have seen something; return the share of the rest."""
        logit = (sink.detach().to(self.m.dtype) / temperature * _LOG2E)[:, None]
        rows = slice(0, self.m.shape[2])
        m = torch.where(self.m == -torch.inf, -torch.inf, logit)
        return self._add(rows, m, torch.ones_like(m))[0]

    def _add(self, rows: slice, m: Tensor, new_sum: Tensor) -> tuple[Tensor, Tensor]:
        old_m, old_sum = self.m[:, :, rows], self.sum[:, :, rows]
        top = torch.maximum(old_m, m)
        base = torch.where(top == -torch.inf, 0.0, top)  # −∞ − −∞ would be NaN
        old, new = torch.exp2(old_m - base) * old_sum, torch.exp2(m - base) * new_sum
        total = old + new
        total = torch.where(total == 0, 1.0, total)
        self.m[:, :, rows], self.sum[:, :, rows] = top, total
        return old / total, new / total

    def normalisers(self) -> Normalisers:
        """Return what the kernels take."""
        empty = self.m == -torch.inf
        m = torch.where(empty, 0.0, self.m)
        lse = torch.where(empty, -torch.inf, (m.double() + self.sum.double().log2()) / _LOG2E).to(self.m.dtype)
        return Normalisers(lse, torch.stack([m, self.sum]))


def share_of(part: Normalisers, whole: Normalisers) -> Tensor:
    """The share of some keys in the sums of rows whose normalisers are known."""
    share = torch.exp2(part.scaled[0] - whole.scaled[0]) * (part.scaled[1] / whole.scaled[1])
    return torch.where((part.lse == -torch.inf) | (whole.lse == -torch.inf), 0.0, share)
