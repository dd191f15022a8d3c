"""Logit attribution: the part of a logit that comes through each head and each source token.

The output of a head at a token is added to the residual stream, and from there a linear path leads to the logits, if
the scale of every later norm is held fixed. Along this path, without later attention and feed-forward layers, a
head contributes ``Σ_j a_ij (v_j · g)`` to the logit, where g is the gradient of the logit by the head's output: one
backward pass through the frozen path gives g for all heads, and the rows of the weights give the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from limelight.lens import strict_json
from limelight.lens.metrics import logits_of
from limelight.lens.record import Call, Record
from limelight.lens.recorder import Recorder, arguments_of
from limelight.lens.restarting import accepts, evaluating
from limelight.lens.watching import watch_with
from limelight.nn.feedforward import FeedForward
from limelight.viz.characters import short

_FEED_FORWARD = ("mlp", "feedforward", "ffn", "intermediate", "denseactdense", "gatedactdense", "moe", "experts")
_ACTIVATIONS = {
    functional.gelu,
    functional.relu,
    functional.silu,
    functional.mish,
    functional.elu,
    functional.leaky_relu,
    functional.softplus,
    functional.hardswish,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    functional.relu6,
}


class LogitAttribution(list[dict[str, Any]]):
    """The parts of a logit, of ``limelight.lens.logit_attribution``: a list of one dict for each head.

    A row has ``module``, ``stack``, ``kind``, ``layer``, ``head``, the head's ``part`` of the logit, the ``source``
    token with the largest part of that, and this part, ``of_source``. ``print`` shows the largest as a table.

    Attributes:
        token: the token whose logit it is.
        position: the token at which it is predicted.
        logit: the whole logit; what the heads do not contribute comes from embeddings, biases and feed-forward layers.
        parts: for each row, the part of each source token, ``(keys,)``, which adds up to the row's ``part``.

    """

    def __init__(self, token: int, position: int, logit: float) -> None:
        super().__init__()
        self.token, self.position, self.logit = token, position, logit
        self.parts: list[Tensor] = []

    def add(self, call: Call, parts: Tensor) -> None:
        """Add the parts ``(heads, keys)`` of a call."""
        for head, part in enumerate(parts):
            row = {"module": call.module, "stack": call.stack, "kind": call.kind, "layer": call.layer, "head": head}
            strongest = int(part.abs().argmax())
            self.append({**row, "part": float(part.sum()), "source": strongest, "of_source": float(part[strongest])})
            self.parts.append(part)

    def top(self, count: int = 10) -> list[dict[str, Any]]:
        """Return the rows of the ``count`` heads with the largest parts, by magnitude."""
        return sorted(self, key=lambda row: -abs(row["part"]))[:count]

    def by_source(self, kind: str = "self") -> Tensor:
        """Return the part of each source token through all heads of a kind of attention, ``(keys,)``."""
        found = [part for row, part in zip(self, self.parts, strict=True) if row["kind"] == kind]
        if not found:
            raise ValueError(f"logit_attribution: no {kind}-attention leads to the logits")
        return torch.stack(found).sum(0)

    def table(self, count: int = 10, tokens: list[str] | None = None) -> Table:
        """Return a table of the ``count`` largest parts, with the names of source ``tokens`` if given."""
        title = f"parts of the logit {self.logit:.3f} of token {self.token} at position {self.position}"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for name in ("layer", "head", "part", "of source"):
            table.add_column(name, justify="right")
        table.add_column("source")
        for row in self.top(count):
            source = row["source"]
            named = str(source) if tokens is None else f"{short(tokens[source])} ({source})"
            table.add_row(str(row["layer"]), str(row["head"]), f"{row['part']:+.3f}", f"{row['of_source']:+.3f}", named)
        return table

    def json(self) -> str:
        """Return everything as JSON."""
        rows = [{**row, "parts": part.tolist()} for row, part in zip(self, self.parts, strict=True)]
        return strict_json.dumps({"token": self.token, "position": self.position, "logit": self.logit, "heads": rows})

    def __str__(self) -> str:
        console = Console(width=100, no_color=True, force_terminal=False, markup=False, emoji=False, highlight=False)
        with console.capture() as text:
            console.print(self.table())
        return text.get().rstrip()

    __repr__ = __str__


def logit_attribution(record: Record, token: int, *, position: int = -1, batch: int = 0) -> LogitAttribution:
    """Split the logit of a token into the parts that come through each head and each source token.

    Exact for the linear path from a head to the logits, with every later norm frozen; time and memory grow with the
    number of tokens. The model runs once more on the inputs of the record's last run.

    Args:
        record: a record of ``watch(model, values=True)``, of a run without a cache.
        token: the id of the token whose logit it is.
        position: the token at which it is predicted; the last unless given.
        batch: the batch element.

    """
    if record.run is None:
        raise ValueError("logit_attribution: the record holds no run of a whole model; use watch(model, values=True)")
    model, args, kwargs = record.run
    kwargs = {**kwargs, **({"use_cache": False} if accepts(model, "use_cache") else {})}
    cache = arguments_of(model, args, kwargs)
    if any(cache.get(name) is not None for name in ("past_key_values", "cache")):
        raise ValueError("logit_attribution: the last run used a cache; record one pass over the whole text")
    with evaluating(model), ExitStack() as stack:
        recorder = _Frozen(model, record)
        stack.enter_context(watch_with(model, recorder, dense=False, all_layers=False))
        stack.enter_context(_linear_path(model))
        logits = logits_of(model(*args, **kwargs))[batch]
        place = range(len(logits))[position]
        if not 0 <= token < logits.shape[-1]:
            raise ValueError(f"logit_attribution: there is no token {token}; the vocabulary has {logits.shape[-1]}")
        logit = logits[place, token]
        if not logit.requires_grad:
            raise ValueError(
                f"logit_attribution: no linear path leads from the heads of this {type(model).__name__} to its logits"
            )
        gradients = torch.autograd.grad(logit, recorder.outs, allow_unused=True)
    found = LogitAttribution(token, place, float(logit.detach()))
    for call, gradient in zip(recorder.record.log, gradients, strict=True):
        if gradient is not None and bool(gradient.any()):
            row = place - (logits.shape[0] - call.shape[2])
            found.add(call, _parts_of_row(call, gradient, batch, row))
    return found


def _parts_of_row(call: Call, gradient: Tensor, batch: int, row: int) -> Tensor:
    """Return ``a_ij (v_j · g_i)`` of one query, ``(heads, keys)``."""
    with torch.no_grad():
        weights = call.weights[batch, :, row]
        v = call.v[batch].to(weights.dtype)
        g = gradient[batch, :, row].to(weights.dtype)
        group = len(g) // len(v)
        return weights * torch.stack([v[h // group] @ g[h] for h in range(len(g))])


class _Frozen(Recorder):
    """Records calls with their values, and cuts the graph at each output: weights of later heads are constants."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        super().__init__(model, values=True)
        self.editors = list(record.editors)
        self.outs: list[Tensor] = []

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute and record a call."""
        with torch.no_grad():
            out = super().attend(*args, **kwargs)
        self.outs.append(out.detach().requires_grad_())
        return self.outs[-1]


@contextmanager
def _linear_path(model: nn.Module) -> Iterator[None]:
    """Freeze norms and cut feed-forward layers inside a ``with`` block: gradients follow the residual stream."""
    with ExitStack() as stack:
        for module in model.modules():
            name = type(module).__name__.lower()
            if isinstance(module, nn.LayerNorm):
                stack.callback(module.register_forward_hook(_freeze_layer_norm).remove)
            elif isinstance(module, nn.RMSNorm) or name.endswith(("rmsnorm", "t5layernorm")):
                stack.callback(module.register_forward_hook(_freeze_rms_norm).remove)
            elif isinstance(module, FeedForward) or any(part in name for part in _FEED_FORWARD):
                stack.callback(module.register_forward_hook(_cut).remove)
        stack.enter_context(_CutActivations())
        yield


class _CutActivations(TorchFunctionMode):
    """Stops gradients at activation functions, because the path through one is not linear."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.detach() if func in _ACTIVATIONS else out


def _cut(module: nn.Module, args: Any, out: Any) -> Any:
    return out.detach() if isinstance(out, Tensor) else (out[0].detach(), *out[1:])


def _freeze_layer_norm(module: nn.LayerNorm, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    x = args[0]
    axes = tuple(range(-len(module.normalized_shape), 0))
    scale = torch.rsqrt(x.detach().var(axes, correction=0, keepdim=True) + module.eps)
    centred = (x - x.detach()) - (x - x.detach()).mean(axes, keepdim=True)
    return out.detach() + centred * scale * (1.0 if module.weight is None else module.weight)


def _freeze_rms_norm(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    x = args[0]
    factor = out.detach() / torch.where(x == 0, 1.0, x).detach()
    return out.detach() + (x - x.detach()) * factor
