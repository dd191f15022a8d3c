"""Attention over several processes: each holds a part of the queries, and of the keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from limelight.backends import Normalisers, RunningRows, rectangles
from limelight.backends.gradients import Gradients, Wanted, sink_weight
from limelight.core.checks import check_dropout
from limelight.core.problem import AttentionOptions, LoweredSpec, spec_of
from limelight.parallel.layouts import Layout, Run
from limelight.parallel.ring import ReturnPath, Ring, Tick, pack, packed_size, unpacked
from limelight.parallel.shards import Shards, cut_tensor, places_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LEARNED = Wanted._fields


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout: float = 0.0,
    group: Any = None,
    layout: Layout | None = None,
    key_layout: Layout | None = None,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """``softmax((softcap(scale · q kᵀ) + bias) / temperature) v`` of a sequence that several processes share.

    Every process calls it with its own queries, keys and values, and gets the output of its own queries. Masks and
    biases speak of positions in the whole sequence.

    Args:
        q: this process's queries ``(…, Hq, n, D)``; ``n`` may differ between processes, and may be 0.
        k: its keys ``(…, Hkv, m, D)``.
        v: its values ``(…, Hkv, m, Dv)``.
        dropout: share of weights that is removed; the same ones as in one process whose seed is that of rank 0.
        group: a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``; the default group unless given.
        layout: the positions that each process holds, ``Contiguous()`` unless given.
        key_layout: the same for keys and values, where it differs.
        **options: ``mask``, ``bias``, ``scale``, ``softcap``, ``sink`` and ``temperature``, as in
            ``limelight.attention``.

    Gradients of q, k and v are those of the sum of all processes' losses. Those of tensors that every process has
    (tables, slopes, sink, temperature) are each process's part, which add up to the whole, as the gradients of a
    model's parameters do in data-parallel training.

    """
    spec = spec_of("parallel.attention()", options)
    shards = Shards(
        "parallel.attention",
        q,
        k,
        v,
        spec,
        group=group,
        layout=layout,
        key_layout=key_layout,
        dropout=check_dropout(dropout),
    )
    assert shards.v is not None
    return shards.with_lead(attend(shards, shards.v)[0])


def attend(shards: Shards, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the output of the own queries and their log-sum-exp, differentiably."""
    apply: Any = _RingAttention.apply
    lowered = shards.lowered
    learned = (getattr(lowered, name) for name in _LEARNED)
    result: tuple[Tensor, Tensor] = apply(shards, shards.q, shards.k, v, *learned)
    return result


class _RingAttention(torch.autograd.Function):
    """One pass around the ring, and one more for the gradient; blocks of other processes are not kept."""

    @staticmethod
    def forward(ctx: Any, shards: Shards, q: Tensor, k: Tensor, v: Tensor, *learned: Any) -> tuple[Tensor, Tensor]:
        """Return the output and the log-sum-exp."""
        out, (lse, scaled), ring = ring_forward(shards, v)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, scaled, *(x if isinstance(x, Tensor) else None for x in learned))
        ctx.shards, ctx.ring = shards, ring
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        """Send keys and values around once more; their gradients go back to the processes that hold them."""
        q, k, v, out, lse, scaled, *_ = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        saved = Saved(q, k, v, out, Normalisers(lse, scaled), dout.contiguous(), dlse)
        wanted = Wanted(*ctx.needs_input_grad[4:])
        found = ring_backward(ctx.shards, ctx.ring, saved, wanted)
        gradients = (x if wants else None for x, wants in zip(found[3:], wanted, strict=True))
        dq, dk, dv = (x if x is None else x.to(y.dtype) for x, y in zip(found[:3], (q, k, v), strict=True))
        return None, dq, dk, dv, *gradients


class BlockWork(NamedTuple):
    """A block of keys and values, and the own queries to compute with it."""

    tick: Tick | None  # None for the process's own keys
    keys: Run | None  # None in a tick in which no block comes
    tensors: list[Tensor]
    rows: slice  # place of the queries in q
    at: slice | None  # place of the keys in k, if they are the process's own


class KeyValueBlocks:
    """Keys and values of this process in blocks, and those of the others as they arrive."""

    def __init__(self, shards: Shards, ring: Ring, tensors: list[Tensor]) -> None:
        self._shards, self._ring, self._tensors = shards, ring, tensors
        self.own = places_of(ring.blocks[shards.processes.rank])

    def shapes(self, run: Run, dtype: torch.dtype | None = None) -> list[tuple[list[int], torch.dtype]]:
        """The shapes and types of a block; all of one type if that is given."""
        return [([*x.shape[:2], run.length, x.shape[3]], dtype or x.dtype) for x in self._tensors]

    def size(self, run: Run) -> int:
        """The bytes of a block."""
        return packed_size(self.shapes(run))

    def _pack(self, b: int, out: Tensor) -> None:
        _, at = self.own[b]
        pack([x[:, :, at] for x in self._tensors], out)

    def schedule(self) -> Iterator[BlockWork]:
        """Yield all own queries with each block that arrives, and pieces of the own queries with all own keys.

        Blocks that arrive are short, because several are in memory. The own keys are there in full, and a piece of the
        queries that is computed with all of them is read and written once.
        """
        pieces, every = self._shards.pieces(max(self._ring.ticks, 1)), slice(0, self._shards.q.shape[2])
        for tick, b, message in self._ring.schedule(self._pack, self.size, len(pieces)):
            if tick is None:
                for run, at in places_of(self._shards.own_keys):
                    yield BlockWork(None, run, [x[:, :, at] for x in self._tensors], pieces[b], at)
            elif message is None:
                yield BlockWork(tick, None, [], every, None)
            else:
                run = self._ring.blocks[self._ring.source(tick.round)][b]
                yield BlockWork(tick, run, unpacked(message, self.shapes(run)), every, None)


def make_ring(shards: Shards, width: int) -> Ring:
    """Cut keys into blocks, and find which process needs which; ``width`` is the elements of a key and its value."""
    masked = shards.lowered.spans is not None or shards.lowered.mask is not None

    def sees(keys: Run) -> bool:
        return any(shards.sees(queries, keys) for queries in shards.own_queries)

    blocks = shards.key_blocks(width)
    if not masked:
        return Ring(shards.processes, blocks, lambda _: bool(shards.own_queries))
    return Ring(shards.processes, blocks, sees)


def ring_forward(shards: Shards, v: Tensor) -> tuple[Tensor, Normalisers, Ring]:
    """Compute the output and the normalisers of the own queries."""
    q, k = shards.q, shards.k
    B, Hq, n, _ = q.shape
    ring = make_ring(shards, q.shape[3] + v.shape[3])
    blocks = KeyValueBlocks(shards, ring, [k, v])
    running = RunningRows.empty((B, Hq, n), v.shape[3], shards.problem.compute_dtype)

    def compute_with(among: slice, keys: Run, k: Tensor, v: Tensor) -> None:
        for part, rows in shards.subproblems(keys, among):
            rectangles.accumulate(
                q[:, :, rows], k, v, part.spec, part.sizes(q, k), running.rows(rows), place=part.place
            )

    for x in blocks.schedule():
        if x.keys is not None:
            compute_with(x.rows, x.keys, *x.tensors)
    running.join_sink(shards.lowered)
    return running.output(shards.dropout).to(v.dtype), running.normalisers(), ring


class Saved(NamedTuple):
    """The tensors that a gradient is computed from."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    normalisers: Normalisers
    dout: Tensor
    dlse: Tensor | None


class Sums:
    """Gradients on one process: of its q, k and v, and its part of those of tensors that all processes share."""

    def __init__(self, shards: Shards, saved: Saved, wanted: Wanted) -> None:
        self._shards, self._saved, self._wanted = shards, saved, wanted
        dtype = shards.problem.compute_dtype
        self.q, self.k, self.v = (rectangles.zeros_like(x, dtype) for x in (saved.q, saved.k, saved.v))
        lowered = shards.lowered
        self.learned = {
            name: torch.zeros_like(getattr(lowered, name), dtype=dtype)
            for name, wants in zip(_LEARNED, wanted, strict=True)
            if wants
        }

    def of_keys(self, at: slice) -> list[Tensor]:
        """The gradients of some of the process's own keys and values."""
        return [self.k[:, :, at], self.v[:, :, at]]

    def add_block(self, among: slice, keys: Run, k: Tensor, v: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Add the gradients from a block of keys and values and some rows of q; those of the block to dk and dv."""
        q, _, _, out, (lse, scaled), dout, dlse = self._saved
        for part, rows in self._shards.subproblems(keys, among):
            found = rectangles.backward(
                dout[:, :, rows],
                None if dlse is None else dlse[:, :, rows],
                q[:, :, rows],
                k,
                v,
                out[:, :, rows],
                Normalisers(lse[:, :, rows], scaled[:, :, :, rows]),
                part.spec,
                self._wanted._replace(sink=False),
                place=part.place,
                into=(self.q[:, :, rows], dk, dv),
            )
            self._add_learned(part.queries, keys, found)

    def _add_learned(self, queries: Run, keys: Run, found: Gradients) -> None:
        """Add the gradients of slopes, offsets, bias and temperature from one rectangle."""
        for name, total in self.learned.items():
            part = getattr(found, name)
            if name == "offsets":
                first = self._shards.M - keys.end + queries.begin
                total[:, first : first + part.shape[1]] += part
            elif name == "bias":
                cut_tensor(total, queries, keys).add_(part)
            elif name != "sink":
                total += part

    def results(self) -> list[Tensor | None]:
        """The gradients of q, k, v, slopes, offsets, bias, sink and temperature; None where not wanted."""
        learned = (self.learned.get(name) for name in _LEARNED)
        like = (getattr(self._shards.lowered, name) for name in _LEARNED)
        typed = [None if x is None else x.to(y.dtype) for x, y in zip(learned, like, strict=True)]
        return [self.q, self.k, self.v, *typed]


def ring_backward(shards: Shards, ring: Ring, saved: Saved, wanted: Wanted) -> list[Tensor | None]:
    """Compute the gradients of q, k, v, slopes, offsets, bias, sink and temperature; None where not wanted."""
    sums = Sums(shards, saved, wanted)
    dtype = shards.problem.compute_dtype
    blocks = KeyValueBlocks(shards, ring, [saved.k, saved.v])

    def take(b: int, message: Tensor) -> None:
        run, at = blocks.own[b]
        for total, x in zip(sums.of_keys(at), unpacked(message, blocks.shapes(run, dtype)), strict=True):
            total += x

    back = ReturnPath(ring, lambda run: packed_size(blocks.shapes(run, dtype)), take)
    for tick, keys, tensors, among, at in blocks.schedule():
        if tick is None:
            assert keys is not None
            assert at is not None
            sums.add_block(among, keys, *tensors, *sums.of_keys(at))
        elif keys is None:
            back.step(tick, None)
        else:
            message = ring.empty_message(packed_size(blocks.shapes(keys, dtype))).zero_()
            sums.add_block(among, keys, *tensors, *unpacked(message, blocks.shapes(keys, dtype)))
            back.step(tick, message)
    back.finish()
    if wanted.sink or wanted.temperature:
        _add_sink(shards.lowered, saved, sums.learned)
    return sums.results()


def _add_sink(lowered: LoweredSpec, saved: Saved, sums: dict[str, Tensor]) -> None:
    """Add the gradient of the sink's logit, which has the weight ``p`` and no value, ``-p δ``."""
    if lowered.sink is None:
        return
    delta = (saved.dout.double() * saved.out.double()).sum(-1)
    if saved.dlse is not None:
        delta = delta - saved.dlse
    temperature = float(lowered.temperature)
    logit = lowered.sink.detach().double() / temperature
    weight = sink_weight(saved.normalisers, lowered)
    gradient = -(weight * delta).sum((0, 2))
    if "sink" in sums:
        sums["sink"] += (gradient / temperature).to(sums["sink"].dtype)
    if "temperature" in sums:
        sums["temperature"] -= ((gradient * logit).sum() / temperature).to(sums["temperature"].dtype)
