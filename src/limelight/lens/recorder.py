"""A record of what the layers of a model attend to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from limelight.backends import Int8Rows
from limelight.functional import attention, weights
from limelight.lens.calls import Call, Record
from limelight.matrix.base import Weights
from limelight.nn.attention import MultiHeadAttention
from limelight.nn.stack import Decoder, Encoder, Seq2Seq

_CONTEXTS = "context", "key_value_states", "encoder_hidden_states", "cross_attention_states"
_SOURCES, _TARGETS = ("input_ids", "ids", "source"), ("decoder_input_ids", "target")


class Witness:
    """Makes a record of what it is told of the modules of a model."""

    def __init__(
        self,
        model: nn.Module,
        record: Record,
        chosen: Callable[[str], bool] = lambda name: True,
        questions: dict[str, Any] | None = None,
        limit: float = float("inf"),
    ) -> None:
        self.model, self.record, self.chosen, self.questions, self.limit = model, record, chosen, questions, limit
        self.kept = 0  # bytes
        self._names = {module: name for name, module in model.named_modules()}
        self._crossing: set[nn.Module] = set()  # modules that are attending to a context
        self._phase = "prefill"
        self._ids: dict[str, Tensor] = {}  # tokens so far, by stack
        self._told: set[str] = set()
        self.entered: set[nn.Module] = set()

    def sees(self, module: nn.Module, found: Weights) -> None:
        """One attention call."""
        name = self._names[module]
        self._told.add(name)
        if torch._C._current_graph_task_id() != -1:  # a checkpoint computes it once more, for the gradient
            return
        *_, N, M = found.shape
        kind = "cross" if module in self._crossing else "self"
        if kind == "self":
            self._phase = "prefill" if N == M else "decode"
        if not self.chosen(name):
            return
        if self.kept >= self.limit:
            self.record.missed += 1
            return
        seen = found if self.questions is None else found.observe(**self.questions)
        self.kept += sum(x.untyped_storage().nbytes() for x in _tensors(seen))
        stack = self._stack(name, module)
        self.record.add(Call(name, kind, stack, self._phase, seen, found.shape, self._keys(kind, stack, found.shape)))

    def _keys(self, kind: str, stack: str, shape: tuple[int, ...]) -> Tensor | None:
        """The tokens of the keys; a cache may have dropped the first ones."""
        ids, M = self._ids.get("encoder" if kind == "cross" else stack), shape[-1]
        if ids is None or len(ids) != shape[0] or ids.shape[1] < M or (kind == "cross" and ids.shape[1] != M):
            return None
        return ids[:, ids.shape[1] - M :]

    def attends(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, dropout: float, options: dict[str, Any]
    ) -> Tensor:
        """One call, which is computed here; what is found on the way is of use to later questions."""
        # A cache goes on writing where its keys lie; and rows that lie together are asked faster.
        if self.questions is None:
            k = k.clone(memory_format=torch.contiguous_format)
        found = weights(q, k, **options)
        out = attention(q, k, v, **options, dropout=dropout) if dropout else found @ v
        self.sees(module, found)
        return out

    def enters(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        given = _named(module, args, kwargs)
        if any(given.get(name) is not None for name in _CONTEXTS):
            self._crossing.add(module)
        else:
            self._crossing.discard(module)
        self.entered.add(module)
        # A generation begins with the encoder alone.
        if self._names[module].endswith("encoder") and (ids := _ids(given, _SOURCES)) is not None:
            self._ids["encoder"] = ids

    def begins(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is about to run."""
        self.enters(model, args, kwargs)
        given = _named(model, args, kwargs)
        sources, targets = _ids(given, _SOURCES), _ids(given, _TARGETS)
        if sources is not None:
            self._ids["encoder"] = sources
        new = sources if targets is None and not _has_two_stacks(model) else targets
        before, past = self._ids.pop("decoder", None), _length(given)
        if past == 0:
            before = None if new is None else new[:, :0]
        # The sequences of a batch may have changed places in a cache (beam search), so only one is followed.
        if new is not None and before is not None and before.shape[1] == past and (past == 0 or len(new) == 1):
            self._ids["decoder"] = torch.cat([before, new], 1)
        if sources is None and targets is None and past == 0:
            self._ids.clear()

    def unseen(self) -> list[str]:
        """The modules that ran, are called attention, and of which nothing was seen."""
        seen = self._told | {parent for name in self._told for parent in _parents(name)}
        names = [self._names[m] for m in self.entered if "attention" in type(m).__name__.lower()]
        return sorted(n for n in names if n not in seen and not any(p in self._told for p in _parents(n)))

    def _stack(self, name: str, module: nn.Module) -> str:
        parts = name.split(".")
        for end in range(len(parts), -1, -1):
            parent = self.model.get_submodule(".".join(parts[:end]))
            if isinstance(parent, (Encoder, Decoder)):
                return "encoder" if isinstance(parent, Encoder) else "decoder"
        found = [x for x in ("decoder", "encoder") if any(x in part.lower() for part in parts[:-1])]
        return found[0] if found else "decoder" if getattr(module, "is_causal", False) else "encoder"


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _ids(given: dict[str, Any], names: tuple[str, ...]) -> Tensor | None:
    """The tokens that a model was called with."""
    found = (given[n].detach() for n in names if isinstance(given.get(n), Tensor))
    return next((x for x in found if x.ndim == 2 and not x.is_floating_point()), None)


def _length(given: dict[str, Any]) -> int:
    """How many tokens a cache holds already."""
    cache = next((given[n] for n in ("past_key_values", "cache") if given.get(n) is not None), None)
    if cache is None:
        return 0
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else int(getattr(cache, "count", 0))


def _has_two_stacks(model: nn.Module) -> bool:
    return isinstance(model, Seq2Seq) or bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _tensors(seen: Any) -> Iterator[Tensor]:
    if isinstance(seen, Weights):
        yield from seen.tensors()
        return
    for x in vars(seen).values():
        yield from x if isinstance(x, tuple) else [x] if isinstance(x, Tensor) else []


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:  # the call will say it better
        return {}
    return {**bound, **bound.get("kwargs", {})}


@contextmanager
def recording(model: nn.Module, witness: Witness | None = None) -> Iterator[Record]:
    """A record of every attention call of a model of ``MultiHeadAttention`` layers, for a while.

    >>> model = Encoder([])
    >>> with recording(model) as record:
    ...     _ = model(torch.randn(1, 5, 32))
    >>> record
    Record of 0 attention calls in 0 modules
    """
    witness = Witness(model, Record()) if witness is None else witness
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                stack.enter_context(_telling(module, witness))
            if isinstance(module, Encoder):
                stack.enter_context(_unpacked(module))
            before = witness.begins if module is model else witness.enters
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield witness.record


@contextmanager
def _telling(module: MultiHeadAttention, witness: Witness) -> Iterator[None]:
    """A layer whose calls are seen."""

    def told(q: Tensor, k: Any, v: Any, **options: Any) -> Tensor:
        k, v = (x.dequantise(q.dtype) if isinstance(x, Int8Rows) else x for x in (k, v))
        dropout = module.dropout if module.training else 0.0
        return witness.attends(module, q, k, v, dropout, {**options, "scale": module.scale})

    before = vars(module).get("attend")  # of another record
    module.attend = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.attend
        if before is not None:
            module.attend = before  # type: ignore[method-assign]


@contextmanager
def _unpacked(encoder: Encoder) -> Iterator[None]:
    """An encoder that leaves the sequences of a batch apart, so that their weights are."""
    before, encoder._packs = encoder._packs, False
    try:
        yield
    finally:
        encoder._packs = before
