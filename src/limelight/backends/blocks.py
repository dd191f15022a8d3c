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

from limelight.backends.statistics import Block, Question
from limelight.core.dropout import factors
from limelight.core.problem import Problem, Terms
from limelight.core.reference import steps
from limelight.core.tracing import transformed

_SCORES = 2**22  # how many scores may exist at a time
_WEIGHTS = 2**20  # how many weights a question may see at a time, of which it makes several copies


def forward(p: Problem, v: Tensor, t: Terms) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row; of ``t``, the lowered problem, the spans and dropout are used."""
    B, H, _, N, M, _ = p.sizes
    step = max(1, min(N, _SCORES // max(1, B * H * M)))
    learns = torch.is_grad_enabled() and (v.requires_grad or p.requires_grad)
    again = learns and not transformed()  # checkpoint does not know torch.func

    def block(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        cols = _seen(t.spans, rows, M)
        kept = None
        if t.dropout:
            i, j = torch.arange(N, device=q.device)[rows], torch.arange(M, device=q.device)[cols]
            kept = factors(t.dropout, t.seed, B, H, i, j, p.compute_dtype)
        s = steps(p, v, rows, cols, kept)
        assert s.output is not None
        return s.output.to(v.dtype), s.logsumexp

    outs, lses = [], []
    for first in range(0, max(N, 1), step):
        rows = slice(first, min(first + step, N))
        if again:
            out, lse = checkpoint(block, p.q, p.k, v, rows, use_reentrant=False)
        else:
            out, lse = block(p.q, p.k, v, rows)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def ask(p: Problem, questions: Sequence[Question], learns: bool) -> list[Any]:
    """The answers to questions; where something learns from them, blocks are computed again in the backward pass."""
    B, H, _, N, M, _ = p.sizes
    spans = None if p.mask is None else p.mask.lower(N, M).spans

    def block(rows: slice) -> Block:
        cols = _seen(spans, rows, M)
        i, j = torch.arange(N, device=p.q.device)[rows], torch.arange(M, device=p.q.device)[cols]
        return Block(steps(p, None, rows, cols).weights, i, j, N, M)

    return ask_blocks(block, (B, H, N, M), questions, learns and not transformed())


def ask_blocks(
    block: Callable[[slice], Block], sizes: tuple[int, int, int, int], questions: Sequence[Question], again: bool
) -> list[Any]:
    """The answers from blocks of rows of any matrix."""
    B, H, N, M = sizes
    step = max(1, min(N, _WEIGHTS // max(1, B * H * M)))

    def parts(rows: slice) -> tuple[Tensor, ...]:
        b = block(rows)
        return tuple(question.part(b) for question in questions)

    found = []
    for first in range(0, max(N, 1), step):
        rows = slice(first, min(first + step, N))
        found.append(checkpoint(parts, rows, use_reentrant=False) if again else parts(rows))
    return [q.join(p) for q, p in zip(questions, zip(*found, strict=True), strict=True)]


def _seen(spans: Tensor | None, rows: slice, M: int) -> slice:
    """The keys from the first to the last that some of these queries may attend to."""
    if spans is None or spans.is_meta or transformed():
        return slice(0, M)
    begin, end = spans[:, rows].unbind(-1)
    seen = begin < end
    return slice(int(begin[seen].min()), int(end[seen].max())) if bool(seen.any()) else slice(0, 0)
