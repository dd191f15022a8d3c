"""Statistics over several processes and their gradients: cases of tests/test_parallel.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import limelight as ll
from limelight import parallel
from limelight.parallel.layouts import Layout
from parallel_attention import BOTH
from processes import close

ROWS = {"entropy": True, "mass": ll.First(3) | ll.Window(2), "distance": True, "max": True, "top": 7}
OTHERS = {"received": True, "profile": 11, "pool": (7, 13), "similarity": True}
WHOLE = ("profile", "pool", "similarity")


def _matrices(layout: Layout, grad: bool, **options: Any) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    q, k = torch.randn(2, 6, 47, 13, dtype=torch.double), torch.randn(2, 3, 47, 13, dtype=torch.double)
    for x in (q, k):
        dist.broadcast(x, 0)
    one = [x.clone().requires_grad_(grad) for x in (q, k)]
    own = [parallel.shard(x, layout).clone().requires_grad_(grad) for x in (q, k)]
    return ll.weights(*one, **options), parallel.weights(*own, layout=layout, **options), one, own


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": ll.Causal() & ll.Window(9), "sink": torch.arange(6) / 3.0, "bias": ll.ALiBi(6)},
    {"mask": ll.Padding([0, 29]), "temperature": 0.7},
    {"mask": ll.Dense(torch.arange(47 * 47).reshape(47, 47) % 5 > 1), "softcap": 3.0},
)


def statistics() -> None:
    """Every statistic, alone and together, with normalisers that are known or not."""
    for layout in BOTH:
        for options in OPTIONS:
            A, B, _, _ = _matrices(layout, False, **options)
            u, v = torch.randn(2, 6, 47, 5, dtype=torch.double), torch.randn(2, 3, 47, 5, dtype=torch.double)
            dist.broadcast(u, 0)
            dist.broadcast(v, 0)
            for asked in (ROWS, OTHERS, {**ROWS, **OTHERS}, {"entropy": True, **OTHERS}, {"pool": (5, 9, "max")}):
                for fresh in (True, False):
                    B = B.changed() if fresh else B
                    _compare_statistics(A.observe(**asked), B.observe(**asked), layout, f"{options} {list(asked)}")
            close(B @ parallel.shard(v, layout), parallel.shard(A @ v, layout), "A @ v", 1e-11)
            close(B.T @ parallel.shard(u, layout), parallel.shard(A.T @ u, layout), "A.T @ u", 1e-11)
            close(B.logsumexp(), parallel.shard(A.logsumexp(), layout, 2), "logsumexp", 1e-11)
            close(B[1, 2:5, 3:40:7, 1:], A[1, 2:5, 3:40:7, 1:], "a part", 1e-10)
            close(B[0, :, [5, 46, 0], [4, 2, 0]], A[0, :, [5, 46, 0], [4, 2, 0]], "pairs", 1e-10)
            window = {"queries": slice(11, 37), "keys": slice(5, 41)}
            close(B.pool(3, 4, **window), A.pool(3, 4, **window), "pool of a window", 1e-10)
            close(B.whole().received(), A.received(), "received, whole", 1e-10)
            assert ((B.cover(0.7) - parallel.shard(A.cover(0.7), layout, 2)).abs() <= 1).all()


def _compare_statistics(want: Any, got: Any, layout: Layout, what: str) -> None:
    for name in vars(want):
        x, y = getattr(want, name), getattr(got, name)
        if name == "top":
            assert torch.equal(y.indices, parallel.shard(x.indices, layout, 2)), f"{what}: keys of top"
            x, y = x.values, y.values
        close(y, x if name in WHOLE else parallel.shard(x, layout, 2), f"{what}: {name}", 1e-10)


def gradients_of_statistics() -> None:
    """The gradient of every statistic that has one, of its sum over all processes."""
    for layout in BOTH:
        for options in OPTIONS[1:3]:
            A, B, one, own = _matrices(layout, True, **options)
            for name, value in {**ROWS, **OTHERS}.items():
                x, y = getattr(A.observe(**{name: value}), name), getattr(B.observe(**{name: value}), name)
                x, y = (x.values, y.values) if name == "top" else (x, y)
                w = torch.sin(torch.arange(x.numel(), dtype=torch.double)).reshape(x.shape)
                wanted = torch.autograd.grad((x * w).sum(), one)
                w = w if name in WHOLE else parallel.shard(w, layout, 2)
                found = torch.autograd.grad((y * w).sum(), own)
                for a, b in zip(found, wanted, strict=True):
                    close(a, parallel.shard(b, layout), f"{options}: gradient of {name}", 1e-9)
            wanted = torch.autograd.grad(A[0, 1, 3:30, 2:].square().sum(), one)
            found = torch.autograd.grad(B[0, 1, 3:30, 2:].square().sum(), own)
            for a, b in zip(found, wanted, strict=True):
                close(a, parallel.shard(b, layout), "gradient of a part", 1e-9)
