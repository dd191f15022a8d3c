"""Runs a model again from the middle: blocks below a layer return what they returned in an earlier run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from limelight.core.masks import Dense, Mask, Padding


class Restart:
    """Keeps the outputs of a model's blocks, and returns them instead of running the blocks again.

    Blocks are the elements of the outermost ``ModuleList`` containers: the layers of a stack. Their calls are counted
    in the order in which they run, so that a block that runs several times counts as several.

    Attributes:
        start: the number of the first block call that runs; those before it return what is kept.
        copies: how many copies of the batch the current run has.
        calls: how many block calls there have been in the current run.

    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.blocks, self.batch = list(dict.fromkeys(_blocks(model))), batch
        self.outputs: list[Any] = []
        self.start, self.copies, self.calls = 0, 1, 0
        self._keeping = False

    def run(self, forward: Callable[[], Any], *, start: int = 0, copies: int = 1, keep: bool = False) -> Any:
        """Run a model from a block call on; ``keep`` the outputs of all blocks for later runs."""
        self.start, self.copies, self.calls, self._keeping = start, copies, 0, keep
        if keep:
            self.outputs.clear()
        return forward()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put itself before the blocks of the model inside a ``with`` block."""
        for block in self.blocks:
            block.forward = self._wrapped(block.forward)
        try:
            yield
        finally:
            for block in self.blocks:
                del block.forward

    def _wrapped(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            number = self.calls
            self.calls += 1
            if number < self.start:
                return tree_map(lambda x: repeat(x, self.batch, self.copies), self.outputs[number])
            out = forward(*args, **kwargs)
            if self._keeping:
                self.outputs.append(out)
            return out

        return run


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost ``ModuleList`` containers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (x for x in child if "forward" not in vars(x))
        else:
            yield from _blocks(child)


class CannotRepeat(Exception):
    """Raised for an input that cannot be repeated for several copies of a batch."""


def repeat(x: Any, batch: int, copies: int) -> Any:
    """Repeat a batch of tensors, or a mask made for it, copy after copy; other values stay as they are."""
    if copies == 1:
        return x
    if isinstance(x, Tensor):
        return x.repeat(copies, *(1,) * (x.ndim - 1)) if x.ndim and len(x) == batch else x
    if isinstance(x, Padding) and x.batch_and_heads()[0] > 1:
        return Padding(x.counts(batch, 2**31 - 1).repeat(copies), x.left)
    if isinstance(x, Dense) and x.batch_and_heads()[0] > 1:
        return Dense(x.tensor.repeat(copies, *(1,) * (x.tensor.ndim - 1)))
    if isinstance(x, Mask) and x.batch_and_heads()[0] > 1:
        raise CannotRepeat
    return x


def part(output: Any, batch: int, number: int, copies: int) -> Any:
    """Return the output of one copy of the batch."""
    if copies == 1:
        return output

    def pick(x: Any) -> Any:
        is_batch = isinstance(x, Tensor) and x.ndim and len(x) == batch * copies
        return x[number * batch : (number + 1) * batch] if is_batch else x

    return tree_map(pick, output)


def accepts(model: nn.Module, name: str) -> bool:
    """Return whether the model's ``forward`` has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and gradients of parameters inside a ``with`` block."""
    modes = [(module, module.training) for module in model.modules()]
    learned = [p for p in model.parameters() if p.requires_grad]
    model.eval()
    for p in learned:
        p.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for p in learned:
            p.requires_grad_(True)
