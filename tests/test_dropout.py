"""Dropout: the published generator, its statistics, and that nothing but the seed decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_sums_close
from limelight.core.dropout import factors, philox

# From Random123's known answers: rounds, counter, key, words.
KNOWN = [
    (7, (0, 0, 0, 0), (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, (2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (
        7,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
    (10, (0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(
    rounds: int, counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    seed = (key[0] | key[1] << 32) - (2**64 if key[1] >> 31 else 0)
    a, b, c, d = (torch.tensor(x) for x in counter)
    assert tuple(int(x) for x in philox((a, b, c, d), torch.tensor(seed), rounds)) == words


def kept(B: int, H: int, N: int, M: int, rate: float, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the kernels' mask: with equal weights and unit vectors as values, the output is the mask."""
    q, k = torch.zeros(B, H, N, 1, dtype=dtype), torch.zeros(B, H, M, 1, dtype=dtype)
    v = torch.eye(M, dtype=dtype).expand(B, H, M, M)
    torch.manual_seed(seed)
    return ll.attention(q, k, v, dropout=rate) * M


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("N", "M"), [(1, 131), (5, 7), (67, 331), (200, 130)])
def test_the_kernels_drop_what_the_definition_says(dtype: torch.dtype, N: int, M: int, isa: str) -> None:
    got = kept(2, 3, N, M, 0.3, 11, dtype)
    torch.manual_seed(11)
    seed = torch.randint(0, 2**63 - 1, ())
    want = factors(0.3, seed, 2, 3, torch.arange(N), torch.arange(M), dtype)
    assert_sums_close(got, want, terms=M)  # 1/M, times M


def test_rate_mean_and_independence() -> None:
    rate, n = 0.1, 512
    x = kept(1, 4, n, n, rate, 1)[0]
    dropped = (x == 0).double()
    count = dropped.numel()
    error = (rate * (1 - rate) / count) ** 0.5
    assert abs(float(dropped.mean()) - rate) < 4 * error
    assert abs(float(x.mean()) - 1) < 4 * error / (1 - rate), "what is kept makes up for what is not"
    # Each row, each column and each head has its rate, and no two of them are alike.
    for axis in (0, 1, 2):
        others = [a for a in range(3) if a != axis]
        means = dropped.mean(others)
        one = (rate * (1 - rate) / (count / dropped.shape[axis])) ** 0.5
        assert float((means - rate).abs().max()) < 5 * one
        rows = dropped.movedim(axis, 0).flatten(1) - rate
        correlation = rows @ rows.T / rows.shape[1] / (rate * (1 - rate))
        off = correlation - torch.diag(correlation.diagonal())
        assert float(off.abs().max()) < 6 / rows.shape[1] ** 0.5
    # Nor does a weight say anything of its neighbours.
    for dim in (0, 1, 2):
        centred = dropped - rate
        along = centred.narrow(dim, 1, x.shape[dim] - 1) * centred.narrow(dim, 0, x.shape[dim] - 1)
        assert abs(float(along.mean())) < 5 * rate * (1 - rate) / along.numel() ** 0.5
    assert torch.unique(dropped.flatten(0, 1), dim=0).shape[0] == 4 * n, "no two rows are equal"


def test_the_seed_of_torch_decides() -> None:
    a, b, c = kept(2, 2, 31, 67, 0.5, 1), kept(2, 2, 31, 67, 0.5, 1), kept(2, 2, 31, 67, 0.5, 2)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(1)
    q, v = torch.zeros(1, 1, 9, 4), torch.randn(1, 1, 9, 4)
    first, second = (ll.attention(q, q, v, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second), "every call drops anew"


def test_a_key_keeps_its_fate_under_any_mask_and_in_any_block() -> None:
    """The same place is dropped whether it is reached by a window, a decode step or a whole matrix."""
    q, k = torch.zeros(1, 2, 300, 1), torch.zeros(1, 2, 300, 1)
    v = torch.eye(300).expand(1, 2, 300, 300)
    results = []
    for mask in (ll.Window(300), ll.Window(20), ll.Causal() & ll.Window(33) | ll.First(3)):
        torch.manual_seed(4)
        out = ll.attention(q, k, v, mask=mask, dropout=0.4)
        results.append((out == 0, mask.dense(300)))
    everything = results[0][0]
    for dropped, allowed in results:
        assert torch.equal(dropped[:, :, allowed], everything[:, :, allowed])


def test_backends_agree_forward_and_backward() -> None:
    q, k, v = (torch.randn(2, h, n, 8, dtype=torch.float64, requires_grad=True) for h, n in ((6, 37), (2, 53), (2, 53)))
    results = []
    for backend in ("native", "portable"):
        torch.manual_seed(9)
        out = ll.attention(q, k, v, mask=ll.Causal(), dropout=0.25, backend=backend)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_what_one_looks_at_is_before_dropout() -> None:
    q, k, v = torch.randn(1, 1, 7, 4), torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4)
    assert_sums_close(ll.weights(q, k).dense().sum(-1), torch.ones(1, 1, 7), terms=9)
    assert torch.equal(ll.attention(q, k, v, dropout=0.0), ll.attention(q, k, v))
    mean = torch.stack([ll.attention(q, k, v, dropout=0.5) for _ in range(4000)]).mean(0)
    # A weight w is 0 or 2w with equal odds, so that Σ w v has variance Σ w² v².
    deviation = (ll.weights(q, k).dense().square() @ v.square() / 4000).sqrt()
    assert ((mean - ll.attention(q, k, v)).abs() < 6 * deviation).all()


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_that_is_none(bad: float) -> None:
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"dropout = .* must be at least 0 and below 1"):
        ll.attention(x, x, x, dropout=bad)
    with pytest.raises(TypeError, match="dropout must be a number, not str"):
        ll.attention(x, x, x, dropout="0.1")  # type: ignore[arg-type]
