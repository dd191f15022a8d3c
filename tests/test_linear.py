"""The steps of a model on a few tokens, against float64: linear layers, norms and rotations."""

from __future__ import annotations

import pytest
import torch

from conftest import assert_sums_close
from limelight.backends import _native, native
from limelight.nn.linear import Linear, project
from limelight.nn.norm import RMSNorm
from limelight.nn.positions import Rotary

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the kernels have taken."""
    taken: list[int] = []
    real = _native.linear

    def linear(x: torch.Tensor, *rest: object) -> bool:
        done: bool = real(x, *rest)
        if done:
            taken.append(x.numel() // x.shape[-1])
        return done

    monkeypatch.setattr(_native, "linear", linear)
    return taken


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "N", "D"),
    [(1, 1, 1), (1, 37, 131), (1, 41, 288), (2, 300, 64), (3, 29, 96), (5, 523, 17), (7, 131, 160), (8, 1031, 257)],
)
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


def test_the_kernels_are_used_where_they_can_be(used: list[int]) -> None:
    layer = Linear(8, 5)
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


@pytest.mark.parametrize("width", [40, 64])
def test_many_rows_with_a_rest_of_pairs_are_for_torch(isa: str, width: int, used: list[int]) -> None:
    w = torch.randn(7, width).bfloat16()
    for rows in (3, 4, 8):
        x = torch.randn(rows, width).bfloat16()
        assert_sums_close(native.linear(x[None], w, None)[0], x.double() @ w.double().T, terms=width)
    assert used == ([3] if isa == "avx512_bf16" and width % 32 else [3, 4, 8])


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


@pytest.mark.usefixtures("isa")
def test_several_layers_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [Linear(37, n, bias=n != 71) for n in (131, 71, 5)]
    x, calls = torch.randn(1, 3, 37), []
    real = _native.linear
    monkeypatch.setattr(_native, "linear", lambda *args: calls.append(len(args[1])) or real(*args))
    with torch.no_grad():
        together = project(x, *layers)
        assert calls == [3]
        handle = layers[1].register_forward_hook(lambda module, inputs, output: output + 1)
        apart = project(x, *layers)
        handle.remove()
    assert calls == [3, 1, 1, 1]  # a hook is called
    for n, layer in enumerate(layers):
        want = x.double() @ layer.weight.double().T
        if layer.bias is not None:
            want += layer.bias.double()
        assert_sums_close(together[n], want, terms=37)
        assert_sums_close(apart[n] - float(n == 1), want, terms=37)


def test_a_bias_of_another_length_is_an_error() -> None:
    with torch.no_grad(), pytest.raises(RuntimeError):
        native.linear(torch.randn(1, 7), torch.randn(5, 7), torch.randn(3))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 3, 131), (301, 67)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    norm = RMSNorm(shape[-1], eps=1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))  # not contiguous
    wide = x.double()
    want = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight.double()
    with torch.no_grad():
        assert_sums_close(norm(x), want, terms=8)
    assert norm(x).requires_grad  # by torch's own


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("first", [11, torch.tensor([3, 0])], ids=["same", "ragged"])
def test_rotation(first: int | torch.Tensor, interleaved: bool, dtype: torch.dtype) -> None:
    rotary = Rotary(10, interleaved=interleaved)
    q, k = (torch.randn(2, 5, heads, 13).to(dtype).transpose(1, 2) for heads in (6, 3))
    angles = [x.double() for x in rotary.angles(first, 5, dtype, q.device)]
    with torch.no_grad():
        found = rotary.place(q, k, first, keys=5, scale=1.0)[:2]
    for x, got in zip((q, k), found, strict=True):
        assert got.dtype == dtype
        assert_sums_close(got, rotary.turn(x.double(), *angles), terms=2)
    tracked = q.requires_grad_()
    assert rotary.place(tracked, k, first, keys=5, scale=1.0)[0].requires_grad


def test_angles_are_computed_once_a_step() -> None:
    rotary = Rotary(8)
    with torch.inference_mode():
        one = rotary.angles(5, 3, torch.float32, torch.device("cpu"))
    again = rotary.angles(5, 3, torch.float32, torch.device("cpu"))
    assert one[0] is again[0]
    (torch.ones(3, 4, requires_grad=True) * again[0]).sum().backward()  # not an inference tensor
    later = rotary.angles(6, 3, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(later[0][:2], one[0][1:])
    assert rotary.angles(6, 3, torch.bfloat16, torch.device("cpu"))[0].dtype == torch.bfloat16
