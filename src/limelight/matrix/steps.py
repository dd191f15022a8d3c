"""``trace``: every step of one attention call, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from limelight.core import reference
from limelight.core.problem import AttentionSpec, Problem
from limelight.viz.characters import Picture

_TITLES = {
    "q": "q, the queries",
    "k": "k, the keys",
    "v": "v, the values",
    "scores": "scores = q kᵀ",
    "scaled": "scaled = scale · scores",
    "capped": "capped = c · tanh(scaled / c)",
    "biased": "biased = capped + bias",
    "masked": "masked: −∞ where the mask forbids",
    "weights": "weights = softmax, by row",
    "output": "output = weights v",
}


@dataclass(frozen=True)
class Trace(reference.Steps):
    """The steps of one attention call; ``print`` shows them as tables."""

    q: Tensor
    k: Tensor
    v: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    shown: Sequence[str]  # the names of the steps that changed something

    def as_dict(self) -> dict[str, Any]:
        """Return the steps as plain lists, for JSON."""
        tensors = {name: getattr(self, name).tolist() for name in _TITLES}
        return {"queries": list(self.queries), "keys": list(self.keys), **tensors}

    def pictures(self) -> list[Picture]:
        """Return each step of each head as a matrix with a title and names, to be drawn."""
        found = []
        for step in self.shown:
            x: Tensor = getattr(self, step)
            rows = self.keys if step in ("k", "v") else self.queries
            cols = [str(d) for d in range(x.shape[-1])] if step in ("q", "k", "v", "output") else self.keys
            heads = x.reshape(-1, *x.shape[-2:])
            for h, matrix in enumerate(heads):
                title = _TITLES[step] + (f" (head {h})" if len(heads) > 1 else "")
                found.append(Picture(title, matrix, rows, cols))
        return found

    def __str__(self) -> str:
        from limelight.viz.tables import tables_as_text

        return tables_as_text(self.pictures())

    def _repr_html_(self) -> str:
        from limelight.viz.notebook import matrix_html, side_by_side_html

        return side_by_side_html(
            [matrix_html(p.matrix.detach().float().cpu().numpy(), p.rows, p.cols, p.title) for p in self.pictures()]
        )


def trace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None,
    **options: Any,
) -> Trace:
    """Compute every step of ``softmax((softcap(scale · q kᵀ) + bias) / temperature) v``.

    Takes the options of ``weights``, and ``tokens``: one list of names for queries and keys, or a pair of lists. Plain
    matrices ``(N, D)``, ``(M, D)``, ``(M, Dv)`` are one head.

    >>> import torch
    >>> q = torch.tensor([[0.0, 2.0]]); k = torch.tensor([[1.0, 1.0], [0.0, 1.0]]); v = torch.eye(2)
    >>> trace(q, k, v, tokens=(["it"], ["cat", "mat"])).weights
    tensor([[0.5000, 0.5000]])
    """
    plain = all(isinstance(x, Tensor) and x.ndim == 2 for x in (q, k, v))
    if plain:
        q, k, v = q[None], k[None], v[None]
    p = Problem(q, k, AttentionSpec(**options))
    p.check_values(v)
    queries, keys = names(tokens, p.sizes.N, p.sizes.M)
    found = reference.steps(q, k, v, **options)
    changed = {"capped": p.softcap is not None, "biased": p.bias is not None, "masked": p.mask is not None}
    tensors = {"q": q, "k": k, "v": v, **vars(found)}
    return Trace(
        **{name: x[0] if plain else x for name, x in tensors.items()},
        queries=queries,
        keys=keys,
        shown=[name for name in _TITLES if changed.get(name, True)],
    )


def names(tokens: Any, N: int, M: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of queries and keys that ``tokens`` gives, or numbers."""
    if tokens is None:
        return [f"query {i}" for i in range(N)], [f"key {j}" for j in range(M)]
    pair = isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(t, str) for t in tokens)
    queries, keys = tokens if pair else (tokens, tokens)
    if len(queries) != N or len(keys) != M:
        raise ValueError(f"tokens: {len(queries)} names for {N} queries and {len(keys)} for {M} keys")
    return list(queries), list(keys)
