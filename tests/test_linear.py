"""The linear layer for a few rows against float64."""

from __future__ import annotations

import pytest
import torch

from conftest import assert_sums_close
from limelight.backends import _native, native
from limelight.nn.linear import Linear

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "N", "D"), [(1, 1, 1), (1, 37, 131), (2, 300, 64), (3, 523, 17), (4, 1031, 257)])
def test_a_few_rows(rows: int, N: int, D: int, dtype: torch.dtype, isa: str) -> None:
    x, w, b = torch.randn(rows, D).to(dtype), torch.randn(N, D + 5)[:, 2 : D + 2].to(dtype), torch.randn(N).to(dtype)
    wide = torch.randn(N, D + 5).to(dtype)
    wide[:, 2 : D + 2] = w
    for weight in (w, wide[:, 2 : D + 2]):  # contiguous, and rows that lie apart
        for bias in (b, None):
            want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
            got = native.linear(x[None], weight, bias)
            assert got.shape == (1, rows, N)
            assert got.dtype == dtype
            assert_sums_close(got[0], want, terms=D)


def test_the_kernels_are_used_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, used = Linear(8, 5), []
    real = _native.linear
    monkeypatch.setattr(_native, "linear", lambda **args: (used.append(args["rows"]), real(**args)))
    one, many = torch.randn(1, 1, 8), torch.randn(2, 9, 8)
    with torch.no_grad():
        for x in (one, many):
            assert_sums_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias), terms=8)
        layer(one[:0])
    assert used == [1]
    layer(one).sum().backward()  # a gradient is torch's own
    assert used == [1]
    assert layer.weight.grad is not None
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        layer(torch.randn(1, 7))


def test_threads_change_nothing() -> None:
    x, w = torch.randn(2, 512), torch.randn(3000, 512)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = native.linear(x, w)
        torch.set_num_threads(3)
        assert torch.equal(native.linear(x, w), one)
    finally:
        torch.set_num_threads(before)
