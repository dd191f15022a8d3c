"""The record of a model's attention: ``Call``, one attention call, and ``Record``, all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.lens.layers import layer_number
from limelight.matrix.attribution import Attribution
from limelight.matrix.base import Weights
from limelight.matrix.grid import Grid
from limelight.matrix.observation import Observation

if TYPE_CHECKING:
    from limelight.lens.heads_table import Heads
    from limelight.lens.report import Tokens


@dataclass(frozen=True)
class Call:
    """One attention call of a module.

    Attributes:
        name: the module's name, as in ``model.named_modules()``.
        kind: ``"self"`` or ``"cross"``.
        stack: ``"encoder"`` or ``"decoder"``.
        phase: ``"prefill"`` if the queries are all tokens so far, ``"decode"`` if a cache holds earlier ones.
        seen: the ``Weights`` of the call, or an ``Observation`` if only statistics were kept (``watch(keep=…)``).
        shape: ``(batch, heads, queries, keys)``.
        ids: token ids of the keys, ``(batch, keys)``; None if they are not known.
        values: the values v and the gradient of the output, if they were kept (``watch(values=True)``).
        module: the name of the module; ``name`` has the number of the pass after it if the module is shared.
        number: the layer's number, where it is not the first number in the name.
        grids: how the queries and the keys lie on a picture; None for those that are not its patches.

    """

    name: str
    kind: str
    stack: str
    phase: str
    seen: Weights | Observation
    shape: tuple[int, ...]
    ids: Tensor | None = None
    values: Values | None = None
    module: str = ""
    number: int | None = None
    grids: tuple[Grid | None, Grid | None] = (None, None)

    @property
    def weights(self) -> Weights:
        """The attention matrix of the call; raises ``ValueError`` if only statistics of it were kept."""
        if not isinstance(self.seen, Weights):
            raise ValueError(
                f"{self.name}: only statistics were kept (keep=…), and this needs the weights themselves; "
                "record again without keep"
            )
        return self.seen

    @property
    def layer(self) -> int | None:
        """The layer's number: the first number in the module's name, or the number of the pass if it is shared."""
        return layer_number(self.name) if self.number is None else self.number

    @property
    def v(self) -> Tensor:
        """The values of the call, ``(batch, key heads, keys, width)``."""
        if self.values is None:
            raise ValueError(f"{self.name}: the values were not kept; record with watch(model, values=True)")
        return self.values.v

    def by_value(self) -> Weights:
        """Return the weights times the norm of the value that each moves, normalised by row: ``Weights.by_value``."""
        return self.weights.by_value(self.v)

    def attribution(self) -> Attribution:
        """Return attention times its gradient, ``A ∘ (dO vᵀ)``, after a backward pass through the model's output."""
        v = self.v
        assert self.values is not None
        if self.values.dout is None:
            raise ValueError(
                f"{self.name}: there is no gradient of its output; run the model with gradients inside "
                "watch(model, values=True), and call backward() on something that depends on its output"
            )
        return self.weights.attribution(v, self.values.dout)


class Values:
    """The values of a call, and the gradient of its output once a backward pass has reached it."""

    __slots__ = ("dout", "v")

    def __init__(self, v: Tensor) -> None:
        self.v = v
        self.dout: Tensor | None = None

    def keep_gradient(self, gradient: Tensor) -> None:
        """Add a gradient of the output; a hook of the output tensor."""
        self.dout = gradient.detach() if self.dout is None else self.dout + gradient.detach()


def _sizes(shape: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(("batch", "heads", "queries", "keys"), shape, strict=True))


class Record(Mapping[str, Any]):
    """The attention calls of a model, by the names of its modules, in the order in which they ran.

    ``record[name]`` is the ``Weights`` of a module's latest call and ``record.calls(name)`` those of all its calls.
    ``record.log`` lists the calls of all modules as ``Call``, with kind, stack and phase. ``record.heads()`` reports
    on every head.
    """

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.missed = 0  # calls that were dropped because the memory limit had been reached
        self.run: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = (
            None  # model and inputs, if values are kept
        )
        self.editors: list[Any] = []  # the edits that were in force
        self._by_name: dict[str, list[Call]] = {}

    def add(self, call: Call) -> None:
        """Append a call."""
        self.log.append(call)
        self._by_name.setdefault(call.name, []).append(call)

    def number_passes(self, module: str, number: int) -> None:
        """Make the earlier calls of a module layer ``number``, since it turns out to run several times."""
        calls = self._by_name.pop(module, [])
        new = [replace(call, name=f"{module}#{number}", number=number) for call in calls]
        at = {id(call): other for call, other in zip(calls, new, strict=True)}
        self.log = [at.get(id(call), call) for call in self.log]
        if new:
            self._by_name[new[0].name] = new

    def __getitem__(self, name: str) -> Any:
        return self._of(name)[-1].seen

    def _of(self, name: str) -> list[Call]:
        """Return the calls of a layer, or of all passes through a shared module."""
        found = self._by_name.get(name) or [call for call in self.log if call.module == name]
        if not found:
            raise KeyError(f"{name!r} was not recorded; recorded modules: {', '.join(self._by_name) or 'none'}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def calls(self, name: str) -> list[Any]:
        """Return the ``Weights`` (or ``Observation``) of the module ``name``, one for each time it ran."""
        return [call.seen for call in self._of(name)]

    def attribution(self, name: str) -> Attribution:
        """Return attention times its gradient of the latest call of the module ``name``: see ``Call.attribution``."""
        return self._of(name)[-1].attribution()

    def mean_output(self, name: str) -> Tensor:
        """Return the mean output ``(heads, width)`` of the layer ``name`` over queries without padding."""
        from limelight.lens.report import real_queries

        real, count = real_queries(self), 0.0
        total = torch.zeros((), dtype=torch.float64)
        for call in self._of(name):
            rows = real[id(call)]
            with torch.no_grad():
                out = call.weights @ call.v.to(call.weights.dtype)
                total = total + (out * rows[:, None, :, None].to(out)).sum((0, 2)).double()
            count += float(rows.sum())
        return total / max(count, 1.0)

    def heads(self, tokens: Tokens | Mapping[str, Tokens] | None = None, **options: Any) -> Heads:
        """Report on every head; ``tokens`` and the options are those of ``limelight.lens.heads``."""
        from limelight.lens.report import heads

        return heads(self, tokens, **options)

    def _repr_html_(self) -> str:
        from limelight.viz.notebook import table_html

        rows = [
            {"module": c.name, "stack": c.stack, "attention": c.kind, "phase": c.phase, **_sizes(c.shape)}
            for c in self.log
        ]
        return table_html(rows, title=repr(self).splitlines()[0])

    def __repr__(self) -> str:
        lines = [f"Record of {len(self.log)} attention calls in {len(self)} modules"]
        for name, calls in self._by_name.items():
            first = calls[0]
            count = f", {len(calls)} calls" if len(calls) > 1 else ""
            lines.append(f"  {name}: {first.stack} {first.kind}-attention {first.shape}{count}")
        if self.missed:
            lines.append(f"  and {self.missed} calls that were dropped after the memory limit was reached")
        return "\n".join(lines)
