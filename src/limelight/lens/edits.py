"""Edits as values: changes of the attention of some heads, which compose with ``+``.

``ll.edit(model, {layer: edit})`` and ``ll.watch(model, edits={layer: edit})`` apply them. What an edit does to a call
is in ``limelight.lens.editing``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.core.biases import Bias as AnyBias
from limelight.core.checks import check_positive
from limelight.core.masks import Lowered, Mask
from limelight.core.masks.base import positions
from limelight.core.spans import single_spans
from limelight.matrix.base import Weights

if TYPE_CHECKING:
    from limelight.lens.record import Record

Heads = int | Sequence[int] | slice | None


class Edit:
    """Base of all edits: changes to the attention of some heads of a layer, which compose with ``+``.

    ``limelight.edit(model, {layer: edit})`` and ``limelight.watch(model, edits={layer: edit})`` apply them.
    """

    heads: Heads

    def parts(self) -> tuple[Edit, ...]:
        """The edits that this one is composed of."""
        return (self,)

    def chosen(self, count: int) -> list[int]:
        """Return the numbers of the heads that the edit changes, out of ``count``."""
        return choose_heads(self, self.heads, count)

    def __add__(self, other: object) -> Edit:
        if not isinstance(other, Edit):
            raise TypeError(f"{self} + {type(other).__name__}: edits compose with edits, such as Off(3) + Off(5)")
        return Edits((*self.parts(), *other.parts()))


def choose_heads(edit: Edit, heads: Heads, count: int) -> list[int]:
    """Return the heads, out of ``count``, that a number, a list or a slice stands for; all for None."""
    if heads is None:
        return list(range(count))
    if isinstance(heads, slice):
        return list(range(*heads.indices(count)))
    numbers = [heads] if isinstance(heads, int) else list(heads)
    for h in numbers:
        if not -count <= h < count:
            raise ValueError(f"{edit}: there is no head {h}; the layer has {count}, 0 to {count - 1}")
    return sorted({h % count for h in numbers})


def _check_heads(edit: Edit, heads: Any) -> Any:
    if heads is None or isinstance(heads, slice):
        return heads
    several = isinstance(heads, (Sequence, range)) or getattr(heads, "ndim", 0) == 1
    try:
        if isinstance(heads, (bool, str)):
            raise TypeError
        numbers = [operator.index(h) for h in (heads if several else [heads])]
    except TypeError:
        name = type(edit).__name__
        raise TypeError(f"{name}: heads = {heads!r}; give a number, a list of numbers, a slice, or None") from None
    if not numbers:
        raise ValueError(f"{type(edit).__name__}: heads is empty; leave the edit out, or give None for all heads")
    return numbers if several else numbers[0]


@dataclass(frozen=True, eq=False, repr=False)
class Edits(Edit):
    """Several edits of the same layer: ``left + right``."""

    edits: tuple[Edit, ...]

    def parts(self) -> tuple[Edit, ...]:
        return self.edits

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.edits))


class _Checked(Edit):
    """Base of edits that are dataclasses with a field ``heads``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", _check_heads(self, self.heads))

    def _shown(self) -> str:
        """The arguments before ``heads``, for ``repr``."""
        return ""

    def __repr__(self) -> str:
        heads = [] if self.heads is None else [f"heads={self.heads}" if self._shown() else repr(self.heads)]
        return f"{type(self).__name__}({', '.join([x for x in [self._shown()] if x] + heads)})"


@dataclass(frozen=True, eq=False, repr=False)
class Off(_Checked):
    """Switches heads off: their output, before the projection W_O, is 0.

    Args:
        heads: the numbers of the heads: one, several, or a slice; all of the layer unless given.

    >>> Off(3) + Off([5, 7]), Off(slice(0, 4)), Off()
    (Off(3) + Off([5, 7]), Off(slice(0, 4, None)), Off())

    """

    heads: Heads = None


@dataclass(frozen=True, eq=False, repr=False)
class Only(_Checked):
    """Switches all other heads of the layer off.

    Args:
        heads: the numbers of the heads that stay on: one, several, or a slice.

    >>> Only([0, 3]).chosen(4)  # the heads that are changed
    [1, 2]

    """

    heads: Heads

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads is None:
            raise ValueError("Only: give the heads that stay on; Only(None) would change nothing")

    def chosen(self, count: int) -> list[int]:
        kept = choose_heads(self, self.heads, count)
        return [h for h in range(count) if h not in kept]


@dataclass(frozen=True, eq=False, repr=False)
class Mean(_Checked):
    """Replaces the output of heads by their mean output in another run, whatever they attend to in this one.

    Args:
        heads: the numbers of the heads: one, several, or a slice; None for all of the layer.
        reference: a record of ``watch(model, values=True)`` of the same model; the mean is over its queries without
            padding.

    """

    heads: Heads
    reference: Record

    def __post_init__(self) -> None:
        super().__post_init__()
        from limelight.lens.record import Record

        if not isinstance(self.reference, Record):
            raise TypeError(
                f"Mean: reference must be a record of watch(model, values=True), not {type(self.reference).__name__}"
            )

    def __repr__(self) -> str:
        return f"Mean({self.heads}, <record>)"


@dataclass(frozen=True, eq=False, repr=False)
class Knockout(_Checked):
    """Forbids pairs of a query and a key, in addition to those that the model masks.

    ``Knockout(~ll.Window(8))`` leaves only the keys within 8 tokens. A ``Dense`` mask and a ``Rectangle`` count tokens
    from the beginning of the text, also in the steps of a generation; outside of a dense mask nothing is knocked out.

    Args:
        mask: the pairs that may not attend, as any mask of limelight: True means that they are knocked out.
        heads: the numbers of the heads: one, several, or a slice; all of the layer unless given.

    >>> import limelight as ll
    >>> Knockout(~ll.Window(8), heads=[1, 2])
    Knockout(~Window(8), heads=[1, 2])

    """

    mask: Mask
    heads: Heads = None

    def __post_init__(self) -> None:
        super().__post_init__()
        mask: Any = self.mask
        if not isinstance(mask, Mask):
            hint = "; wrap it as ll.Dense(tensor)" if isinstance(mask, Tensor) else ""
            raise TypeError(f"Knockout: mask must be a mask such as ~ll.Window(8), not {type(mask).__name__}{hint}")

    def _shown(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False, repr=False)
class Temperature(_Checked):
    """Divides the logits of heads by a temperature: above 1 flattens their weights, below 1 sharpens them.

    Args:
        t: the temperature, above 0: one for all of the heads, or one for each.
        heads: the numbers of the heads: one, several, or a slice; all of the layer unless given.

    >>> Temperature([0.5, 2.0], heads=[0, 3])
    Temperature([0.5, 2.0], heads=[0, 3])

    """

    t: float | Sequence[float] | Tensor
    heads: Heads = None

    def __post_init__(self) -> None:
        super().__post_init__()
        several = isinstance(self.t, Sequence) or getattr(self.t, "ndim", 0) == 1
        values = [check_positive("Temperature: t", x) for x in (self.t if several else [self.t])]  # type: ignore
        object.__setattr__(self, "t", values if several else values[0])
        if several and isinstance(self.heads, Sequence) and len(self.heads) != len(values):
            raise ValueError(f"{self}: {len(values)} temperatures for {len(self.heads)} heads; give one for each")

    def values(self, count: int) -> dict[int, float]:
        """Return the temperature of each head that the edit changes, out of ``count``."""
        heads = self.chosen(count)
        if not isinstance(self.t, list):
            return dict.fromkeys(heads, self.t)  # type: ignore[arg-type]
        numbers = self.heads if isinstance(self.heads, list) else heads
        if len(self.t) != len(numbers):
            raise ValueError(f"{self}: {len(self.t)} temperatures for {len(numbers)} heads; give one for each")
        return {h % count: t for h, t in zip(numbers, self.t, strict=True)}

    def _shown(self) -> str:
        return repr(self.t)


@dataclass(frozen=True, eq=False, repr=False)
class Bias(_Checked):
    """Adds a bias to the logits of heads.

    Args:
        bias: any bias of limelight: for one head (then all have it), for the chosen heads, or for all of the layer.
        heads: the numbers of the heads: one, several, or a slice; all of the layer unless given.

    >>> import limelight as ll
    >>> Bias(ll.ALiBi(4))
    Bias(ALiBi(4))

    """

    bias: AnyBias
    heads: Heads = None

    def __post_init__(self) -> None:
        super().__post_init__()
        bias: Any = self.bias
        if not isinstance(bias, AnyBias):
            hint = "; wrap it as ll.DenseBias(tensor)" if isinstance(bias, Tensor) else ""
            raise TypeError(f"Bias: bias must be a bias such as ll.ALiBi(8), not {type(bias).__name__}{hint}")

    def _shown(self) -> str:
        return repr(self.bias)


@dataclass(frozen=True, eq=False, repr=False)
class Pattern(_Checked):
    """Lets heads attend as in another run, with the values of this one: ``A of the other run @ v of this one``.

    Queries and keys are aligned by their position, also in the steps of a generation.

    Args:
        weights: a record of the other run, of which the layer with the same name is taken, or ``Weights`` of as many
            heads.
        heads: the numbers of the heads: one, several, or a slice; all of the layer unless given.

    """

    weights: Weights | Record
    heads: Heads = None

    def __post_init__(self) -> None:
        super().__post_init__()
        from limelight.lens.record import Record

        if not isinstance(self.weights, (Weights, Record)):
            raise TypeError(f"Pattern: give a record or Weights, not {type(self.weights).__name__}")

    def _shown(self) -> str:
        return f"<weights {self.weights.shape}>" if isinstance(self.weights, Weights) else "<record>"


@dataclass(frozen=True, repr=False)
class Rectangle(Mask):
    """The pairs of a token in ``queries`` and a token in ``keys``, by their numbers; None stands for all.

    In cross-attention the queries are tokens of the target and the keys tokens of the source. Anywhere but in a
    ``Knockout``, a query's number is its position, as for all masks.

    Args:
        queries: the numbers of the queries, such as ``range(3, 7)``; all unless given.
        keys: the numbers of the keys; all unless given.
        shift: the number of a query's token minus the query's position, which an edit sets in the steps of a
            generation.

    >>> print(Rectangle(range(1, 3), range(2)).dense(4).int())
    tensor([[0, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)

    """

    queries: range | None = None
    keys: range | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        for name in ("queries", "keys"):
            x = getattr(self, name)
            if x is not None and not (isinstance(x, range) and x.step == 1 and x.start >= 0):
                raise ValueError(f"Rectangle: {name} = {x!r}; give a range of tokens such as range(3, 7), or None")

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        number = positions(i, N, M) + self.shift
        rows = range(2**31 - 1) if self.queries is None else self.queries
        cols = range(M) if self.keys is None else self.keys
        return (number >= rows.start) & (number < rows.stop) & (j >= cols.start) & (j < cols.stop)

    def lower(self, N: int, M: int) -> Lowered:
        number = torch.arange(M - N, M)[None] + self.shift
        rows = range(2**31 - 1) if self.queries is None else self.queries
        cols = range(M) if self.keys is None else self.keys
        inside = (number >= rows.start) & (number < rows.stop)
        return Lowered(single_spans(cols.start, torch.where(inside, min(cols.stop, M), cols.start), N, M), None)

    def __repr__(self) -> str:
        return f"Rectangle({self.queries}, {self.keys})"
