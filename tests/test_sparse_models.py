"""Longformer and BigBird against transformers, with padding and global tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

import limelight as ll
from limelight import models
from limelight.models.big_bird import window_and_global

WIDTHS: dict[str, Any] = {
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 56,
    "vocab_size": 97,
    "max_position_embeddings": 160,
}
LONGFORMER = hf.LongformerConfig(**WIDTHS, attention_window=[6, 10, 4], pad_token_id=1)
BIG_BIRD = hf.BigBirdConfig(**WIDTHS, block_size=7, num_random_blocks=2, rescale_embeddings=True)


def pair(theirs: Any, folder: Path) -> tuple[Any, Any]:
    """Return a model of transformers with larger weights than it begins with, and the same as ours."""
    theirs = theirs.eval()
    with torch.no_grad():
        for x in theirs.parameters():
            x.add_(0.1 * torch.randn_like(x))
    theirs.save_pretrained(folder)
    return theirs, models.load(folder)


def padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    lengths_ = torch.tensor(lengths)
    real = torch.arange(int(lengths_.max())) < lengths_[:, None]
    ids = torch.where(real, torch.randint(5, 97, real.shape), 1)
    return ids, real


@pytest.mark.parametrize("kind", [hf.LongformerModel, hf.LongformerForMaskedLM])
@pytest.mark.parametrize("chosen", ["none", "first", "scattered"])
def test_longformer(kind: Any, chosen: str, tmp_path: Path) -> None:
    theirs, ours = pair(kind(LONGFORMER), tmp_path)
    ids, real = padded([53, 31])
    tokens = torch.zeros_like(real)
    if chosen == "first":
        tokens[:, 0] = True
    if chosen == "scattered":
        tokens[0, [0, 3, 29, 52]] = True
        tokens[1, [7, 8]] = True
    with torch.no_grad():
        want = theirs(ids, attention_mask=real.long(), global_attention_mask=tokens.long())[0]
        got = ours(ids, mask=ll.Padding(real.sum(1)), global_tokens=tokens)
    torch.testing.assert_close(got[real], want[real], atol=1e-4, rtol=1e-4)
    models.save(ours, tmp_path / "again")
    again, info = kind.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, x in theirs.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", [hf.BigBirdModel, hf.BigBirdForMaskedLM])
@pytest.mark.parametrize("lengths", [[151, 97], [133, 133], [63, 20]])
def test_big_bird(kind: Any, lengths: list[int], tmp_path: Path) -> None:
    theirs, ours = pair(kind(BIG_BIRD), tmp_path)
    ids, real = padded(lengths)
    with torch.no_grad():
        want = theirs(ids, attention_mask=real.long())[0]
        got = ours(ids, mask=ll.Padding(real.sum(1)))
    torch.testing.assert_close(got[real], want[real], atol=1e-4, rtol=1e-4)


def test_random_blocks_of_transformers_in_training() -> None:
    """In training mode transformers draws blocks from numpy's generator, seeded by the number of the layer."""
    blocks, block, random, heads = 19, 7, 2, 5
    config = hf.BigBirdConfig(**WIDTHS, block_size=block, num_random_blocks=random)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = hf.BigBirdModel(config).train()
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in model.encoder.layer:
        layer.attention.self.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output[0])))
    n = blocks * block
    with torch.no_grad():
        model(torch.randint(5, 97, (2, n)))
    assert len(seen) == 3
    for number, (x, want) in enumerate(seen):
        attention = model.encoder.layer[number].attention.self
        np.random.seed(number)  # noqa: NPY002
        sizes, counts = attention._get_rand_attn_plan(n, block, random)
        chosen = attention._bigbird_block_rand_mask_with_head(n, n, block, block, heads, sizes, counts)
        layout = window_and_global(blocks).expand(heads, -1, -1).clone()
        for head in range(heads):
            layout[head, torch.arange(1, blocks - 1)[:, None], torch.as_tensor(chosen[head]).long()] = True
        assert (layout[:, 1:-1].sum(-1) > 5).any(), "random blocks beside the others"
        with torch.no_grad():
            q, k, v = (
                project(x).unflatten(-1, (heads, -1)).transpose(1, 2)
                for project in (attention.query, attention.key, attention.value)
            )
            got = ll.attention(q, k, v, mask=ll.Blocks(layout[None], block)).transpose(1, 2).flatten(2)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_big_bird_in_full(tmp_path: Path) -> None:
    config = hf.BigBirdConfig(**WIDTHS, attention_type="original_full")
    theirs, ours = pair(hf.BigBirdModel(config), tmp_path)
    ids, real = padded([151, 97])
    with torch.no_grad():
        want = theirs(ids, attention_mask=real.long())[0]
        got = ours(ids, mask=ll.Padding(real.sum(1)))
    torch.testing.assert_close(got[real], want[real], atol=1e-4, rtol=1e-4)


def test_refusals() -> None:
    ours = models.build(LONGFORMER)
    ids = torch.randint(5, 97, (2, 11))
    with pytest.raises(TypeError, match="mask must be Padding"):
        ours(ids, mask=ll.Causal())
    with pytest.raises(TypeError, match="global_tokens must be a boolean tensor"):
        ours(ids, global_tokens=torch.zeros(2, 11))
    with pytest.raises(ValueError, match="attention_window = 7 must be an even number"):
        models.build({**LONGFORMER.to_dict(), "attention_window": 7})
    with pytest.raises(ValueError, match="attention_type = 'dense'"):
        models.build({**BIG_BIRD.to_dict(), "attention_type": "dense"})


def test_watched_longformer_shows_windows_and_global_rows() -> None:
    ours = models.build(LONGFORMER).eval()
    ids = torch.randint(5, 97, (1, 23))
    tokens = torch.zeros(1, 23, dtype=torch.bool)
    tokens[0, 4] = True
    with ll.watch(ours) as record:
        ours(ids, global_tokens=tokens)
    local, rows = record.calls("stack.blocks.0.attention")
    seen = local.dense()[0, 0] > 0
    at = torch.arange(23)
    assert torch.equal(seen, ((at[:, None] - at).abs() <= 3) | (at == 4))
    assert rows.shape == (1, 5, 1, 23)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("model", [hf.LongformerModel(LONGFORMER), hf.BigBirdModel(BIG_BIRD)])
def test_bands_of_transformers_are_refused_with_the_way_out(model: Any, dense: bool) -> None:
    with pytest.raises(ValueError, match=r"watch limelight\.models\.load"), ll.watch(model, dense=dense):
        pass


def test_gpt3_has_dense_and_banded_layers_in_turn() -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    config = {"model_type": "gpt2", "n_embd": 40, "n_layer": 4, "n_head": 5, "vocab_size": 97, "n_positions": 64}
    config |= {"architectures": ["GPT2LMHeadModel"]}
    ours = models.build({**config, "layer_types": kinds, "sliding_window": 7}).eval()
    ids = torch.randint(0, 97, (2, 31))
    with torch.no_grad(), ll.watch(ours) as record:
        want = ours(ids)
    i = torch.arange(31)
    back = i[:, None] - i
    for n, name in enumerate(record):
        seen = (record[name].dense() > 0).all((0, 1))
        assert torch.equal(seen, (back >= 0) & (back < (7 if n % 2 else 31))), name
    cache = ll.KVCache()
    with torch.no_grad():
        steps = [ours(part, cache=cache) for part in ids.split([11, 1, 1, 18], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), want, atol=1e-5, rtol=1e-5)
    dense = models.build(config).eval()
    dense.load_state_dict(ours.state_dict())
    assert not torch.allclose(dense(ids), want, atol=1e-3)
    with pytest.raises(ValueError, match=r"layer_types = .* for each of 4 layers"):
        models.build({**config, "layer_types": kinds[:3], "sliding_window": 7})
