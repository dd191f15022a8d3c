"""The record of a model's attention: ``Call``, one attention call, and ``Record``, all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from limelight.matrix.base import Weights
from limelight.matrix.observation import Observation

if TYPE_CHECKING:
    from limelight.lens.report import Heads, Tokens


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
        """The attention matrix of the call; raises ``ValueError`` if only statistics of it were kept."""
        if not isinstance(self.seen, Weights):
            raise ValueError(
                f"{self.name}: only statistics were kept (keep=…), and this needs the weights themselves; "
                "record again without keep"
            )
        return self.seen

    @property
    def layer(self) -> int | None:
        """The layer's number: the first number in the module's name."""
        return layer_number(self.name)


def layer_number(name: str) -> int | None:
    """Return the first number in a module's name, such as 3 for ``encoder.layer.3.attention``."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


class Record(Mapping[str, Any]):
    """The attention calls of a model, by the names of its modules, in the order in which they ran.

    ``record[name]`` is the ``Weights`` of a module's latest call and ``record.calls(name)`` those of all its calls.
    ``record.log`` lists the calls of all modules as ``Call``, with kind, stack and phase. ``record.heads()`` reports
    on every head.
    """

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.missed = 0  # calls that were dropped because the memory limit had been reached
        self._by_name: dict[str, list[Call]] = {}

    def add(self, call: Call) -> None:
        """Append a call."""
        self.log.append(call)
        self._by_name.setdefault(call.name, []).append(call)

    def __getitem__(self, name: str) -> Any:
        if name not in self._by_name:
            raise KeyError(f"{name!r} was not recorded; recorded modules: {', '.join(self._by_name) or 'none'}")
        return self._by_name[name][-1].seen

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def calls(self, name: str) -> list[Any]:
        """Return the ``Weights`` (or ``Observation``) of every call of a module, one for each time it ran."""
        self[name]  # raises KeyError with the names that there are
        return [call.seen for call in self._by_name[name]]

    def heads(self, tokens: Tokens | Mapping[str, Tokens] | None = None, **options: Any) -> Heads:
        """Report on every head: see ``limelight.lens.heads``."""
        from limelight.lens.report import heads

        return heads(self, tokens, **options)

    def __repr__(self) -> str:
        lines = [f"Record of {len(self.log)} attention calls in {len(self)} modules"]
        for name, calls in self._by_name.items():
            first = calls[0]
            count = f", {len(calls)} calls" if len(calls) > 1 else ""
            lines.append(f"  {name}: {first.stack} {first.kind}-attention {first.shape}{count}")
        if self.missed:
            lines.append(f"  and {self.missed} calls that were dropped after the memory limit was reached")
        return "\n".join(lines)
