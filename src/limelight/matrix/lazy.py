"""Weights made from queries and keys: results are computed when they are asked for, and the matrix is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import (
    Normalisers,
    SharedBackward,
    Statistic,
    attention_with_normalisers,
    dense_weights,
    grouped_matmul,
    logsumexp,
    masked_logits,
    runs_natively,
    statistics,
)
from limelight.core.biases import DenseBias
from limelight.core.masks import Mask
from limelight.core.parts import key_heads, part_of, take
from limelight.core.problem import AttentionSpec, LoweredSpec, Problem, problem_from_lowered
from limelight.core.torch_modes import is_traced
from limelight.matrix.base import Weights

_GATHERED = 2**22  # elements of q and k that are gathered at a time for pairs of a query and a key
_COARSE = 2.0**10  # beyond this, a log-sum-exp in float32 is too inexact to compute weights from it


class LazyWeights(Weights):
    """``softmax((softcap(scale · q kᵀ) + bias) / temperature)`` of queries and keys."""

    __slots__ = ("_kept", "_problem", "_shared")

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        # The normalisers of the rows once they are found, and the versions of the tensors they were found for.
        self._kept: tuple[Normalisers, list[int]] | None = None
        # The backward pass of the last product with values, which statistics can share.
        self._shared: SharedBackward | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return self._problem.shape

    @property
    def dtype(self) -> torch.dtype:
        """The accumulation dtype."""
        return self._problem.compute_dtype

    @property
    def device(self) -> torch.device:
        """The device of queries and keys."""
        return self._problem.q.device

    @property
    def mask(self) -> Mask | None:
        """The keys that a query may attend to; None for all."""
        return self._problem.mask

    def changed(self, **options: Any) -> Weights:
        """The same queries and keys with other options of ``weights``."""
        p = self._problem
        if unknown := options.keys() - set(AttentionSpec._fields):
            names = ", ".join(AttentionSpec._fields)
            raise TypeError(f"changed: there is no option {min(unknown)!r}; there are {names}")
        q, k = (self._with_lead(x) for x in (p.q, p.k))
        return LazyWeights(Problem(q, k, p.spec._replace(**options)))

    def select(self, batch: int | tuple[int, ...] = 0, head: int | None = None) -> Weights:
        """One batch element, and one head unless that is None, as lazy as before."""
        b, h = self._place(batch, head)
        heads = None if h is None else [h]
        known = self._known()
        plain = self._plain_part([b], heads)
        if plain is None:
            q, k, lowered = self._parts_of([b], heads)
            chosen = LazyWeights(problem_from_lowered(q[0], k[0], lowered))
        else:
            q, k, spec = plain
            chosen = LazyWeights(Problem(q[0], k[0], spec))
        if known is not None:
            at = slice(None) if h is None else slice(h, h + 1)
            part = Normalisers(known.lse[b : b + 1, at], known.scaled[:, b : b + 1, at])
            chosen._keep(Normalisers(*(x.contiguous() for x in part)))
        return chosen

    def part(
        self, heads: Sequence[int] | None = None, queries: range | None = None, keys: int | None = None
    ) -> Weights:
        """Some heads, consecutive queries and the first keys, as lazy as before."""
        plain = self._plain_part(None, heads) if queries is None and keys is None else None
        if plain is not None:
            q, k, spec = plain
            return LazyWeights(Problem(self._with_lead(q), self._with_lead(k), spec))
        q, k, lowered = self._parts_of(None, heads, queries, keys)
        return LazyWeights(problem_from_lowered(self._with_lead(q), self._with_lead(k), lowered))

    def expand(self, batch: int) -> Weights:
        """The matrix of one batch element for each of several."""
        p = self._problem
        q, k = (x.expand(batch, *x.shape[1:]) for x in (p.q, p.k))
        return LazyWeights(Problem(q, k, p.spec))

    def _times_columns(self, factors: Tensor) -> Weights:
        """The matrix times factors of each column, normalised by row: a bias of temperature · log(factor)."""
        p = self._problem
        added = DenseBias((p.temperature * factors.to(p.compute_dtype).log())[:, :, None])
        return self.changed(bias=added if p.bias is None else p.bias + added, sink=None)

    def _plain_part(
        self, batch: list[int] | None, heads: Sequence[int] | None
    ) -> tuple[Tensor, Tensor, AttentionSpec] | None:
        """The queries, keys and options of a part, or None where mask or bias differ in what is chosen from."""
        p = self._problem
        made_for = [x.batch_and_heads() for x in (p.mask, p.bias) if x is not None]
        if any((batch is not None and B > 1) or (heads is not None and H > 1) for B, H in made_for):
            return None
        sink = p.sink if p.sink is None else take(p.sink, heads, 0)
        return *self._operands_of(batch, heads), p.spec._replace(sink=sink)

    def _operands_of(self, batch: list[int] | None, heads: Sequence[int] | None) -> tuple[Tensor, Tensor]:
        p = self._problem
        q = take(take(p.q, batch, 0), heads, 1)
        return q, take(take(p.k, batch, 0), key_heads(heads, p.sizes.Hq // p.sizes.Hkv), 1)

    def _parts_of(
        self,
        batch: list[int] | None,
        heads: Sequence[int] | None,
        queries: range | None = None,
        keys: int | None = None,
    ) -> tuple[Tensor, Tensor, LoweredSpec]:
        """The queries, keys and lowered specification of a part."""
        p = self._problem
        lowered = part_of(p.lower(), p.sizes, batch=batch, heads=heads, queries=queries, keys=keys)
        q, k = self._operands_of(batch, heads)
        q = q if queries is None else q[:, :, queries.start : queries.stop]
        return q, k if keys is None else k[:, :, :keys], lowered

    def batched(self) -> Weights:
        """The same matrix with exactly one batch axis."""
        p = self._problem
        found = LazyWeights(Problem(p.q, p.k, p.spec))
        found._kept, found._shared = self._kept, self._shared
        return found

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v`` in one streaming pass, which keeps the normalisers of the rows for later statistics."""
        out, found, self._shared = attention_with_normalisers(self._problem, self._problem.check_values(v))
        if found is not None:
            self._keep(found)
        return self._with_lead(out)

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each row, ``(…, heads, queries)``; −∞ where nothing is allowed."""
        return self._with_lead(self._lse().clone())

    def dense(self) -> Tensor:
        """Return the whole matrix, ``(…, heads, queries, keys)``; it has to fit into memory."""
        return self._with_lead(dense_weights(self._problem))

    def tensors(self) -> list[Tensor]:
        """The tensors that the matrix is made of, to which a gradient may flow."""
        return self._problem.tensors()

    def _described(self) -> str:
        p = self._problem
        parts = [f"shape={self.shape}", f"dtype={str(p.q.dtype).removeprefix('torch.')}"]
        parts += [f"{name}={value!r}" for name, value in (("mask", p.mask), ("bias", p.bias)) if value is not None]
        if p.softcap is not None:
            parts.append(f"softcap={p.softcap:g}")
        if p.sink is not None:
            parts.append("sink")
        if not isinstance(p.temperature, float) or p.temperature != 1.0:
            value = p.temperature.detach() if isinstance(p.temperature, Tensor) else p.temperature
            parts.append(f"temperature={float(value):g}")
        return f"Weights({', '.join(parts)})"

    def _compute_batched(self, asked: list[Statistic]) -> list[Any]:
        known = self._known()
        results, found = statistics(self._problem, asked, known, None if known is None else self._shared)
        if found is not None:
            self._keep(found)
        return results

    def _lse(self) -> Tensor:
        """Return the log-sum-exp of each row, ``(B, H, N)``; it is cached unless it needs a gradient."""
        p = self._problem
        if (torch.is_grad_enabled() and p.requires_grad) or not runs_natively(p):
            return logsumexp(p)
        if self._known() is None:
            self._compute_batched([])
        known = self._known()
        assert known is not None
        return known.lse

    def _crop(self, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
        p = self._problem
        group = p.sizes.Hq // p.sizes.Hkv

        def pick(x: Tensor) -> Tensor:
            return x[batch[:, None], heads]

        def pick_expanded(x: Tensor) -> Tensor:
            return pick(x.expand(*p.sizes[:2], *x.shape[-2:]))

        q = pick(p.q)[:, :, rows].to(p.compute_dtype)
        k = p.k[batch[:, None], heads // group][:, :, cols].to(p.compute_dtype)
        lse = pick(self._lse())[:, :, rows, None]
        if _is_coarse(lse):
            return pick(dense_weights(p))[:, :, rows][..., cols]
        logits, _ = masked_logits(p, grouped_matmul(q, k.mT), rows[:, None], cols[None, :], pick_expanded)
        return torch.exp(logits - torch.where(lse == -torch.inf, 0.0, lse))

    def _pairs(self, batch: Tensor, heads: Tensor, i: Tensor, j: Tensor) -> Tensor:
        p = self._problem
        group = p.sizes.Hq // p.sizes.Hkv
        many = max(1, _GATHERED // max(1, len(batch) * len(heads) * p.q.shape[3]))
        if len(i) > many:
            parts = zip(i.split(many), j.split(many), strict=True)
            return torch.cat([self._pairs(batch, heads, some_i, some_j) for some_i, some_j in parts], -1)

        def pick(x: Tensor) -> Tensor:  # (B, H, pairs, 1)
            return x.expand(*p.sizes[:2], *x.shape[-2:])[batch[:, None], heads]

        lse = self._lse()[batch[:, None], heads][:, :, i]
        if _is_coarse(lse):
            (rows, at_row), (cols, at_col) = (x.unique(return_inverse=True) for x in (i, j))
            return self._crop(batch, heads, rows, cols)[:, :, at_row, at_col]
        q = p.q[batch[:, None], heads][:, :, i].to(p.compute_dtype)
        k = p.k[batch[:, None], heads // group][:, :, j].to(p.compute_dtype)
        scores = (q * k).sum(-1, keepdim=True)
        logits, _ = masked_logits(p, scores, i[:, None], j[:, None], pick)
        return torch.exp(logits[..., 0] - torch.where(lse == -torch.inf, 0.0, lse))

    def _versions(self) -> list[int]:
        """Return how often each tensor was changed in place; tensors of inference mode do not count changes."""
        return [-1 if x.is_inference() else x._version for x in self._problem.tensors()]

    def _keep(self, found: Normalisers) -> None:
        self._kept = Normalisers(*(x.detach() for x in found)), self._versions()

    def _known(self) -> Normalisers | None:
        """Return the cached normalisers, or None if a tensor has changed since."""
        if self._kept is None or self._kept[1] != self._versions():
            return None
        found = self._kept[0]
        return Normalisers(*(x.clone() for x in found)) if found.lse.is_inference() else found


def _is_coarse(lse: Tensor) -> bool:
    return not is_traced() and bool((lse.isfinite() & (lse.abs() > _COARSE)).any())
