"""Real use: a character model of four layers learns the same with limelight as with SDPA, and with what SDPA lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import limelight as ll
from conftest import SEED, generator

TEXT = (Path(__file__).parents[1] / "LICENSE").read_text()
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(c) for c in TEXT])
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        B, N, E = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(B, N, E))
        return x + self.mlp(self.norms[1](x))


class Letters(nn.Module):
    def __init__(self, attend: Attend, width: int = 64, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.embed, self.where = nn.Embedding(len(LETTERS), width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads, attend) for _ in range(4)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(LETTERS)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.where(torch.arange(ids.shape[1]))
        return self.head(self.layers(x))


def train(attend: Attend, steps: int, dtype: torch.dtype, context: int = 64, batch: int = 8) -> list[float]:
    torch.manual_seed(SEED)
    model = Letters(attend, context=context).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    g = generator(1)
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(DATA) - context - 1, (batch,), generator=g)
        ids = DATA[starts[:, None] + torch.arange(context + 1)]
        loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_loss_curve_is_that_of_sdpa() -> None:
    """In float64: in float32 two trainings drift apart by roundings alone, how far depends on the machine."""
    ours = train(lambda q, k, v: ll.attention(q, k, v, mask=ll.Causal()), 60, torch.float64)
    theirs = train(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), 60, torch.float64)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-8


@pytest.mark.slow
def test_it_learns_with_dropout_a_window_and_a_bias() -> None:
    mask = ll.Causal() & (ll.Window(16) | ll.First(1))
    attend = lambda q, k, v: ll.attention(q, k, v, mask=mask, bias=ll.ALiBi(4), dropout=0.1)  # noqa: E731
    losses = train(attend, 200, torch.float32)
    assert sum(losses[-20:]) / 20 < 2.5
