"""What a model attended to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from limelight.matrix.base import Weights
from limelight.matrix.observation import Observation


@dataclass(frozen=True)
class Call:
    """One attention call of a module.

    ``kind`` is ``"self"`` or ``"cross"``, ``stack`` is ``"encoder"`` or ``"decoder"``, and ``phase`` is ``"prefill"``
    where the queries are all tokens so far and ``"decode"`` where a cache holds earlier ones. ``ids (batch, keys)`` are
    the tokens of the keys, as far as they are known.
    """

    name: str
    kind: str
    stack: str
    phase: str
    seen: Weights | Observation
    shape: tuple[int, ...]
    ids: Tensor | None = None

    @property
    def weights(self) -> Weights:
        """What it attended to; an error where only answers were kept."""
        if not isinstance(self.seen, Weights):
            raise ValueError(f"of {self.name} only answers were kept (keep=…), and this needs the weights themselves")
        return self.seen

    @property
    def layer(self) -> int | None:
        """The number in the module's name."""
        return next((int(part) for part in self.name.split(".") if part.isdigit()), None)


class Record(Mapping[str, Any]):
    """The ``Weights`` of every attention call by the name of its module, in the order in which they came.

    ``record[name]`` is the latest one of a module, ``record.calls(name)`` are all, and ``record.log`` has those of all
    modules, each with its kind, stack and phase.
    """

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.missed = 0  # calls that came after the limit was reached
        self._by_name: dict[str, list[Call]] = {}

    def add(self, call: Call) -> None:
        """One more."""
        self.log.append(call)
        self._by_name.setdefault(call.name, []).append(call)

    def __getitem__(self, name: str) -> Any:
        if name not in self._by_name:
            raise KeyError(f"{name!r} was not recorded; there are {', '.join(self._by_name) or 'no modules'}")
        return self._by_name[name][-1].seen

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def calls(self, name: str) -> list[Any]:
        """All that a module attended to, one for each time it ran."""
        self[name]
        return [call.seen for call in self._by_name[name]]

    def __repr__(self) -> str:
        lines = [f"Record of {len(self.log)} attention calls in {len(self)} modules"]
        for name, calls in self._by_name.items():
            first = calls[0]
            times = f", {len(calls)} calls" if len(calls) > 1 else ""
            lines.append(f"  {name}: {first.stack} {first.kind}-attention {first.shape}{times}")
        if self.missed:
            lines.append(f"  and {self.missed} calls that came after the limit was reached")
        return "\n".join(lines)
