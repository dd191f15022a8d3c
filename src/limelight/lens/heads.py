"""What each head does: a row of numbers, and a label.

All numbers are means over the queries of all calls and batch elements; padding is no query. For each head:

- ``entropy``: of its rows, in nats, and ``spread``: the entropy as a share of the largest possible one, that of equal
  weights on all keys that a query may see;
- ``first``: the weight on the first token; ``self``, ``previous``, ``next``: on the token itself and its neighbours;
  ``near``: on all tokens within 8;
- ``separators``: on marks such as ``.`` and ``,`` and tokens such as ``[SEP]``, where tokens are known;
- ``distance``: how far away it looks;
- ``duplicate``: for tokens that occur elsewhere too, the weight on those occurrences (the 8 nearest on either side);
- ``induction``: for tokens that occurred before, the weight on what followed them then (the 8 latest);
- ``similarity``: the mean cosine to the other heads of its layer.

In cross-attention queries and keys are of two texts, and what speaks of position or of equal tokens is None.

The label is the first that holds:

======================  ==============================================================================
``previous token``      previous ≥ 0.4
``next token``          next ≥ 0.4
``itself``              self ≥ 0.4
``induction``           induction ≥ 0.3, and at least twice what equal weights would give, over 4 tokens or more
``duplicate token``     duplicate ≥ 0.3, the same
``separator``           separators ≥ 0.4, and at least twice what equal weights would give
``sink``                first ≥ 0.4, and at least twice what equal weights would give
``local``               near ≥ 0.7, and at least 1.5 times what equal weights would give
``broad``               spread ≥ 0.8
``focused``             spread ≤ 0.3: on few tokens, which are none of the above
``mixed``               otherwise
======================  ==============================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor

from limelight.core.masks import Mask, Spans, Window
from limelight.lens.calls import Call, Record
from limelight.matrix.base import Weights
from limelight.matrix.statistics.profile import Profile

_NEAR = 8
_OCCURRENCES = 8
_SEPARATOR = re.compile(r"[.,;:!?…]+|\[SEP\]|</s>|<sep>|<eos>|<\|.*\|>")
MEASURES = (
    *("entropy", "spread", "first", "self", "previous", "next", "near", "separators", "distance"),
    *("duplicate", "induction", "similarity"),
)

_SHORT = {
    **{"previous": "prev", "near": f"±{_NEAR}", "separators": "sep", "distance": "dist"},
    **{"duplicate": "dup", "induction": "ind", "similarity": "sim"},
}
_ENOUGH = 4  # queries, to call a head after what it does with tokens that occur again

Tokens = Sequence[str] | Sequence[Sequence[str]]


class Heads(list[dict[str, Any]]):
    """A row a head, as ``pandas.DataFrame`` takes them; ``print`` shows a table, ``json()`` is text."""

    def json(self) -> str:
        """The rows as JSON."""
        return json.dumps(self, ensure_ascii=False)

    def __rich__(self) -> Group:
        """A table for each kind of module, by the number of its layer."""
        families: dict[str, list[dict[str, Any]]] = {}
        for row in self:
            families.setdefault(re.sub(r"\b\d+\b", "*", row["module"], count=1), []).append(row)
        return Group(*(_table(family, rows) for family, rows in families.items()))

    def __str__(self) -> str:
        console = Console(width=200, no_color=True, force_terminal=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    __repr__ = __str__


def _table(family: str, rows: list[dict[str, Any]]) -> Table:
    names = [name for name in MEASURES if rows[0][name] is not None]
    table = Table(title=family, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("layer", "head", *(_SHORT.get(name, name) for name in names)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("label", no_wrap=True)
    layer = None
    for row in rows:
        numbers = (f"{row[n]:.1f}" if n == "distance" else f"{row[n]:.2f}" for n in names)
        table.add_row("" if row["layer"] == layer else str(row["layer"]), str(row["head"]), *numbers, row["label"])
        layer = row["layer"]
    return table


def heads(
    record: Record,
    tokens: Tokens | Mapping[str, Tokens] | None = None,
    *,
    progress: Callable[[Sequence[str]], Any] = iter,
) -> Heads:
    """A report on every head of a record.

    Args:
        record: what ``watch`` made.
        tokens: the tokens of the text, or of each text of the batch, or ``{"encoder": …, "decoder": …}`` of these;
            they tell which are separators.
        progress: is given the names of the modules and iterates over them.

    """
    named = tokens if isinstance(tokens, Mapping) else {"encoder": tokens, "decoder": tokens}
    if wrong := named.keys() - {"encoder", "decoder", "written"}:
        raise ValueError(f"heads: tokens of the {sorted(wrong)[0]}; there are 'encoder' and 'decoder'")
    found = Heads()
    real: dict[str, Tensor] = {}  # the queries that are no padding, of the latest self-attention of a stack
    order = {id(call): _real(call, real) for call in record.log}
    for name in progress(list(record)):
        sums = _Sums()
        for call in record.log:
            if call.name == name:
                sums.add(call, order[id(call)], named.get("encoder" if call.kind == "cross" else call.stack))
        found += sums.rows()
    return found


def _real(call: Call, latest: dict[str, Tensor]) -> Tensor:
    """Which queries ``(B, N)`` are no padding: those that may see themselves."""
    B, _, N, M = call.shape
    if call.kind == "self":
        latest[call.stack] = _sees_itself(call.weights.mask, N, M).expand(B, N)
    known = latest.get(call.stack)
    return known if known is not None and known.shape == (B, N) else torch.ones(B, N, dtype=torch.bool)


def _sees_itself(mask: Mask | None, N: int, M: int) -> Tensor:
    i = torch.arange(N)[:, None]
    seen = torch.ones(1, N, dtype=torch.bool) if mask is None else mask.allows(i, i + (M - N), N, M) & (i + M >= N)
    return seen.cpu().reshape(-1, N) if seen.ndim < 3 else seen[:, 0].cpu().reshape(-1, N)


def _visible(mask: Mask | None, N: int, M: int) -> Tensor:
    """How many keys each query may see, ``(batch or 1, N)``."""
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
    begun: Tensor | None = None  # the place of the first token, as long as no cache drops it
    length: int = 0  # of the text so far
    total: dict[str, Any] = field(default_factory=dict)  # by measure: sums, one for each head
    count: dict[str, float] = field(default_factory=dict)  # and over how many queries
    equal: dict[str, float] = field(default_factory=dict)  # the same for equal weights

    def add(self, call: Call, real: Tensor, tokens: Tokens | None) -> None:
        """One call."""
        self.call, A = call, call.weights
        B, self.heads, N, M = A.shape
        if not bool(real.all()):
            rows = Spans(torch.stack([torch.zeros_like(real), real * M], -1)[:, :, None].int())
            A = A.changed(mask=rows if A.mask is None else A.mask & rows)
        own = call.kind == "self"
        with torch.no_grad():
            places: dict[str, Any] = {"distance": True, "profile": _NEAR} if own else {}
            seen = A.observe(entropy=True, received=True, similarity=self.heads > 1, **places)
            visible = _visible(A.mask, N, M).expand(B, N).double() * real
            self._sum("entropy", seen.entropy, real)
            self._sum("possible", visible.clamp(min=1).log()[:, None].expand(B, self.heads, N), real)
            self._columns(A, seen.received, real, visible, tokens)
            if seen.similarity is not None:
                others = (seen.similarity.sum(-1) - seen.similarity.diagonal(dim1=-2, dim2=-1)) / (self.heads - 1)
                self._put("similarity", (others * real.sum(1)[:, None]).sum(0), float(real.sum()))
            if own:
                self._sum("distance", seen.distance, real)
                self._places(A, seen.profile, real, visible)
                if call.ids is not None and len(call.ids) == B:
                    self._repeats(A, call, real, visible)

    def _put(self, name: str, total: Tensor, count: float, equal: float = 0.0) -> None:
        self.total[name] = self.total.get(name, 0.0) + total.double()
        self.count[name] = self.count.get(name, 0.0) + count
        self.equal[name] = self.equal.get(name, 0.0) + equal

    def _sum(self, name: str, by_query: Tensor | None, real: Tensor) -> None:
        assert by_query is not None
        self._put(name, (by_query * real[:, None]).sum((0, 2)), float(real.sum()))

    def _columns(
        self, A: Weights, received: Tensor | None, real: Tensor, visible: Tensor, tokens: Tokens | None
    ) -> None:
        """The weight on keys that are the same for every query."""
        assert received is not None
        B, H, N, M = A.shape
        rows = float(real.sum())
        share = (1 / visible.clamp(min=1) * real).sum(1)  # what a key that all may see would get from equal weights
        first = self._first(_lowest(A.mask, N, M, real), N, M)
        there = received.gather(2, first.clamp(min=0)[:, None, None].expand(B, H, 1)) * (first >= 0)[:, None, None]
        self._put("first", there.sum((0, 2)), rows, float(share.sum()))
        if tokens is not None:
            marks = _separators(tokens, B, M).to(received.device)
            self._put("separators", (received * marks[:, None]).sum((0, 2)), rows, float((share * marks.sum(1)).sum()))

    def _first(self, lowest: Tensor, N: int, M: int) -> Tensor:
        """Where the first token ``(B,)`` is among the keys; below 0 where a cache has dropped it."""
        assert self.call is not None
        if self.call.kind == "cross":
            return lowest
        if N == M or self.begun is None or len(self.begun) != len(lowest):
            self.begun, self.length = lowest, M
        else:
            self.length += N
        return self.begun - (self.length - M)

    def _places(self, A: Weights, profile: Tensor | None, real: Tensor, visible: Tensor) -> None:
        assert profile is not None
        N, M = A.shape[-2:]
        sums = (profile.double() * Profile(_NEAR).counts(N, M, profile.device)).sum(0)  # (H, distances)
        rows = float(real.sum())
        for name, at in (("previous", -1), ("self", 0), ("next", 1)):
            self._put(name, sums[:, _NEAR + at], rows)
        window = Window(_NEAR) if A.mask is None else A.mask & Window(_NEAR)
        near = _visible(window, N, M).expand(real.shape).double()
        self._put("near", sums.sum(1), rows, float((near / visible.clamp(min=1) * real).sum()))

    def _repeats(self, A: Weights, call: Call, real: Tensor, visible: Tensor) -> None:
        B, _, N, M = A.shape
        assert call.ids is not None
        for b in range(B):
            keys = torch.nn.functional.pad(real[b], (M - N, 0), value=True)  # earlier ones are of a cache
            later, earlier = _occurrences(call.ids[b].cpu(), keys.cpu())
            both = call.stack == "encoder"
            i, j = (torch.cat([later, earlier]), torch.cat([earlier, later])) if both else (later, earlier)
            self._pairs("duplicate", A, b, i, j, visible)
            follows = earlier + 1 < later
            self._pairs("induction", A, b, later[follows], earlier[follows] + 1, visible)

    def _pairs(self, name: str, A: Weights, b: int, i: Tensor, j: Tensor, visible: Tensor) -> None:
        """The weights at positions ``i`` and keys ``j``, by query."""
        N, M = A.shape[-2:]
        row = i - (M - N)
        row, j = row[row >= 0], j[row >= 0]
        if len(row):
            queries = float(len(row.unique()))
            equal = float((1 / visible[b].clamp(min=1))[row].sum())
            self._put(name, A[b, :, row, j].sum(1), queries, equal)

    def rows(self) -> list[dict[str, Any]]:
        """One for each head."""
        assert self.call is not None
        rows = []
        for head in range(self.heads):
            mean = {name: float(x[head]) / max(self.count[name], 1.0) for name, x in self.total.items()}
            mean["spread"] = mean["entropy"] / mean["possible"] if mean["possible"] else 0.0
            row: dict[str, Any] = {"module": self.call.name, "stack": self.call.stack, "kind": self.call.kind}
            row |= {"layer": self.call.layer, "head": head, **{name: mean.get(name) for name in MEASURES}}
            row["label"] = _label(
                row, {name: x / max(self.count[name], 1.0) for name, x in self.equal.items()}, self.count
            )
            rows.append(row)
        return rows


def _label(row: Mapping[str, Any], equal: Mapping[str, float], count: Mapping[str, float]) -> str:
    def at_least(name: str, least: float, times: float = 0.0) -> bool:
        found = row[name]
        enough = name not in ("duplicate", "induction") or count.get(name, 0.0) >= _ENOUGH
        return found is not None and enough and found >= max(least, times * equal.get(name, 0.0))

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


def _lowest(mask: Mask | None, N: int, M: int, real: Tensor) -> Tensor:
    """The first key ``(B,)`` that any query sees."""
    spans, dense = (None, None) if mask is None else mask.lower(N, M)
    if mask is not None and dense is not None:
        seen = mask.dense(N, M).expand(len(real), -1, N, M)[:, 0] & real[..., None]
        return seen.any(1).int().argmax(-1).cpu()
    if spans is None:
        return torch.zeros(len(real), dtype=torch.long)
    begin = torch.where(spans[..., 0] < spans[..., 1], spans[..., 0], M).amin(-1).expand(real.shape)
    return torch.where(real, begin, M).amin(-1).clamp(max=M - 1).long()


def is_separator(token: str) -> bool:
    """Whether a token is a mark or one that ends a part."""
    return _SEPARATOR.fullmatch(token.replace("##", "").lstrip("▁Ġ ").rstrip()) is not None


def _separators(tokens: Tokens, B: int, M: int) -> Tensor:
    texts: list[Any] = [tokens] if all(isinstance(token, str) for token in tokens) else list(tokens)
    if not all(isinstance(text, (list, tuple)) and all(isinstance(token, str) for token in text) for text in texts):
        raise TypeError("heads: tokens must be a list of strings, or a list of such lists, one for each batch element")
    if len(texts) != B:
        raise ValueError(f"heads: tokens of {len(texts)} texts for {B} batch elements; give a list for each")
    marks = torch.zeros(B, M, dtype=torch.bool)
    for row, text in zip(marks, texts, strict=True):
        if len(text) > M:
            raise ValueError(f"heads: {len(text)} tokens for {M} keys")
        row[: len(text)] = torch.tensor([is_separator(str(token)) for token in text], dtype=torch.bool)
    return marks


def _occurrences(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Every two places of one token, the later and the earlier, with at most some others of it between them."""
    place = real.nonzero()[:, 0]
    place = place[torch.argsort(ids[place], stable=True)]  # occurrences of one token side by side, in their order
    token = ids[place]
    later, earlier = [place[:0]], [place[:0]]
    for step in range(1, min(_OCCURRENCES, len(place) - 1) + 1):
        same = token[step:] == token[:-step]
        later.append(place[step:][same])
        earlier.append(place[:-step][same])
    return torch.cat(later), torch.cat(earlier)
