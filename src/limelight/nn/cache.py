"""Caches: keys and values that are kept from one step of generation to the next.

A cache has a slot for each layer. Before ``n`` new tokens, ``cache.begin(n)`` makes room and returns how many keys
there will be; ``slot.extend(k, v)`` appends their keys and values and returns all that the new queries may attend to.
Queries are aligned with the last keys, as everywhere, so that masks and biases need nothing special; ``cache.mask(n)``
masks padding and dropped keys.

Caches are for inference: what they keep has no gradient.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from limelight.backends import Int8Rows
from limelight.core.checks import check_count
from limelight.core.masks import First, Mask, Padding, Window

_BUFFERS = ("k", "v", "k_scale", "v_scale")


class Slot:
    """Keys and values of one layer, in buffers that double when they are full, or have a fixed capacity."""

    wants_weights = False  # whether ``add_received`` is called with the attention of every step

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.length = 0  # tokens in the buffers
        self.count = 0  # tokens so far, including those that were dropped
        self.buffers: dict[str, Tensor] = {}  # k and v, (B, Hkv, room, width)
        self.context: tuple[Tensor, Tensor] | None = None  # keys and values of cross-attention

    def begin(self, n: int) -> int:
        """Make room for ``n`` new tokens and return how many keys there will be."""
        return self.length + n

    def extend(self, k: Tensor, v: Tensor) -> tuple[Any, Any]:
        """Append the keys and values of new tokens, ``(B, Hkv, n, width)``, and return all keys and values."""
        kept = self._append(k=k.detach(), v=v.detach())
        return kept["k"], kept["v"]

    def _append(self, **new: Tensor) -> dict[str, Tensor]:
        n = next(iter(new.values())).shape[2]
        end = self.length + n
        for name, x in new.items():
            buffer = self.buffers[name] = self._room(self.buffers.get(name), x, end)
            buffer[:, :, self.length : end] = x
        self.advance(n)
        return {name: buffer[:, :, :end] for name, buffer in self.buffers.items()}

    def rows(self) -> tuple[Tensor, Tensor] | None:
        """Return the buffers of keys and values, if tokens may be written to them from row ``length`` on.

        None where there are none yet, and in other kinds of slots. ``advance`` says that it was done.
        """
        if type(self) is not Slot or not self.buffers:
            return None
        return self.buffers["k"], self.buffers["v"]

    def advance(self, n: int) -> None:
        """Count ``n`` tokens that were written to the buffers."""
        self.length += n
        self.count += n

    def add_received(self, received: Tensor) -> None:
        """Add the attention that each key received in a step, ``(B, H, M)``."""

    def truncate(self, length: int) -> None:
        """Drop all but the first ``length`` tokens."""
        self.count = self.length = length
        if not length:
            self.context = None

    def select(self, index: Tensor) -> None:
        """Keep these batch elements, in this order."""
        self.buffers = {name: buffer.index_select(0, index) for name, buffer in self.buffers.items()}
        if self.context is not None:
            k, v = self.context
            self.context = k.index_select(0, index), v.index_select(0, index)

    def _room(self, buffer: Tensor | None, new: Tensor, end: int) -> Tensor:
        B, H, _, width = new.shape
        if buffer is not None and buffer.shape[0] != B:
            raise ValueError(f"the cache holds {buffer.shape[0]} sequences and receives {B}; begin with an empty cache")
        if buffer is not None and end <= buffer.shape[2]:
            return buffer
        if self.capacity is not None and end > self.capacity:
            raise ValueError(f"the cache is full: {end} tokens, and its capacity is {self.capacity}")
        room = self.capacity or max(64, 2 * end if buffer is not None else end + end // 4)
        larger = new.new_empty(B, H, room, width)
        if buffer is not None:
            larger[:, :, : self.length] = buffer[:, :, : self.length]
        return larger

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that the slot holds, by name."""
        held = {name: buffer[:, :, : self.length].contiguous() for name, buffer in self.buffers.items()}
        if self.context is not None:
            held |= {f"context.{name}": x.contiguous() for name, x in zip("kv", self.context, strict=True)}
        return {**held, "count": torch.tensor([self.length, self.count])}

    def restore(self, held: dict[str, Tensor]) -> None:
        """Restore what ``tensors`` returned."""
        self.length, self.count = (int(x) for x in held["count"])
        self.buffers = {name: held[name] for name in _BUFFERS if name in held}
        self.context = (held["context.k"], held["context.v"]) if "context.k" in held else None


class KVCache:
    """Keys and values of all layers of a model, so that a step of generation computes those of new tokens alone.

    Give it to each call of a model, ``model(ids, cache=cache)``, with the new tokens; or use one layer's part of it,
    ``cache[layer]``, directly. It has no gradient.

    Args:
        capacity: how many tokens there is room for; without it the buffers double when they are full, so that each
            token is copied a constant number of times on average.

    >>> import torch
    >>> cache = KVCache()
    >>> for n in (5, 1, 1):
    ...     k, v = cache[0].extend(torch.randn(2, 4, n, 8), torch.randn(2, 4, n, 8))
    >>> k.shape, cache.count
    (torch.Size([2, 4, 7, 8]), 7)

    """

    _keeps_all = True  # no token is dropped, so the places of padding do not change

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity if capacity is None else check_count("KVCache", "capacity", capacity, 1)
        self.slots: list[Slot] = []
        self.missing: Tensor | None = None  # (B,): tokens of padding before each sequence

    def expect(self, lengths: Tensor | None) -> None:
        """Announce the lengths ``(B,)`` of sequences that have padding before them; None where none has."""
        if lengths is not None and not self._keeps_all:
            raise ValueError(
                f"{type(self).__name__}: sequences of different lengths need a KVCache, which drops nothing"
            )
        if lengths is None and self.count:
            return  # new tokens follow those that the cache holds
        if lengths is not None and self.count:
            raise ValueError("a cache that holds tokens takes no batch of different lengths; begin with an empty cache")
        self.missing = None if lengths is None else int(lengths.max()) - lengths

    def __getitem__(self, layer: int) -> Slot:
        while len(self.slots) <= layer:
            self.slots.append(self._new_slot())
        return self.slots[layer]

    def _new_slot(self) -> Slot:
        return Slot(self.capacity)

    def _kind(self) -> str:
        """Return the class and its sizes, which must match when a saved cache is restored."""
        return type(self).__name__

    @property
    def count(self) -> int:
        """The number of tokens so far, with padding."""
        return self.slots[0].count if self.slots else 0

    def begin(self, n: int) -> int:
        """Make room for ``n`` new tokens in every layer and return how many keys their queries may attend to."""
        return max((slot.begin(n) for slot in self.slots), default=n)

    def first(self) -> int | Tensor:
        """Return the position of the next token: a number, or ``(B,)`` where sequences have different lengths."""
        return self.count if self.missing is None else self.count - self.missing

    def mask(self, n: int) -> Mask | None:
        """Return the mask for ``n`` new tokens, without causality; None if they may attend to all keys."""
        return None if self.missing is None else Padding(self.count + n - self.missing, left=True)

    def reorder(self, index: Tensor) -> None:
        """Keep the batch elements ``index``, whole numbers in their new order, as beam search needs."""
        for slot in self.slots:
            slot.select(index)
        if self.missing is not None:
            self.missing = self.missing[index]

    def truncate(self, count: int) -> None:
        """Drop all but the first ``count`` tokens, as speculative decoding needs."""
        check_count("truncate", "count", count, 0, self.count)
        for slot in self.slots:
            slot.truncate(count)

    def save(self, file: str | Path) -> None:
        """Write the cache to ``file``, in the format of safetensors."""
        slots = enumerate(self.slots)
        held = {f"{layer}.{name}": tensor for layer, slot in slots for name, tensor in slot.tensors().items()}
        if self.missing is not None:
            held["missing"] = self.missing
        save_file(held, file, metadata={"kind": self._kind()})

    def restore(self, file: str | Path) -> None:
        """Take over what a cache of the same class and sizes has saved to ``file``; what this one held is dropped."""
        with safe_open(file, "pt") as found:
            kind = (found.metadata() or {}).get("kind")
        if kind != self._kind():
            raise ValueError(f"{file} was saved by {kind or 'something else'}, and this cache is {self._kind()}")
        held = load_file(file)
        self.missing = held.pop("missing", None)
        layers = 1 + max((int(name.split(".")[0]) for name in held), default=-1)
        self.slots = []
        for n in range(layers):
            prefix = f"{n}."
            self[n].restore({k.removeprefix(prefix): x for k, x in held.items() if k.startswith(prefix)})


class WindowSlot(Slot):
    """The first tokens and the last ``window``; when the buffer is full, the last ones move to its beginning."""

    def __init__(self, window: int, first: int) -> None:
        super().__init__()
        self.window, self.sinks = window, first

    @property
    def _most(self) -> int:
        return self.sinks + 2 * self.window

    def begin(self, n: int) -> int:
        if self.length + n > self._most:
            self._drop_middle()
        return self.length + n

    def extend(self, k: Tensor, v: Tensor) -> tuple[Any, Any]:
        self.begin(k.shape[2])
        long = self.length + k.shape[2] > self._most
        self.capacity = None if long else self._most
        extended = super().extend(k, v)
        if long:  # a prompt, which attends to more keys than are kept of it
            first, last = slice(0, self.sinks), slice(self.length - self.window, self.length)
            kept = (torch.cat([x[:, :, first], x[:, :, last]], 2) for x in extended)
            self.buffers = dict(zip("kv", kept, strict=True))
            self.length = self.sinks + self.window
        return extended

    def _drop_middle(self) -> None:
        """Keep the first tokens and the last ``window``."""
        if self.length <= self.sinks + self.window:
            return
        kept = self.sinks + self.window
        for buffer in self.buffers.values():
            buffer[:, :, self.sinks : kept] = buffer[:, :, self.length - self.window : self.length].clone()
        self.length = kept

    def truncate(self, length: int) -> None:
        raise ValueError("a WindowCache has dropped earlier tokens; only a KVCache can be truncated")


class WindowCache(KVCache):
    """A cache of the first tokens and the last ones: constant memory, however long the stream.

    The results are those of ``Causal() & (Window(window - 1, 0) | First(first))`` without a cache. A bias by
    distance, or a window of the model itself, counts the tokens that are kept: dropped ones do not add to it.

    Args:
        window: how many of the last tokens are kept.
        first: how many of the first tokens are kept, on which attention rests (StreamingLLM).

    >>> cache = WindowCache(8, first=2)
    >>> for _ in range(100):
    ...     k, v = cache[0].extend(torch.randn(1, 4, 1, 16), torch.randn(1, 4, 1, 16))
    >>> cache.count, k.shape[2] <= 2 + 2 * 8
    (100, True)

    """

    _keeps_all = False

    def __init__(self, window: int, first: int = 4) -> None:
        super().__init__()
        self.window = check_count("WindowCache", "window", window, 1)
        self.sinks = check_count("WindowCache", "first", first, 0)

    def _new_slot(self) -> Slot:
        return WindowSlot(self.window, self.sinks)

    def _kind(self) -> str:
        return f"WindowCache({self.window}, {self.sinks})"

    def mask(self, n: int) -> Mask | None:
        return Window(self.window - 1, 0) | First(self.sinks)


class HeavyHitterSlot(Slot):
    """The keys that received the most attention, and the most recent ones; each head keeps its own."""

    wants_weights = True

    def __init__(self, size: int, recent: int) -> None:
        super().__init__()
        self.size, self.recent = size, recent
        self.received: Tensor | None = None  # (B, Hkv, length)

    def add_received(self, received: Tensor) -> None:
        # Summed over the query heads that share a key head: (B, Hkv, M).
        received = received.unflatten(1, (self.buffers["k"].shape[1], -1)).sum(2)
        if self.received is not None:
            received[..., : self.received.shape[-1]] += self.received
        self.received = received
        # Some more than ``size`` are allowed, so that not every step moves everything.
        if self.length <= self.size + self.size // 8:
            return
        old = received[..., : self.length - self.recent]
        heaviest = old.topk(self.size - self.recent, dim=-1).indices.sort(-1).values
        newest = torch.arange(self.length - self.recent, self.length, device=received.device)
        keep = torch.cat([heaviest, newest.expand(*heaviest.shape[:2], -1)], -1)
        self.received = received.gather(2, keep)
        room = 2 * self.size
        for name, buffer in self.buffers.items():
            kept = buffer.gather(2, keep[..., None].expand(-1, -1, -1, buffer.shape[3]))
            if buffer.shape[2] > room:  # after a long prompt
                buffer = self.buffers[name] = buffer[:, :, :room].clone()
            buffer[:, :, : self.size] = kept
        self.length = self.size

    def truncate(self, length: int) -> None:
        raise ValueError("a HeavyHitterCache has dropped keys; only a KVCache can be truncated")

    def select(self, index: Tensor) -> None:
        super().select(index)
        if self.received is not None:
            self.received = self.received.index_select(0, index)

    def tensors(self) -> dict[str, Tensor]:
        held = super().tensors()
        return held if self.received is None else {**held, "received": self.received}

    def restore(self, held: dict[str, Tensor]) -> None:
        super().restore(held)
        self.received = held.get("received")


class HeavyHitterCache(KVCache):
    """A cache of the keys that received the most attention so far, and of the last ones; each head keeps its own (H2O).

    The attention that keys receive comes from ``Weights.received``, which makes nothing of size n × n. A bias by
    distance counts the keys that are kept.

    Args:
        size: how many keys each head keeps; an eighth more before some are dropped.
        recent: how many of them are the last ones; half unless given.

    """

    _keeps_all = False

    def __init__(self, size: int, recent: int | None = None) -> None:
        super().__init__()
        self.size = check_count("HeavyHitterCache", "size", size, 2)
        self.recent = size // 2 if recent is None else check_count("HeavyHitterCache", "recent", recent, 1, size)

    def _new_slot(self) -> Slot:
        return HeavyHitterSlot(self.size, self.recent)

    def _kind(self) -> str:
        return f"HeavyHitterCache({self.size}, {self.recent})"


class ByteSlot(Slot):
    """Keys and values as 8-bit integers, each row with a scale."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Any, Any]:
        keys, values = Int8Rows.quantise(k.detach()), Int8Rows.quantise(v.detach())
        kept = self._append(k=keys.values, v=values.values, k_scale=keys.scale, v_scale=values.scale)
        return Int8Rows(kept["k"], kept["k_scale"]), Int8Rows(kept["v"], kept["v_scale"])


class ByteCache(KVCache):
    """A ``KVCache`` in a quarter of the memory: keys and values as 8-bit integers, with one scale for each row.

    The kernels read the integers directly. A number is off by at most 1/254 of the largest in its row.

    Args:
        capacity: as in ``KVCache``.

    """

    def _new_slot(self) -> Slot:
        return ByteSlot(self.capacity)


def check_cache(where: str, cache: object) -> KVCache:
    """Return ``cache`` if it is one; raise ``TypeError`` that names what it is otherwise."""
    if isinstance(cache, KVCache):
        return cache
    if isinstance(cache, type) and issubclass(cache, KVCache):
        raise TypeError(f"{where}: cache is the class {cache.__name__}; give an instance, such as {cache.__name__}(…)")
    raise TypeError(f"{where}: cache must be a KVCache or one of its kinds, not {cache!r}")
