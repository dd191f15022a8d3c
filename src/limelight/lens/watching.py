"""``watch``: every attention call of a model, for a while."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from limelight.backends.native import Bytes
from limelight.functional import attention, weights
from limelight.lens.record import Call, Record
from limelight.matrix import Weights
from limelight.nn import Decoder, Encoder, MultiHeadAttention

_CONTEXTS = "context", "key_value_states", "encoder_hidden_states", "cross_attention_states"
_SOURCES, _TARGETS = ("input_ids", "ids", "source"), ("decoder_input_ids", "target")


def watch(
    model: nn.Module,
    *,
    layers: Iterable[int | str] | None = None,
    keep: Sequence[str] | Mapping[str, Any] | None = None,
    limit: float = 2.0,
    dense: bool = False,
) -> AbstractContextManager[Record]:
    """Records what every attention call of a model attends to, as ``Weights``; the model runs at full speed.

    For its duration all attention of the model is computed by limelight. On leaving, also by an exception, the model is
    as it was before. The recorded weights are q and k, so a gradient flows through them where one is wanted.

    Args:
        model: one of transformers' models, or one of limelight's.
        layers: numbers of layers, or patterns of names such as ``"decoder.*"``; all unless given.
        keep: answers to keep instead of q and k, as ``Weights.observe`` takes them: ``("entropy", "received")``, or
            ``{"top": 5, "entropy": True}``.
        limit: GiB that may be kept; what comes after is left out, which is said.
        dense: for models that compute attention themselves: their own weights are read as they make them, which
            takes their time and memory.

    >>> import torch, limelight as ll
    >>> model = ll.nn.Encoder([ll.nn.Block(ll.nn.MultiHeadAttention(32, 4), ll.nn.FeedForward(32, 64))])
    >>> with ll.watch(model) as record:
    ...     _ = model(torch.randn(1, 5, 32))
    >>> record
    Record of 1 attention calls in 1 modules
      blocks.0.attention: encoder self-attention (1, 4, 5, 5)
    >>> record["blocks.0.attention"].entropy().shape
    torch.Size([1, 4, 5])

    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch: give a model, not {type(model).__name__}")
    if not limit > 0:
        raise ValueError(f"watch: limit = {limit} must be above 0; it counts GiB")
    wanted = _questions(keep)
    return _watched(_Witness(model, _chosen(model, layers), wanted, int(limit * 2**30)), dense)


def _questions(keep: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if keep is None:
        return None
    asked = dict(keep) if isinstance(keep, Mapping) else dict.fromkeys([keep] if isinstance(keep, str) else keep, True)
    known = [name for name in inspect.signature(Weights.observe).parameters if name != "self"]
    for name, value in asked.items():
        if name not in known:
            raise ValueError(f"watch: keep = {name!r}; there are {', '.join(known)}")
        if value is True and name in ("top", "mass", "profile", "pool", "reduce"):
            raise ValueError(f"watch: {name} needs a value, such as keep={{{name!r}: …}}")
    return asked


def _chosen(model: nn.Module, layers: Iterable[int | str] | None) -> Callable[[str], bool]:
    """Whether a module of this name is to be recorded."""
    if layers is None:
        return lambda name: True
    wanted = [layers] if isinstance(layers, (int, str)) else list(layers)

    def chosen(name: str) -> bool:
        number = next((int(part) for part in name.split(".") if part.isdigit()), None)
        return any(number == x if isinstance(x, int) else fnmatchcase(name, x) for x in wanted)

    if not any(chosen(name) for name, _ in model.named_modules()):
        raise ValueError(f"watch: layers = {wanted} match no module of this {type(model).__name__}")
    return chosen


class _Witness:
    """Makes a record of what it is told."""

    def __init__(
        self, model: nn.Module, chosen: Callable[[str], bool], questions: dict[str, Any] | None, limit: int
    ) -> None:
        self.model, self.chosen, self.questions, self.limit = model, chosen, questions, limit
        self.record = Record()
        self.names = {module: name for name, module in model.named_modules()}
        self.kept = 0
        self.crossing: set[nn.Module] = set()  # modules that are attending to a context
        self.phase = "prefill"
        self.ids: dict[str, Tensor] = {}  # tokens so far, by stack

    def sees(self, module: nn.Module, found: Weights) -> None:
        """One attention call."""
        name = self.names[module]
        *_, N, M = found.shape
        kind = "cross" if module in self.crossing else "self"
        if kind == "self":
            self.phase = "prefill" if N == M else "decode"
        if not self.chosen(name):
            return
        if self.kept >= self.limit:
            self.record.missed += 1
            return
        seen = found if self.questions is None else found.observe(**self.questions)
        self.kept += sum(x.untyped_storage().nbytes() for x in _tensors(seen))
        stack = self._stack(name, module, N)
        ids = self.ids.get("encoder" if kind == "cross" else stack)
        ids = None if ids is None or ids.shape[1] < M else ids[:, :M]
        self.record.add(Call(name, kind, stack, self.phase, seen, found.shape, ids))

    def attends(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, dropout: float, options: dict[str, Any]
    ) -> Tensor:
        """One call, which is computed here; what is found on the way is of use to later questions."""
        # A cache goes on writing where its keys lie.
        found = weights(q, k.clone() if self.questions is None else k, **options)
        out = attention(q, k, v, **options, dropout=dropout) if dropout else found @ v
        self.sees(module, found)
        return out

    def enters(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""
        given = _named(module, args, kwargs)
        if any(given.get(name) is not None for name in _CONTEXTS):
            self.crossing.add(module)
        else:
            self.crossing.discard(module)

    def begins(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is about to run."""
        given = _named(model, args, kwargs)
        sources, targets = (
            next((given[n] for n in names if isinstance(given.get(n), Tensor)), None) for names in (_SOURCES, _TARGETS)
        )
        cached = any(given.get(n) is not None for n in ("past_key_values", "cache"))
        for stack, ids in (("encoder", sources), ("decoder", targets if targets is not None else sources)):
            if ids is None or ids.ndim != 2 or ids.is_floating_point():
                continue
            before = self.ids.get(stack)
            goes_on = cached and stack == "decoder" and before is not None and len(before) == len(ids)
            self.ids[stack] = torch.cat([before, ids], 1) if goes_on and before is not None else ids.detach()

    def _stack(self, name: str, module: nn.Module, N: int) -> str:
        parts = name.split(".")
        for end in range(len(parts), -1, -1):
            parent = self.model.get_submodule(".".join(parts[:end]))
            if isinstance(parent, (Encoder, Decoder)):
                return "encoder" if isinstance(parent, Encoder) else "decoder"
        found = [x for x in ("decoder", "encoder") if any(x in part.lower() for part in parts[:-1])]
        return found[0] if found else "decoder" if getattr(module, "is_causal", False) else "encoder"

    def ends(self) -> None:
        """Says what is missing."""
        if self.record.missed:
            warnings.warn(
                f"watch: {self.record.missed} attention calls were left out, since those before them hold "
                f"{self.kept / 2**30:.2f} GiB and the limit is {self.limit / 2**30:.2f}; keep fewer layers (layers=…), "
                "only answers (keep=…) or more of them (limit=…)",
                stacklevel=4,
            )


def _tensors(seen: Any) -> Iterator[Tensor]:
    if isinstance(seen, Weights):
        yield from seen.tensors()
        return
    for x in vars(seen).values() if hasattr(seen, "__dict__") else seen:
        yield from x if isinstance(x, tuple) else [x] if isinstance(x, Tensor) else []


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:  # the call will say it better
        return {}
    return {**bound, **bound.get("kwargs", {})}


@contextmanager
def _watched(witness: _Witness, dense: bool) -> Iterator[Record]:
    model = witness.model
    with ExitStack() as stack:
        hook = stack.enter_context
        ours = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
        theirs = _of_transformers(model)
        if dense:
            from limelight.lens.eager import reading

            hook(reading(model, witness.sees))
        elif theirs:
            from limelight.lens import huggingface

            huggingface.refuse_others(model)
            hook(huggingface.in_place(model))
            hook(huggingface.witnessed(model, witness.attends))
        elif not ours:
            raise ValueError(
                f"watch: {type(model).__name__} is neither one of transformers' models nor made of limelight's layers; "
                "watch(model, dense=True) reads weights that it makes itself"
            )
        for layer in ours:
            hook(_telling(layer, witness))
        for module in model.modules():
            if isinstance(module, Encoder):
                hook(_unpacked(module))
            if module is not model:
                hook(_hooked(module, witness.enters))
        hook(_hooked(model, witness.begins))
        yield witness.record
    witness.ends()


def _of_transformers(model: nn.Module) -> bool:
    """Asked without importing transformers."""
    return any(base.__module__ == "transformers.modeling_utils" for m in model.modules() for base in type(m).__mro__)


@contextmanager
def _hooked(module: nn.Module, before: Callable[..., None]) -> Iterator[None]:
    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _telling(module: MultiHeadAttention, witness: _Witness) -> Iterator[None]:
    """One of our layers, whose calls are seen."""

    def told(q: Tensor, k: Any, v: Any, **options: Any) -> Tensor:
        k, v = (x.numbers(q.dtype) if isinstance(x, Bytes) else x for x in (k, v))
        dropout = module.dropout if module.training else 0.0
        return witness.attends(module, q, k, v, dropout, {**options, "scale": module.scale})

    module.attend = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.attend


@contextmanager
def _unpacked(encoder: Encoder) -> Iterator[None]:
    """An encoder that leaves the sequences of a batch apart, so that their weights are."""
    before, encoder._packs = encoder._packs, False
    try:
        yield
    finally:
        encoder._packs = before
