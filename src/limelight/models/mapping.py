"""Which tensor of a published checkpoint is which of ours, and how it is laid out there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def _alone(x: Tensor) -> list[Tensor]:
    return [x]


def _first(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Link:
    """``split`` turns their tensor into ours, ``join`` ours into theirs."""

    theirs: str
    ours: tuple[str, ...]
    split: Callable[[Tensor], Sequence[Tensor]] = _alone
    join: Callable[..., Tensor] = _first

    def at(self, layer: int) -> Link:
        """With the number of a layer for ``*``."""
        names = tuple(name.replace("*", str(layer)) for name in self.ours)
        return replace(self, theirs=self.theirs.replace("*", str(layer)), ours=names)


def same(theirs: str, ours: str) -> Link:
    return Link(theirs, (ours,))


def affine(theirs: str, ours: str, bias: bool = True) -> list[Link]:
    """A linear layer or a norm: weight and bias."""
    return [same(f"{theirs}.{x}", f"{ours}.{x}") for x in (("weight", "bias") if bias else ("weight",))]


def turned(theirs: str, ours: str) -> list[Link]:
    """A linear layer whose weight lies the other way round."""
    weight = Link(f"{theirs}.weight", (f"{ours}.weight",), lambda x: [x.T], lambda x: x.T)
    return [weight, same(f"{theirs}.bias", f"{ours}.bias")]


def turned_thirds(theirs: str, ours: Sequence[str]) -> list[Link]:
    """Several linear layers in one, side by side, whose weight lies the other way round."""

    def split(x: Tensor) -> Sequence[Tensor]:
        return x.T.chunk(len(ours))

    weight = Link(f"{theirs}.weight", tuple(f"{x}.weight" for x in ours), split, lambda *x: torch.cat(x).T)
    bias = Link(
        f"{theirs}.bias", tuple(f"{x}.bias" for x in ours), lambda x: x.chunk(len(ours)), lambda *x: torch.cat(x)
    )
    return [weight, bias]


def by_head(theirs: str, ours: Sequence[str], heads: int, bias: bool = True) -> list[Link]:
    """Queries, keys and values in one linear layer, head by head."""

    def split(x: Tensor) -> list[Tensor]:
        parts = x.reshape(heads, len(ours), -1, *x.shape[1:])
        return [parts[:, i].flatten(0, 1) for i in range(len(ours))]

    def join(*x: Tensor) -> Tensor:
        return torch.stack([y.reshape(heads, -1, *y.shape[1:]) for y in x], 1).flatten(0, 2)

    return [
        Link(f"{theirs}.{n}", tuple(f"{x}.{n}" for x in ours), split, join)
        for n in (("weight", "bias") if bias else ("weight",))
    ]


def layers(count: int, links: Sequence[Link]) -> list[Link]:
    """The links of a layer, for every layer."""
    return [link.at(n) for n in range(count) for link in links]
