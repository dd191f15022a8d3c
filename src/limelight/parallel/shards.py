"""One attention problem over several processes: who holds what, and the part of the problem in a rectangle.

Masks and biases use positions in the whole sequence, and are lowered once for all of them. A rectangle is a run of
queries times a run of keys. It gets its part of the lowered form: spans are clipped to its keys, offsets by distance
and tensors are cut, and its ``Place`` tells where it lies, for distances and for dropout's random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends.rectangles import Place
from limelight.core.dropout import new_seed
from limelight.core.masks import Lowered
from limelight.core.problem import AttentionSpec, LoweredSpec, Problem, Sizes, autocast
from limelight.core.spans import clip
from limelight.parallel.agreement import agree
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Contiguous, Layout, Run, Runs

_BLOCK_BYTES = 2**21  # bytes of keys and values in a block; four blocks are in memory
_SHORTEST = 256  # keys in a block, at least
_TILE = 48  # rows that the kernels compute together, or a multiple of them


class Subproblem(NamedTuple):
    """A run of queries, a run of keys, and the part of the specification for them."""

    queries: Run
    keys: Run
    spec: LoweredSpec
    place: Place

    def sizes(self, q: Tensor, k: Tensor) -> Sizes:
        """The sizes of the part."""
        return Sizes(q.shape[0], q.shape[1], k.shape[1], self.queries.length, self.keys.length, q.shape[3])


class Shards:
    """The problem, its lowered form, and the runs of queries and keys of every process.

    ``q (B, Hq, n, D)`` and ``k (B, Hkv, m, D)`` are this process's; ``problem`` has the shape of the whole and holds
    no queries and keys.
    """

    def __init__(
        self,
        call: str,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        spec: AttentionSpec,
        *,
        group: Any = None,
        layout: Layout | None = None,
        key_layout: Layout | None = None,
        dropout: float = 0.0,
        shared_queries: bool = False,
        key_runs: Runs | None = None,
    ) -> None:
        self.processes = Processes.of(group)
        self.layout = layout or Contiguous()
        self.key_layout = key_layout or self.layout
        self.shared_queries = shared_queries
        self.dropout = dropout
        failed: Exception | None = None
        local: Problem | None = None
        try:
            q, k = autocast(q), autocast(k)
            if isinstance(spec.scale, Tensor) and spec.scale.requires_grad:
                q, spec = q * spec.scale.to(q.dtype), spec._replace(scale=1.0)
            local = Problem(q, k, AttentionSpec(scale=spec.scale))
            self.v = None if v is None else local.check_values(v)
        except (TypeError, ValueError) as error:
            failed = error
        seed = int(new_seed()) if dropout else 0
        if key_runs is None:
            found = agree(self.processes, call, *self._message(local, spec, dropout, seed), failed)
        elif failed is not None:
            raise failed
        else:  # the caller knows the sizes of all processes
            keys = [sum(run.length for run in runs) for runs in key_runs]
            found = {"queries": [q.shape[-2]], "keys": keys, "seed": [seed]}
        assert local is not None
        self.local = local  # queries and keys of this process, checked; without mask and bias
        self.q, self.k, self._shape = local.q, local.k, q.shape
        self._place_runs(found["queries"], found["keys"], key_runs)
        self.problem = _shape_of_whole(q, k, self.N, self.M, spec)
        self.seed = torch.tensor(found["seed"][0]) if dropout else None
        self.lowered = self.problem.lower(dropout, self.seed)

    def _place_runs(self, queries: list[int], keys: list[int], key_runs: Runs | None) -> None:
        """Find which positions of the whole sequence every process holds, from how many queries and keys it has."""
        queries = queries[:1] if self.shared_queries else queries
        self.N, self.M = sum(queries), sum(keys)
        self.query_runs = self.layout.runs(queries)
        if self.shared_queries:
            self.query_runs = self.query_runs * self.processes.size
        self.key_runs = self.key_layout.runs(keys) if key_runs is None else key_runs

    def _message(
        self, p: Problem | None, spec: AttentionSpec, dropout: float, seed: int
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """The values that every process must share, and those that each has of its own."""
        if p is None:
            return {}, {}
        _, Hq, Hkv, N, M, D = p.sizes
        learned = [x for x in (spec.sink, spec.temperature, *(spec.bias.tensors() if spec.bias else ())) if _needs(x)]
        same = {
            "the batch axes": tuple(p.lead),
            "the heads of q": Hq,
            "the heads of k": Hkv,
            "the width of q and k": D,
            "the width of v": -1 if self.v is None else self.v.shape[3],
            "the type of q and k": p.q.dtype,
            "the type of v": None if self.v is None else self.v.dtype,
            "mask": spec.mask,
            "bias": spec.bias,
            "softcap": spec.softcap,
            "scale": float(p.scale),
            "temperature": float(torch.as_tensor(spec.temperature).detach()),
            "sink": spec.sink is not None,
            "dropout": dropout,
            "layout": (self.layout, self.key_layout),
            "the number of queries": N if self.shared_queries else 0,
            "what requires grad": int(torch.is_grad_enabled())
            * (1 * _needs(p.q) + 2 * _needs(p.k) + 4 * _needs(self.v) + 8 * len(learned)),
        }
        return same, {"queries": N, "keys": M, "seed": seed}

    @property
    def own_queries(self) -> list[Run]:
        """The runs of queries of this process."""
        return self.query_runs[self.processes.rank]

    @property
    def own_keys(self) -> list[Run]:
        """The runs of keys of this process."""
        return self.key_runs[self.processes.rank]

    @property
    def lead(self) -> tuple[int, ...]:
        """The shape of the batch axes."""
        return tuple(self._shape[:-3])

    def with_lead(self, x: Tensor) -> Tensor:
        """View ``(B, …)`` with the batch axes of the user's tensors."""
        return x if len(self._shape) == 4 else x.reshape(*self.lead, *x.shape[1:])

    def key_blocks(self, width: int) -> list[list[Run]]:
        """Cut the keys of every process into blocks; ``width`` is the elements of a key and its value."""
        bytes_per_key = self.k.shape[0] * self.k.shape[1] * width * self.k.itemsize
        most = max(_SHORTEST, _BLOCK_BYTES // max(bytes_per_key, 1) // 64 * 64)
        return [[part for run in runs for part in run.split(most)] for runs in self.key_runs]

    def sees(self, queries: Run, keys: Run) -> bool:
        """Return False where no query may attend to any of the keys."""
        spans, dense = self.lowered.spans, self.lowered.mask
        if spans is not None:
            begin, end = spans[:, queries.begin : queries.end].unbind(-1)
            if not bool(((begin < end) & (begin < keys.end) & (end > keys.begin)).any()):
                return False
        return dense is None or bool(cut_tensor(dense, queries, keys).any())

    def subproblems(self, keys: Run, among: slice | None = None) -> Iterator[tuple[Subproblem, slice]]:
        """Yield the rectangles in which own queries may attend to some of the keys, and their rows' place in ``q``.

        Only rows in ``among``, where that is given.
        """
        if 0 in self.q.shape[:2]:
            return
        for run, rows in places_of(self.own_queries):
            begin, end = (rows.start, rows.stop) if among is None else (among.start, among.stop)
            first = run.begin - rows.start  # position minus row, for the rows of this run
            some = Run(first + max(begin, rows.start), first + min(end, rows.stop))
            seen = self._queries_that_see(some, keys) if some.length > 0 else some
            part = self.subproblem(seen, keys) if seen.length > 0 else None
            if part is not None:
                yield part, slice(seen.begin - first, seen.end - first)

    def pieces(self, count: int) -> list[slice]:
        """The own queries in about so many pieces of whole tiles."""
        n = self.q.shape[2]
        ends = sorted({n * i // count // _TILE * _TILE for i in range(1, count)} | {0, n})
        return [slice(a, b) for a, b in pairwise(ends)]

    def _queries_that_see(self, queries: Run, keys: Run) -> Run:
        """Return the run from the first to the last query whose spans include some of the keys."""
        if self.lowered.spans is None:
            return queries
        begin, end = self.lowered.spans[:, queries.begin : queries.end].unbind(-1)
        sees = ((begin < end) & (begin < keys.end) & (end > keys.begin)).any(-1).any(0).nonzero()
        if not len(sees):
            return Run(queries.begin, queries.begin)
        return Run(queries.begin + int(sees[0]), queries.begin + int(sees[-1]) + 1)

    def subproblem(self, queries: Run, keys: Run) -> Subproblem | None:
        """Return a rectangle without its sink, or None where the mask allows nothing in it."""
        allowed = cut_mask(Lowered(self.lowered.spans, self.lowered.mask), queries, keys)
        if allowed is None:
            return None
        first = self.M - keys.end + queries.begin  # of the offsets by distance
        whole = self.lowered
        spec = whole._replace(
            spans=allowed.spans,
            mask=allowed.dense,
            offsets=None
            if whole.offsets is None
            else whole.offsets[:, first : first + queries.length + keys.length - 1],
            bias=None if whole.bias is None else cut_tensor(whole.bias, queries, keys),
            sink=None,
        )
        return Subproblem(queries, keys, spec, self.place(queries, keys))

    def place(self, queries: Run, keys: Run) -> Place:
        """The place of a rectangle in the whole matrix."""
        return Place(self.M - self.N + queries.end - keys.end, queries.begin, keys.begin)


def _needs(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _shape_of_whole(q: Tensor, k: Tensor, N: int, M: int, spec: AttentionSpec) -> Problem:
    """Make the whole problem, with queries and keys that have its shape and no memory."""
    empty = q.detach().new_zeros(1)
    shape, key_shape = (*q.shape[:-2], N, q.shape[-1]), (*k.shape[:-2], M, k.shape[-1])
    return Problem(empty.expand(shape), empty.expand(key_shape), spec)


def places_of(runs: list[Run]) -> list[tuple[Run, slice]]:
    """Runs that lie one after the other in a tensor, and where."""
    found, first = [], 0
    for run in runs:
        found.append((run, slice(first, first + run.length)))
        first += run.length
    return found


def cut_tensor(x: Tensor, queries: Run, keys: Run) -> Tensor:
    """The part of a tensor ``(…, N or 1, M or 1)`` that a rectangle covers."""
    x = x if x.shape[-2] == 1 else x[..., queries.begin : queries.end, :]
    return x if x.shape[-1] == 1 else x[..., keys.begin : keys.end]


def cut_mask(whole: Lowered, queries: Run, keys: Run) -> Lowered | None:
    """The part of a mask in a rectangle, or None where nothing is allowed."""
    spans, dense = whole
    if spans is not None:
        spans = clip(spans[:, queries.begin : queries.end], keys.begin, keys.end)
        begin, end = spans.unbind(-1)
        if not bool((begin < end).any()):
            return None
        if spans.shape[2] == 1 and not bool(begin.any()) and bool((end == keys.length).all()):
            spans = None
    if dense is not None:
        dense = cut_tensor(dense, queries, keys)
        if not bool(dense.any()):
            return None
    return Lowered(spans, dense)
