"""Applies edits to attention calls: which heads of which layer, clashes, and the edited output.

Heads that are edited in the same way are computed together, so an edited call is one attention call for each group of
heads, and nothing n × n is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.core.parts import key_heads, take
from limelight.core.problem import AttentionSpec
from limelight.functional import attention, weights
from limelight.lens.edits import Bias, Edit, Knockout, Mean, Off, Only, Pattern, Temperature
from limelight.lens.layers import Layer, Passes, layer_number
from limelight.lens.placing import bias_of_heads, mask_of_heads, place_mask
from limelight.matrix.base import Weights
from limelight.matrix.joined import JoinedWeights


class CallInputs(NamedTuple):
    """One attention call: ``softmax(q kᵀ …) v``.

    ``first`` is the number of the first query's token in its text: with a cache the queries are the last tokens.
    ``module`` may have its own way to compute attention, such as over several processes.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    spec: AttentionSpec
    dropout: float
    first: int
    module: nn.Module | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of heads, queries and keys."""
        return self.q.shape[1], self.q.shape[2], self.k.shape[2]

    def part(self, heads: Sequence[int]) -> CallInputs:
        """The call of some heads."""
        H = self.q.shape[1]
        if list(heads) == list(range(H)):
            return self
        keys = key_heads(heads, H // self.k.shape[1])
        spec = self.spec
        if any(x is not None and x.batch_and_heads()[1] > 1 for x in (spec.mask, spec.bias)) or spec.sink is not None:
            spec = weights(self.q, self.k, **spec._asdict()).part(heads)._problem.spec
        return self._replace(q=take(self.q, heads, 1), k=take(self.k, keys, 1), v=take(self.v, keys, 1), spec=spec)

    def attend(self) -> tuple[Weights, Tensor]:
        """Return the weights and the output; statistics asked for later reuse what is computed here."""
        found = getattr(self.module, "make_weights", weights)(self.q, self.k, **self.spec._asdict())
        if self.dropout:
            compute = getattr(self.module, "compute_attention", attention)
            return found, compute(self.q, self.k, self.v, **self.spec._asdict(), dropout=self.dropout)
        return found, found @ self.v


class _HeadEdits(NamedTuple):
    """The edits of one head's logits."""

    knockouts: tuple[Knockout, ...] = ()
    biases: tuple[Bias, ...] = ()
    temperature: float = 1.0
    pattern: Pattern | None = None


class LayerEdits:
    """The edits of one layer with a known number of heads."""

    def __init__(self, layer: Layer, edits: Sequence[Edit], count: int) -> None:
        self.layer, self.edits, self.count = layer, tuple(edits), count
        self.heads = [_HeadEdits() for _ in range(count)]
        self.off: set[int] = set()
        self.mean: dict[int, Mean] = {}
        _refuse_clashes(layer, edits, count)
        for edit in edits:
            self._add(edit)

    def _add(self, edit: Edit) -> None:
        chosen = edit.chosen(self.count)
        if isinstance(edit, (Off, Only)):
            self.off.update(chosen)
        elif isinstance(edit, Mean):
            self.mean.update(dict.fromkeys(chosen, edit))
        for h in chosen:
            one = self.heads[h]
            if isinstance(edit, Knockout):
                self.heads[h] = one._replace(knockouts=(*one.knockouts, edit))
            elif isinstance(edit, Bias):
                self.heads[h] = one._replace(biases=(*one.biases, edit))
            elif isinstance(edit, Temperature):
                self.heads[h] = one._replace(temperature=edit.values(self.count)[h])
            elif isinstance(edit, Pattern):
                self.heads[h] = one._replace(pattern=edit)

    def run(self, call: CallInputs) -> tuple[Weights, Tensor]:
        """Return the weights of the edited call and their product with the values, before ``finish``."""
        found, outs, every = [], [], []
        call, groups = self._groups(call)
        for edits, heads in groups.items():
            weights, out = self._attend(call.part(heads), edits, heads)
            found.append(weights)
            outs.append(out)
            every.append(heads)
        if len(found) == 1:
            return found[0], outs[0]
        order = torch.tensor([head for heads in every for head in heads]).argsort()
        return JoinedWeights(found, every), torch.cat(outs, 1).index_select(1, order.to(outs[0].device))

    def finish(self, out: Tensor) -> Tensor:
        """Replace the output of heads that are off, or that add their mean."""
        if self.off:
            out = out.index_fill(1, torch.tensor(sorted(self.off), device=out.device), 0.0)
        if self.mean:
            heads = sorted(self.mean)
            means = torch.stack([mean_output(self.mean[h], self.layer)[h] for h in heads]).to(out)
            B, _, N, width = out.shape
            out = out.index_copy(1, torch.tensor(heads, device=out.device), means[:, None].expand(B, -1, N, width))
        return out

    def _groups(self, call: CallInputs) -> tuple[CallInputs, dict[_HeadEdits, list[int]]]:
        """Return the heads that are edited in the same way; temperatures of single heads are moved into q."""
        spec, edits = call.spec, self.heads
        temperatures = [x.temperature for x in edits]
        plain = spec.bias is None and spec.softcap is None and spec.sink is None and not any(x.biases for x in edits)
        if plain and len(set(temperatures)) > 1:
            divided = call.q / torch.tensor(temperatures, dtype=call.q.dtype, device=call.q.device)[:, None, None]
            call, edits = call._replace(q=divided), [x._replace(temperature=1.0) for x in edits]
        groups: dict[_HeadEdits, list[int]] = {}
        for h, x in enumerate(edits):
            groups.setdefault(x, []).append(h)
        return call, groups

    def _attend(self, call: CallInputs, edits: _HeadEdits, heads: list[int]) -> tuple[Weights, Tensor]:
        _, N, M = call.sizes
        if edits.pattern is not None:
            found = _pattern_weights(edits.pattern, self.layer, heads, self.count, call)
            return found, found @ call.v
        spec = call.spec
        for knockout in edits.knockouts:
            allowed = ~place_mask(knockout.mask, call.first, N, M)
            allowed = mask_of_heads(allowed, heads, N, M)
            spec = spec._replace(mask=allowed if spec.mask is None else spec.mask & allowed)
        for added in edits.biases:
            bias = bias_of_heads(added, heads, self.count, call.first, N, M)
            spec = spec._replace(bias=bias if spec.bias is None else spec.bias + bias)
        if edits.temperature != 1.0:
            spec = spec._replace(temperature=edits.temperature)
        return call._replace(spec=spec).attend()

    def run_dense(self, matrix: Tensor, first: int) -> Tensor:
        """Return the edited weights ``(batch, heads, queries, keys)`` of a model that computes its own."""
        if self.mean:
            raise ValueError(
                f"{next(iter(self.mean.values()))}: {self.layer.name} computes its own attention (dense=True), whose "
                "output cannot be replaced; Off, Only, Knockout, Temperature, Bias and Pattern can be used"
            )
        B, H, N, M = matrix.shape
        rows = []
        for h, edits in enumerate(self.heads):
            row = matrix[:, h : h + 1]
            if h in self.off:
                row = torch.zeros_like(row)
            elif edits.pattern is not None:
                shaped = CallInputs(row[..., :1, :1], row, row.new_empty(B, 1, M, 1), AttentionSpec(), 0.0, first)
                row = _pattern_weights(edits.pattern, self.layer, [h], H, shaped, queries=N, keys=M).dense().to(row)
            elif edits != _HeadEdits():
                row = _edit_dense_head(row, edits, h, H, first)
            rows.append(row)
        return torch.cat(rows, 1)


def _edit_dense_head(row: Tensor, edits: _HeadEdits, head: int, count: int, first: int) -> Tensor:
    """Edit the weights ``(batch, 1, queries, keys)`` of a head through their logarithms."""
    N, M = row.shape[-2:]
    logits = row.log()
    for added in edits.biases:
        bias = bias_of_heads(added, [head], count, first, N, M)
        logits = logits + bias.dense(N, M).to(logits)
    for knockout in edits.knockouts:
        allowed = mask_of_heads(~place_mask(knockout.mask, first, N, M), [head], N, M)
        logits = logits.masked_fill(~allowed.dense(N, M, row.device), -torch.inf)
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return torch.softmax((logits / edits.temperature).masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)


class Editor:
    """The edits of a model's layers, by the numbers or patterns of names that choose the layers."""

    def __init__(self, model: nn.Module, edits: Mapping[int | str, Edit]) -> None:
        given: Any = edits
        if not isinstance(given, Mapping):
            raise TypeError(f"edits must be a dict such as {{3: Off(1)}}, not {type(edits).__name__}")
        passes = Passes(model)
        for key, edit in given.items():
            if isinstance(key, bool) or not isinstance(key, (int, str)):
                raise TypeError(f"edits: {key!r} is neither the number of a layer nor a pattern of module names")
            if not isinstance(edit, Edit):
                hint = "; make one, such as Off(3)" if isinstance(edit, type) and issubclass(edit, Edit) else ""
                raise TypeError(f"edits: {key!r} has {edit!r}, which is not an edit of limelight.lens{hint}")
            if not passes.possible(key):
                raise ValueError(f"edits: layer {key!r} matches no module of this {type(model).__name__}")
        self.edits, self.names = dict(edits), passes.names
        self.used: set[int | str] = set()

    def of(self, module: nn.Module, layer: Layer) -> list[Edit]:
        """Return the edits of one pass through a module."""
        if module not in self.names:
            return []
        name = self.names[module]
        own = Layer(name + layer.name[len(layer.module) :], name, layer.number)
        if own.name == own.module:
            own = own._replace(number=layer_number(name))
        keys = [key for key in self.edits if own.matches(key)]
        self.used.update(keys)
        return [part for key in keys for part in self.edits[key].parts()]


def _refuse_clashes(layer: Layer, edits: Sequence[Edit], count: int) -> None:
    """Raise ``ValueError`` for two edits of the same head of which one would undo or hide the other."""
    for n, a in enumerate(edits):
        for b in edits[:n]:
            both = sorted(set(_touched(a, count)) & set(_touched(b, count)))
            kept = sorted(set(_kept(a, count)) & set(_touched(b, count))) + sorted(
                set(_kept(b, count)) & set(_touched(a, count))
            )
            clash = [h for h in both if not _compatible(a, b)]
            clash += [h for h in kept if isinstance(a, (Off, Only, Mean)) and isinstance(b, (Off, Only, Mean))]
            if clash:
                heads = ", ".join(map(str, sorted(set(clash))))
                raise ValueError(
                    f"{b} and {a} clash in layer {layer.name}, head{'s' * (len(set(clash)) > 1)} {heads}: "
                    "each would undo the other; give every head one of them"
                )


def _touched(edit: Edit, count: int) -> list[int]:
    return edit.chosen(count)


def _kept(edit: Edit, count: int) -> list[int]:
    """Return the heads that an edit keeps on."""
    return [h for h in range(count) if h not in edit.chosen(count)] if isinstance(edit, Only) else []


def _compatible(a: Edit, b: Edit) -> bool:
    """Return whether both edits of one head take effect, or mean the same."""
    off, logits = (Off, Only), (Knockout, Bias, Temperature)
    if isinstance(a, off) and isinstance(b, off):
        return True
    for one, other in ((a, b), (b, a)):
        if isinstance(one, (*off, Mean, Pattern)):
            # An edit of all heads does not switch single heads on again: those that are off stay off.
            return isinstance(one, off) and isinstance(other, logits) and other.heads is None
    return (isinstance(a, logits) and type(a) is not type(b)) or isinstance(a, (Knockout, Bias))


def _pattern_weights(
    pattern: Pattern,
    layer: Layer,
    heads: list[int],
    count: int,
    call: CallInputs,
    queries: int | None = None,
    keys: int | None = None,
) -> Weights:
    """Return the weights of the other run for the queries and keys of this one, aligned by position."""
    N = call.sizes[1] if queries is None else queries
    M = call.sizes[2] if keys is None else keys
    B = call.q.shape[0]
    rows = range(call.first, call.first + N)
    found, begin = _find_pattern(pattern, layer, rows)
    found = found.batched()
    if found.shape[1] != count:
        raise ValueError(f"{pattern}: it has {found.shape[1]} heads and {layer.name} has {count}")
    if found.shape[0] not in (1, B):
        raise ValueError(f"{pattern}: it has {found.shape[0]} batch elements and {layer.name} has {B}; give 1 or {B}")
    at = range(rows.start - begin, rows.stop - begin)
    if found.shape[-1] < M or _sees_beyond(found, at, M):
        raise ValueError(
            f"{pattern}: in {layer.name} it has {found.shape[-1]} keys and this run has {M}; patterns are aligned by "
            "position, so both runs must have as many tokens"
        )
    part = found.part(heads, at, M)
    return part if found.shape[0] == B else part.expand(B)


def _sees_beyond(found: Weights, rows: range, keys: int) -> bool:
    """Return whether some rows have weight on keys after the first ``keys``."""
    N, M = found.shape[-2:]
    if keys == M:
        return False
    spans, dense = (None, None) if found.mask is None else found.mask.lower(N, M)
    if spans is not None:
        begin, end = spans[:, rows.start : rows.stop].unbind(-1)
        return bool(((begin < end) & (end > keys)).any())
    if dense is None:
        return True
    return bool(dense.expand(*dense.shape[:-2], N, M)[..., rows.start : rows.stop, keys:].any())


def _find_pattern(pattern: Pattern, layer: Layer, rows: range) -> tuple[Weights, int]:
    """Return the weights that contain some rows, and the number of their first row's token."""
    if isinstance(pattern.weights, Weights):
        *_, N, M = pattern.weights.shape
        found = [(pattern.weights, max(M - N, 0))]
    else:
        calls = [call for call in pattern.weights.log if call.name == layer.name]
        if not calls:
            raise ValueError(
                f"{pattern}: the other record has no layer {layer.name}; it has {', '.join(pattern.weights)}"
            )
        found, done = [], 0
        for call in calls:
            *_, N, M = call.shape
            first = done if call.kind == "cross" else M - N
            if call.phase == "prefill":
                first = 0 if call.kind == "cross" else M - N
            done = first + N
            found.append((call.weights, first))
    for matrix, first in reversed(found):
        if first <= rows.start and rows.stop <= first + matrix.shape[-2]:
            return matrix, first
    raise ValueError(
        f"{pattern}: {layer.name} asks for the rows of tokens {rows.start} to {rows.stop - 1}, which the other run "
        "does not have; record it on a text that is as long"
    )


def mean_output(edit: Mean, layer: Layer) -> Tensor:
    """Return the mean output of each head of a layer over the queries of a reference record, ``(heads, width)``."""
    known: dict[str, Tensor] = edit.reference.__dict__.setdefault("_mean_outputs", {})
    if layer.name not in known:
        known[layer.name] = edit.reference.mean_output(layer.name)
    return known[layer.name]
