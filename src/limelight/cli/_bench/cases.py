"""The cases that are measured, each with the ratio to SDPA and the share of the machine's limit that it is to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import limelight as ll
from limelight import backends
from limelight.cli._bench.machine import cpu_name
from limelight.core.masks import Mask

Sizes = tuple[int, int, int, int, int, int]  # B, Hq, Hkv, N, M, D


@dataclass
class Options:
    """The options of limelight and of SDPA, and the tensors with gradients in addition to q, k and v."""

    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    learned: list[Tensor] = field(default_factory=list)


@dataclass
class Case:
    """One problem; ``options`` makes its masks and biases, which may be large, when it is measured."""

    name: str
    sizes: Sizes
    options: Callable[[], Options] = Options
    dtype: torch.dtype = torch.float32
    scores: int | None = None  # how many of the scores of a head are needed; all unless given
    peers: bool = False  # the peers can compute it too
    sparse: Mask | None = None  # a pattern that FlexAttention can compute, too, with a mask of blocks
    causal: bool = False
    goal: float = 1.0  # the ratio to SDPA to reach
    share: float | None = None  # the share of the machine's limit to reach
    training: bool = False  # measure forward and backward
    limited: bool = True  # by arithmetic or bandwidth; False where overhead is the cost

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v."""
        B, Hq, Hkv, N, M, D = self.sizes
        g = torch.Generator().manual_seed(0)
        shapes = (B, Hq, N, D), (B, Hkv, M, D), (B, Hkv, M, D)
        q, k, v = (torch.randn(s, generator=g).to(self.dtype) for s in shapes)
        return q, k, v

    def pairs(self) -> int:
        """Return how many pairs of a query and a key there are, over all heads."""
        B, Hq, _, N, M, _ = self.sizes
        return B * Hq * (N * M if self.scores is None else self.scores)

    def flops(self) -> float:
        """Return the floating-point operations of the products: two forward, five more backward."""
        products = 7 if self.training else 2
        return products * 2.0 * self.sizes[-1] * self.pairs()

    @property
    def is_decode(self) -> bool:
        """True for one query, whose cost is that of reading K and V."""
        return self.sizes[3] == 1

    def bytes(self) -> float:
        """Return the size of K and V."""
        B, _, Hkv, _, M, D = self.sizes
        return 2.0 * B * Hkv * M * D * self.dtype.itemsize


def forward_cases() -> list[Case]:
    """Return the cases of the forward pass."""
    n = 2048
    square, small = (1, 8, 8, n, n, 64), (1, 8, 8, 1024, 1024, 64)
    half = 1.25 if _float16_is_fast() else 1.9
    return [
        Case("full, n=1024", small, goal=1.25, share=0.85, peers=True),
        Case("full, n=2048", square, goal=1.25, share=0.85),
        Case("full, width 128, n=1024", (1, 8, 8, 1024, 1024, 128), share=0.9),
        Case("causal, n=2048", square, _causal, scores=_below(n), causal=True, goal=1.5, share=0.82, peers=True),
        _window(8192),
        _window(16384),
        Case("half padded, n=2048", square, lambda: _padded(n), scores=n * n // 2, goal=2.5),
        Case("grouped 8/2, n=2048", (1, 8, 2, n, n, 64), _grouped, goal=1.3),
        Case("bfloat16, n=1024", small, dtype=torch.bfloat16, goal=1.3),
        Case("float16, n=1024", small, dtype=torch.float16, goal=half),
        Case("float64, n=1024", small, dtype=torch.float64, goal=1.5),
        Case("ALiBi, n=2048", square, lambda: _alibi(n), goal=1.6),
        Case("batch 8 × 12 heads, n=128", (8, 12, 12, 128, 128, 64), goal=1.5),
        *sparse_cases(),
        *tiny_cases(),
    ]


def sparse_cases() -> list[Case]:
    """Return sparse patterns of about 5% of the pairs, after a window of that density with which they compare."""
    n = 8192

    def random(block: int, count: int) -> Mask:
        return ll.Blocks(ll.RandomBlocks(block, count).layout(n), block)

    masks: dict[str, Mask] = {
        "window": ll.Window(205),
        "strided": ll.Strided(20),
        "dilated": ll.Dilated(212, 4),
        "causal, window and stride": ll.Causal() & (ll.Window(320) | ll.Strided(50)),
        "blocks of 32": random(32, 13),
        "blocks of 64": random(64, 6),
        "blocks of 128": random(128, 3),
    }

    def case(name: str, mask: Mask) -> Case:
        spans = mask.lower(n, n).spans
        assert spans is not None
        pairs = int((spans[..., 1] - spans[..., 0]).sum())
        sizes: Sizes = (1, 1, 1, n, n, 64)
        return Case(f"sparse: {name}, n={n}", sizes, lambda: _masked(mask, n), scores=pairs, goal=10, sparse=mask)

    return [case(name, mask) for name, mask in masks.items()]


def tiny_cases() -> list[Case]:
    """Return calls so small that the overhead around the kernels is the cost."""
    tiny = (1, 8, 8, 16, 16, 64)
    lengths = torch.tensor([37, 64, 11, 50])
    padded = torch.arange(64) < lengths[:, None, None, None]  # (batch, 1, 1, keys)
    return [
        Case("tiny: 12 heads, 1 query, 16 keys", (1, 12, 12, 1, 16, 64), limited=False),
        Case("tiny: 8 heads, 16 tokens", tiny, limited=False),
        Case("tiny: 8 heads, 16 tokens, causal", tiny, _causal, limited=False),
        Case(
            "tiny: 8 heads, 16 tokens, causal window",
            tiny,
            lambda: _masked(ll.Causal() & ll.Window(4), 16),
            limited=False,
        ),
        Case(
            "tiny: decode step with padding",
            (4, 8, 8, 1, 64, 64),
            lambda: Options({"mask": ll.Padding(lengths)}, {"attn_mask": padded}),
            limited=False,
        ),
        Case("tiny: forward and backward", tiny, training=True, goal=1 / 1.2, limited=False),
    ]


def _float16_is_fast() -> bool:
    """Return True where SDPA has a fast path: the CPU computes with float16, or MKL converts it, on Intel's AVX-512."""
    converted = "Intel" in cpu_name() and "avx512" in backends.available_isas()
    return converted or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _below(n: int, left: int | None = None) -> int:
    """Return how many keys the queries of a causal mask have, each at most ``left`` before itself."""
    left = n if left is None else left
    return sum(min(i, left) + 1 for i in range(n))


def _causal() -> Options:
    return Options({"mask": ll.Causal()}, {"is_causal": True})


def _grouped() -> Options:
    return Options({}, {"enable_gqa": True})


def _alibi(n: int) -> Options:
    return Options({"bias": ll.ALiBi(8)}, {"attn_mask": ll.ALiBi(8).dense(n)[None]})


def _masked(mask: Mask, n: int) -> Options:
    return Options({"mask": mask}, {"attn_mask": mask.dense(n)})


def _padded(n: int) -> Options:
    allowed = torch.zeros(1, 1, 1, n, dtype=torch.bool)
    allowed[..., : n // 2] = True
    return Options({"mask": ll.Padding(n // 2)}, {"attn_mask": allowed})


def _window(n: int) -> Case:
    return Case(
        f"window 128, n={n}",
        (1, 8, 8, n, n, 64),
        lambda: _masked(ll.Window(128), n),
        scores=2 * _below(n, 128) - n,
        goal=20,
        share=0.7,
    )


def decode_cases() -> list[Case]:
    """Return the cases of one new token and a cache: never slower than SDPA, and near the machine's limit from 1 MB."""

    def case(heads: int, kv_heads: int, keys: int, width: int, dtype: torch.dtype = torch.float32) -> Case:
        kind = "" if dtype == torch.float32 else f", {str(dtype).removeprefix('torch.')}"
        found = Case(
            f"decode {heads}/{kv_heads}, {keys} keys, width {width}{kind}",
            (1, heads, kv_heads, 1, keys, width),
            _grouped if heads != kv_heads else Options,
            dtype=dtype,
        )
        found.limited = found.bytes() >= 1 << 20
        found.share = 0.85 if found.limited else None
        return found

    return [
        case(32, 8, 4096, 128),
        case(32, 32, 4096, 128),
        case(24, 24, 3000, 64),
        case(12, 12, 512, 64),
        case(9, 3, 4096, 64),
        case(8, 1, 65536, 256),
        case(32, 8, 4096, 128, torch.bfloat16),
        case(32, 8, 4096, 128, torch.float16),
    ]


def training_cases() -> list[Case]:
    """Return the cases of the forward and the backward pass together."""
    n, long = 2048, 8192
    square: Sizes = (1, 8, 8, n, n, 64)
    far: Sizes = (1, 8, 8, long, long, 64)
    window, documents = ll.Causal() & ll.Window(256), ll.Documents(torch.arange(long) // 512)

    def dropout() -> Options:
        return Options({"dropout": 0.1}, {"dropout_p": 0.1})

    def causal_dropout() -> Options:
        return Options({"mask": ll.Causal(), "dropout": 0.1}, {"is_causal": True, "dropout_p": 0.1})

    def relative() -> Options:
        table = torch.randn(8, 2 * n - 1, generator=torch.Generator().manual_seed(1)).requires_grad_()
        dense = ll.Relative(table).dense(n)[None].detach().requires_grad_()
        return Options({"bias": ll.Relative(table)}, {"attn_mask": dense}, [table, dense])

    local = Case(f"causal window 256, n={long}", far, lambda: _masked(window, long), scores=_below(long, 256))
    cases = [
        Case(f"full, n={n}", square, goal=1.25),
        Case(f"causal, n={n}", square, _causal, scores=_below(n), goal=1.5),
        replace(local, goal=10, share=0.6),
        Case(f"documents of 512, n={long}", far, lambda: _masked(documents, long), scores=long * 512, goal=8),
        Case(f"dropout 0.1, n={n}", square, dropout, goal=3),
        Case(f"causal, dropout 0.1, n={n}", square, causal_dropout, scores=_below(n), goal=5),
        Case(f"ALiBi, n={n}", square, lambda: _alibi(n), goal=1.5),
        Case(f"learned relative bias, n={n}", square, relative, goal=2),
        Case(f"bfloat16, n={n}", square, dtype=torch.bfloat16),
    ]
    return [replace(case, name=f"training: {case.name}", training=True) for case in cases]


def all_cases() -> list[Case]:
    """Return every case, in the order of the table."""
    return forward_cases() + decode_cases() + training_cases()
