"""Layers by the order in which they run: every pass through a shared module is a layer of its own."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn


class Layer(NamedTuple):
    """One pass through an attention module.

    Attributes:
        name: the module's name, with ``#number`` after it if the model runs the module several times.
        module: the module's name, as in ``model.named_modules()``.
        number: the layer's number: the first number in the name, or the number of the pass; None if it has neither.

    """

    name: str
    module: str
    number: int | None

    def matches(self, wanted: int | str) -> bool:
        """Return whether a number, or a pattern of names, chooses this layer."""
        if isinstance(wanted, int):
            return self.number == wanted
        return fnmatchcase(self.name, wanted) or fnmatchcase(self.module, wanted)


def layer_number(name: str) -> int | None:
    """Return the first number in a module's name, such as 3 for ``encoder.layer.3.attention``."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


class Passes:
    """Counts the passes through the attention modules of a model.

    The passes of a run of the stack (the module that owns the outermost ``ModuleList``) are counted from 0. Modules
    that are known to be shared (ALBERT, or the same module several times in a ``ModuleList``) are numbered from their
    first pass on; any other from its second pass, before which it looks like a module that runs once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self._stack_of = dict(_stacks(model))
        self._stacks = {*self._stack_of.values(), model}
        self._shared = set(_shared_modules(model))
        self._default = model
        self._order: dict[tuple[nn.Module, str], int] = {}  # calls in the current run of a stack, by kind
        self._ran: dict[nn.Module, dict[nn.Module, int]] = {}  # modules of the current run of a stack, and their order
        self.found_shared: dict[str, int] = {}  # modules that ran a second time, and the order of their first pass

    def begin(self, module: nn.Module) -> None:
        """Note that a module's forward pass begins."""
        if module in self._stacks:
            self._ran.pop(module, None)
            for key in [key for key in self._order if key[0] is module]:
                del self._order[key]

    def next(self, module: nn.Module, kind: str) -> Layer:
        """Return the layer that a module's next attention call belongs to."""
        stack, name = self._stack_of.get(module, self._default), self.names[module]
        order = self._order.get((stack, kind), 0)
        self._order[stack, kind] = order + 1
        ran = self._ran.setdefault(stack, {})
        if module in ran and module not in self._shared:
            self._shared.add(module)
            self.found_shared[name] = ran[module]
        ran[module] = order
        if module in self._shared:
            return Layer(f"{name}#{order}", name, order)
        return Layer(name, name, layer_number(name))

    def possible(self, wanted: int | str) -> bool:
        """Return whether a number or pattern may choose a layer of the model, as far as that is known beforehand."""
        if isinstance(wanted, int):
            numbers = {layer_number(name) for name in self.names.values()}
            return wanted in numbers or (wanted >= 0 and (bool(self._shared) or numbers == {None}))
        return any(fnmatchcase(name, wanted.split("#")[0]) for name in self.names.values())


def _stacks(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each module inside a ``ModuleList`` with the owner of the outermost one that it is in."""
    for name, module in model.named_modules():
        owner: nn.Module = model
        for part in name.split(".")[:-1] if name else []:
            child = owner.get_submodule(part)
            if isinstance(child, nn.ModuleList):
                yield module, owner
                break
            owner = child


def _shared_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are known to run several times in one pass through the model."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "num_hidden_groups", None) is not None:  # ALBERT
            yield from module.modules()
        if isinstance(module, nn.ModuleList):
            layers = list(module)
            yield from (part for layer in layers if layers.count(layer) > 1 for part in layer.modules())
