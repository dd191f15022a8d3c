"""The softmax of rows whose keys come in parts.

``m`` is the largest logit of a row so far, in units of log 2, ``sum`` is ``Σ 2^(logit - m)`` and ``o`` is
``Σ 2^(logit - m) v``: −∞, 0 and 0 for a row that has seen no key. All are float32 (float64 for float64), whatever the
type of q, k and v, and nothing is divided before the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.backends.gradients import Normalisers
from limelight.core.problem import LoweredSpec

_LOG2E = 1 / math.log(2.0)


class RunningRows(NamedTuple):
    """The running softmax of rows; ``native.accumulate`` adds keys to it."""

    m: Tensor  # (B, Hq, N)
    sum: Tensor  # (B, Hq, N)
    o: Tensor  # (B, Hq, N, Dv)

    @classmethod
    def empty(cls, shape: tuple[int, int, int], width: int, dtype: torch.dtype) -> RunningRows:
        """Rows ``(B, Hq, N)`` that have seen no key; their values are ``width`` numbers."""
        return cls(
            torch.full(shape, -torch.inf, dtype=dtype),
            torch.zeros(shape, dtype=dtype),
            torch.zeros(*shape, width, dtype=dtype),
        )

    def rows(self, rows: slice) -> RunningRows:
        """Some of the rows, which share their memory."""
        return RunningRows(self.m[:, :, rows], self.sum[:, :, rows], self.o[:, :, rows])

    def join(self, other: RunningRows) -> None:
        """Merge with the running softmax of the same rows over other keys."""
        top = torch.maximum(self.m, other.m)
        base = torch.where(top == -torch.inf, 0.0, top)  # −∞ − −∞ would be NaN
        old, new = torch.exp2(self.m - base), torch.exp2(other.m - base)
        self.o.mul_(old[..., None]).addcmul_(other.o, new[..., None])
        self.sum.mul_(old).addcmul_(other.sum, new)
        self.m.copy_(top)

    def join_sink(self, lowered: LoweredSpec) -> None:
        """Add the sink's logit, where there is one, to rows that have seen a key."""
        if lowered.sink is None:
            return
        logit = lowered.sink.detach().to(self.m.dtype) / float(lowered.temperature) * _LOG2E
        m = torch.where(self.m == -torch.inf, -torch.inf, logit[:, None])
        self.join(RunningRows(m, torch.ones_like(m), self.o.new_zeros(1).expand_as(self.o)))

    def normalisers(self) -> Normalisers:
        """The normalisers of the rows, as the kernels take them."""
        empty = self.m == -torch.inf
        m, total = torch.where(empty, 0.0, self.m), torch.where(empty, 1.0, self.sum)
        lse = torch.where(empty, -torch.inf, (m.double() + total.double().log2()) / _LOG2E).to(self.m.dtype)
        return Normalisers(lse, torch.stack([m, total]))

    def output(self, dropout: float = 0.0) -> Tensor:
        """``o / sum``, and 0 for rows that have seen no key; overwrites ``o``."""
        total = torch.where(self.m == -torch.inf, 1.0, self.sum)
        return self.o.div_(((1 - dropout) * total if dropout else total)[..., None])
