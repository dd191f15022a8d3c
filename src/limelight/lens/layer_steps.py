"""The steps of a layer, put together from the modules that ran in it and its attention call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limelight.core import reference
from limelight.lens.layer_trace import LayerTrace, Step
from limelight.lens.layers import layer_number
from limelight.matrix import steps as calls

# The names that limelight and transformers give to the projections of an attention module.
_PROJECTIONS = {
    "queries of all heads = {x} W_Q": ("query", "q_proj", "q_lin", "q"),
    "keys of all heads = {x} W_K": ("key", "k_proj", "k_lin", "k"),
    "values of all heads = {x} W_V": ("value", "v_proj", "v_lin", "v"),
    "queries, keys and values of all heads = {x} [W_Q W_K W_V]": ("c_attn", "qkv", "qkv_proj", "query_key_value"),
}


@dataclass(frozen=True)
class TracedCall:
    """One attention call of a module: the tensors and options that it computes with."""

    module: nn.Module
    name: str
    kind: str
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]

    @property
    def scale(self) -> float:
        """The number that the scores are multiplied by."""
        given = self.options.get("scale")
        return float(self.q.shape[-1] ** -0.5 if given is None else given)


@dataclass(frozen=True)
class ModuleRun:
    """One run of a module inside the traced layer; input or output is None where it is not a tensor."""

    module: nn.Module
    name: str
    input: Tensor | None
    output: Tensor | None


def layer_trace(events: Sequence[ModuleRun | TracedCall], call: TracedCall, tokens: Any) -> LayerTrace:
    """Return the steps of the layer that an attention call is in, from what ran before and after it."""
    queries, keys = calls.names(tokens, call.q.shape[2], call.k.shape[2])
    builder = _Builder(queries, keys)
    block = _block_name(call.name)
    at = events.index(call)
    before = [e for e in events[:at] if isinstance(e, ModuleRun)]
    after = [e for e in events[at:] if isinstance(e, ModuleRun)]
    if block:
        outside = [e for e in before if layer_number(e.name) is None]
        encoders = [n for n, e in enumerate(outside) if e.name.split(".")[-1] == "encoder"]
        # Everything up to the encoder's end belongs to the source; a decoder sees only the encoder's output.
        builder.add_embeddings(outside[encoders[-1] + 1 :] if encoders else outside)
        ended = [n for n, e in enumerate(before) if e.name == block]  # earlier passes through a shared block
        before = before[ended[-1] + 1 :] if ended else before
    whole = next((e for e in after if e.name == block), None)
    inside = [e for e in before if _is_inside(e, block) and _is_leaf(e)]
    builder.add_input(whole, block)
    for event in inside:
        builder.add_module(event, block, _projection(event, call))
    attention = next((e for e in after if e.module is call.module and e.input is not None), None)
    builder.add_call(call, None if attention is None or attention.input is None else builder.find(attention.input))
    end = next((n for n, e in enumerate(after) if block and e.name == block), len(after))
    following = [e for e in after[:end] if _is_inside(e, block) and _is_leaf(e)]
    output = builder.add_output_projection(following, block)
    for event in following:
        builder.add_module(event, block, "result of all heads = {x} W_O" if event is output else None)
    builder.add_result(whole)
    return LayerTrace(builder.steps, queries, keys, call.name, call.scale)


def _block_name(name: str) -> str:
    """Return the part of a module's name up to its layer's number; empty where there is none."""
    parts = name.split(".")
    at = next((n for n, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: at + 1])


def _projection(event: ModuleRun, call: TracedCall) -> str | None:
    """Return the equation of a projection of the attention module, or None for another module."""
    if call.name and not event.name.startswith(f"{call.name}."):
        return None
    name = event.name.split(".")[-1]
    return next((equation for equation, names in _PROJECTIONS.items() if name in names), None)


def _is_inside(event: ModuleRun, block: str) -> bool:
    return not block or event.name.startswith(f"{block}.")


def _is_leaf(event: ModuleRun) -> bool:
    return next(event.module.children(), None) is None and not isinstance(event.module, (nn.Dropout, nn.Identity))


class _Builder:
    """Collects the steps of a layer; a sum of two earlier steps becomes a residual connection."""

    def __init__(self, queries: Sequence[str], keys: Sequence[str]) -> None:
        self.queries, self.keys = queries, keys
        self.steps: list[Step] = []
        self._known: list[tuple[str, Tensor]] = []

    def add(
        self,
        name: str,
        title: str,
        value: Tensor,
        cols: Sequence[str] | None = None,
        of: Sequence[str | None] = (),
    ) -> None:
        """Append a step whose rows are queries or keys."""
        rows = self.keys if name in ("k", "v") or value.shape[-2] != len(self.queries) else self.queries
        unique, n = name, 2
        while any(step.name == unique for step in self.steps):
            unique, n = f"{name} {n}", n + 1
        self.steps.append(Step(unique, title, value, rows, cols, tuple(source for source in of if source is not None)))

    def add_embeddings(self, events: Sequence[ModuleRun]) -> None:
        """Append the outputs of the modules before the first layer."""
        for event in events:
            if event.output is None or event.output.ndim != 3 or not event.output.is_floating_point():
                continue
            if _is_leaf(event):
                self._keep(event.name, f"{event.name}: {_describe(event.module)}", event.output)
            elif "embed" in type(event.module).__name__.lower():
                self._keep(event.name, f"{event.name}: embeddings with positions", event.output)

    def add_input(self, whole: ModuleRun | None, block: str) -> None:
        """Append the input of the block."""
        if whole is not None and whole.input is not None and whole.input.ndim == 3:
            self._keep("x", f"x, the input of {block}" if block else "x, the input", whole.input)

    def add_module(self, event: ModuleRun, block: str, equation: str | None = None) -> None:
        """Append the output of a module, and before it the module's input where no earlier step gave it.

        ``equation`` says what a projection computes from its input ``{x}``.
        """
        if event.input is None or event.output is None or event.output.ndim != 3:
            return
        name = event.name.removeprefix(f"{block}.") or event.name
        self._explain(event.input, name)
        source = self.find(event.input)
        title = f"{name}: {_describe(event.module)}"
        if equation is not None:
            bias = " + b" if getattr(event.module, "bias", None) is not None else ""
            title = f"{equation.format(x=source or 'x')}{bias} ({title})"
        self._keep(name, title, event.output, [source])

    def add_call(self, call: TracedCall, reads: str | None) -> None:
        """Append the steps of the attention call, all heads at once; it reads the step of this name."""
        # In float32 at least, in which the kernels sum half precision as well.
        q, k, v = (x[0].to(torch.promote_types(x.dtype, torch.float32)) for x in (call.q, call.k, call.v))
        found = reference.steps(q, k, v, **_unbatched(call.options))
        softcap, bias, mask = (call.options.get(n) for n in ("softcap", "bias", "mask"))
        for name, title, x in (("q", "queries", q), ("k", "keys", k), ("v", "values", v)):
            self.add(
                name, f"{name}, the {title} of each head", x, of=[reads if call.kind == "self" or x is q else None]
            )
        self.add("scores", "scores = q kᵀ", found.scores, self.keys, ["q", "k"])
        self.add("scaled", f"scaled = {call.scale:.4g} · scores", found.scaled, self.keys, ["scores"])
        if softcap is not None:
            title = f"capped = {softcap:g} · tanh(scaled / {softcap:g})"
            self.add("capped", title, found.capped, self.keys, [self.steps[-1].name])
        if bias is not None:
            self.add("biased", "biased = capped + bias", found.biased, self.keys, [self.steps[-1].name])
        if mask is not None:
            self.add("masked", "masked: −∞ where the mask forbids", found.masked, self.keys, [self.steps[-1].name])
        self.add("weights", "weights = softmax, by row", found.weights, self.keys, [self.steps[-1].name])
        assert found.output is not None
        self.add("heads", "output of each head = weights v", found.output, of=["weights", "v"])
        title = "concatenated: the outputs of the heads, next to each other"
        self._keep("concatenated", title, found.output.transpose(0, 1).flatten(1)[None], ["heads"])

    def add_output_projection(self, following: list[ModuleRun], block: str) -> ModuleRun | None:
        """Append what each head adds to the result, and return the run of the linear module that joins the heads."""
        concatenated = self._known[-1][1]
        for event in following:
            weight = getattr(event.module, "weight", None)
            if event.input is None or weight is None or weight.ndim != 2 or not _is_same(event.input, concatenated):
                continue
            # Linear stores (out, in); Conv1D of transformers (in, out).
            W = weight.detach() if type(event.module).__name__ == "Conv1D" else weight.detach().T
            heads = next(step.value for step in self.steps if step.name == "heads")
            parts = heads @ W.to(heads.dtype).unflatten(0, (len(heads), -1))
            name = event.name.removeprefix(f"{block}.")
            title = f"part of each head in the result = its output · its rows of W_O ({name})"
            self.add("contributions", title, parts, of=["heads"])
            return event
        return None

    def add_result(self, whole: ModuleRun | None) -> None:
        """Append the output of the block, unless it is the last step already."""
        if whole is not None and whole.output is not None and whole.output.ndim == 3:
            self._explain(whole.output, "the output")

    def _explain(self, x: Tensor, reader: str) -> None:
        """Append a tensor that no earlier step gave: as the sum of two steps, or as the input of a module."""
        if x.ndim != 3 or self.find(x) is not None:
            return
        for n, (name, a) in enumerate(self._known):
            for other, b in self._known[n + 1 :]:
                if a.shape == b.shape == x.shape and _is_same(a + b, x):
                    self._keep("residual", f"residual = {name} + {other}", x, [name, other])
                    return
        if reader == "the output":
            self._keep("output", "output", x)
        else:
            self._keep(f"input of {reader}", f"what {reader} reads", x)

    def _keep(self, name: str, title: str, x: Tensor, of: Sequence[str | None] = ()) -> None:
        """Append a step of the whole sequence, ``(1, rows, width)``, and remember it under its name."""
        self.add(name, title, x[0].detach(), of=of)
        self._known.append((self.steps[-1].name, x.detach()))

    def find(self, x: Tensor) -> str | None:
        """Return the name of the step that a tensor equals."""
        return next((name for name, y in self._known if y.shape == x.shape and _is_same(x, y)), None)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are equal up to the rounding of another order of summation."""
    if a.shape != b.shape:
        return False
    eps = max(torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0 for x in (a, b))
    relative = max(1e-4, 4 * eps)
    a, b = a.double(), b.double()
    return torch.allclose(a, b, rtol=relative, atol=max(1e-5, 2 * eps) * float(b.abs().max() + 1e-30))


def _unbatched(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that are absent."""
    return {name: value for name, value in options.items() if value is not None}


def _describe(module: nn.Module) -> str:
    """Return the class of a module and, for a matrix, its sizes."""
    weight = getattr(module, "weight", None)
    sizes = ""
    if isinstance(weight, Tensor) and weight.ndim == 2:
        rows, cols = weight.shape
        turned = isinstance(module, nn.Linear)
        sizes = f" {cols} → {rows}" if turned else f" {rows} → {cols}"
    return f"{type(module).__name__}{sizes}"
