"""``trace``: every step of attention, of a call, a layer, a block, or a layer inside a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, overload

import torch
from torch import Tensor, nn

from limelight.core.problem import AttentionSpec
from limelight.lens.eager import intercept_attention
from limelight.lens.hf.arguments import is_diffusers_model, is_transformers_model
from limelight.lens.layer_steps import ModuleRun, TracedCall, layer_trace
from limelight.lens.layer_trace import LayerTrace
from limelight.lens.layers import layer_number
from limelight.lens.record import Record
from limelight.lens.recorder import Recorder, recording
from limelight.lens.watching import watch_with
from limelight.matrix import steps as calls
from limelight.matrix.steps import Trace
from limelight.nn import MultiHeadAttention

_SPEC = AttentionSpec._fields


class LayerTracer(Recorder):
    """A recorder that keeps the tensors of one layer's attention calls and of the modules around them.

    Args:
        model: the model.
        layer: the number of the layer; None for a model that has one alone.
        wanted: the name of an attention call, as a record has it, that is recorded and kept as ``chosen``.

    """

    def __init__(self, model: nn.Module, layer: int | None, wanted: str | None = None) -> None:
        super().__init__(model, is_wanted=lambda found: found.name == wanted)
        self.layer = layer
        self.calls: list[TracedCall] = []
        self.chosen: TracedCall | None = None
        known = is_transformers_model(model) or is_diffusers_model(model)
        self.computes_itself = not known and not any(isinstance(x, MultiHeadAttention) for x in model.modules())
        # Calls in the order in which they began, modules in the order in which they ended.
        self.events: list[ModuleRun | TracedCall] = []

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Compute attention, and keep what it was computed from."""
        recorded = len(self.record.log)
        out = super().attend(module, q, k, v, **options)
        name = self._names[module]
        if self.layer in (None, layer_number(name)):
            kind = "cross" if module in self._cross_attending else "self"
            spec = {n: options[n] for n in _SPEC if n in options}
            kept = TracedCall(module, name, kind, q.detach(), k.detach(), v.detach(), spec)
            self.calls.append(kept)
            self.events.append(kept)
            if len(self.record.log) > recorded:
                self.chosen = kept
        return out

    @contextmanager
    def watching(self) -> Iterator[Record]:
        """Keep what the model computes inside a ``with`` block."""
        with ExitStack() as stack:
            if self.computes_itself:
                stack.enter_context(intercept_attention(self.model, self, computes=True))
                stack.enter_context(recording(self.model, self))
            else:
                stack.enter_context(watch_with(self.model, self))
            stack.enter_context(self._hooked())
            yield self.record

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Keep inputs and outputs of the modules of the layer, and of those that belong to no layer."""

        def after(name: str) -> Callable[..., None]:
            def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
                values = [*args, *kwargs.values()]
                given = next((x for x in values if isinstance(x, Tensor)), None)
                found = out if isinstance(out, Tensor) else next(iter(out), None) if isinstance(out, tuple) else None
                self.events.append(ModuleRun(module, name, given, found if isinstance(found, Tensor) else None))

            return keep

        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if layer_number(name) in (None, self.layer):
                    handle = module.register_forward_hook(after(name), with_kwargs=True)
                    stack.callback(handle.remove)
            yield


@overload
def trace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None,
    **options: Any,
) -> Trace: ...


@overload
def trace(
    q: nn.Module,
    *inputs: Any,
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None,
    layer: int | None = None,
    kind: str = "self",
    **options: Any,
) -> LayerTrace: ...


def trace(
    q: Any, *inputs: Any, tokens: Any = None, layer: int | None = None, kind: str = "self", **options: Any
) -> Any:
    """Compute every step of attention, to look at; ``print`` shows them as tables.

    ``trace(q, k, v, …)`` takes the options of ``weights`` and shows one attention call. Plain matrices ``(N, D)``,
    ``(M, D)``, ``(M, Dv)`` are one head.

    ``trace(module, *inputs, …)`` calls ``module(*inputs, …)`` and shows a whole layer: embeddings, the projections
    to q, k and v, the heads, the scores up to the weights, each head's output and its part of the result, and what
    comes after it in the block. The module is a ``MultiHeadAttention``, a ``Block``, a model of limelight or
    transformers, or any module that calls ``scaled_dot_product_attention``.

    Args:
        q: the queries, or a module.
        inputs: k and v, or the arguments of the module; a batch of one sequence.
        tokens: names of queries and keys: one list, or a pair of lists.
        layer: the layer of a model that has several.
        kind: ``"self"`` or ``"cross"``, where a layer has both.
        options: those of ``weights``, or further arguments of the module.

    >>> import torch, limelight
    >>> q = torch.tensor([[0.0, 2.0]]); k = torch.tensor([[1.0, 1.0], [0.0, 1.0]]); v = torch.eye(2)
    >>> trace(q, k, v, tokens=(["it"], ["cat", "mat"])).weights
    tensor([[0.5000, 0.5000]])
    >>> layer = limelight.nn.MultiHeadAttention(6, 2)
    >>> steps = trace(layer, torch.randn(1, 3, 6), tokens=["dog", "ate", "dinner"])
    >>> steps["weights"].shape, steps["contributions"].sum(0).shape
    (torch.Size([2, 3, 3]), torch.Size([3, 6]))

    """
    if not isinstance(q, nn.Module):
        return calls.trace(q, *inputs, tokens=tokens, **options)
    if kind not in ("self", "cross"):
        raise ValueError(f"trace: kind = {kind!r}; there are 'self' and 'cross'")
    tracer = LayerTracer(q, layer)
    with torch.no_grad(), tracer.watching():
        q(*inputs, **options)
    return layer_trace(tracer.events, _choose_call(tracer, kind), tokens)


def _choose_call(tracer: LayerTracer, kind: str) -> TracedCall:
    found = [call for call in tracer.calls if call.kind == kind]
    layers = {layer_number(call.name) for call in found}
    if not found and tracer.computes_itself:
        raise ValueError(
            f"trace: {type(tracer.model).__name__} made no call of scaled_dot_product_attention; where a model "
            "computes the softmax itself, its q, k and v are not seen: trace(q, k, v) shows their steps, and "
            "watch(model, dense=True) has the weights"
        )
    if not found:
        where = "" if tracer.layer is None else f" of layer {tracer.layer}"
        there = sorted({f"{c.kind}-attention" for c in tracer.calls})
        hint = f"; there is {' and '.join(there)}" if there else ""
        numbers = sorted({n for name, _ in tracer.model.named_modules() if (n := layer_number(name)) is not None})
        if tracer.layer is not None and tracer.layer not in numbers:
            hint = f"; its layers are {numbers[0]} to {numbers[-1]}" if numbers else "; it has no numbered layers"
        raise ValueError(f"trace: no {kind}-attention{where} of this {type(tracer.model).__name__} ran{hint}")
    if len(layers) > 1:
        numbers = sorted(n for n in layers if n is not None)
        raise ValueError(f"trace: choose a layer with layer=; there are {numbers[0]} to {numbers[-1]}")
    if found[0].q.shape[0] != 1:
        raise ValueError(f"trace: give one sequence, not a batch of {found[0].q.shape[0]}")
    return found[0]
