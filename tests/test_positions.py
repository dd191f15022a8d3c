"""Position schemes against published values and other implementations, and what they break."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_neighbours
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn_halves
from transformers.models.t5.modeling_t5 import T5Attention

from limelight import positions
from limelight.nn import Block, Encoder, FeedForward, MultiHeadAttention


def test_sinusoids_are_the_published_ones() -> None:
    got = positions.sinusoids(torch.arange(7), 10)
    for p in range(7):
        for i in range(5):
            angle = p / 10000 ** (2 * i / 10)
            assert got[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert got[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)
    # PE(p + k) is a rotation of PE(p) that does not depend on p.
    a, b = (positions.sinusoids(torch.arange(s, s + 2), 10).unflatten(-1, (5, 2)) for s in (3, 11))
    torch.testing.assert_close((a[0] * a[1]).sum(-1), (b[0] * b[1]).sum(-1))


@pytest.mark.parametrize("first", [0, 5])
def test_rotary_pairings(first: int) -> None:
    q, k = torch.randn(2, 3, 11, 8), torch.randn(2, 3, 11, 8)
    rotary = positions.Rotary(8, 100.0)
    got_q, got_k, bias = rotary.place(q, k, first, keys=11 + first, scale=1.0)
    assert bias is None
    angle = torch.arange(first, first + 11)[:, None] * 100.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = (torch.cat([f(angle), f(angle)], -1)[None] for f in (torch.cos, torch.sin))
    want_q, want_k = turn_halves(q, k, cos, sin)
    torch.testing.assert_close(got_q, want_q)
    torch.testing.assert_close(got_k, want_k)
    got, _, _ = positions.Rotary(8, interleaved=True).place(q, k, first, keys=11 + first, scale=1.0)
    sin, cos = create_sinusoidal_positions(32, 8)[first : first + 11].split(4, -1)
    torch.testing.assert_close(got, turn_neighbours(q.transpose(1, 2), sin[None], cos[None]).transpose(1, 2))


def test_partial_rotary_and_distances() -> None:
    rotary = positions.Rotary(4)
    q, k = torch.randn(1, 1, 1, 6).expand(1, 1, 9, 6), torch.randn(1, 1, 1, 6).expand(1, 1, 9, 6)
    a, b, _ = rotary.place(q, k, keys=9, scale=1.0)
    assert torch.equal(a[..., 4:], q[..., 4:])
    scores = (a @ b.mT)[0, 0]
    for d in range(-8, 9):
        diagonal = scores.diagonal(d)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="Rotary: width = 5 must be even"):
        positions.Rotary(5)


def test_positions_by_batch_element() -> None:
    x = torch.randn(2, 3, 4, 8)
    turned, _, _ = positions.Rotary(8).place(x, x, torch.tensor([2, 0]), keys=4, scale=1.0)
    for n, first in enumerate((2, 0)):
        alone, _, _ = positions.Rotary(8).place(x[n : n + 1], x[n : n + 1], first, keys=4, scale=1.0)
        torch.testing.assert_close(turned[n : n + 1], alone)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "truncate": False,
            "beta_fast": 16,
        },
    ],
)
def test_scalings(rope: dict[str, Any]) -> None:
    rope = {"rope_theta": 5000.0, **rope}
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, rope_parameters=rope)
    rates, size = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    from limelight.models.configs import rotary

    ours = rotary(config.to_dict(), 32)
    torch.testing.assert_close(ours.rates, rates.float())
    assert ours.scaling.size == pytest.approx(size)


@pytest.mark.parametrize("two_sided", [True, False])
def test_t5(two_sided: bool) -> None:
    config = T5Config(d_model=20, num_heads=5, d_kv=4, is_decoder=not two_sided)
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = positions.T5(5, two_sided=two_sided)
    ours.table.load_state_dict(theirs.relative_attention_bias.state_dict())
    _, _, bias = ours.place(torch.randn(1, 5, 300, 4), torch.randn(1, 5, 300, 4), keys=300, scale=1.0)
    assert bias is not None
    torch.testing.assert_close(bias.dense(300), theirs.compute_bias(300, 300)[0].detach())


@pytest.mark.parametrize(("n", "keys"), [(5, 5), (1, 6), (3, 7), (2, 2), (1, 1)])
def test_transformer_xl(n: int, keys: int) -> None:
    """``(q + u) · k + (q + v) · r(position - key)``, number by number."""
    torch.manual_seed(0)
    xl = positions.XL(2, 3, 8)
    nn.init.normal_(xl.content)
    nn.init.normal_(xl.position)
    q, k = torch.randn(1, 2, n, 3), torch.randn(1, 2, keys, 3)
    moved, _, bias = xl.place(q, k, keys=keys, scale=0.7)
    assert bias is not None
    got = 0.7 * moved @ k.mT + bias.dense(n, keys)
    r = nn.functional.linear(positions.sinusoids(torch.arange(-keys, keys + 1), 8), xl.project.weight)
    for h in range(2):
        for i in range(n):
            for j in range(keys):
                distance = keys - n + i - j
                at = r[distance + keys].view(2, 3)[h]
                want = (q[0, h, i] + xl.content[h]) @ k[0, h, j] + (q[0, h, i] + xl.position[h]) @ at
                torch.testing.assert_close(got[0, h, i, j], 0.7 * want)


def schemes() -> dict[str, positions.Positions]:
    torch.manual_seed(0)
    xl = positions.XL(4, 6, 24)
    nn.init.normal_(xl.position)
    return {
        "none": positions.Positions(),
        "sinusoidal": positions.Sinusoidal(),
        "learned": positions.Learned(32, 24),
        "rotary": positions.Rotary(6),
        "alibi": positions.ALiBi(4),
        "t5": positions.T5(4),
        "transformer-xl": xl,
    }


@pytest.mark.parametrize("name", list(schemes()))
@torch.no_grad()
def test_only_positions_break_permutation_equivariance(name: str) -> None:
    scheme = schemes()[name]
    encoder = Encoder([Block(MultiHeadAttention(24, 4, positions=scheme), FeedForward(24, 32))]).eval()
    x, shuffled = torch.randn(1, 13, 24), torch.randperm(13)

    def run(x: Tensor) -> Tensor:
        out: Tensor = encoder(scheme.embed(x))
        return out

    equivariant = torch.allclose(run(x)[:, shuffled], run(x[:, shuffled]), atol=1e-5)
    assert equivariant == (name == "none")


def test_learned_positions_end() -> None:
    with pytest.raises(ValueError, match="needs 33 positions, and the model has learned 32; shorten the text"):
        positions.Learned(32, 8).embed(torch.zeros(1, 3, 8), 30)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: positions.Yarn(factor=2.0, trained=0, base=100.0), "Yarn: trained = 0 must be above 0"),
        (lambda: positions.Yarn(factor=2.0, trained=9, base=-1.0), r"Yarn: base = -1\.0 must be above 1"),
        (lambda: positions.Llama3(2.0, 4.0, 1.0, 16), r"Llama3: low = 4\.0 must be below high = 1\.0"),
        (lambda: positions.Interpolated(0.0), r"Interpolated: factor = 0\.0 must be above 0"),
        (lambda: positions.Rotary(8, base=-3.0), r"Rotary: base = -3\.0 must be above 0"),
        (lambda: positions.T5(3, buckets=32, max_distance=8), "give at least 4 buckets and a max_distance above 8"),
        (lambda: positions.T5(3, buckets=1), "give at least 4 buckets"),
    ],
)
def test_schemes_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
