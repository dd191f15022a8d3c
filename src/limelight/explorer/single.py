"""One head of an attention matrix, as a matrix of its own."""

from __future__ import annotations

from torch import Tensor

from limelight.core.problem import batched, raised
from limelight.matrix.lazy import Weights


def single(A: Weights, batch: int, head: int) -> Weights:
    """Return the ``Weights (1, 1, queries, keys)`` of one batch element and head.

    Queries and keys are views, and a log-sum-exp that is known already is taken over, so that a question costs what it
    costs for one head.
    """
    problem = getattr(A, "_problem", None)
    if problem is None:  # backed by a dense tensor
        return Weights.from_dense(batched(A.dense())[batch, head].detach()[None, None])
    _, H, Hkv, *_ = problem.sizes
    key_head = head // (H // Hkv)

    def of_head(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach()[head : head + 1] if len(x) > 1 else x.detach()

    def of_both(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x.detach()[(None,) * (4 - x.ndim)]
        x = x[batch : batch + 1] if x.shape[0] > 1 else x
        return x[:, head : head + 1] if x.shape[1] > 1 else x

    terms = problem.lower()
    spans = terms.spans
    terms = terms._replace(
        spans=spans[batch : batch + 1] if spans is not None and len(spans) > 1 else spans,
        mask=of_both(terms.mask),
        slopes=of_head(terms.slopes),
        offsets=of_head(terms.offsets),
        bias=of_both(terms.bias),
        sink=None if terms.sink is None else of_head(terms.sink.reshape(-1)),
        temperature=terms.temperature.detach() if isinstance(terms.temperature, Tensor) else terms.temperature,
    )
    q = problem.q.detach()[batch : batch + 1, head : head + 1]
    k = problem.k.detach()[batch : batch + 1, key_head : key_head + 1]
    found = Weights(raised(q, k, terms))
    if (known := A._known()) is not None:
        found._keep(known[:, batch : batch + 1, head : head + 1].contiguous())
    return found
