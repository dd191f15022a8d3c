"""One head of an attention matrix, as a matrix of its own."""

from __future__ import annotations

from limelight.matrix.base import Weights


def single(A: Weights, batch: int, head: int) -> Weights:
    """Return the ``Weights (1, 1, queries, keys)`` of one batch element and head, at the cost of one head."""
    return A.select(batch, head).batched()
