"""Bad input: an error that names what clashed and what to do, and the process lives on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from limelight import backends
from limelight.core.problem import AttentionSpec, Problem

Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
LAYER, X = ll.nn.MultiHeadAttention(8, 2), torch.randn(1, 5, 8)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"q": [1.0]}, TypeError, "q must be a torch tensor, not list"),
        ({"q": Q.int()}, TypeError, r"q is torch.int32; attention takes float32"),
        ({"v": V.to(torch.complex64)}, TypeError, "v is torch.complex64"),
        (
            {"q": Q[0, 0]},
            ValueError,
            r"q \(5, 8\) and k \(2, 3, 7, 8\) must both be \(…, heads, length, width\)",
        ),
        ({"v": V[0, 0]}, ValueError, r"v \(7, 4\) does not fit k \(2, 3, 7, 8\)"),
        ({"q": Q.double()}, TypeError, "q is torch.float64 and k is torch.float32; convert one"),
        ({"q": Q[:1]}, ValueError, r"differ in their batch axes: \(1,\) and \(2,\)"),
        ({"q": Q[0]}, ValueError, r"differ in their batch axes: \(\) and \(2,\)"),
        ({"q": Q[..., :5]}, ValueError, "differ in width: 5 and 8"),
        ({"q": Q[..., :0], "k": K[..., :0]}, ValueError, "have width 0"),
        ({"q": Q[:, :4]}, ValueError, "q has 4 heads and k 3; the heads of q must be a multiple"),
        (
            {"v": V[:, :, :5]},
            ValueError,
            r"v \(2, 3, 5, 4\) does not fit k \(2, 3, 7, 8\): all axes but the last",
        ),
        ({"v": V[:, :1]}, ValueError, "all axes but the last must be"),
        ({"k": K.to("meta")}, ValueError, "q is on cpu and k on meta; move them to one device"),
        ({"v": V.to("meta")}, ValueError, "v is on meta and k on cpu"),
        ({"q": Q.to_sparse()}, TypeError, "layout torch.sparse_coo; make it dense"),
        ({"mask": torch.ones(5, 7, dtype=torch.bool)}, TypeError, r"wrap it as Dense\(tensor\)"),
        ({"mask": torch.ones(5, 7)}, TypeError, r"pass bias=DenseBias\(tensor\)"),
        ({"mask": "causal"}, TypeError, r"such as Causal\(\), not str"),
        ({"bias": torch.ones(5, 7)}, TypeError, r"wrap it as DenseBias\(tensor\)"),
        ({"bias": ll.ALiBi(4)}, ValueError, r"ALiBi\(4\) is made for 4 heads and q has 6"),
        ({"bias": ll.Relative(torch.zeros(3, 5))}, ValueError, "is made for 3 heads and q has 6"),
        ({"bias": ll.DenseBias(torch.zeros(5, 6))}, ValueError, r"\(5, 6\) does not fit 5 queries × 7 keys"),
        ({"bias": ll.DenseBias(torch.zeros(3, 5, 7))}, ValueError, "is made for 3 heads and q has 6"),
        (
            {"mask": ll.Dense(torch.ones(3, 1, 5, 7, dtype=torch.bool))},
            ValueError,
            "is made for 3 batch elements and q has 2",
        ),
        (
            {"mask": ll.Padding([1, 2, 3])},
            ValueError,
            r"Padding\(\[1, 2, 3\]\) is made for 3 batch elements and q has 2",
        ),
        ({"mask": ll.Padding(8)}, ValueError, "length 8 is more than the 7 keys"),
        ({"mask": ll.Documents([0] * 5)}, ValueError, "5 ids for 7 keys"),
        ({"temperature": 0.0}, ValueError, "temperature = 0.0 must be above 0"),
        ({"temperature": -1}, ValueError, "temperature = -1.0 must be above 0"),
        ({"temperature": torch.nan}, ValueError, "temperature = nan must be finite"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number, not str"),
        (
            {"temperature": torch.ones(2, requires_grad=True)},
            ValueError,
            r"shape \(2,\); it must be one number",
        ),
        ({"softcap": 0}, ValueError, "softcap = 0.0 must be above 0"),
        ({"softcap": torch.inf}, ValueError, "softcap = inf must be finite"),
        ({"scale": torch.nan}, ValueError, "scale = nan must be finite"),
        ({"sink": torch.zeros(3)}, ValueError, r"sink has shape \(3,\); it must be \(6,\)"),
        ({"sink": torch.zeros(6, dtype=torch.int64)}, TypeError, "sink is torch.int64"),
        ({"sink": "deep"}, TypeError, "sink must be a number, not str"),
        ({"backend": "cuda"}, ValueError, "backend = 'cuda'; there are 'native' and 'portable'"),
        ({"scale": 10**400}, ValueError, "scale is a number of 401 digits, too large for a float"),
        ({"attn_mask": None}, TypeError, r"no argument 'attn_mask': write mask=Dense\(tensor\) for booleans"),
        ({"is_causal": True}, TypeError, r"no argument 'is_causal': write mask=Causal\(\)"),
        ({"dropout_p": 0.1}, TypeError, "no argument 'dropout_p': write dropout="),
        ({"enable_gqa": True}, TypeError, "no argument 'enable_gqa': write nothing: with fewer heads in k"),
        (
            {"heat": 2},
            TypeError,
            "no argument 'heat'; there are mask, bias, scale, softcap, sink, temp",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["native", "portable"])
def test_clashes_are_named(changes: dict[str, Any], error: type[Exception], match: str, backend: str) -> None:
    with pytest.raises(error, match=match):
        ll.attention(**{"q": Q, "k": K, "v": V, "backend": backend, **changes})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ll.weights(Q, K, attn_mask=None), r"weights\(\) has no argument 'attn_mask': write mask=Dense"),
        (lambda: ll.backend_for(Q, K, V, is_causal=True), r"no argument 'is_causal': write mask=Causal\(\)"),
        (lambda: ll.backend_for(Q, K, V, heat=2), "no argument 'heat'; there are mask, bias"),
        (lambda: LAYER(X, is_causal=True), r"MultiHeadAttention has no argument 'is_causal': write mask=Causal\(\)"),
        (lambda: LAYER(X, key_padding_mask=None), r"write mask=Padding\(lengths\)"),
        (lambda: LAYER(X, cache="yes"), r"such as KVCache\(\)\[0\], not str"),
        (lambda: LAYER(X, cache=ll.KVCache), r"such as KVCache\(\)\[0\], not KVCache"),
        (lambda: LAYER(X, cache=ll.KVCache()), r"such as KVCache\(\)\[0\], not KVCache"),
        (lambda: LAYER([1.0]), r"x must be a tensor \(batch, tokens, width\), not list"),
        (lambda: LAYER(X[0]), r"x must be a tensor \(batch, tokens, width\), not \(5, 8\)"),
        (lambda: LAYER(X, "context"), r"context must be a tensor \(batch, tokens, width\), not str"),
    ],
)
def test_wrong_arguments(call: Callable[[], object], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        call()


def test_masks_of_nothing() -> None:
    with pytest.raises(ValueError, match="Padding: lengths is empty"):
        ll.Padding([])
    with pytest.raises(ValueError, match="Documents: ids is empty"):
        ll.Documents([])


def test_what_tensors_have_and_weights_have_not() -> None:
    A = ll.weights(Q, K)
    with pytest.raises(AttributeError, match=r"Weights has no sum\(\): rows sum to 1; received\(\)"):
        A.sum()
    with pytest.raises(AttributeError, match=r"no attribute 'std'; A.dense\(\) is the matrix as a tensor"):
        A.std()
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = A.nothing


def test_masks_have_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"combine masks with &, \| and ~"):
        ll.Causal() and ll.Window(2)
    with pytest.raises(ValueError, match=r"one side has \(batch, heads\) = \(2, 1\) and the other \(3, 1\)"):
        ll.Padding([1, 2]) & ll.Padding([1, 2, 3])
    with pytest.raises(TypeError, match="ids must be whole numbers, as many in every row"):
        ll.Documents([[1, 2], [3]])  # type: ignore[list-item]


def test_an_empty_sequence_with_a_relative_bias() -> None:
    x = torch.randn(2, 4, 0, 8)
    assert ll.attention(x, x, x, bias=ll.Relative(torch.zeros(4, 5))).shape == (2, 4, 0, 8)


def test_padding_that_would_be_read_as_queries_and_keys() -> None:
    n, M = 5, 7  # as many batch elements as queries
    q, k, v = torch.randn(n, 1, n, 3), torch.randn(n, 1, M, 3), torch.randn(n, 1, M, 2)
    lengths = torch.tensor([3, 7, 1, 5, 2])
    attend = torch.arange(M) < lengths[:, None]
    for mask in (attend, ~attend):
        with pytest.raises(ValueError, match=r"Dense: .*\(5, 7\) looks like padding of 5 .*Padding\(lengths\)"):
            ll.attention(q, k, v, mask=ll.Dense(mask))
    want = ll.attention(q, k, v, mask=ll.Padding(lengths))
    torch.testing.assert_close(ll.attention(q, k, v, mask=ll.Dense(attend[:, None, None, :])), want)
    causal = torch.ones(n, M, dtype=torch.bool).tril(M - n)  # runs that grow from query to query
    want = ll.attention(q, k, v, mask=ll.Causal())
    torch.testing.assert_close(ll.attention(q, k, v, mask=ll.Dense(causal)), want)
    ll.attention(q, k, v, mask=ll.Dense(attend[None, None]))  # said to be queries × keys


def test_tensors_that_are_refused_are_not_ordinary() -> None:
    random, ordinary, refused = Random(5), 0, 0

    def tensor(heads: int) -> Tensor:
        shape = random.choice([2, 2, 2, 3]), random.choice([2, heads, heads, heads]), 5, random.choice([7, 7, 7, 1, 0])
        dtype = random.choice([torch.float32] * 7 + [torch.bfloat16, torch.int64])
        x = torch.zeros(shape[random.choice([0, 0, 0, 0, 0, 1]) :], dtype=dtype)
        return x if random.random() < 0.95 else x.to_sparse()

    for _ in range(2000):
        q, k, v = tensor(4), tensor(2), tensor(2)
        sizes = backends.ordinary_sizes(q, k, v)
        try:
            p = Problem(q, k, AttentionSpec())
            p.check_values(v)
        except (TypeError, ValueError):
            assert sizes is None
            refused += 1
        else:
            assert sizes == (p.sizes if q.ndim == 4 else None)
            ordinary += sizes is not None
    assert ordinary > 50
    assert refused > 50
