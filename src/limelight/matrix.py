"""The attention matrix as an object that is never stored."""

from __future__ import annotations

from torch import Tensor

from limelight.backends import run
from limelight.problem import Problem
from limelight.reference import steps


class Weights:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)``, which nobody stores.

    Made by ``limelight.weights``; nothing is computed until it is asked something.

    >>> import torch, limelight as ll
    >>> q, k, v = torch.randn(3, 2, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 4)
    >>> A = ll.weights(q, k, mask=ll.Causal())
    >>> A
    Weights(shape=(3, 2, 5, 7), dtype=float32, mask=Causal())
    >>> torch.allclose(A @ v, A.dense() @ v, atol=1e-6)
    True
    """

    __slots__ = ("_problem",)

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return self._problem.shape

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v`` in one streaming pass."""
        p = self._problem
        out, _ = run(p, p.check_values(v))
        return out if len(p.lead) == 1 else out.reshape(*p.lead, *out.shape[1:])

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each row, ``(…, heads, queries)``; −∞ where nothing is allowed."""
        p = self._problem
        _, lse = run(p, p.k[..., :0], lse=True)
        assert lse is not None
        return lse.reshape(*p.lead, *lse.shape[1:])

    def dense(self) -> Tensor:
        """All of it, ``(…, heads, queries, keys)``, where it is small enough to be held."""
        return steps(self._problem, None).weights.reshape(self.shape)

    def __repr__(self) -> str:
        p = self._problem
        parts = [f"shape={self.shape}", f"dtype={str(p.q.dtype).removeprefix('torch.')}"]
        parts += [f"{name}={value!r}" for name, value in (("mask", p.mask), ("bias", p.bias)) if value is not None]
        if p.softcap is not None:
            parts.append(f"softcap={p.softcap:g}")
        if p.sink is not None:
            parts.append("sink")
        if p.temperature != 1.0:
            parts.append(f"temperature={float(p.temperature):g}")
        return f"Weights({', '.join(parts)})"
