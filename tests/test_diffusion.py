"""Diffusion models under watch, against diffusers' own processor with an explicit softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limelight as ll
from conftest import bytes_of_tensors
from limelight.lens import Grid, prompt_maps

diffusers = pytest.importorskip("diffusers", reason="pip install 'limelight-attention[diffusion]'")
from diffusers.models.attention_processor import Attention, AttnProcessor  # noqa: E402

WORDS = 7
H, W = 12, 20  # latents, in another shape than a square


def unet() -> tuple[Any, Callable[[int], dict[str, Any]]]:
    model = diffusers.UNet2DConditionModel(
        sample_size=(H, W),
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 24),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=11,
        attention_head_dim=4,
    )
    sample, text = torch.randn(2, 3, H, W), 3 * torch.randn(2, WORDS, 11)
    return sharpened(model), lambda step: {"sample": sample, "timestep": step, "encoder_hidden_states": text}


def sd3() -> tuple[Any, Callable[[int], dict[str, Any]]]:
    model = diffusers.SD3Transformer2DModel(
        sample_size=H,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=3,
        joint_attention_dim=10,
        caption_projection_dim=24,
        pooled_projection_dim=9,
        pos_embed_max_size=16,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    inputs = {
        "hidden_states": torch.randn(2, 4, H, W),
        "encoder_hidden_states": torch.randn(2, WORDS, 10),
        "pooled_projections": torch.randn(2, 9),
    }
    return sharpened(model), lambda step: {**inputs, "timestep": torch.full((2,), float(step))}


def flux() -> tuple[Any, Callable[[int], dict[str, Any]]]:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=10,
        pooled_projection_dim=9,
        axes_dims_rope=(4, 4, 8),
    )
    places = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(10), indexing="ij"), -1).reshape(-1, 2)
    inputs = {
        "hidden_states": torch.randn(2, 60, 4),
        "encoder_hidden_states": torch.randn(2, WORDS, 10),
        "pooled_projections": torch.randn(2, 9),
        "img_ids": functional.pad(places, (1, 0)).float(),
        "txt_ids": torch.zeros(WORDS, 3),
    }
    return sharpened(model), lambda step: {**inputs, "timestep": torch.full((2,), step / 10)}


def sharpened(model: nn.Module) -> nn.Module:
    """Make queries longer, so that the weights differ from each other."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "to_q" in name or "norm_q" in name:
                parameter *= 4
    return model.eval()


MODELS = {"unet": unet, "sd3": sd3, "flux": flux}
# Order of each model's joint sequence, from its source: SD3 appends the text, Flux puts it first.
TEXT = {"unet": None, "sd3": slice(60, 67), "flux": slice(0, 7)}


class Truth:
    """All weights of a model, by the explicit softmax of the queries and keys that reach SDPA."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def sdpa(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        self.weights.append((query.double() @ key.double().mT / query.shape[-1] ** 0.5).softmax(-1))
        return (self.weights[-1] @ value.double()).to(query)


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    def run(model: Any, inputs: Callable[[int], dict[str, Any]], steps: int) -> tuple[Tensor, list[Tensor]]:
        seen = Truth()
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(functional, "scaled_dot_product_attention", seen.sdpa)
            outputs = [model(**inputs(step)).sample for step in range(1, steps + 1)]
        return outputs[-1], seen.weights

    return run


@pytest.mark.parametrize("name", MODELS)
def test_every_call_of_every_step_is_recorded(name: str, truth: Any) -> None:
    model, inputs = MODELS[name]()
    out, weights = truth(model, inputs, 2)
    with torch.no_grad():
        own = model(**inputs(2)).sample
        with ll.watch(model) as record:
            for step in (1, 2):
                found = model(**inputs(step)).sample
    assert (found - own).abs().max() < 1e-4
    assert (found - out).abs().max() < 1e-4
    assert [call.shape for call in record.log] == [tuple(x.shape) for x in weights]
    assert all(len(record.calls(module)) == 2 for module in record)
    for call, expected in zip(record.log, weights, strict=True):
        # The queries and keys of the two runs differ by the roundings of all layers before, as their outputs do.
        assert torch.allclose(call.weights.dense().double(), expected, atol=1e-4)
        N, M = call.shape[-2:]
        text = TEXT[name]
        assert call.kind == ("cross" if M == WORDS else "self")
        size = {240: (12, 20), 60: (6, 10)}[N if text is None or N == 60 else N - WORDS]
        names = tuple(f"text {n}" for n in range(WORDS))
        joint = Grid(*size) if text is None or N == 60 else Grid(*size, **{"after" if text.start else "before": names})
        assert call.grids == (joint, None if M == WORDS else joint)


def test_the_explicit_processor_gives_the_same() -> None:
    """Diffusers' AttnProcessor, which computes scores and softmax itself."""
    model, inputs = unet()
    with torch.no_grad(), ll.watch(model) as fast:
        first = model(**inputs(1)).sample
    model.set_attn_processor(AttnProcessor())
    own: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        scores = Attention.get_attention_scores

        def kept(self: Any, *args: Any) -> Tensor:
            own.append(scores(self, *args))
            return own[-1]

        patch.setattr(Attention, "get_attention_scores", kept)
        out = model(**inputs(1)).sample
    with torch.no_grad(), ll.watch(model) as explicit:
        watched = model(**inputs(1)).sample
    assert (out - first).abs().max() < 1e-4
    assert torch.equal(out, watched)
    for call, other, expected in zip(fast.log, explicit.log, own, strict=True):
        assert call.name == other.name
        assert call.grids == other.grids
        assert torch.allclose(call.weights.dense().flatten(0, 1), expected, atol=1e-4)
        assert torch.equal(other.weights.dense().flatten(0, 1), expected)


@pytest.mark.parametrize("name", MODELS)
def test_maps_of_the_words_are_the_sum_over_steps_layers_and_resolutions(name: str, truth: Any) -> None:
    model, inputs = MODELS[name]()
    _, weights = truth(model, inputs, 3)
    text, size = TEXT[name], (H, W) if name == "unet" else (6, 10)
    total, calls = torch.zeros(2, WORDS, *size, dtype=torch.double), 0
    for A in weights:
        N, M = A.shape[-2:]
        if M == WORDS:
            part = A
        elif text is not None and N == 67:
            picture = slice(0, 60) if text.start else slice(7, 67)
            part = A[:, :, picture, text]
        else:
            continue
        rows = {240: 12, 60: 6}[part.shape[2]]
        maps = part.mean(1).mT.unflatten(-1, (rows, -1))
        total += functional.interpolate(maps, size, mode="bilinear", align_corners=False)
        calls += 1
    with torch.no_grad(), prompt_maps(model) as found:
        for step in (1, 2, 3):
            model(**inputs(step))
    assert found.calls == calls
    assert torch.allclose(found.sum.double(), total, atol=1e-5 * calls)
    tokens = ["<|startoftext|>", "a</w>", "gi", "raf", "fe</w>", "<|endoftext|>"]
    words = found.words(tokens, batch=1)
    assert words.words == ["a", "giraffe"]
    assert torch.allclose(words["giraffe"].double(), total[1, 2:5].sum(0) / calls, atol=1e-5)
    with pytest.raises(ValueError, match="8 tokens, and the model was given 7"):
        found.words(["a"] * 8)


def test_memory_does_not_grow_with_the_steps() -> None:
    model, inputs = unet()
    after = []
    with torch.no_grad(), prompt_maps(model):
        for step in range(1, 5):
            model(**inputs(step))
            after.append(bytes_of_tensors())
    assert after[0] == after[1] == after[-1]


def hooks(model: nn.Module) -> list[Any]:
    return [
        (dict(m._forward_hooks), dict(m._forward_pre_hooks), type(getattr(m, "processor", None)), sorted(vars(m)))
        for m in model.modules()
    ]


@pytest.mark.parametrize("name", MODELS)
def test_afterwards_the_model_is_as_before(name: str) -> None:
    model, inputs = MODELS[name]()
    before, processors = hooks(model), dict(model.attn_processors)
    with torch.no_grad():
        own = model(**inputs(1)).sample

        def fail(*_: Any) -> None:
            raise RuntimeError("in the middle")

        for watching in (ll.watch, prompt_maps):
            last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
            handle = last.register_forward_hook(fail)
            with pytest.raises(RuntimeError, match="in the middle"), watching(model):
                model(**inputs(1))
            handle.remove()
            assert hooks(model) == before
            assert all(processors[n] is p for n, p in model.attn_processors.items())
            assert torch.equal(model(**inputs(1)).sample, own)


def test_edits_reach_cross_attention() -> None:
    model, inputs = unet()
    with torch.no_grad():
        own = model(**inputs(1)).sample
        with ll.watch(model, edits={"*.attn2": ll.lens.Off()}) as record:
            edited = model(**inputs(1)).sample
        for module in model.modules():  # the same by hand: values of 0
            if isinstance(module, Attention) and module.is_cross_attention:
                module.to_v.weight.zero_()
        by_hand = model(**inputs(1)).sample
    assert record.log
    assert (edited - own).abs().max() > 1e-3
    assert torch.allclose(edited, by_hand, atol=1e-5)


def test_what_cannot_be_watched_says_so() -> None:
    model, _ = unet()
    model.set_attention_slice(1)
    with pytest.raises(ValueError, match="disable_attention_slicing"), ll.watch(model):
        pass

    class Pipe:
        unet = model

    with pytest.raises(TypeError, match=r"such as pipe\.unet"):
        ll.watch(Pipe())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a model of diffusers"), prompt_maps(nn.Linear(2, 2)):
        pass
    with prompt_maps(unet()[0]) as maps:
        pass
    with pytest.raises(ValueError, match="run the pipeline in the block"):
        maps.words(["a"])
