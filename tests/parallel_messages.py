"""Messages of the ring: which are sent, that they are hidden behind computing, and that work is balanced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import limelight as ll
from limelight import parallel
from limelight.backends import rectangles
from limelight.parallel import shards
from limelight.parallel.group import Exchange, Processes
from limelight.parallel.layouts import Zigzag
from processes import close


def balance() -> None:
    """Causal work under Zigzag is the same on every process within 10%."""
    N = 1003
    found = parallel.weights(
        *(parallel.shard(torch.randn(1, 1, N, 4), Zigzag()) for _ in "qk"), mask=ll.Causal(), layout=Zigzag()
    )._shards
    spans = found.lowered.spans
    assert spans is not None
    seen = (spans[0, :, 0, 1] - spans[0, :, 0, 0]).double()
    work = torch.stack([sum((seen[r.begin : r.end].sum() for r in runs), torch.zeros(())) for runs in found.query_runs])
    assert work.max() <= 1.1 * work.mean(), work


def no_messages_without_need() -> None:
    """Blocks that no process needs are not sent: of packed documents on one process each, none is."""
    size, sent = dist.get_world_size(), []
    n = 16
    q = torch.randn(1, 2, n * size, 4)
    dist.broadcast(q, 0)
    ids = torch.arange(n * size) // n
    own = parallel.shard(q)
    real = Processes.exchange

    def counted(self: Any, send: Any, to: int, receive: Any, source: int) -> Any:
        sent.append(send is not None)
        return real(self, send, to, receive, source)

    Processes.exchange = counted  # type: ignore[method-assign]
    try:
        got = parallel.attention(own, own, own, mask=ll.Documents(ids))
        assert not any(sent)
        parallel.attention(own, own, own, mask=ll.Causal())
        assert sum(sent) == size - 1 - dist.get_rank()
    finally:
        Processes.exchange = real  # type: ignore[method-assign]
    close(got, parallel.shard(ll.attention(q, q, q, mask=ll.Documents(ids))), "documents", 1e-5)


class _Link(Processes):
    """Processes on a clock of their own: a kernel takes a unit a query–key pair, a message ``delay`` units of the link.

    Nothing here depends on how fast the machine is.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.now = self._free = 0.0
        self._delay = delay
        self.starts: list[float] = []  # of ticks
        self.received = 0

    def exchange(self, send: Tensor | None, to: int, receive: Tensor | None, source: int) -> Exchange:
        self.starts.append(self.now)
        found = super().exchange(send, to, receive, source)
        if receive is not None:
            self.received += 1
            self._free = ready = max(self._free, self.now) + self._delay
            wait = found.receive

            def receive_at() -> Tensor | None:
                self.now = max(self.now, ready)
                return wait()

            found.receive = receive_at  # type: ignore[method-assign]
        return found

    def attend(self, x: Tensor, **options: Any) -> None:
        """Compute with blocks of 16 keys, and count the pairs that are allowed."""
        real = rectangles.accumulate

        def counted(*args: Any, **kwargs: Any) -> Any:
            spans, sizes = args[3].spans, args[4]
            pairs = sizes.N * sizes.M if spans is None else float((spans[..., 1] - spans[..., 0]).sum())
            self.now += pairs
            return real(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rectangles, "accumulate", counted)
            patch.setattr(shards, "_BLOCK_BYTES", 1)
            patch.setattr(shards, "_SHORTEST", 16)
            patch.setattr(shards, "_TILE", 1)
            parallel.attention(x, x, x, group=self, **options)


def communication_is_hidden() -> None:
    """The time of the ring is the larger of computing and sending, and not their sum."""
    x = torch.randn(1, 1, 256, 4)
    free = _Link(0.0)
    free.attend(x)
    compute, blocks = free.now, free.received
    assert compute == 256 * 256 * dist.get_world_size()
    assert blocks == 16 * (dist.get_world_size() - 1)
    for share in (0.3, 1.0, 3.0):
        delay = share * compute / blocks
        link = _Link(delay)
        link.attend(x)
        larger = max(compute, blocks * delay)
        assert larger <= link.now <= 1.05 * larger + 2 * (delay + compute / blocks), (share, link.now / compute)


def ticks_are_balanced() -> None:
    """Under Zigzag every process is at the same tick at the same time, so that none waits for a block."""
    link = _Link(0.0)
    link.attend(
        parallel.shard(torch.randn(1, 1, 512 * dist.get_world_size(), 4), Zigzag()), mask=ll.Causal(), layout=Zigzag()
    )
    every = link.gather(torch.tensor([*link.starts, link.now], dtype=torch.double))
    apart = every.max(0).values - every.min(0).values
    assert apart.max() <= 3 * link.now / len(link.starts), apart / link.now
