"""The same attention in blocks of plain torch: any device, any float type, and gradients.

A block of queries meets only the keys between the first and the last that it may attend to, and its scores
are made, used and dropped before the next block, so memory grows with n. Under autograd each block is
computed again in the backward pass instead of being kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from limelight.problem import Problem
from limelight.reference import steps

_SCORES = 2**22  # how many scores may exist at a time


def forward(p: Problem, v: Tensor, want_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """The output, and the log-sum-exp of each row if asked for."""
    B, H, N, _ = p.q.shape
    M = p.k.shape[2]
    step = max(1, min(N, _SCORES // max(1, B * H * M)))
    spans = None if p.mask is None else p.mask.lower(N, M).spans
    learns = torch.is_grad_enabled() and (v.requires_grad or p.requires_grad)

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        cols = slice(0, M)
        if spans is not None:
            seen = spans[:, rows][spans[:, rows, :, 0] < spans[:, rows, :, 1]]
            cols = slice(int(seen[:, 0].min()), int(seen[:, 1].max())) if len(seen) else slice(0, 0)
        s = steps(p, v, rows, cols)
        assert s.output is not None
        return s.output.to(v.dtype), s.logsumexp

    outs, lses = [], []
    for first in range(0, N, step):
        rows = slice(first, min(first + step, N))
        if learns:
            out, lse = checkpoint(block, p.q, p.k, v, rows, use_reentrant=False)
        else:
            out, lse = block(p.q, p.k, v, rows)
        outs.append(out)
        lses.append(lse)
    if not outs:
        return v.new_zeros(B, H, 0, v.shape[3]), p.q.new_zeros(B, H, 0, dtype=p.compute_dtype)
    return torch.cat(outs, 2), torch.cat(lses, 2) if want_lse else None
