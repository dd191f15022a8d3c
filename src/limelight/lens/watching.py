"""``watch``: records every attention call of a model inside a ``with`` block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import Any

import torch
from torch import nn

from limelight.lens.editing import Editor
from limelight.lens.edits import Edit
from limelight.lens.hf.arguments import is_diffusers_model, is_transformers_model
from limelight.lens.layers import Layer, Passes
from limelight.lens.record import Record
from limelight.lens.recorder import Recorder, recording
from limelight.matrix.statistics import STATISTICS
from limelight.nn import MultiHeadAttention


def watch(
    model: nn.Module,
    *,
    layers: Iterable[int | str] | None = None,
    keep: Sequence[str] | Mapping[str, Any] | None = None,
    limit: float = 2.0,
    dense: bool = False,
    values: bool = False,
    edits: Mapping[int | str, Edit] | None = None,
) -> AbstractContextManager[Record]:
    """Record the ``Weights`` of every attention call of a model; the model runs at full speed.

    Inside the ``with`` block limelight computes all attention of the model. On leaving it, also by an exception, the
    model is as it was before. The recorded weights hold q and k, so gradients flow through them where the model ran
    with gradients.

    Args:
        model: a model of transformers or of diffusers (``pipe.unet``, ``pipe.transformer``), or one made of limelight's
            layers.
        layers: numbers of layers, or patterns of module names such as ``"decoder.*"``; all unless given.
        keep: statistics to keep instead of q and k, as ``Weights.observe`` takes them: ``("entropy", "received")``, or
            ``{"top": 5, "entropy": True}``.
        limit: GiB that may be kept; later calls are dropped, with a warning.
        dense: for models that compute attention themselves: read the dense weights that they compute; this takes
            the time and memory of their own attention.
        values: also keep the values of each call, and the gradient of its output after a backward pass.
        edits: changes to the attention of some layers, as ``limelight.edit`` takes them; the record shows what the
            edited model attends to.

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
        raise TypeError(f"watch: model must be a torch.nn.Module, not {_describe(model)}")
    if not limit > 0:
        raise ValueError(f"watch: limit = {limit} must be above 0; it is in GiB")
    if values and keep is not None:
        raise ValueError("watch: values=True needs the weights, and keep=… keeps statistics instead; give one of them")
    recorder = Recorder(
        model,
        is_wanted=layer_filter(model, layers),
        statistics=_statistics(keep),
        limit=limit * 2**30,
        values=values,
        edits=None if edits is None else Editor(model, edits),
    )
    return watch_with(model, recorder, dense=dense, all_layers=layers is None)


def _describe(model: Any) -> str:
    """Name the type of something that is not a module; for a pipeline, also the part to give instead."""
    parts = (f"pipe.{x}" for x in ("unet", "transformer") if isinstance(getattr(model, x, None), nn.Module))
    part = next(parts, None)
    return type(model).__name__ + (f"; give a part of it, such as {part}" if part else "")


def edit(model: nn.Module, edits: Mapping[int | str, Edit], *, dense: bool = False) -> AbstractContextManager[None]:
    """Change the attention of some layers of a model inside a ``with`` block, without recording it.

    Outside the block, also after an exception, the model is exactly as before.

    Args:
        model: any model that ``watch`` can record.
        edits: edits of ``limelight.lens`` by layer: a number, or a pattern of module names such as ``"decoder.*"``.
        dense: for models that compute attention themselves, as in ``watch``.

    >>> import torch, limelight as ll
    >>> from limelight.lens import Knockout, Off
    >>> layer = ll.nn.MultiHeadAttention(32, 4, bias=False)
    >>> x = torch.randn(1, 5, 32)
    >>> with ll.edit(layer, {"*": Off([0, 1]) + Knockout(~ll.Window(1), heads=2)}):
    ...     y = layer(x)
    >>> with ll.edit(layer, {"*": Off()}):
    ...     bool((layer(x) == 0).all())
    True

    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"edit: model must be a torch.nn.Module, not {type(model).__name__}")
    recorder = Recorder(model, is_wanted=lambda layer: False, edits=Editor(model, edits))
    return _editing(model, recorder, dense)


@contextmanager
def _editing(model: nn.Module, recorder: Recorder, dense: bool) -> Iterator[None]:
    with watch_with(model, recorder, dense=dense, all_layers=False):
        yield


def _statistics(keep: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the arguments of ``Weights.observe`` that ``keep`` stands for."""
    if keep is None:
        return None
    if not keep:
        raise ValueError("watch: keep is empty; name statistics, such as keep=('entropy',), or leave it out")
    wanted = dict(keep) if isinstance(keep, Mapping) else dict.fromkeys([keep] if isinstance(keep, str) else keep, True)
    known = [*STATISTICS, "reduce"]
    for name, value in wanted.items():
        if name not in known:
            raise ValueError(f"watch: keep has no statistic {name!r}; there are {', '.join(known)}")
        if value is True and name in ("top", "mass", "profile", "pool", "reduce"):
            raise ValueError(f"watch: {name} needs a value, such as keep={{{name!r}: …}}")
    return wanted


def layer_filter(model: nn.Module, layers: Iterable[int | str] | None) -> Callable[[Layer], bool]:
    """Return the predicate on layers that ``layers`` stands for."""
    if layers is None:
        return lambda layer: True
    wanted = [layers] if isinstance(layers, (int, str)) else list(layers)
    passes = Passes(model)
    if not any(passes.possible(x) for x in wanted):
        raise ValueError(f"watch: layers = {wanted} match no module of this {type(model).__name__}")
    return lambda layer: any(layer.matches(x) for x in wanted)


@contextmanager
def watch_with(
    model: nn.Module, recorder: Recorder, *, dense: bool = False, all_layers: bool = False
) -> Iterator[Record]:
    """Send all attention calls of a model to a recorder inside a ``with`` block."""
    with ExitStack() as stack:
        if is_transformers_model(model):
            from limelight.lens.hf.registration import refuse_banded_attention

            refuse_banded_attention(model)
        if is_diffusers_model(model):
            from limelight.lens.diffusion import intercept_diffusion

            stack.enter_context(intercept_diffusion(model, recorder))
        elif dense:
            from limelight.lens.eager import intercept_attention

            stack.enter_context(intercept_attention(model, recorder))
        elif is_transformers_model(model):
            from limelight.lens.hf import registration

            registration.refuse_own_attention(model)
            stack.enter_context(registration.using_implementation(model))
        elif not any(isinstance(module, MultiHeadAttention) for module in model.modules()):
            raise ValueError(
                f"watch: {type(model).__name__} is neither a model of transformers or diffusers nor made of "
                "limelight's layers; watch(model, dense=True) reads the weights that a model computes itself"
            )
        stack.enter_context(recording(model, recorder))
        stack.enter_context(_without_compilation())
        yield recorder.record
    _warn_of_gaps(model, recorder, all_layers)


def _warn_of_gaps(model: nn.Module, recorder: Recorder, all_layers: bool) -> None:
    """Warn of attention that ran and is not in the record."""
    record = recorder.record
    for editor in recorder.editors:
        unused = [key for key in editor.edits if key not in editor.used]
        if recorder.ran and unused and editor.names.get(recorder.model) == "":
            shown = ", ".join(map(repr, unused))
            warnings.warn(f"edits: layer {shown} matched no attention call, so nothing was edited there", stacklevel=4)
    if names := recorder.unrecorded():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warnings.warn(f"watch: {shown} ran, but limelight could not record what they attend to", stacklevel=4)
    elif recorder.ran and not record.log and not record.missed and all_layers:
        warnings.warn(f"watch: the {type(model).__name__} ran, but no attention was recorded", stacklevel=4)
    if record.missed:
        warnings.warn(
            f"watch: {record.missed} attention calls were dropped, because the earlier ones hold "
            f"{recorder.kept_bytes / 2**30:.2f} GiB and the limit is {recorder.limit / 2**30:.2f}; keep fewer "
            "layers (layers=…), only statistics (keep=…) or raise the limit (limit=…)",
            stacklevel=4,
        )


_lock, _eager_stance = Lock(), ExitStack()
_active_watches = 0


@contextmanager
def _without_compilation() -> Iterator[None]:
    """Run compiled models eagerly while any model is watched: compiled code would bypass the hooks."""
    global _active_watches
    with _lock:
        _active_watches += 1
        if _active_watches == 1 and hasattr(torch.compiler, "set_stance"):
            _eager_stance.enter_context(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            _active_watches -= 1
            if _active_watches == 0:
                _eager_stance.close()
