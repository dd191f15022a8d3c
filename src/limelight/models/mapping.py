"""Maps between the tensors of a published checkpoint, in their layout, and limelight's parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def _unchanged(x: Tensor) -> list[Tensor]:
    return [x]


def _only(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class TensorMap:
    """One tensor of a checkpoint and the parameters that it holds.

    Attributes:
        theirs: the tensor's name in the checkpoint.
        ours: the names of our parameters; ``*`` stands for the number of a layer in both.
        split: turns the tensor into the values of our parameters.
        join: turns our parameters into the tensor.

    """

    theirs: str
    ours: tuple[str, ...]
    split: Callable[[Tensor], Sequence[Tensor]] = _unchanged
    join: Callable[..., Tensor] = _only

    def at(self, layer: int) -> TensorMap:
        """Return the map of one layer."""
        names = tuple(name.replace("*", str(layer)) for name in self.ours)
        return replace(self, theirs=self.theirs.replace("*", str(layer)), ours=names)


def same(theirs: str, ours: str) -> TensorMap:
    """Map a tensor to one parameter of the same layout."""
    return TensorMap(theirs, (ours,))


def affine(theirs: str, ours: str, bias: bool = True) -> list[TensorMap]:
    """Map a linear layer or a norm: weight and bias."""
    return [same(f"{theirs}.{x}", f"{ours}.{x}") for x in (("weight", "bias") if bias else ("weight",))]


def transposed(theirs: str, ours: str) -> list[TensorMap]:
    """Map a linear layer whose weight is stored transposed."""
    weight = TensorMap(f"{theirs}.weight", (f"{ours}.weight",), split=lambda x: [x.T], join=lambda x: x.T)
    return [weight, same(f"{theirs}.bias", f"{ours}.bias")]


def transposed_and_stacked(theirs: str, ours: Sequence[str]) -> list[TensorMap]:
    """Map several linear layers that are stored as one, with their weights transposed and side by side."""
    count = len(ours)
    weight = TensorMap(
        f"{theirs}.weight",
        tuple(f"{x}.weight" for x in ours),
        split=lambda x: x.T.chunk(count),
        join=lambda *x: torch.cat(x).T,
    )
    bias = TensorMap(
        f"{theirs}.bias",
        tuple(f"{x}.bias" for x in ours),
        split=lambda x: x.chunk(count),
        join=lambda *x: torch.cat(x),
    )
    return [weight, bias]


def interleaved_by_head(theirs: str, ours: Sequence[str], heads: int, bias: bool = True) -> list[TensorMap]:
    """Map queries, keys and values that are stored as one linear layer, head by head."""

    def split(x: Tensor) -> list[Tensor]:
        parts = x.reshape(heads, len(ours), -1, *x.shape[1:])
        return [parts[:, i].flatten(0, 1) for i in range(len(ours))]

    def join(*x: Tensor) -> Tensor:
        return torch.stack([y.reshape(heads, -1, *y.shape[1:]) for y in x], 1).flatten(0, 2)

    return [
        TensorMap(f"{theirs}.{n}", tuple(f"{x}.{n}" for x in ours), split=split, join=join)
        for n in (("weight", "bias") if bias else ("weight",))
    ]


def every_layer(count: int, maps: Sequence[TensorMap]) -> list[TensorMap]:
    """Return the maps of a layer for every layer."""
    return [one.at(n) for n in range(count) for one in maps]
