"""Small models of every family that `watch` reads in transformers, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

NEW = int(tf.__version__.split(".")[0]) >= 5
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 61,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {**GROUPED, "head_dim": 12}
STACKS = {
    **{f"{s}_layers": 2 for s in ("encoder", "decoder")},
    **{f"{s}_attention_heads": 6 for s in ("encoder", "decoder")},
    **{f"{s}_ffn_dim": 61 for s in ("encoder", "decoder")},
    "vocab_size": 101,
    "d_model": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "bert": (tf.BertModel, lambda: tf.BertConfig(**SMALL)),
    "gpt2": (
        tf.GPT2LMHeadModel,
        lambda: tf.GPT2Config(
            vocab_size=101, n_embd=48, n_layer=2, n_head=6, n_positions=128, bos_token_id=1, eos_token_id=2
        ),
    ),
    "llama": (tf.LlamaForCausalLM, lambda: tf.LlamaConfig(**GROUPED)),
    "mistral": (tf.MistralForCausalLM, lambda: tf.MistralConfig(**GROUPED, sliding_window=7)),
    "gemma2": (
        tf.Gemma2ForCausalLM,
        lambda: tf.Gemma2Config(**WIDE, sliding_window=9, attn_logit_softcapping=2.0, query_pre_attn_scalar=7),
    ),
    "gpt_oss": (
        tf.GptOssForCausalLM,
        lambda: tf.GptOssConfig(
            **{**WIDE, "intermediate_size": 64},
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "gpt_neox": (tf.GPTNeoXForCausalLM, lambda: tf.GPTNeoXConfig(**SMALL, bos_token_id=1, eos_token_id=2)),
    "t5": (
        tf.T5ForConditionalGeneration,
        lambda: tf.T5Config(
            vocab_size=101, d_model=48, d_kv=7, d_ff=61, num_layers=2, num_heads=6, decoder_start_token_id=0
        ),
    ),
    "bart": (tf.BartForConditionalGeneration, lambda: tf.BartConfig(**STACKS, max_position_embeddings=128)),
    "whisper": (
        tf.WhisperForConditionalGeneration,
        lambda: tf.WhisperConfig(**STACKS, num_mel_bins=8, max_source_positions=29, max_target_positions=64),
    ),
    "vit": (
        tf.ViTModel,
        lambda: tf.ViTConfig(
            hidden_size=48,
            intermediate_size=61,
            num_hidden_layers=2,
            num_attention_heads=6,
            image_size=35,
            patch_size=5,
        ),
    ),
    "qwen2": (tf.Qwen2ForCausalLM, lambda: tf.Qwen2Config(**GROUPED)),
    "qwen3": (tf.Qwen3ForCausalLM, lambda: tf.Qwen3Config(**WIDE)),
}
PADDED = ("none", "right", "left")


def build(name: str, implementation: str = "eager") -> Any:
    """A model whose attention is far from uniform."""
    kind, config = FAMILIES[name]
    torch.manual_seed(7)
    model = kind._from_config(config(), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.0 if name == "t5" else 4.0)
    model.set_attn_implementation(implementation)
    return model


def inputs(name: str, padded: str = "none", n: int = 23) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 101, (3, n), generator=g)
    target = torch.randint(3, 101, (3, 11), generator=g)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 35, 35, generator=g)}
    if name == "whisper":
        return {"input_features": torch.randn(3, 8, 58, generator=g), "decoder_input_ids": target}
    found = {"input_ids": ids}
    if padded != "none":
        found["attention_mask"] = mask = torch.ones_like(ids)
        for row, missing in ((0, n // 4), (2, n - 5)):
            if padded == "left":
                mask[row, :missing] = 0
            else:
                mask[row, n - missing :] = 0
    return {**found, "decoder_input_ids": target} if name in ("t5", "bart") else found


def entropies(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights.double()).sum(-1)


def result(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return found


def random_model(name: str) -> Any:
    model_type, config = FAMILIES[name]
    model = model_type(config()).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.normal_(0.0, 0.2)  # so that heads differ
    return model


def inputs_of(model: Any, padded: bool) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([13, 9])
    mask = (torch.arange(13) < lengths[:, None]).long() if padded else torch.ones(2, 13, dtype=torch.long)
    found = {"input_ids": torch.randint(3, 101, (2, 13)), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(3, 101, (2, 7))
    return found
