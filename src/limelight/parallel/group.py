"""The processes of a group: collectives and messages, with errors that name the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Processes:
    """The processes of a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``; the default group where None."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "limelight.parallel needs a process group: start the program with torchrun and call "
                "torch.distributed.init_process_group('gloo') first"
            )
        if hasattr(group, "mesh_dim_names") or hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(f"the mesh has {group.ndim} dimensions; give one of them, such as mesh['sequence']")
            group = group.get_group()
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"process {dist.get_rank()} is not in the group that was given")
        self.device = torch.device("cpu") if "gloo" in dist.get_backend(group) else torch.device("cuda")

    @classmethod
    def of(cls, group: Any) -> Processes:
        """Return ``group`` as processes."""
        return group if isinstance(group, cls) else cls(group)

    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all processes, ``(size, …)``, which have one shape."""
        x = x.to(self.device).contiguous()
        out = x.new_empty(self.size, *x.shape)
        with self.explained("gathering"):
            dist.all_gather(list(out.unbind(0)), x, group=self.group)
        return out

    def gather_parts(self, x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
        """Return the tensors of all processes, whose lengths along ``dim`` are ``sizes``."""
        most = max(sizes, default=0)
        padded = x.new_zeros(*x.shape[: dim % x.ndim], most, *x.shape[dim % x.ndim + 1 :])
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        return [part.narrow(dim, 0, n) for part, n in zip(self.gather(padded), sizes, strict=True)]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the processes, the same bits on each."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def max(self, x: Tensor) -> Tensor:
        """Return the largest over the processes."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def _reduce(self, x: Tensor, how: Any) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        with self.explained("a reduction"):
            dist.all_reduce(x, how, group=self.group)
        return x

    def exchange(self, send: Tensor | None, to: int, receive: Tensor | None, source: int) -> Exchange:
        """Begin to send one tensor and to receive another, either of which may be absent."""
        operations = []
        with self.explained("sending"):
            if send is not None:
                operations.append(dist.P2POp(dist.isend, send, self._global(to), self.group))
            if receive is not None:
                operations.append(dist.P2POp(dist.irecv, receive, self._global(source), self.group))
            works = dist.batch_isend_irecv(operations) if operations else []
        return Exchange(self, works, send, to, receive, source)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @contextmanager
    def explained(self, doing: str, other: int | None = None) -> Iterator[None]:
        """Turn a failure of torch.distributed into an error that names the process that did not answer."""
        try:
            yield
        except RuntimeError as error:
            who = "another process" if other is None else f"rank {other}"
            raise RuntimeError(
                f"limelight.parallel, rank {self.rank} of {self.size}: {who} did not answer while {doing}. It has "
                "died, has raised an error (look at its output), or took longer than the timeout of the group "
                f"(init_process_group(timeout=…)). torch.distributed says: {error}"
            ) from error


class Exchange:
    """A message being sent and one being received; the received one can be used before the other has left."""

    def __init__(
        self,
        processes: Processes,
        works: Sequence[Any],
        send: Tensor | None,
        to: int,
        receive: Tensor | None,
        source: int,
    ) -> None:
        self._processes = processes
        self._sends = list(works[: send is not None])
        self._receives = list(works[send is not None :])
        self._sent, self._to = send, to  # the memory has to live until it is sent
        self._received, self._source = receive, source

    def receive(self) -> Tensor | None:
        """Wait for the message that comes in, and return it."""
        self._wait(self._receives, self._source)
        received, self._received = self._received, None
        return received

    def finish(self) -> None:
        """Wait until everything has arrived, here and at the other process."""
        self._wait(self._receives, self._source)
        self._wait(self._sends, self._to)
        self._sent = self._received = None

    def _wait(self, works: list[Any], other: int) -> None:
        with self._processes.explained("exchanging keys and values", other):
            while works:
                works.pop(0).wait()
