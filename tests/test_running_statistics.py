"""Statistics of rows whose keys come in parts are those of all keys, in float64 and densely."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from conftest import assert_within, dense_steps, examples, generator, logit_rounding, problems, random_masks, rounding
from limelight.backends import Normalisers, native
from limelight.core.masks import Mask
from limelight.core.problem import Sizes
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.matrix.statistics.mass import Mass
from limelight.matrix.statistics.max import Max
from limelight.matrix.statistics.top import TopK
from limelight.parallel.layouts import Run
from limelight.parallel.partials import MaskPart
from test_running_rows import cut, whole


def in_parts(p: dict[str, Any], parts: list[Run], mask: Mask, k: int) -> tuple[list[Any], Normalisers]:
    """Entropy, distance, max, mass and top of a problem whose keys come in parts."""
    shards = whole(**p)
    asked = [Entropy(), Distance(), Max(), Mass(mask), TopK(k)]
    masked = MaskPart(mask, shards)
    running = native.RunningStatistics(shards.q, shards.k.shape[1], shards.lowered, asked)
    for keys in parts:
        for where, rows in shards.subproblems(keys):
            of_part = [Mass(masked.of(where)) if isinstance(x, Mass) else x for x in asked]
            running.add(rows, shards.k[:, :, keys.begin : keys.end], where.spec, of_part, where.place)
    outputs, normalisers = running.outputs()
    sizes = Sizes(*shards.problem.sizes)
    return [x.result(out, sizes) for x, out in zip(asked, outputs, strict=True)], normalisers


def check(p: dict[str, Any], parts: list[Run], mask: Mask, k: int) -> None:
    N, M = p["q"].shape[2], p["k"].shape[2]
    (entropy, distance, largest, mass, top), normalisers = in_parts(p, parts, mask, k)
    steps = dense_steps(p)
    A = steps.weights
    i, j = torch.arange(N)[:, None] + M - N, torch.arange(M)
    dtype = torch.promote_types(p["q"].dtype, torch.float32)
    relative = rounding(M, 1.0, dtype) + logit_rounding(p)
    logs = torch.where(A > 0, A.log(), 0.0)
    assert_within(entropy, -(A * logs).sum(-1), relative * (2 + float(logs.abs().max())), "entropy")
    assert_within(distance, (A * (i - j).abs()).sum(-1), relative * (N + M), "distance")
    assert_within(largest, A.amax(-1), relative, "max")
    assert_within(mass, ll.Weights.from_dense(A).mass(mask), relative, "mass")
    assert torch.equal(normalisers.lse.isneginf(), steps.logsumexp.isneginf())
    assert_within(top.values, A.sort(-1, descending=True).values[..., :k], relative, "the values of top")
    assert_within(A.gather(-1, top.indices), top.values, relative, "the keys of top")
    assert int(top.indices.sort(-1).values.diff(dim=-1).min()) > 0 if k > 1 and top.indices.numel() else True


def test_parts_of_the_keys_give_the_statistics_of_all(isa: str) -> None:
    @settings(max_examples=examples(40))
    @given(problems((torch.float32, torch.bfloat16, torch.float64)), st.data())
    def run(p: dict[str, Any], data: st.DataObject) -> None:
        B, _, N, _ = p["q"].shape
        M = p["k"].shape[2]
        parts = data.draw(st.permutations(cut(M, *data.draw(st.lists(st.integers(0, M), max_size=4)))))
        check(p, parts, data.draw(random_masks(B, N, M)), data.draw(st.integers(1, min(M, 40))))

    run()


def test_few_rows_whose_keys_are_split_over_tasks(isa: str) -> None:
    r, M = generator(3), 2203
    q, k = torch.randn(2, 6, 5, 19, generator=r), torch.randn(2, 2, M, 19, generator=r)
    p = {"q": q, "k": k, "v": k, "mask": ll.Padding(torch.tensor([M, 701])), "sink": torch.randn(6, generator=r)}
    check(p, cut(M, 1399)[::-1], ll.First(100), 7)


@pytest.mark.parametrize("order", [1, -1])
def test_ties_go_to_the_lower_key_whatever_comes_first(isa: str, order: int) -> None:
    M = 389
    q, k = torch.ones(1, 1, 61, 8), torch.ones(1, 1, M, 8)
    k[:, :, 300:303] = 2.0  # the strongest, then ties
    found, _ = in_parts({"q": q, "k": k, "v": k}, cut(M, 50, 200, 290)[::order], ll.First(1), 9)
    want = torch.tensor([300, 301, 302, 0, 1, 2, 3, 4, 5])
    got: Tensor = found[4].indices
    assert torch.equal(got, want.expand_as(got))
