"""The inputs of one attention call: what a module of a model computes its attention from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from limelight.lens.recorder import Recorder


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values ``(1, heads, tokens, width)`` of a call, and the options of ``weights``.

    ``x`` is ``(1, tokens, width)``: the vectors that the queries are projected from; None where it is not known.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    x: Tensor | None


class InputsRecorder(Recorder):
    """A recorder that also keeps the inputs of the latest call of one module."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__(model, is_wanted=lambda layer: layer.module == name)
        self.name = name
        self.inputs: AttentionInputs | None = None
        self._x: Tensor | None = None

    def before_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of every module: keep what the wanted one is given."""
        super().before_module(module, args, kwargs)
        if self._names[module] == self.name:
            given = [*args, kwargs.get("hidden_states"), kwargs.get("x")]
            self._x = next((t for t in given if isinstance(t, Tensor) and t.is_floating_point()), None)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Compute the attention of a module and keep what it is computed from."""
        if self._names[module] == self.name:
            kept = {name: value for name, value in options.items() if name != "dropout" and value is not None}
            self.inputs = AttentionInputs(q.detach(), k.detach(), v.detach(), kept, self._x)
        return super().attend(module, q, k, v, **options)
