"""The report on heads: a row of numbers and a label for each.

All numbers are means over the queries of all calls and batch elements; padding does not count as a query. For each
head:

- ``entropy``: the entropy of its rows in nats, and ``spread``: the same as a share of the largest possible entropy,
  that of equal weights on all keys that a query may attend to;
- ``first``: the weight on the first token; ``self``, ``previous``, ``next``: the weight on the token itself and on its
  neighbours; ``near``: the weight on all tokens within 8;
- ``separators``: the weight on punctuation and on tokens such as ``[SEP]``, if the tokens are known;
- ``distance``: the mean distance to the keys, in tokens;
- ``duplicate``: over tokens that occur elsewhere too, the weight on those occurrences (the 8 nearest on either side);
- ``induction``: over tokens that occurred before, the weight on the tokens that followed those occurrences (the 8
  latest). A direct repeat ("the the") does not count: the token that followed the first is the query itself, whose
  weight is ``self``;
- ``similarity``: the mean cosine to the other heads of its layer.

Of a record with values (``watch(model, values=True)``) there are two more:

- ``value``: the mean of ``Σ_j a_ij ‖v_j‖``, the norms of the value vectors that a query's weights move;
- ``attribution``: the sum of attention times its gradient, ``A ∘ (dO vᵀ)``, over all queries and keys, after a backward
  pass: to first order, what the loss loses when the head is switched off.

In cross-attention queries and keys belong to two texts, and the measures of position and of equal tokens are None.

The label is the first whose rule holds; "equal" is what equal weights on all visible keys would give:

======================  ==============================================================================
``previous token``      previous ≥ 0.4
``next token``          next ≥ 0.4
``itself``              self ≥ 0.4
``induction``           induction ≥ 0.3 and at least 2 × equal, over at least 4 queries
``duplicate token``     duplicate ≥ 0.3 and at least 2 × equal, over at least 4 queries
``separator``           separators ≥ 0.4 and at least 2 × equal
``sink``                first ≥ 0.4 and at least 2 × equal
``local``               near ≥ 0.7 and at least 1.5 × equal
``broad``               spread ≥ 0.8
``focused``             spread ≤ 0.3: few tokens, which are none of the above
``mixed``               otherwise
======================  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from limelight.core.masks import Mask, Spans, Window
from limelight.lens.heads_table import MEASURES, NEAR, VALUE_MEASURES, Heads
from limelight.lens.record import Call, Record
from limelight.matrix.base import Weights
from limelight.matrix.statistics.profile import Profile

_OCCURRENCES = 8  # earlier occurrences of a token that count
_SEPARATOR = re.compile(r"[.,;:!?…]+|\[SEP\]|</s>|<sep>|<eos>|<\|.*\|>")
_MIN_QUERIES = 4  # queries needed to label a head by what it does with repeated tokens

Tokens = Sequence[str] | Sequence[Sequence[str]]


def heads(
    record: Record,
    tokens: Tokens | Mapping[str, Tokens] | None = None,
    *,
    progress: Callable[[Sequence[str]], Any] = iter,
) -> Heads:
    """Report on every head of a record: twelve measures and a label, which ``help(limelight.lens.report)`` defines.

    Args:
        record: a record of ``watch``.
        tokens: the tokens of the text, or a list of them for each text of the batch, or ``{"encoder": …, "decoder":
            …}`` of these; needed for ``separators``.
        progress: wraps the list of module names while they are worked through, such as ``tqdm.tqdm``.

    Returns:
        A list of one dict for each head, with ``module``, ``stack``, ``kind``, ``layer``, ``head``, the measures and
        ``label``; ``print`` shows it as a table.

    >>> import limelight as ll
    >>> layer = ll.nn.MultiHeadAttention(8, 2)
    >>> with ll.watch(layer) as record:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> [(row["head"], row["kind"]) for row in heads(record)]
    [(0, 'self'), (1, 'self')]

    """
    named = tokens if isinstance(tokens, Mapping) else {"encoder": tokens, "decoder": tokens}
    if wrong := named.keys() - {"encoder", "decoder", "written"}:
        raise ValueError(f"heads: tokens has the key {sorted(wrong)[0]!r}; there are 'encoder' and 'decoder'")
    found = Heads()
    real = real_queries(record)
    for name in progress(list(record)):
        sums = _Sums()
        for call in record.log:
            if call.name == name:
                sums.add(call, real[id(call)], named.get("encoder" if call.kind == "cross" else call.stack))
        found += sums.rows()
    return found


def real_queries(record: Record) -> dict[int, Tensor]:
    """Return which queries ``(B, N)`` of each call, by its ``id``, are not padding."""
    latest: dict[str, Tensor] = {}  # in the latest self-attention of each stack
    return {id(call): _real_queries(call, latest) for call in record.log}


def _real_queries(call: Call, latest: dict[str, Tensor]) -> Tensor:
    """Return which queries ``(B, N)`` are not padding: those that may attend to themselves."""
    B, _, N, M = call.shape
    if call.kind == "self":
        latest[call.stack] = attends_to_itself(call.weights.mask, N, M).expand(B, N)
    known = latest.get(call.stack)
    return known if known is not None and known.shape == (B, N) else torch.ones(B, N, dtype=torch.bool)


def attends_to_itself(mask: Mask | None, N: int, M: int) -> Tensor:
    i = torch.arange(N)[:, None]
    seen = torch.ones(1, N, dtype=torch.bool) if mask is None else mask.allows(i, i + (M - N), N, M) & (i + M >= N)
    return seen.cpu().reshape(-1, N) if seen.ndim < 3 else seen[:, 0].cpu().reshape(-1, N)


def visible_keys(mask: Mask | None, N: int, M: int) -> Tensor:
    """Return how many keys each query may attend to, ``(batch or 1, N)``."""
    spans, dense = (None, None) if mask is None else mask.lower(N, M)
    if dense is not None:
        allowed = mask.dense(N, M)  # type: ignore[union-attr]
        return (
            allowed.reshape(-1, *allowed.shape[-3:])[:, 0].sum(-1).cpu() if allowed.ndim == 4 else allowed.sum(-1)[None]
        )
    if spans is None:
        return torch.full((1, N), M)
    return (spans[..., 1] - spans[..., 0]).sum(-1)


@dataclass
class _Sums:
    """Sums over the queries of all calls of a module."""

    call: Call | None = None
    heads: int = 0
    start: Tensor | None = None  # the key index of the first token when the text began
    length: int = 0  # tokens of the text so far
    total: dict[str, Any] = field(default_factory=dict)  # measure: sum for each head
    count: dict[str, float] = field(default_factory=dict)  # measure: number of queries in the sum
    equal: dict[str, float] = field(default_factory=dict)  # measure: the sum that equal weights would give

    def add(self, call: Call, real: Tensor, tokens: Tokens | None) -> None:
        """Add the measures of one call."""
        self.call, A = call, call.weights
        B, self.heads, N, M = A.shape
        if not bool(real.all()):
            rows = Spans(torch.stack([torch.zeros_like(real), real * M], -1)[:, :, None].int())
            A = A.restricted(rows)
        own = call.kind == "self"
        with torch.no_grad():
            seen = A.observe(
                entropy=True,
                received=True,
                similarity=self.heads > 1,
                distance=own,
                profile=NEAR if own else None,
            )
            visible = visible_keys(A.mask, N, M).expand(B, N).double() * real
            self._add_rows("entropy", seen.entropy, real)
            self._add_rows("possible", visible.clamp(min=1).log()[:, None].expand(B, self.heads, N), real)
            self._add_columns(A, seen.received, real, visible, tokens)
            if seen.similarity is not None:
                others = (seen.similarity.sum(-1) - seen.similarity.diagonal(dim1=-2, dim2=-1)) / (self.heads - 1)
                self._add("similarity", (others * real.sum(1)[:, None]).sum(0), float(real.sum()))
            if call.values is not None:
                self._add_values(A, call, real)
            if own:
                self._add_rows("distance", seen.distance, real)
                self._add_positions(A, seen.profile, real, visible)
                if call.ids is not None and len(call.ids) == B:
                    self._add_repeats(A, call, real, visible)

    def _add(self, name: str, total: Tensor, count: float, equal: float = 0.0) -> None:
        self.total[name] = self.total.get(name, 0.0) + total.double()
        self.count[name] = self.count.get(name, 0.0) + count
        self.equal[name] = self.equal.get(name, 0.0) + equal

    def _add_rows(self, name: str, by_query: Tensor | None, real: Tensor) -> None:
        assert by_query is not None
        self._add(name, (by_query * real[:, None]).sum((0, 2)), float(real.sum()))

    def _add_values(self, A: Weights, call: Call, real: Tensor) -> None:
        """Add the norms of the values that the weights move, and attention times its gradient."""
        norms = call.v.to(A.dtype).norm(dim=-1, keepdim=True)
        self._add_rows("value", (A @ norms)[..., 0], real)
        if call.values is not None and call.values.dout is not None:
            self._add("attribution", call.attribution().sums().sum((0, 2)), 0.0)  # a sum, not a mean

    def _add_columns(
        self, A: Weights, received: Tensor | None, real: Tensor, visible: Tensor, tokens: Tokens | None
    ) -> None:
        """Add the weight on keys that are the same for every query: the first token and separators."""
        assert received is not None
        B, H, N, M = A.shape
        rows = float(real.sum())
        share = (1 / visible.clamp(min=1) * real).sum(
            1
        )  # what a key that is visible to all would receive from equal weights
        first = self._first_token(first_visible(A.mask, N, M, real), N, M)
        there = received.gather(2, first.clamp(min=0)[:, None, None].expand(B, H, 1)) * (first >= 0)[:, None, None]
        self._add("first", there.sum((0, 2)), rows, float(share.sum()))
        if tokens is not None:
            marks = _separators(tokens, B, M).to(received.device)
            self._add("separators", (received * marks[:, None]).sum((0, 2)), rows, float((share * marks.sum(1)).sum()))

    def _first_token(self, visible_from: Tensor, N: int, M: int) -> Tensor:
        """Return the key index of the first token, ``(B,)``; negative where a cache has dropped it."""
        assert self.call is not None
        if self.call.kind == "cross":
            return visible_from
        if N == M or self.start is None or len(self.start) != len(visible_from):
            self.start, self.length = visible_from, M
        else:
            self.length += N
        return self.start - (self.length - M)

    def _add_positions(self, A: Weights, profile: Tensor | None, real: Tensor, visible: Tensor) -> None:
        assert profile is not None
        N, M = A.shape[-2:]
        sums = (profile.double() * Profile(NEAR).counts(N, M, profile.device)).sum(0)  # (H, distances)
        rows = float(real.sum())
        for name, at in (("previous", -1), ("self", 0), ("next", 1)):
            self._add(name, sums[:, NEAR + at], rows)
        window = Window(NEAR) if A.mask is None else A.mask & Window(NEAR)
        near = visible_keys(window, N, M).expand(real.shape).double()
        self._add("near", sums.sum(1), rows, float((near / visible.clamp(min=1) * real).sum()))

    def _add_repeats(self, A: Weights, call: Call, real: Tensor, visible: Tensor) -> None:
        B, _, N, M = A.shape
        assert call.ids is not None
        for b in range(B):
            keys = torch.nn.functional.pad(
                real[b], (M - N, 0), value=True
            )  # those before the queries come from a cache
            later, earlier = occurrences(call.ids[b].cpu(), keys.cpu())
            both = call.stack == "encoder"
            i, j = (torch.cat([later, earlier]), torch.cat([earlier, later])) if both else (later, earlier)
            self._add_pairs("duplicate", A, b, i, j, visible)
            follows = earlier + 1 < later
            self._add_pairs("induction", A, b, later[follows], earlier[follows] + 1, visible)

    def _add_pairs(self, name: str, A: Weights, b: int, i: Tensor, j: Tensor, visible: Tensor) -> None:
        """Add the weights from positions ``i`` to keys ``j``."""
        N, M = A.shape[-2:]
        row = i - (M - N)
        row, j = row[row >= 0], j[row >= 0]
        if len(row):
            queries = float(len(row.unique()))
            equal = float((1 / visible[b].clamp(min=1))[row].sum())
            self._add(name, A[b, :, row, j].sum(1), queries, equal)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report, one for each head."""
        assert self.call is not None
        rows = []
        for head in range(self.heads):
            mean = {name: float(x[head]) / max(self.count[name], 1.0) for name, x in self.total.items()}
            mean["spread"] = mean["entropy"] / mean["possible"] if mean["possible"] else 0.0
            equal = {name: x / max(self.count[name], 1.0) for name, x in self.equal.items()}
            row: dict[str, Any] = {
                "module": self.call.module or self.call.name,
                "stack": self.call.stack,
                "kind": self.call.kind,
                "layer": self.call.layer,
                "head": head,
            }
            row |= {name: mean.get(name) for name in MEASURES}
            if "value" in mean:
                row |= {name: mean.get(name) for name in VALUE_MEASURES}
            row["label"] = _label(row, equal, self.count)
            rows.append(row)
        return rows


def _label(row: Mapping[str, Any], equal: Mapping[str, float], count: Mapping[str, float]) -> str:
    def at_least(name: str, least: float, times: float = 0.0) -> bool:
        value = row[name]
        enough = name not in ("duplicate", "induction") or count.get(name, 0.0) >= _MIN_QUERIES
        return value is not None and enough and value >= max(least, times * equal.get(name, 0.0))

    rules = (
        ("previous token", at_least("previous", 0.4)),
        ("next token", at_least("next", 0.4)),
        ("itself", at_least("self", 0.4)),
        ("induction", at_least("induction", 0.3, 2)),
        ("duplicate token", at_least("duplicate", 0.3, 2)),
        ("separator", at_least("separators", 0.4, 2)),
        ("sink", at_least("first", 0.4, 2)),
        ("local", at_least("near", 0.7, 1.5)),
        ("broad", at_least("spread", 0.8)),
        ("focused", row["spread"] <= 0.3),
    )
    return next((name for name, holds in rules if holds), "mixed")


def first_visible(mask: Mask | None, N: int, M: int, real: Tensor) -> Tensor:
    """Return the first key ``(B,)`` that any query may attend to."""
    spans, dense = (None, None) if mask is None else mask.lower(N, M)
    if mask is not None and dense is not None:
        seen = mask.dense(N, M).expand(len(real), -1, N, M)[:, 0] & real[..., None]
        return seen.any(1).int().argmax(-1).cpu()
    if spans is None:
        return torch.zeros(len(real), dtype=torch.long)
    begin = torch.where(spans[..., 0] < spans[..., 1], spans[..., 0], M).amin(-1).expand(real.shape)
    return torch.where(real, begin, M).amin(-1).clamp(max=M - 1).long()


def is_separator(token: str) -> bool:
    """Return whether a token is punctuation or a special token that ends a part of the text."""
    return _SEPARATOR.fullmatch(token.replace("##", "").lstrip("▁Ġ ").rstrip()) is not None


def _separators(tokens: Tokens, B: int, M: int) -> Tensor:
    texts: list[Any] = [tokens] if all(isinstance(token, str) for token in tokens) else list(tokens)
    if not all(isinstance(text, (list, tuple)) and all(isinstance(token, str) for token in text) for text in texts):
        raise TypeError("heads: tokens must be a list of strings, or a list of such lists, one for each batch element")
    if len(texts) != B:
        raise ValueError(f"heads: tokens of {len(texts)} texts for {B} batch elements; give one list for each element")
    marks = torch.zeros(B, M, dtype=torch.bool)
    for row, text in zip(marks, texts, strict=True):
        if len(text) > M:
            raise ValueError(f"heads: {len(text)} tokens for {M} keys")
        row[: len(text)] = torch.tensor([is_separator(str(token)) for token in text], dtype=torch.bool)
    return marks


def occurrences(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of pairs of equal tokens, the later and the earlier, at most ``_OCCURRENCES`` apart."""
    place = real.nonzero()[:, 0]
    place = place[torch.argsort(ids[place], stable=True)]  # equal tokens side by side, in their order
    token = ids[place]
    later, earlier = [place[:0]], [place[:0]]
    for step in range(1, min(_OCCURRENCES, len(place) - 1) + 1):
        same = token[step:] == token[:-step]
        later.append(place[step:][same])
        earlier.append(place[:-step][same])
    return torch.cat(later), torch.cat(earlier)
