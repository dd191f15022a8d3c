"""A whole pipeline of diffusers, from a prompt to a picture, under watch and prompt_maps."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import limelight as ll
from conftest import bytes_of_tensors
from limelight.lens import prompt_maps

diffusers = pytest.importorskip("diffusers", reason="pip install 'limelight-attention[diffusion]'")

PROMPT = "a red cat"
STEPS = 3
LENGTH = 13  # tokens of a prompt
HEIGHT, WIDTH = 48, 32  # of the picture; latents are half as large


def tokenizer(folder: Path) -> Any:
    """CLIP's tokenizer with single letters and a few merges."""
    letters = [*string.ascii_lowercase, *(f"{x}</w>" for x in string.ascii_lowercase)]
    merges = ["c a", "ca t</w>", "r e", "re d</w>"]
    words = [*letters, *(merge.replace(" ", "") for merge in merges), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return hf.CLIPTokenizer.from_pretrained(folder, model_max_length=LENGTH)


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Stable Diffusion at a tiny size, with random weights."""
    torch.manual_seed(3)
    words = tokenizer(tmp_path_factory.mktemp("tokenizer"))
    text = hf.CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=24,
        intermediate_size=31,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 24),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=4,
    )
    found = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=hf.CLIPTextModel(text).eval(),
        tokenizer=words,
        unet=unet.eval(),
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    found.set_progress_bar_config(disable=True)
    return found


def draw(pipe: Any, steps: int = STEPS) -> Tensor:
    """The picture of the prompt as numbers, always from the same noise."""
    found = pipe(
        PROMPT,
        height=HEIGHT,
        width=WIDTH,
        num_inference_steps=steps,
        output_type="pt",
        generator=torch.Generator().manual_seed(5),
    )
    picture: Tensor = found.images
    return picture


def state(pipe: Any) -> list[Any]:
    """Everything that watching could leave behind in the modules of a pipeline."""
    modules = [m for part in (pipe.unet, pipe.vae, pipe.text_encoder) for m in part.modules()]
    return [
        (dict(m._forward_hooks), dict(m._forward_pre_hooks), getattr(m, "processor", None), sorted(vars(m)))
        for m in modules
    ]


def test_a_whole_pipeline_is_watched_and_left_as_it_was(pipe: Any) -> None:
    own, before = draw(pipe), state(pipe)
    attention = pipe.text_encoder.config._attn_implementation
    with ll.watch(pipe.unet) as unet, ll.watch(pipe.text_encoder) as text, ll.watch(pipe.vae) as vae:
        found = draw(pipe)
    assert found.shape == (1, 3, HEIGHT, WIDTH)
    assert (found - own).abs().max() < 1e-4
    assert state(pipe) == before
    assert pipe.text_encoder.config._attn_implementation == attention
    assert torch.equal(draw(pipe), own)
    # The U-Net runs once a step for the prompt and the empty prompt together, and the text encoder once for each.
    modules = [name for name, m in pipe.unet.named_modules() if type(m).__name__ == "Attention"]
    assert sorted(unet) == sorted(modules)
    assert all(len(unet.calls(name)) == STEPS for name in modules)
    assert len(text.log) == 2 * 2
    assert len(vae.log) >= 1
    cross = [call for call in unet.log if call.kind == "cross"]
    assert {call.shape[-1] for call in cross} == {LENGTH}
    assert {call.shape[0] for call in unet.log} == {2}
    for call in (*unet.log, *text.log, *vae.log):
        torch.testing.assert_close(call.weights.dense().sum(-1), torch.ones(call.shape[:-1]))


def test_maps_of_a_prompt_over_a_whole_pipeline(pipe: Any) -> None:
    own, held = draw(pipe), []
    for steps in (2, 7):
        with prompt_maps(pipe.unet) as maps:
            draw(pipe, steps)
        held.append(bytes_of_tensors() - pipe.scheduler.timesteps.nbytes)
        cross = sum(name.endswith("attn2") for name, _ in pipe.unet.named_modules())
        assert maps.calls == steps * cross, "every cross-attention of every step"
    assert held[0] == held[1]
    assert maps.sum is not None
    assert maps.sum.shape == (2, LENGTH, HEIGHT // 2, WIDTH // 2)
    torch.testing.assert_close(maps.sum.sum(1), torch.full((2, HEIGHT // 2, WIDTH // 2), float(maps.calls)))
    tokens = pipe.tokenizer.convert_ids_to_tokens(pipe.tokenizer(PROMPT, padding="max_length").input_ids)
    words = maps.words(tokens, batch=1)
    assert words.words == ["a", "red", "cat"]
    at = tokens.index("cat</w>")
    torch.testing.assert_close(words["cat"], maps.sum[1, at] / maps.calls)
    assert torch.equal(draw(pipe), own)
