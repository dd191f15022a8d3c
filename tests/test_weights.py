"""Every statistic of the matrix against the same computed from the dense float64 matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d

import limelight as ll
from conftest import generator, problems, random_masks, strided
from dense_weights import close, dense_of, inexactness, lost_of_cosines, near, weights_of
from limelight.core.masks import Mask


@pytest.mark.usefixtures("isa")
def test_every_question_on_every_instruction_set(isa: str) -> None:
    @settings(max_examples=60)
    @given(problems((torch.float32, torch.bfloat16, torch.float16, torch.float64)), st.data())
    def compare(p: dict[str, Any], data: st.DataObject) -> None:
        check(p, *questions(p, data))

    compare()


@settings(max_examples=20)
@given(problems((torch.float32, torch.float64)), st.data())
def test_every_question_in_plain_torch(p: dict[str, Any], data: st.DataObject) -> None:
    """As it is asked where a gradient may be wanted."""
    check({**p, "q": p["q"].clone().requires_grad_()}, *questions(p, data))


def questions(p: dict[str, Any], data: st.DataObject) -> tuple[Mask, int, int, tuple[int, int]]:
    """Draw arguments for the statistics: a mask, a radius, a count of top keys, a picture's size."""
    B, _, N, _ = p["q"].shape
    M = p["k"].shape[2]
    cells = data.draw(st.integers(1, min(2 * N, 40))), data.draw(st.integers(1, min(2 * M, 40)))
    return data.draw(random_masks(B, N, M)), data.draw(st.integers(0, M + 3)), data.draw(st.integers(1, M)), cells


# Few rows and many keys, whose answers are joined from chunks; many rows; strips that share a vector.
LONG = [(1, 2, 1, 1, 3001), (1, 6, 2, 5, 4099), (2, 3, 3, 50, 2203), (1, 4, 2, 31, 2500), (1, 1, 1, 771, 1033)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sizes", LONG)
def test_long(sizes: tuple[int, ...], dtype: torch.dtype, two_threads: None) -> None:
    B, H, Hkv, N, M = sizes
    g = torch.Generator().manual_seed(N)
    q, k = (torch.randn(*s, generator=g).to(dtype) for s in ((B, H, N, 37), (B, Hkv, M, 37)))
    for mask, k_best in ((None, 3), (ll.Causal() & (ll.Window(1300) | ll.First(3)), 100), (ll.Window(40), M)):
        p = {"q": strided(q, 1), "k": strided(k, 2), "mask": mask, "bias": ll.ALiBi(H)}
        check(p, ll.Causal() & (ll.Window(9) | ll.First(700)), 1100, k_best, (min(N, 17), 41))


def test_weights_around_the_smallest_number() -> None:
    """A head whose weights lie around 1e-38, of which the kernels take those below 1.7e-38 for 0: cosines say less."""
    q, k = torch.randn(1, 3, 1, 1, generator=generator(1)), torch.randn(1, 1, 131, 1, generator=generator(2))
    p = {"q": q, "k": k, "mask": ~ll.Window(97), "bias": ll.ALiBi(3), "temperature": 0.3, "softcap": 0.7}
    sink = torch.tensor([0.0, -2.4, 1.7])
    assert 0 < dense_of({**p, "sink": sink})[:, 2].max() < 1e-36
    check({**p, "sink": sink}, ll.Causal(), 0, 1, (1, 1))


def check(p: dict[str, Any], mask: Mask, radius: int, k: int, shape: tuple[int, int]) -> None:
    """Every question against the float64 matrix."""
    A, dense, inexact = weights_of(p), dense_of(p), inexactness(p)

    def same(got: Tensor, want: Tensor, scale: float = 1.0) -> None:
        near(got, want, scale * inexact)

    B, H, N, M = dense.shape
    rows, cols = shape
    seen = A.observe(
        entropy=True,
        received=True,
        top=k,
        mass=mask,
        distance=True,
        profile=radius,
        pool=(rows, cols),
        similarity=True,
    )
    entropy = torch.special.entr(dense).sum(-1)
    same(seen.entropy, entropy, 8.0)
    same(seen.received, dense.sum(2), N**0.5)
    same(seen.mass, (dense * mask.dense(N, M)).sum(-1))
    position, key = torch.arange(M - N, M)[:, None], torch.arange(M)
    distance = (dense * (position - key).abs()).sum(-1)
    same(seen.distance, distance)
    want = torch.zeros(B, H, 2 * radius + 1, dtype=torch.float64)
    for n, delta in enumerate(range(-radius, radius + 1)):
        diagonal = delta + M - N  # key − position = delta
        if -N < diagonal < M:
            want[..., n] = dense.diagonal(diagonal, 2, 3).mean(-1)
    same(seen.profile, want)
    same(seen.pool, adaptive_avg_pool2d(dense, (rows, cols)))
    same(A.pool(rows, cols, "max"), adaptive_max_pool2d(dense, (rows, cols)))
    side = 2 + max(N, M) // 7  # squares, of which those at the edges cover what is left
    same(A.pool(cell=side), avg_pool2d(dense, side, ceil_mode=True))
    same(A.observe(pool=side, reduce="max").pool, max_pool2d(dense, side, ceil_mode=True))
    flat = dense.flatten(2)
    products = (flat[:, :, None] * flat[:, None]).sum(-1)  # more exact than a matrix product, or torch's norm
    norms = products.diagonal(dim1=1, dim2=2).sqrt()
    cosine = products / (norms[:, :, None] * norms[:, None]).clamp(min=1e-300)
    underflow = lost_of_cosines(dense, seen.similarity.dtype)
    near(seen.similarity, cosine, 32.0 * inexact + underflow)
    best = dense.sort(-1, descending=True).values[..., :k]
    same(seen.top.values, best)
    same(dense.gather(3, seen.top.indices), best)
    assert (seen.top.indices.sort(-1).values.diff(dim=-1) > 0).all(), "no key twice"
    assert (seen.top.values.diff(dim=-1) <= 0).all()
    assert A.dense().shape == A.shape == dense.shape
    same(A.dense(), dense)
    again = weights_of(p)  # attention finds what normalises the rows, and entropies come along with the columns
    again @ torch.ones(B, p["k"].shape[1], M, 3, dtype=p["q"].dtype)
    along = again.observe(entropy=True, distance=True, received=True, similarity=True)
    same(along.entropy, entropy, 8.0)
    same(along.distance, distance)
    same(along.received, dense.sum(2), N**0.5)
    near(along.similarity, cosine, 32.0 * inexact + underflow)
    torch.testing.assert_close(again.logsumexp(), A.logsumexp(), rtol=1e-5, atol=1e-5)
    filled = (dense.sum(-1) > 0).sum((1, 2)) if "sink" not in p else None
    if filled is not None:
        torch.testing.assert_close(seen.received.double().sum((1, 2)), filled.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 2, 2, 1, 5000), {}),
        ((1, 3, 1, 300, 2500), {"mask": ll.Causal()}),
        ((2, 4, 2, 97, 1031), {"bias": ll.ALiBi(4), "softcap": 3.0}),
    ],
)
def test_threads_change_nothing(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    B, H, Hkv, N, M = sizes
    q, k, u = torch.randn(B, H, N, 29), torch.randn(B, Hkv, M, 29), torch.randn(B, H, N, 5)

    def answers(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        A = ll.weights(q, k, **options)
        a = A.observe(
            entropy=True,
            received=True,
            top=9,
            mass=ll.Window(50),
            distance=True,
            profile=60,
            pool=(11, 13),
            similarity=True,
        )
        alone = ll.weights(q, k, **options)
        alone @ k
        along = alone.observe(entropy=True, distance=True, received=True)
        more = [along.entropy, along.distance, alone.received(), alone.pool(11, 13, "max"), alone.T @ u, A.logsumexp()]
        found = [a.entropy, a.received, *a.top, a.mass, a.distance, a.profile, a.pool, a.similarity, *more]
        return [x for x in found if isinstance(x, Tensor)]

    before = torch.get_num_threads()
    try:
        for threads in (2, 3):
            assert all(map(torch.equal, answers(1), answers(threads)))
    finally:
        torch.set_num_threads(before)


def test_the_normalisers_are_found_once() -> None:
    """A question that follows another gives the same as it does alone."""
    q, k = torch.randn(1, 3, 61, 17), torch.randn(1, 3, 83, 17)
    A = ll.weights(q, k)
    A.entropy()
    torch.testing.assert_close(A.received(), ll.weights(q, k).received())
    torch.testing.assert_close(A.logsumexp(), ll.weights(q, k).logsumexp())


@settings(max_examples=30)
@given(problems((torch.float32, torch.float64)))
def test_sent_back(p: dict[str, Any]) -> None:
    A, dense = weights_of(p), dense_of(p)
    u = torch.randn(*dense.shape[:3], 3, dtype=p["q"].dtype)
    close(A.T @ u, dense.mT @ u.double(), p, dense.shape[2] ** 0.5 * float(u.abs().max()))
    assert A.T.shape == (*dense.shape[:2], dense.shape[3], dense.shape[2])
    assert A.T.T is A


@settings(max_examples=20)
@given(problems((torch.float64,)))
def test_a_matrix_that_somebody_has(p: dict[str, Any]) -> None:
    A = weights_of(p)
    given_ = ll.Weights.from_dense(A.dense())
    M = A.shape[-1]
    asked: dict[str, Any] = {
        "entropy": True,
        "received": True,
        "mass": ll.First(1),
        "distance": True,
        "profile": 3,
        "pool": (5, 3),
        "similarity": True,
    }
    a, b = A.observe(**asked), given_.observe(**asked)
    for name in asked:
        torch.testing.assert_close(getattr(a, name), getattr(b, name))
    torch.testing.assert_close(A.top(min(3, M)).values, given_.top(min(3, M)).values)
    torch.testing.assert_close(given_ @ p["v"], A @ p["v"])
    assert torch.equal(given_[..., 0], A.dense()[..., 0])
    u = torch.randn(*A.shape[:3], 2, dtype=torch.float64)
    torch.testing.assert_close(given_.T @ u, A.T @ u)


def test_exact_entropies() -> None:
    q, k = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 64, 4)
    torch.testing.assert_close(ll.weights(q, k).entropy(), torch.full((1, 1, 3), 64.0).log())
    hot = ll.weights(torch.eye(4)[None, None] * 1e4, torch.eye(4)[None, None], scale=1.0)
    assert (hot.entropy() == 0).all()
    empty = ll.weights(q, k, mask=ll.First(0))
    for answer in (empty.entropy(), empty.received(), empty.distance(), empty.mass(ll.First(9))):
        assert (answer == 0).all()
    assert empty.logsumexp().isneginf().all()
    assert (empty.similarity() == 0).all()


def test_ties_go_to_the_lower_key() -> None:
    A = ll.weights(torch.zeros(1, 2, 8), torch.zeros(1, 5, 8), mask=ll.Padding(3))
    assert A.top(5).indices.tolist() == [[[0, 1, 2, 3, 4]] * 2]
    many = ll.weights(torch.zeros(1, 30, 8), torch.zeros(1, 5000, 8))
    assert many.top(3).indices.tolist() == [[[0, 1, 2]] * 30]
    torch.testing.assert_close(A.top(4).values, torch.tensor([[[1 / 3, 1 / 3, 1 / 3, 0.0]] * 2]))


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_batch_axes(lead: tuple[int, ...]) -> None:
    q, k = torch.randn(*lead, 4, 7, 5), torch.randn(*lead, 2, 11, 5)
    A = ll.weights(q, k, mask=ll.Causal())
    seen = A.observe(entropy=True, received=True, top=2, pool=(2, 3), similarity=True)
    assert seen.entropy.shape == (*lead, 4, 7)
    assert seen.received.shape == (*lead, 4, 11)
    assert seen.top.indices.shape == (*lead, 4, 7, 2)
    assert seen.pool.shape == (*lead, 4, 2, 3)
    assert seen.similarity.shape == (*lead, 4, 4)
    at = (*(-1 for _ in lead), slice(1, 3), 2)
    torch.testing.assert_close(A[at], A.dense()[at])
    assert (A.T @ torch.randn(*lead, 4, 7, 3)).shape == (*lead, 4, 11, 3)


def test_one_can_train_against_the_answers() -> None:
    q, k, table = (torch.rand(s, dtype=torch.float64, requires_grad=True) for s in ((1, 4, 5, 3), (1, 2, 7, 3), (4, 5)))

    def f(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        A = ll.weights(q, k, mask=ll.Causal(), bias=ll.Relative(table))
        return A.entropy(), A.received(), A.mass(ll.First(2)), A.distance(), A.T @ torch.ones(1, 4, 5, 2).double()

    assert torch.autograd.gradcheck(f, (q, k, table))
    one_hot = ll.weights(q * 1e5, k * 1e5).entropy().sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(one_hot, (q, k)))


def test_what_is_known_is_known_of_the_tensors_as_they_are() -> None:
    q, k = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    A = ll.weights(q, k)
    A.logsumexp().zero_()
    torch.testing.assert_close(A[0, 0].sum(-1), torch.ones(6))
    k.normal_()
    torch.testing.assert_close(A[0, 0], A.dense()[0, 0])
    torch.testing.assert_close(A.received(), A.dense().sum(2))
    with torch.inference_mode():
        A.entropy()
    learned = torch.ones(1, 2, 6, requires_grad=True)
    (A.logsumexp() * learned).sum().backward()
    p = q.clone().requires_grad_()
    B = ll.weights(p, k)
    repr(B)
    (given_,) = torch.autograd.grad(B[0, 0, 3, 1], p)
    (want,) = torch.autograd.grad(B.dense()[0, 0, 3, 1], p)
    torch.testing.assert_close(given_, want)


def test_gradients_of_every_question() -> None:
    """First and second derivatives of the statistics that the kernels compute."""
    q, k, table, u = (
        torch.rand(s, dtype=torch.float64, requires_grad=True)
        for s in ((1, 4, 5, 3), (1, 2, 7, 3), (4, 5), (1, 4, 5, 2))
    )

    def f(q: Tensor, k: Tensor, table: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        A = ll.weights(q, k, mask=ll.Causal(), bias=ll.Relative(table))
        a = A.observe(
            entropy=True, received=True, mass=ll.First(2), distance=True, profile=3, pool=(2, 3), similarity=True
        )
        found = a.entropy, a.received, a.mass, a.distance, a.profile, a.pool, a.similarity, A.top(2).values, A.T @ u
        return tuple(x for x in found if x is not None)

    assert torch.autograd.gradcheck(f, (q, k, table, u))
    assert torch.autograd.gradgradcheck(lambda q, k: ll.weights(q, k).entropy(), (q, k))


def test_errors() -> None:
    A = ll.weights(torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8))
    with pytest.raises(ValueError, match="top: k = 6 must be from 1 to 5"):
        A.top(6)
    with pytest.raises(TypeError, match=r"mass: give a mask such as First\(1\), wrap the tensor as Dense\(tensor\)"):
        A.mass(torch.ones(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"u is torch.int64; it must be floats"):
        A.T @ torch.ones(2, 3, 4, 1).long()
    with pytest.raises(ValueError, match="is made for 4 batch elements and q has 2"):
        A.mass(ll.Padding([1, 2, 3, 4]))
    with pytest.raises(ValueError, match="pool: rows = 0 must be at least 1"):
        A.pool(0, 4)
    with pytest.raises(TypeError, match="rows and cols, or cell, not both"):
        A.pool(2, 2, cell=3)
    with pytest.raises(ValueError, match="pool: cell = 0 must be at least 1"):
        A.pool(cell=0)
    with pytest.raises(ValueError, match="reduce = 'sum'; there are 'mean' and 'max'"):
        A.pool(2, 2, "sum")
    with pytest.raises(TypeError, match="radius must be a whole number"):
        A.profile(1.5)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match=r"index 4 is out of range for axis 2 of \(2, 3, 4, 5\)"):
        A[0, 0, 4]
    with pytest.raises(IndexError, match="5 indices for 4 axes"):
        A[0, 0, 0, 0, 0]
    with pytest.raises(TypeError, match="are indices, not list"):
        A[[0, 1]]
    with pytest.raises(ValueError, match=r"u \(2, 3, 5, 1\) does not fit Aᵀ \(2, 3, 5, 4\)"):
        A.T @ torch.randn(2, 3, 5, 1)
    with pytest.raises(TypeError, match="from_dense: give floats of shape"):
        ll.Weights.from_dense(torch.ones(3, 3))
