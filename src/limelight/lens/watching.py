"""``watch``: every attention call of a model, for a while."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fnmatch import fnmatchcase
from threading import Lock
from typing import Any

import torch
from torch import nn

from limelight.lens.record import Record
from limelight.lens.recorder import Witness, recording
from limelight.matrix.base import Weights
from limelight.nn import MultiHeadAttention


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
    return _watched(
        model, Witness(model, Record(), _chosen(model, layers), wanted, limit * 2**30), dense, layers is None
    )


def _questions(keep: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if keep is None:
        return None
    if not keep:
        raise ValueError("watch: keep names no answer to keep; give some, such as ('entropy',), or leave it out")
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


@contextmanager
def _watched(model: nn.Module, witness: Witness, dense: bool, everything: bool) -> Iterator[Record]:
    with ExitStack() as stack:
        if dense:
            from limelight.lens.eager import reading

            stack.enter_context(reading(model, witness.sees))
        elif _of_transformers(model):
            from limelight.lens import huggingface

            huggingface.refuse_others(model)
            stack.enter_context(huggingface.in_place(model))
            stack.enter_context(huggingface.witnessed(model, witness.attends))
        elif not any(isinstance(module, MultiHeadAttention) for module in model.modules()):
            raise ValueError(
                f"watch: {type(model).__name__} is neither one of transformers' models nor made of limelight's layers; "
                "watch(model, dense=True) reads weights that it makes itself"
            )
        stack.enter_context(recording(model, witness))
        stack.enter_context(_uncompiled())
        assert isinstance(witness.record, Record)
        yield witness.record
    if unseen := witness.unseen():
        shown = ", ".join(unseen[:3]) + (f" and {len(unseen) - 3} more" if len(unseen) > 3 else "")
        warnings.warn(f"watch: {shown} ran, and limelight did not see what they attend to", stacklevel=3)
    elif witness.entered and not witness.record.log and not witness.record.missed and everything:
        warnings.warn(f"watch: the {type(model).__name__} ran, and no attention was seen in it", stacklevel=3)
    if witness.record.missed:
        warnings.warn(
            f"watch: {witness.record.missed} attention calls were left out, since those before them hold "
            f"{witness.kept / 2**30:.2f} GiB and the limit is {witness.limit / 2**30:.2f}; keep fewer "
            "layers (layers=…), only answers (keep=…) or more of them (limit=…)",
            stacklevel=3,
        )


_lock, _active = Lock(), ExitStack()
_count = 0


@contextmanager
def _uncompiled() -> Iterator[None]:
    """As long as any model is watched, none is compiled: a compiled one would not say who attends."""
    global _count
    with _lock:
        _count += 1
        if _count == 1 and hasattr(torch.compiler, "set_stance"):
            _active.enter_context(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            _count -= 1
            if _count == 0:
                _active.close()


def _of_transformers(model: nn.Module) -> bool:
    """Asked without importing transformers."""
    return any(base.__module__ == "transformers.modeling_utils" for m in model.modules() for base in type(m).__mro__)
