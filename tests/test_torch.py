"""A citizen of PyTorch: operators, torch.compile, torch.func, autocast, checkpointing, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import limelight as ll
from conftest import assert_sums_close, generator
from limelight.core import reference
from limelight.core.masks import Mask
from limelight.core.problem import LoweredSpec

TERMS = LoweredSpec(None, None, None, None, None, None, torch.tensor(1.0), 1.0, 0.0, 0.0, None)
SHAPES = [(13, 17), (5, 29), (31, 31)]


def leaves(N: int = 13, M: int = 17, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    g = generator(N * M)
    shapes = (2, 4, N, 8), (2, 2, M, 8), (2, 2, M, 5)
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_() for s in shapes]


def learned() -> dict[str, Tensor]:
    g = generator(3)
    shapes = {"table": (4, 9), "slopes": (4,), "sink": (4,), "heat": ()}
    return {n: (torch.rand(s, generator=g) + 0.3).requires_grad_() for n, s in shapes.items()}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


Function = Callable[..., Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor, extra: dict[str, Tensor]) -> Tensor:
    return ll.attention(q, k, v)


def windowed(q: Tensor, k: Tensor, v: Tensor, extra: dict[str, Tensor]) -> Tensor:
    return ll.attention(q, k, v, mask=ll.Causal() & (ll.Window(3) | ll.First(2)), scale=0.3)


def everything(q: Tensor, k: Tensor, v: Tensor, extra: dict[str, Tensor]) -> Tensor:
    M = k.shape[2]
    mask = ll.Padding(torch.tensor([M, M - 3])) & (ll.Window(4) | ll.First(2))
    bias = ll.Relative(extra["table"]) + ll.ALiBi(extra["slopes"])
    return ll.attention(q, k, v, mask=mask, bias=bias, sink=extra["sink"], temperature=extra["heat"], softcap=3.0)


def packed(q: Tensor, k: Tensor, v: Tensor, extra: dict[str, Tensor]) -> Tensor:
    N, M = q.shape[2], k.shape[2]
    grid = torch.arange(N)[:, None] * torch.arange(M)
    mask = ll.Documents(torch.arange(M) // 5) & ll.Prefix(3) & ll.Dense(grid % 7 != 3)
    return ll.attention(q, k, v, mask=mask, bias=ll.DenseBias(extra["slopes"][:, None, None] * grid))


@pytest.mark.parametrize("f", [plain, windowed, everything, packed])
def test_compiled_with_dynamic_shapes(f: Function) -> None:
    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    extra = learned()
    for N, M in SHAPES:
        x = leaves(N, M)
        dout = torch.randn(2, 4, N, 5)
        inputs = [*x, *extra.values()]
        want, got = f(*x, extra), compiled(*x, extra)
        assert_sums_close(got, want, terms=M)
        a, b = (torch.autograd.grad(y, inputs, dout, allow_unused=True) for y in (got, want))
        for m, n in zip(a, b, strict=True):
            assert (m is None) == (n is None)
            if m is not None:
                assert_sums_close(m, n, terms=2 * N * M)  # the learned ones are summed over the batch, too


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3), (2, 0, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2)])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.filterwarnings("ignore::limelight.SlowPathWarning")
def test_compiled_with_any_strides(order: tuple[int, ...], gaps: bool) -> None:
    """The kernels give the strides that the fake tensors promise."""
    compiled = torch.compile(
        lambda q, k, v: ll.attention(q, k, v, mask=ll.Causal()), fullgraph=True, backend="aot_eager"
    )
    for width in (8, 5):
        x = []
        for shape in ((2, 4, 13, 8), (2, 2, 17, 8), (2, 2, 17, width)):
            sizes = [shape[i] for i in order]
            big = torch.randn(*sizes[:-1], sizes[-1] + 3 * gaps)[..., : sizes[-1]]
            x.append(big.permute([order.index(i) for i in range(4)]).requires_grad_())
        want, got = ll.attention(*x, mask=ll.Causal()), compiled(*x)
        assert torch.equal(want, got)
        assert (
            want.stride()
            == got.stride()
            == torch.ops.limelight.attention(*(y.to("meta") for y in x), *TERMS)[0].stride()
        )
        dout = torch.randn(want.shape)
        a, b = torch.autograd.grad(want, x, dout), torch.autograd.grad(got, x, dout)
        assert all(torch.equal(m, n) for m, n in zip(a, b, strict=True))


def test_compiled_without_gradients() -> None:
    compiled = torch.compile(windowed, fullgraph=True)
    x = [y.detach() for y in leaves()]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(compiled(*x, {}), windowed(*x, {}))


def test_compiled_dropout_learns_what_it_computed() -> None:
    """Linear in the values, so that v · dL/dv must be L itself, with the forward's own mask."""
    compiled = torch.compile(lambda q, k, v: ll.attention(q, k, v, dropout=0.4), fullgraph=True)
    q, k, v = leaves(dtype=torch.float64)
    seen = []
    for _ in range(2):
        out = compiled(q, k, v)
        total = (out * torch.arange(5)).sum()
        (dv,) = torch.autograd.grad(total, v)
        torch.testing.assert_close((v * dv).sum(), total)
        seen.append(out.detach())
    assert not torch.equal(*seen)


def test_compiled_masks_as_arguments() -> None:
    compiled = torch.compile(lambda q, k, v, mask: ll.attention(q, k, v, mask=mask), fullgraph=True)
    x = leaves()
    for mask in (ll.Causal(), ll.Padding([3, 17]), ll.Documents(torch.arange(17) // 4), ll.Window(3) | ll.First(1)):
        assert torch.equal(compiled(*x, mask), ll.attention(*x, mask=mask)), mask


def test_scattered_documents_are_refused_where_shapes_come_first() -> None:
    f = torch.compile(lambda q, k, v, ids: ll.attention(q, k, v, mask=ll.Documents(ids)), fullgraph=True)
    with pytest.raises(ValueError, match=r"inside torch\.compile: the tokens of one document stand in 2 separate runs"):
        f(*leaves(), torch.tensor([0] * 5 + [1] * 5 + [0] * 7))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"spans": ll.Causal().lower(13, 17).spans},
        {
            "slopes": torch.rand(4, requires_grad=True),
            "offsets": torch.randn(4, 29, requires_grad=True),
            "bias": torch.randn(1, 17, requires_grad=True),
            "sink": torch.randn(4, requires_grad=True),
            "temperature": torch.tensor(0.8, requires_grad=True),
            "softcap": 2.0,
            "mask": torch.rand(13, 17, generator=generator(0)) > 0.5,
        },
        {"dropout": 0.3, "seed": torch.tensor(7)},
    ],
    ids=["plain", "spans", "everything", "dropout"],
)
def test_opcheck(changes: dict[str, Any]) -> None:
    x, terms = leaves(), TERMS._replace(**{"temperature": torch.tensor(1.2), "scale": 0.3, **changes})
    torch.library.opcheck(torch.ops.limelight.attention.default, (*x, *terms))
    with torch.no_grad():
        out, lse, scaled = torch.ops.limelight.attention(*x, *terms)
    learned = (terms.slopes, terms.offsets, terms.bias, terms.sink, terms.temperature)
    wanted = [isinstance(term, Tensor) and term.requires_grad for term in learned]
    args = (torch.randn_like(out), torch.randn_like(lse), *x, out, lse, scaled, *terms, wanted)
    torch.library.opcheck(torch.ops.limelight.attention_backward.default, args)


def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ll.attention(q, k, v, mask=ll.Causal()).square().sum()


def test_func_grad() -> None:
    x = leaves()
    got = torch.func.grad(loss, argnums=(0, 1, 2))(*(y.detach() for y in x))
    want = torch.autograd.grad(loss(*x), x)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_vmap() -> None:
    q, k, v = (torch.randn(3, *x.shape) for x in leaves())
    f = lambda q, k, v: ll.attention(q, k, v, mask=ll.Causal())  # noqa: E731
    each = torch.stack([f(*x) for x in zip(q, k, v, strict=True)])
    assert torch.equal(torch.func.vmap(f)(q, k, v), each)
    moved = torch.func.vmap(f, in_dims=(2, None, None), out_dims=1)(q.movedim(0, 2), k[0], v[0])
    assert_sums_close(moved, torch.stack([f(x, k[0], v[0]) for x in q], 1), terms=17)


def test_vmap_over_lengths() -> None:
    q, k, v = (x.detach() for x in leaves())
    lengths = torch.tensor([3, 17, 5])
    got = torch.func.vmap(lambda n: ll.attention(q, k, v, mask=ll.Padding(n)))(lengths)
    want = torch.stack([ll.attention(q, k, v, mask=ll.Padding(int(n))) for n in lengths])
    assert_sums_close(got, want, terms=17)


def test_gradients_sample_by_sample() -> None:
    q, table = torch.randn(3, 2, 4, 13, 8), torch.randn(3, 4, 9)
    _, k, v = (x.detach() for x in leaves())
    f = lambda q, t: ll.attention(q, k, v, bias=ll.Relative(t)).square().sum()  # noqa: E731
    one = torch.func.grad(f, argnums=(0, 1))
    got = torch.func.vmap(one)(q, table)
    for i in range(3):
        for a, b in zip(got, one(q[i], table[i]), strict=True):
            assert_sums_close(a[i], b, terms=2 * 13 * 17)


@pytest.mark.parametrize("outer", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.filterwarnings("ignore::limelight.SlowPathWarning")
def test_second_derivatives(outer: Any) -> None:
    q, k, v = (x.detach()[:1] for x in leaves(3, 4, torch.float64))
    f = lambda q: ll.attention(q, k, v, mask=ll.Causal()).square().sum()  # noqa: E731
    g = lambda q: reference.attention(q, k, v, mask=ll.Causal()).square().sum()  # noqa: E731
    torch.testing.assert_close(outer(torch.func.jacrev(f))(q), torch.func.hessian(g)(q))


def test_forward_mode_is_computed_in_plain_torch_and_said() -> None:
    q, k, v = (x.detach() for x in leaves(dtype=torch.float64))
    f = lambda q: ll.attention(q, k, v, mask=ll.Causal())  # noqa: E731
    with pytest.warns(ll.SlowPathWarning, match="plain torch: a forward-mode derivative"):
        _, got = torch.func.jvp(f, (q,), (q,))
    _, want = torch.func.jvp(lambda q: reference.attention(q, k, v, mask=ll.Causal()), (q,), (q,))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant: bool) -> None:
    f = lambda q, k, v: ll.attention(q, k, v, mask=ll.Causal(), dropout=0.5)  # noqa: E731
    x = leaves()
    torch.manual_seed(1)
    want = torch.autograd.grad(f(*x).sum(), x)
    torch.manual_seed(1)
    fresh = leaves()
    checkpoint(f, *fresh, use_reentrant=reentrant).sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(want, fresh, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    x = leaves()
    with torch.autocast("cpu", dtype=dtype):
        out = ll.attention(*x, mask=ll.Causal())
        again = ll.weights(*x[:2], mask=ll.Causal()) @ x[2]
        double = ll.attention(*(y.double() for y in x))
    assert out.dtype == again.dtype == dtype
    assert double.dtype == torch.float64
    assert torch.equal(out, ll.attention(*(y.to(dtype) for y in x), mask=ll.Causal()))
    grads = torch.autograd.grad(out.sum(), x)
    assert all(g.dtype == torch.float32 for g in grads)


def test_inference_mode() -> None:
    x = leaves()
    with torch.inference_mode():
        out = ll.attention(*x, mask=ll.Causal())
    assert out.is_inference()
    assert torch.equal(out, ll.attention(*x, mask=ll.Causal()))


def test_meta_tensors_have_shapes() -> None:
    q, k, v = (x.detach().to("meta") for x in leaves())
    out = ll.attention(q, k, v, mask=ll.Causal() & ll.Padding([3, 4]), bias=ll.ALiBi(4))
    assert out.is_meta
    assert out.shape == (2, 4, 13, 5)


@pytest.mark.parametrize(
    "value",
    [
        ll.Causal() & (ll.Window(3) | ll.First(2)),
        ll.Padding([17, 4]),
        ll.Documents(torch.arange(17) // 4),
        ll.Dense(torch.eye(13, 17) > 0),
        ll.ALiBi(4) + ll.Relative(torch.nn.Parameter(torch.randn(4, 5))),
        ll.DenseBias(torch.randn(13, 17)),
        ll.Relative.t5(torch.randn(4, 32)),
    ],
    ids=repr,
)
def test_masks_and_biases_are_copied_and_pickled(value: Any) -> None:
    name = "mask" if isinstance(value, Mask) else "bias"
    x = leaves()
    want = ll.attention(*x, **{name: value})
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert repr(other) == repr(value)
        assert torch.equal(ll.attention(*x, **{name: other}), want)


def test_a_parameter_keeps_learning_after_a_copy() -> None:
    bias = copy.deepcopy(ll.Relative(torch.nn.Parameter(torch.randn(4, 5))))
    ll.attention(*leaves(), bias=bias).sum().backward()
    assert bias.table.grad is not None


def test_tensors_that_stand_for_others() -> None:
    q, k, v = leaves()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x.detach()) for x in (q, k, v)]
    out = ll.attention(*fakes, mask=ll.Causal())
    assert isinstance(out, FakeTensor)
    assert out.shape == (2, 4, 13, 5)
    twos = [TwoTensor(x.detach(), 2 * x.detach()).requires_grad_() for x in (q, k, v)]
    both = ll.attention(*twos)
    assert torch.equal(both.a, ll.attention(q, k, v))
    assert_sums_close(both.b, ll.attention(2 * q, 2 * k, 2 * v), terms=17)
    (grad,) = torch.autograd.grad(both.sum(), twos[2])
    assert_sums_close(grad.a, torch.autograd.grad(ll.attention(q, k, v).sum(), v)[0], terms=2 * 13)
    nothing = torch._to_functional_tensor(q.detach())
    with pytest.raises(TypeError, match=r"q .* has no memory to read from"):
        ll.attention(nothing, k.detach(), v.detach())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the shapes are those of the example
def test_a_traced_call_computes() -> None:
    q, k, v = (x.detach() for x in leaves())
    traced = torch.jit.trace(lambda q, k, v: ll.attention(q, k, v, mask=ll.Causal()), (q, k, v))
    assert torch.equal(traced(2 * q, k, v), ll.attention(2 * q, k, v, mask=ll.Causal()))


def test_a_learned_scale() -> None:
    q, k, v = leaves(dtype=torch.float64)
    scale = torch.nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda s: ll.attention(q, k, v, scale=s, mask=ll.Causal()), scale)
    f = torch.compile(lambda q, k, v, s: ll.attention(q, k, v, scale=s), fullgraph=True)
    torch.testing.assert_close(f(q, k, v, scale), ll.attention(q, k, v, scale=0.3))
    with pytest.raises(TypeError, match="softcap requires grad, and attention gives it none"):
        ll.attention(q, k, v, softcap=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("backend", ["native", "portable"])
def test_temperatures_of_any_rank_and_type(shape: tuple[int, ...], backend: str) -> None:
    x = leaves()
    heat = torch.full(shape, 1.2, dtype=torch.float64, requires_grad=True)
    out = ll.attention(*x, temperature=heat, backend=backend)
    (g,) = torch.autograd.grad(out.square().sum(), heat, create_graph=True)
    assert g.shape == shape
    g.sum().backward()
    assert_sums_close(out, ll.attention(*x, temperature=1.2), terms=17)
