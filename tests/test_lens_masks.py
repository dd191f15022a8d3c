"""Masks of transformers: what they are lowered to, against what transformers makes of them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers as tf
from transformers import masking_utils

import limelight as ll
from families import GROUPED, NEW, build, inputs
from limelight.lens.hf import registration
from limelight.lens.hf.masks import SpanMask, span_mask


@pytest.mark.parametrize("name", ["llama", "mistral"])  # without and with a window
def test_packed_sequences(name: str) -> None:
    """Position ids that begin again separate sequences."""
    model = build(name)
    ids = inputs(name)["input_ids"]
    lengths = (5, 11, 7)
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(3, -1)
    with torch.no_grad():
        expected = model(ids, position_ids=positions, use_cache=False)
        with ll.watch(model) as record:
            got = model(ids, position_ids=positions, use_cache=False)
    torch.testing.assert_close(got.logits, expected.logits, atol=1e-4, rtol=0)
    weights = record["model.layers.0.self_attn"]
    assert "Documents" in repr(weights.mask)
    assert float(weights.dense()[:, :, 5:16, :5].abs().max()) == 0


@pytest.mark.parametrize("kind", ["bool", "float", "float bias", "by head", "scattered"])
def test_masks_of_ones_own(kind: str) -> None:
    """A four-dimensional mask is used as it is."""
    model = build("llama")
    ids = inputs("llama")["input_ids"]
    allowed = torch.ones(23, 23, dtype=torch.bool).tril().expand(3, 1, 23, 23).clone()
    allowed[1, :, 9:, 3:5] = False
    if kind == "scattered":
        allowed &= (torch.rand(3, 1, 23, 23, generator=torch.Generator().manual_seed(1)) < 0.5) | torch.eye(23).bool()
        allowed = torch.nn.functional.pad(allowed, (0, 0, 0, 0))
    if kind == "by head":
        allowed = allowed.expand(3, 6, 23, 23).clone()
        allowed[:, 2, 9:, 6] = False
    mask = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    if kind == "float bias":
        mask = torch.where(allowed, torch.randn(23, 23), mask)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        registration.register()
        model.set_attn_implementation("limelight")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ll.SlowPathWarning)
            got = model(ids, attention_mask=allowed if kind in ("bool", "by head", "scattered") else mask).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def _patterns() -> dict[str, Any]:
    ids = torch.tensor([[0] * 5 + [1] * 8, [0] * 9 + [1] * 4])
    m = masking_utils
    patterns = {
        "causal": m.causal_mask_function,
        "sliding": m.sliding_window_causal_mask_function(4),
        "chunks": m.chunked_causal_mask_function(5, torch.tensor([0, 2])),
        "packed": m.and_masks(m.causal_mask_function, m.packed_sequence_mask_function(ids)),
        "own": lambda b, h, q, k: (k <= q) & ((q - k) % 7 < 5),
    }
    if NEW:
        patterns |= {
            "both ways": m.bidirectional_mask_function,
            "sliding both ways": m.sliding_window_bidirectional_mask_function(3),
            "blocks": m.or_masks(m.causal_mask_function, m.blockwise_overlay(ids - 1)),
        }
    return patterns


@pytest.mark.parametrize("padded", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("pattern", _patterns())
def test_mask_functions(pattern: str, padded: str) -> None:
    """The lowered mask equals the one that transformers makes."""
    mask = torch.ones(2, 13, dtype=torch.bool)
    if padded == "right":
        mask[0, 9:] = mask[1, 4:] = False
    if padded == "left":
        mask[0, :3] = mask[1, :7] = False
    if padded == "holes":
        mask[0, 3:5] = mask[1, 8] = mask[1, 10:] = False
    arguments: dict[str, Any] = {
        "batch_size": 2,
        **({"q_length": 13} if NEW else {"cache_position": torch.arange(13)}),
        "kv_length": 13,
        "mask_function": _patterns()[pattern],
    }
    arguments |= {"attention_mask": None if padded == "none" else mask, "allow_is_causal_skip": False}
    found = span_mask(**arguments)
    assert isinstance(found, SpanMask)
    assert torch.equal(found.dense(), masking_utils.sdpa_mask(**arguments))
    assert torch.equal(found[:, :, 2:, :7], found.dense()[:, :, 2:, :7])  # it becomes one where it must


def test_a_mask_for_fewer_keys_than_there_are() -> None:
    """A model with a cache of its own."""
    config = tf.RecurrentGemmaConfig(
        **{**GROUPED, "num_key_value_heads": 1, "num_hidden_layers": 3}, attention_window_size=6, lru_width=48
    )
    torch.manual_seed(0)
    model = tf.RecurrentGemmaForCausalLM(config).eval()
    ids = inputs("llama", n=5)["input_ids"]
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
    expected = model.generate(ids, **options)
    with ll.watch(model):
        assert torch.equal(model.generate(ids, **options), expected)


def test_a_window_of_nothing_and_of_all() -> None:
    """Qwen2-MoE's usual configuration has a sliding window of 0 that no layer uses."""
    torch.manual_seed(1)
    config = tf.Qwen2MoeConfig(**{**GROUPED, "intermediate_size": 64}, num_experts=2, num_experts_per_tok=1)
    model = tf.Qwen2MoeForCausalLM._from_config(config, attn_implementation="eager").eval()
    given = inputs("llama")
    with torch.no_grad():
        expected = model(**given).logits
        with ll.watch(model):
            torch.testing.assert_close(model(**given).logits, expected, atol=1e-4, rtol=0)
