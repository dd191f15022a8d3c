"""Sparse patterns: their definitions, what they refuse, and that they keep their pattern in a cache."""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable

import pytest
import torch

import limelight as ll
from conftest import assert_sums_close, generator, largest
from limelight.backends import native
from limelight.core import reference
from limelight.core.masks import Mask, Spans, lower_mask
from limelight.core.masks.passes import plan
from limelight.core.problem import AttentionSpec, Problem

LAYOUT = torch.rand(4, 4, generator=torch.Generator().manual_seed(5)) > 0.5
FLAGS = torch.rand(2, 11, generator=torch.Generator().manual_seed(7)) > 0.6


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (ll.Strided(3), lambda p, j: (p - j) % 3 == 0),
        (ll.Strided(1), lambda p, j: True),
        (ll.Dilated(2, 3), lambda p, j: p - j in (-6, -3, 0, 3, 6)),
        (ll.Dilated(0, 5), lambda p, j: p == j),
        (ll.Global([5, 2]), lambda p, j: p in (2, 5) or j in (2, 5)),
        (ll.Global(7), lambda p, j: 7 in (p, j)),
        (ll.Global([]), lambda p, j: False),
        (ll.Global([40]), lambda p, j: False),
        (ll.Global(FLAGS[0]), lambda p, j: bool(FLAGS[0, p] or FLAGS[0, j])),
        (ll.Blocks(LAYOUT, 3), lambda p, j: bool(LAYOUT[p // 3, j // 3])),
        (ll.Causal() & (ll.Strided(4) | ll.Window(1)), lambda p, j: j <= p and ((p - j) % 4 == 0 or p - j <= 1)),
    ],
)
def test_definitions_with_positions_aligned_at_the_end(mask: Mask, rule: object) -> None:
    N, M = 7, 11
    want = [[rule(M - N + i, j) for j in range(M)] for i in range(N)]  # type: ignore[operator]
    assert mask.dense(N, M).tolist() == want


def test_random_blocks() -> None:
    mask = ll.RandomBlocks(5, 3, seed=11)
    layout = mask.layout(43)  # nine blocks, the last one of three keys
    assert layout.shape == (9, 9)
    assert (layout.sum(1) == 3).all(), "without repetition"
    assert torch.equal(mask.dense(43), ll.Blocks(layout, 5).dense(43))
    assert torch.equal(layout, ll.RandomBlocks(5, 3, seed=11).layout(43)), "the same in every process"
    assert not torch.equal(layout, ll.RandomBlocks(5, 3, seed=12).layout(43))
    counts = sum(ll.RandomBlocks(1, 2, seed=s).layout(5).double() for s in range(600))
    assert (counts / 600 - 0.4).abs().max() < 5 * (0.4 * 0.6 / 600) ** 0.5, "every block is as likely"
    assert ll.RandomBlocks(4, 99).dense(9).all()
    assert not ll.RandomBlocks(4, 0).dense(9).any()


def test_flags_differ_by_batch_element() -> None:
    want = FLAGS[:, :, None] | FLAGS[:, None, :]
    assert torch.equal(ll.Global(FLAGS).dense(11)[:, 0], want)
    assert torch.equal(ll.Global(FLAGS).dense(4, 11)[:, 0], want[:, 7:])


def test_layouts_by_head() -> None:
    layout = torch.rand(2, 3, 4, 4) > 0.5
    mask = ll.Blocks(layout, 3)
    want = layout.repeat_interleave(3, 2).repeat_interleave(3, 3)[:, :, :11, :11]
    assert torch.equal(mask.dense(11), want)
    q, k, v = (torch.randn(2, 3, 11, 5) for _ in "qkv")
    got, dense = (ll.attention(q, k, v, mask=m) for m in (mask, ll.Dense(want)))
    torch.testing.assert_close(got, dense)


@pytest.mark.parametrize(
    "mask",
    [
        ll.Causal() & (ll.Strided(3) | ll.Window(1)),
        ll.Causal() & ll.Dilated(2, 3),
        ll.Causal() & (ll.Global([0, 4]) | ll.Window(2)),
        ll.Causal() & ll.Blocks(torch.rand(5, 5) > 0.4, 4),
    ],
)
def test_a_cache_sees_the_pattern_of_the_whole(mask: Mask) -> None:
    q, k, v = (torch.randn(2, 3, 17, 5) for _ in "qkv")
    whole = ll.attention(q, k, v, mask=mask)
    for n in range(1, 18):
        step = ll.attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], mask=mask)
        torch.testing.assert_close(step[:, :, 0], whole[:, :, n - 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ll.Strided(0), ValueError, "stride = 0; give 1 for every key"),
        (lambda: ll.Strided(2.5), TypeError, "stride must be a whole number, not 2.5"),
        (lambda: ll.Dilated(-1, 2), ValueError, "window = -1 is negative"),
        (lambda: ll.Dilated(1, 0), ValueError, "dilation = 0"),
        (lambda: ll.Global([3, -1]), ValueError, "position -1 is negative; positions count from the first key"),
        (lambda: ll.Global([0.5]), TypeError, "must be whole numbers"),
        (lambda: ll.Global([[1], [2]]), ValueError, "boolean tensor"),
        (lambda: ll.Global("cls"), TypeError, "must be whole numbers, not 'cls'"),
        (lambda: ll.Global(FLAGS).dense(12), ValueError, "11 flags for 12 keys"),
        (lambda: ll.Blocks([[True]], 2), TypeError, "must be a boolean tensor, not list"),
        (lambda: ll.Blocks(torch.ones(2), 2), TypeError, "boolean tensor, not torch.float32"),
        (lambda: ll.Blocks(LAYOUT[0], 2), ValueError, "give .rows, columns. of blocks"),
        (lambda: ll.Blocks(LAYOUT, 0), ValueError, "block = 0"),
        (lambda: ll.Blocks(LAYOUT, 3).dense(13), ValueError, "does not cover 13 positions; give at least 5 × 5"),
        (lambda: ll.RandomBlocks(0, 1), ValueError, "block = 0"),
    ],
)
def test_errors_name_the_clash(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("mask", [ll.Strided(3), ll.Global(FLAGS), ll.Blocks(LAYOUT, 3), ll.RandomBlocks(2, 1, seed=3)])
def test_pickle(mask: Mask) -> None:
    other = pickle.loads(pickle.dumps(mask))
    assert repr(other) == repr(mask)
    assert torch.equal(other.dense(11), mask.dense(11))


def test_compiled() -> None:
    mask = ll.Causal() & (ll.Strided(3) | ll.Window(2) | ll.Global([1]) | ll.RandomBlocks(4, 1))
    compiled = torch.compile(lambda q, k, v: ll.attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    q, k, v = (torch.randn(1, 2, 13, 5) for _ in "qkv")
    torch.testing.assert_close(compiled(q, k, v), ll.attention(q, k, v, mask=mask))


PATTERNS = [
    ll.Strided(5),
    ll.Causal() & ll.Strided(4),
    ll.Dilated(3, 5),
    ll.Causal() & (ll.Window(3) | ll.Strided(5)),
    ll.Padding([19, 31]) & (ll.Dilated(2, 3) | ll.Window(2) | ll.First(2)),
    ll.Window(2) | ll.Global([0, 5, 9, 17]),
    ll.Causal() & (ll.Window(2) | ll.Global([0, 5, 9, 17]) | ll.Strided(6)),
    ll.Strided(3) & ~ll.Window(1) & ll.Documents(torch.arange(31) // 11),
    ll.RandomBlocks(4, 2) | ll.Strided(7),
    ll.Strided(4) & ll.Dilated(3, 6),
]


@pytest.mark.parametrize("mask", PATTERNS, ids=repr)
@pytest.mark.parametrize("N", [31, 13, 1])
@pytest.mark.parametrize("sink", [False, True])
def test_passes_equal_the_equation_with_gradients(mask: Mask, N: int, sink: bool) -> None:
    options = {"mask": mask, "sink": torch.randn(6) if sink else None, "softcap": 3.0}
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((2, 6, N, 5), (2, 3, 31, 5), (2, 3, 31, 7))]
    dout = torch.randn(2, 6, N, 7, dtype=torch.float64)
    results = []
    for attend in (ll.attention, reference.attention):
        q, k, v = (x.clone().requires_grad_() for x in tensors)
        out = attend(q, k, v, **options)
        results.append([out, *torch.autograd.grad(out, (q, k, v), dout)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
    assert "pass" in ll.backend_for(q, k, v, **options).reason


def test_no_pair_is_computed_twice_or_left_out() -> None:
    N, M = 23, 31
    for mask in PATTERNS:
        counts = torch.zeros(2, N, M, dtype=torch.int64)
        for queries, keys, spans, *_ in plan(mask, N, M):
            queries = torch.arange(N) if queries is None else queries
            keys = torch.arange(M) if keys is None else keys
            inside = torch.arange(len(keys))
            allowed = torch.ones(1, len(queries), len(keys), dtype=torch.bool)
            if spans is not None:
                begin, end = spans[:, :, :, None].unbind(-1)
                allowed = ((begin <= inside) & (inside < end)).any(2)
            counts[:, queries[:, None], keys] += allowed.expand(2, -1, -1)
        assert torch.equal(counts, mask.dense(N, M).expand(2, 1, N, M)[:, 0].long()), mask


def test_what_passes_cannot_express_is_said_and_still_exact() -> None:
    q, k, v = (torch.randn(1, 2, 29, 5) for _ in "qkv")
    options = {"mask": ll.Strided(4) | ll.Strided(6), "bias": ll.DenseBias(torch.randn(29, 29))}
    assert "many short spans" in ll.backend_for(q, k, v, **options).reason
    torch.testing.assert_close(ll.attention(q, k, v, **options), reference.attention(q, k, v, **options))


@pytest.mark.parametrize("mask", PATTERNS, ids=repr)
@pytest.mark.parametrize("N", [31, 13])
def test_biases_go_along_with_their_gradients(mask: Mask, N: int) -> None:
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((2, 6, N, 5), (2, 3, 31, 5), (2, 3, 31, 7))]
    tensors += [torch.rand(6), torch.randn(6, 23), torch.randn(6, 8), torch.randn(2, 6, 1, 31), torch.randn(N, 1)]
    dout = torch.randn(2, 6, N, 7, dtype=torch.float64)
    for chosen in ((3,), (4,), (5,), (6,), (6, 7), (3, 4, 5, 6)):
        results = []
        for attend in (ll.attention, reference.attention):
            leaves = [x.clone().requires_grad_() for x in tensors]
            q, k, v, slopes, table, buckets, by_key, by_query = leaves
            biases = [ll.ALiBi(slopes), ll.Relative(table), ll.Relative.t5(buckets, max_distance=17)]
            biases += [ll.DenseBias(by_key), ll.DenseBias(by_query)]
            bias = functools.reduce(operator.add, (biases[n - 3] for n in chosen))
            out = attend(q, k, v, mask=mask, bias=bias)
            results.append([out, *torch.autograd.grad(out, [q, k, v, *(leaves[n] for n in chosen)], dout)])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        assert " pass" in ll.backend_for(q, k, v, mask=mask, bias=bias).reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_moved_and_merged(dtype: torch.dtype) -> None:
    B, H, N, n, width = 2, 3, 37, 19, 11
    places = torch.randperm(N)[:n]
    x = torch.randn(B, N, H, width, dtype=dtype).transpose(1, 2)
    assert torch.equal(native.take_rows(x, places), x[:, :, places])
    other = torch.randn(B, n, H, width, dtype=dtype).transpose(1, 2)
    lse, other_lse = 30 * torch.randn(B, H, N, dtype=dtype), 30 * torch.randn(B, H, n, dtype=dtype)
    lse[0, 1, places[:3]] = other_lse[0, 1, 2:5] = -torch.inf
    x[lse == -torch.inf], other[other_lse == -torch.inf] = 0.0, 0.0
    mine = lse[:, :, places].double()
    total = torch.logaddexp(mine, other_lse.double())
    safe = torch.where(total == -torch.inf, 0.0, total)
    parts = (x[:, :, places], mine), (other, other_lse.double())
    want = sum(o.double() * torch.exp(part - safe)[..., None] for o, part in parts)
    out, out_lse = x.clone(memory_format=torch.preserve_format), lse.clone()
    native.merge_rows(out, out_lse, other, other_lse, places)
    torch.testing.assert_close(out[:, :, places].double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out_lse[:, :, places].double(), total, rtol=1e-6, atol=1e-5)
    rest = torch.ones(N, dtype=torch.bool).scatter(0, places, False)
    assert torch.equal(out[:, :, rest], x[:, :, rest])


def test_dense_masks_skip_blocks_that_are_false() -> None:
    n, H = 331, 3
    ids = torch.arange(n) // 83
    allowed = (ids[:, None] == ids).expand(2, 1, n, n).clone()
    allowed[1, 0, :, 100:300] = False
    spans = lower_mask(ll.Dense(allowed), n, n).spans
    assert spans is not None
    inside = ll.Dense(allowed).dense(n) & ~Spans(spans).dense(n)
    assert not inside.any(), "nothing that is allowed is left out"
    assert Spans(spans).dense(n).float().mean() < 0.5
    q, k, v = (torch.randn(2, H, n, 7) for _ in "qkv")
    for mask in (ll.Dense(allowed), ll.Dense(allowed) & ll.Causal(), ll.Dense(allowed) | ll.Window(2)):
        torch.testing.assert_close(ll.attention(q, k, v, mask=mask), reference.attention(q, k, v, mask=mask))


def _of_blocks(N: int, M: int, block: int) -> Mask:
    rows = -(-M // block)
    return ll.Blocks(torch.rand(2, 1, rows, rows) > 0.6, block)


TILED = [
    ll.RandomBlocks(32, 2),
    ll.RandomBlocks(7, 5),
    ll.Causal() & (ll.Window(3) | ll.RandomBlocks(29, 2)),
    ll.Window(5) | ll.Global([0, 71]),
    ll.Documents(torch.arange(193) // 37),
    ll.Strided(3),
    *(functools.partial(_of_blocks, block=block) for block in (16, 23, 64)),
]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    "mask", TILED, ids=lambda x: repr(x) if isinstance(x, Mask) else f"blocks of {x.keywords['block']}"
)
@pytest.mark.parametrize(("N", "M"), [(193, 193), (131, 193)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_that_begin_where_keys_change_equal_the_equation(
    mask: Mask | Callable[[int, int], Mask], N: int, M: int, dtype: torch.dtype
) -> None:
    mask = mask if isinstance(mask, Mask) else mask(N, M)
    tensors = [torch.randn(s, dtype=dtype) for s in ((2, 6, N, 11), (2, 3, M, 11), (2, 3, M, 5))]
    dout = torch.randn(2, 6, N, 5, dtype=dtype)
    results = []
    for attend, kind in ((ll.attention, dtype), (reference.attention, torch.float64)):
        q, k, v = (x.to(kind, copy=True).requires_grad_() for x in tensors)
        out = attend(q, k, v, mask=mask)
        results.append([out, *torch.autograd.grad(out, (q, k, v), dout.to(kind))])
    for got, want in zip(*results, strict=True):
        assert_sums_close(got, want, M, largest(want))
    q, k, _ = (x.double() for x in tensors)
    A = reference.steps(q, k, mask=mask).weights
    W = ll.weights(*tensors[:2], mask=mask)
    assert_sums_close(W.entropy(), torch.special.entr(A).sum(-1), M)
    assert_sums_close(W.received(), A.sum(-2), N)


def test_tiles_do_not_reach_over_blocks(isa: str) -> None:
    n, block = 512, 64
    q = torch.randn(1, 1, n, 8)
    width = 16 if isa.startswith("avx512") else 8 if isa == "avx2" else 4
    at = torch.arange(8)
    layout = (at - 3 * at[:, None]) % 8 % 4 == 0  # two blocks apart in every row, none of them those of the row above
    for mask, lengths in ((ll.Blocks(layout, block), [block] * 8), (ll.Causal(), [n])):
        cut = native.cut(Problem(q, q, AttentionSpec(mask=mask)), q)
        assert cut.tasks // cut.chunks == sum(-(-length // width // 3) for length in lengths)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sink", [False, True])
def test_passes_are_rounded_to_half_types_once(dtype: torch.dtype, sink: bool) -> None:
    """Merged outputs are as near to those of float64 as the type allows, not rounded in every pass."""
    g = generator(7)
    q, k, v = (torch.randn(2, 6, 37, width, generator=g).to(dtype) for width in (7, 7, 13))
    logits = torch.randn(6, generator=g) if sink else None
    for mask in (ll.Causal() | ll.Strided(3), ll.Window(3) | ll.Strided(5), ll.Strided(3)):
        got = ll.attention(q, k, v, mask=mask, sink=logits).double()
        want = ll.attention(
            q.double(), k.double(), v.double(), mask=mask, sink=None if logits is None else logits.double()
        )
        allowed = 0.5 * torch.finfo(dtype).eps * want.abs() + 3e-6
        assert ((got - want).abs() <= allowed).all()


def test_many_global_tokens_are_told_apart() -> None:
    n, g = 131, generator(131)
    x = torch.randn(1, 2, n, 7, generator=g)
    some, others = ll.Global(list(range(0, 120, 4))), ll.Global(list(range(1, 121, 4)))
    flags, more_flags = (ll.Global(torch.rand(1, n, generator=g) < 0.3) for _ in range(2))
    for mask in (some, others, some | others, flags, more_flags, flags | more_flags, some):
        expected = reference.attention(*(x.double(),) * 3, mask=mask)
        assert_sums_close(ll.attention(x, x, x, mask=mask), expected, n)
