"""Decoding with a cache that is spread over processes: each attends to its part, and a step merges the results.

Every process has the same new tokens. A step sends one small message: each process's running softmax, which all
merge in the order of the ranks, so that all have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import RunningRows, rectangles
from limelight.core.problem import AttentionOptions, spec_of
from limelight.parallel.agreement import agree
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Contiguous, Layout, Run, Runs
from limelight.parallel.shards import Shards, places_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SpreadCache:
    """Keys and values of one layer, each on one of several processes.

    New tokens go to the process that holds the fewest. For inference: nothing here has a gradient.

    Args:
        k: this process's keys of a text, ``(…, Hkv, m, D)``.
        v: its values, ``(…, Hkv, m, Dv)``.
        group: a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``; the default group unless given.
        layout: the positions that each process holds, ``Contiguous()`` unless given.

    """

    def __init__(self, k: Tensor, v: Tensor, *, group: Any = None, layout: Layout | None = None) -> None:
        self.processes = Processes.of(group)
        if k.shape[:-1] != v.shape[:-1]:
            raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in an axis before the last")
        same = {
            "the shape of k without its length": (*k.shape[:-2], k.shape[-1]),
            "the width of v": v.shape[-1],
            "the types of k and v": (k.dtype, v.dtype),
        }
        sizes = agree(self.processes, "parallel.SpreadCache", same, {"keys": k.shape[-2]})["keys"]
        self.runs: Runs = (layout or Contiguous()).runs(sizes)
        self._k, self._v = k.detach(), v.detach()
        self._length = k.shape[-2]

    @property
    def count(self) -> int:
        """The number of tokens on all processes."""
        return sum(self._sizes())

    @property
    def own(self) -> int:
        """The number of tokens on this process."""
        return self._length

    def _sizes(self) -> list[int]:
        return [sum(run.length for run in runs) for runs in self.runs]

    def extend(self, k: Tensor, v: Tensor) -> None:
        """Append new tokens, ``k (…, Hkv, n, D)`` and ``v (…, Hkv, n, Dv)``, the same on every process.

        The process with the fewest tokens keeps them.
        """
        sizes, n, first = self._sizes(), k.shape[-2], self.count
        keeper = sizes.index(min(sizes))
        last = self.runs[keeper][-1] if self.runs[keeper] else None
        if last is not None and last.end == first:
            self.runs[keeper][-1] = Run(last.begin, first + n)
        else:
            self.runs[keeper].append(Run(first, first + n))
        if keeper == self.processes.rank:
            self._k, self._v = (self._append(x, new) for x, new in ((self._k, k), (self._v, v)))
            self._length += n

    def _append(self, x: Tensor, new: Tensor) -> Tensor:
        """Append to the stored tokens, in a buffer that doubles when it is full."""
        end = self._length + new.shape[-2]
        if end > x.shape[-2]:
            room = x.new_empty(*x.shape[:-2], max(64, 2 * end), x.shape[-1])
            room[..., : self._length, :] = x[..., : self._length, :]
            x = room
        x[..., self._length : end, :] = new
        return x

    def attend(self, q: Tensor, **options: Unpack[AttentionOptions]) -> Tensor:
        """Attend from the last tokens ``q (…, Hq, N, D)``, the same on every process, to all keys; all get the output.

        The options are ``mask``, ``bias``, ``scale``, ``softcap``, ``sink`` and ``temperature`` of
        ``limelight.attention``.
        """
        k, v = self._k[..., : self._length, :], self._v[..., : self._length, :]
        spec = spec_of("SpreadCache.attend()", options)
        shards = Shards(
            "decode", q, k, v, spec, group=self.processes, shared_queries=True, key_runs=[list(r) for r in self.runs]
        )
        with torch.no_grad():
            return shards.with_lead(_step(shards))


def _step(shards: Shards) -> Tensor:
    """Attend to this process's keys, and merge the running softmax of all processes."""
    q, k, v = shards.q, shards.k, shards.v
    assert v is not None
    B, H, N, _ = q.shape
    dtype, width = shards.problem.compute_dtype, v.shape[3]
    own, whole = (RunningRows.empty((B, H, N), width, dtype) for _ in range(2))
    for keys, at in places_of(shards.own_keys):
        for part, rows in shards.subproblems(keys):
            rectangles.accumulate(
                q[:, :, rows],
                k[:, :, at],
                v[:, :, at],
                part.spec,
                part.sizes(q, k),
                own.rows(rows),
                place=part.place,
            )
    every = shards.processes.gather(torch.cat([own.m[..., None], own.sum[..., None], own.o], -1))
    for message in every.unbind(0):
        m, total, o = message.split([1, 1, width], -1)
        whole.join(RunningRows(m[..., 0], total[..., 0], o))
    whole.join_sink(shards.lowered)
    return whole.output().to(v.dtype)
