"""The running softmax: keys that come in parts give what all of them give at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from conftest import (
    EPS,
    assert_within,
    dense_steps,
    examples,
    generator,
    largest,
    logit_rounding,
    problems,
    rounding,
    strided,
)
from limelight.backends import Normalisers, RunningRows, native
from limelight.core import reference
from limelight.core.problem import AttentionSpec
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Run
from limelight.parallel.shards import Shards
from test_exactness import bounds_of, dense_softmax, kinds

HALVES = (torch.bfloat16, torch.float16)


def whole(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, **options: Any) -> Shards:
    """A problem on one process, without a process group; its rectangles are parts of the problem."""
    alone = object.__new__(Processes)
    alone.rank, alone.size, alone.device = 0, 1, torch.device("cpu")
    runs = [[Run(0, k.shape[2])]]
    return Shards("test", q, k, v, AttentionSpec(**options), group=alone, dropout=dropout, key_runs=runs)


def start(shards: Shards, memory: int = 0) -> RunningRows:
    """Rows that have seen nothing; ``memory`` says how their values lie (``strided``)."""
    assert shards.v is not None
    running = RunningRows.empty(shards.q.shape[:3], shards.v.shape[3], shards.problem.compute_dtype)  # type: ignore[arg-type]
    return running._replace(o=strided(running.o, memory))


def accumulate(shards: Shards, running: RunningRows, parts: list[Run]) -> None:
    q, k, v = shards.q, shards.k, shards.v
    assert v is not None
    for keys in parts:
        at = slice(keys.begin, keys.end)
        for part, rows in shards.subproblems(keys):
            sizes = part.sizes(q, k)
            native.accumulate(
                q[:, :, rows], k[:, :, at], v[:, :, at], part.spec, sizes, running.rows(rows), place=part.place
            )


def finish(shards: Shards, running: RunningRows) -> tuple[Tensor, Normalisers]:
    assert shards.v is not None
    running.join_sink(shards.lowered)
    return running.output(shards.dropout).to(shards.v.dtype), running.normalisers()


def cut(M: int, *places: int) -> list[Run]:
    """All keys, cut at some places."""
    ends = [0, *sorted({x for x in places if 0 < x < M}), M]
    return [Run(a, b) for a, b in pairwise(ends)]


def check(p: dict[str, Any], parts: list[Run], memory: int = 0) -> None:
    """Compare with float64, within the roundings of one call."""
    shards = whole(**p)
    running = start(shards, memory)
    accumulate(shards, running, parts)
    out, normalisers = finish(shards, running)
    want = reference.attention(**{name: x.double() if name in "qkv" else x for name, x in p.items()})
    assert out.dtype == p["v"].dtype
    size, dtype = max(1.0, largest(p["v"])), torch.promote_types(p["q"].dtype, torch.float32)
    M = p["k"].shape[2]
    assert_within(
        out, want, rounding(M, size, dtype) + logit_rounding(p) * size + EPS[out.dtype] / 2 * size, "the output"
    )
    lse = dense_steps(p).logsumexp
    bound = rounding(M, max(1.0, largest(lse)), dtype) + logit_rounding(p)
    assert_within(normalisers.lse, lse, bound, "the log-sum-exp")


def test_keys_in_parts_give_the_softmax_over_all(isa: str) -> None:
    @settings(max_examples=examples(60))
    @given(problems((torch.float32, *HALVES, torch.float64)), st.data())
    def run(p: dict[str, Any], data: st.DataObject) -> None:
        M = p["k"].shape[2]
        parts = cut(M, *data.draw(st.lists(st.integers(0, M), max_size=4)))
        check(p, data.draw(st.permutations(parts)), data.draw(st.integers(0, 3)))

    run()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("heads", "N"), [((3, 3), 2), ((6, 2), 1), ((6, 2), 5), ((2, 1), 53)])
def test_parts_whose_keys_are_split_over_tasks(isa: str, dtype: torch.dtype, heads: tuple[int, int], N: int) -> None:
    """With few rows the keys of a part are split, and the first of them goes on from the running sums."""
    r, M = generator(N, *heads), 2203
    q, k, v = (
        torch.randn(2, h, n, 19, generator=r).to(dtype) for h, n in ((heads[0], N), (heads[1], M), (heads[1], M))
    )
    check({"q": q, "k": strided(k, 1), "v": v, "mask": ll.Padding(torch.tensor([M, 701]))}, cut(M, 1399), memory=1)


def test_parts_in_which_rows_see_nothing(isa: str) -> None:
    """Rows without keys in a part keep what they have; rows without keys in any part are 0, whatever is masked."""
    r, N, M = generator(7), 211, 307
    q, k, v = (torch.randn(2, 3, n, 13, generator=r) for n in (N, M, M))
    bias = torch.zeros(N, M)
    bias[:, 100:200] = -torch.inf  # a part of which nothing has weight
    bias[17] = -torch.inf
    documents = ll.Documents(torch.arange(M) // 97, (torch.arange(N) * 5 // N) - 1)  # the first queries are in none
    v[:, :, 150] = torch.inf  # has no weight
    parts = cut(M, 100, 200, 250)
    for mask in (None, ll.Causal(), documents, documents & ll.Window(31)):
        q_, k_ = (q, k) if mask is not None else (strided(q, 2), strided(k, 3))
        v_ = torch.where(v.isinf(), 0.0, v)
        check({"q": q_, "k": k_, "v": v_, "mask": mask, "bias": ll.DenseBias(bias)}, parts[::-1])
    allowed = ll.Dense(torch.arange(M)[None] != 150)
    shards = whole(q, k, v, mask=allowed)
    running = start(shards)
    accumulate(shards, running, parts)
    assert finish(shards, running)[0].isfinite().all()


def test_nothing_is_rounded_between_parts(isa: str) -> None:
    """Parts that are whole blocks of keys give the bits of one call, so they are as exact."""
    r, N, M = generator(11), 211, 901
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        q, k, v = (torch.randn(1, 3, n, 32, generator=r).to(dtype) for n in (N, M, M))
        for options in ({}, {"mask": ll.Padding(899)}, {"bias": ll.ALiBi(3), "softcap": 2.5}):
            shards = whole(q, k, v, **options)
            at_once, in_parts = start(shards), start(shards)
            accumulate(shards, at_once, [Run(0, M)])
            accumulate(shards, in_parts, cut(M, 256, 384, 768))
            for x, y in zip(at_once, in_parts, strict=True):
                assert torch.equal(x, y), options


def test_dropout_and_sink_are_those_of_one_call(isa: str) -> None:
    r, N, M = generator(13), 61, 389
    q, k, v = (torch.randn(1, h, n, 16, generator=r) for h, n in ((4, N), (2, M), (2, M)))
    shards = whole(q, k, v, dropout=0.25, sink=torch.randn(4, generator=r), mask=ll.Causal())
    running = start(shards)
    accumulate(shards, running, cut(M, 101, 102, 251))
    out, normalisers = finish(shards, running)
    want, known = native.forward_with_normalisers(q, k, v, shards.lowered, shards.problem.sizes)
    assert_within(out, want, rounding(M, 4 * largest(want), torch.float32))
    assert_within(normalisers.lse, known.lse, rounding(M, largest(known.lse), torch.float32))


@pytest.mark.parametrize("kind", kinds(701, 3001))
def test_parts_are_as_exact_as_the_dense_softmax(isa: str, kind: str) -> None:
    """Root-mean-square errors against float64, of 12 parts and of the dense softmax in float32."""
    N, M = 701, 3001
    r, options = generator(17), kinds(N, M)[kind]
    q, k, v = (torch.randn(1, 2, n, 64, generator=r) for n in (N, M, M))
    want = dense_softmax(q.double(), k.double(), v.double(), **options)
    shards = whole(q, k, v, **options)
    running = start(shards)
    accumulate(shards, running, cut(M, *range(0, M, 251)))
    ours, theirs = (
        float((x.double() - want).square().mean().sqrt())
        for x in (finish(shards, running)[0], dense_softmax(q, k, v, **options))
    )
    assert ours <= bounds_of(isa)[0] * theirs, ours / theirs
