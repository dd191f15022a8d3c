"""Transformer-XL against the equations of the paper, pair by pair, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import layer_norm

import limelight as ll
from limelight import models

CLOSE = {"atol": 1e-5, "rtol": 1e-5}  # the sinusoids are float32
CONFIG = {
    "model_type": "transfo-xl",
    "d_model": 14,
    "n_head": 3,
    "d_head": 6,
    "d_inner": 22,
    "n_layer": 2,
    "vocab_size": 31,
    "mem_len": 9,
    "cutoffs": [],
}


def by_the_paper(model: torch.nn.Module, ids: Tensor, memory: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Compute one segment from the paper's terms (a) to (d), one query, key and head at a time."""
    p = dict(model.named_parameters())
    width, heads, d = 14, 3, 6
    h = p["embedding.table.weight"][ids] * width**0.5
    new = []
    for n in range(2):

        def get(name: str, n: int = n) -> Tensor:
            return p[f"blocks.{n}.{name}"]

        seen = torch.cat([memory[n], h], 1)
        new.append(seen[:, -9:].detach())
        q = h @ get("attention.query.weight").T
        k, v = (seen @ get(f"attention.{x}.weight").T for x in ("key", "value"))
        u, w, W_R = (get(f"attention.positions.{x}") for x in ("content", "position", "project.weight"))
        B, N, M = len(h), h.shape[1], seen.shape[1]
        out = torch.zeros(B, N, heads * d, dtype=h.dtype)
        frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=h.dtype) / width)
        for b in range(B):
            for a in range(heads):
                part = slice(a * d, (a + 1) * d)
                for i in range(N):
                    at = M - N + i
                    scores = []
                    for j in range(at + 1):
                        angle = (at - j) * frequencies
                        r = W_R[part] @ torch.stack([angle.sin(), angle.cos()], -1).flatten()
                        query, key = q[b, i, part], k[b, j, part]
                        scores.append(query @ key + query @ r + u[a] @ key + w[a] @ r)
                    weights = torch.softmax(torch.stack(scores) / d**0.5, 0)
                    out[b, i, part] = weights @ v[b, : at + 1, part]
        x = h + out @ get("attention.out.weight").T
        x = layer_norm(x, (width,), get("attention_norm.weight"), get("attention_norm.bias"))
        inner = (x @ get("feed_forward.up.weight").T + get("feed_forward.up.bias")).relu()
        y = x + inner @ get("feed_forward.down.weight").T + get("feed_forward.down.bias")
        h = layer_norm(y, (width,), get("feed_forward_norm.weight"), get("feed_forward_norm.bias"))
    return h @ p["embedding.table.weight"].T + p["head.bias"], new


@pytest.fixture
def model() -> torch.nn.Module:
    model = models.build(CONFIG).double().eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return model


def test_segments_equal_the_equations(model: torch.nn.Module) -> None:
    ids = torch.randint(0, 31, (2, 17))
    ours, theirs = None, [torch.zeros(2, 0, 14, dtype=torch.float64)] * 2
    with torch.no_grad():
        for part in ids.split([5, 7, 5], 1):  # the memory is shorter than the text before the last segment
            logits, ours = model(part, ours)
            want, theirs = by_the_paper(model, part, theirs)
            torch.testing.assert_close(logits, want, **CLOSE)
            for m, t in zip(ours, theirs, strict=True):
                torch.testing.assert_close(m, t, **CLOSE)
    assert [tuple(m.shape) for m in ours] == [(2, 9, 14)] * 2


def test_memory_reaches_beyond_the_segment_and_has_no_gradient(model: torch.nn.Module) -> None:
    ids = torch.randint(0, 31, (1, 8))
    _, memory = model(ids)
    assert not any(m.requires_grad for m in memory)
    changed = [m + 1 for m in memory]
    assert not torch.allclose(model(ids, memory).logits, model(ids, changed).logits)
    model(ids, memory).logits.sum().backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    by_the_paper(model, ids, memory)[0].sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(got[name], p.grad, **CLOSE)


def test_it_learns_what_only_the_memory_holds() -> None:
    torch.manual_seed(0)
    model = models.build({**CONFIG, "d_model": 32, "d_head": 16, "n_head": 2, "mem_len": 8, "vocab_size": 11})
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(250):  # the second segment repeats the first
        ids = torch.randint(0, 11, (32, 4))
        _, memory = model(ids)
        logits, _ = model(ids, memory)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1.0, "without a memory it is ln 11 = 2.4 at best"


def test_checkpoints_and_refusals(model: torch.nn.Module, tmp_path: Path) -> None:
    models.save(model.float(), tmp_path)
    ids = torch.randint(0, 31, (2, 7))
    torch.testing.assert_close(models.load(tmp_path)(ids).logits, model(ids).logits)
    stored = load_file(tmp_path / "model.safetensors")["transformer.layers.1.dec_attn.r_net.weight"]
    ours = model.blocks[1].attention.positions.project.weight
    assert torch.equal(stored[:, :7], ours[:, ::2]), "checkpoints have all sines before all cosines"
    assert torch.equal(stored[:, 7:], ours[:, 1::2])
    with pytest.raises(ValueError, match="only cutoffs = \\[\\] and d_embed = d_model = 14"):
        models.build({**CONFIG, "cutoffs": [20]})
    with pytest.raises(ValueError, match="give the memory that the last call returned"):
        model(ids, model(ids[:1]).memory)


def test_watched_memory_is_seen_as_keys(model: torch.nn.Module) -> None:
    ids = torch.randint(0, 31, (1, 5))
    _, memory = model(ids)
    with ll.watch(model) as record:
        model(ids, memory)
    assert record["blocks.1.attention"].shape == (1, 3, 5, 10)
    torch.testing.assert_close(record["blocks.1.attention"].dense().sum(-1), torch.ones(1, 3, 5, dtype=torch.float64))
