"""Pictures: grids, heat and captions, against transformers' eager attention, which makes its weights."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from rich.console import Console

import limelight as ll
from conftest import rounding
from limelight.lens import Grid, caption_maps, grid
from limelight.lens.word_maps import pieces_of_words
from limelight.viz.images import as_pixels, overlay

VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "patch_size": 4,
    "initializer_range": 0.4,
}
CLASS, REGISTERS = ("class",), tuple(f"register {n}" for n in range(5))
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, ...]]] = {
    "vit": (tf.ViTModel, tf.ViTConfig, {}, CLASS),
    "deit": (tf.DeiTModel, tf.DeiTConfig, {}, ("class", "distillation")),
    "clip": (tf.CLIPVisionModel, tf.CLIPVisionConfig, {}, CLASS),
    "dinov2": (
        tf.Dinov2WithRegistersModel,
        tf.Dinov2WithRegistersConfig,
        {"num_register_tokens": 5},
        CLASS + REGISTERS,
    ),
    "siglip": (tf.SiglipVisionModel, tf.SiglipVisionConfig, {"vision_use_head": False}, ()),
}
SIZE = (12, 28)  # pixels: 3 × 7 patches


def vision_model(family: str, image_size: int = 20) -> Any:
    make, config, more, _ = FAMILIES[family]
    return make(config(**VISION, **more, image_size=image_size)).eval()


def eager(model: Any, **inputs: Any) -> Any:
    """Run a model of transformers with its own eager attention, which returns all weights."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_patches_and_special_tokens_are_where_the_model_puts_them(family: str) -> None:
    model, special = vision_model(family), FAMILIES[family][3]
    assert grid(model) == Grid(5, 5, before=special)
    own_size = family == "dinov2"  # always fits its positions to the picture
    pixels = torch.randn(2, 3, *SIZE)
    inputs = {"pixel_values": pixels, **({} if own_size else {"interpolate_pos_encoding": True})}
    truth = eager(model, **inputs).attentions
    with torch.no_grad(), ll.watch(model) as record:
        model(**inputs)
    assert [call.shape for call in record.log] == [tuple(x.shape) for x in truth]
    for call, weights in zip(record.log, truth, strict=True):
        assert call.grids == (Grid(3, 7, before=special),) * 2
        found = call.grids[1].heat(call.weights[1])  # (heads, queries, rows, cols)
        at = len(special) + 2 * 7 + 5
        assert torch.allclose(found[:, :, 2, 5], weights[1, :, :, at], atol=1e-5)
        assert call.grids[0].position((2, 5)) == at


def test_the_tokens_before_the_patches_have_the_names_that_they_are() -> None:
    """Move one special token's embedding: only its own first-layer key changes."""
    model = vision_model("dinov2")
    named = dict(model.embeddings.named_parameters())
    pixels = torch.randn(1, 3, 20, 20)
    keys: list[torch.Tensor] = []
    hook = model.encoder.layer[0].norm1.register_forward_hook(lambda m, a, out: keys.append(out))
    with torch.no_grad():
        model(pixel_values=pixels)
        for name, parameter in (("class", named["cls_token"]), ("register 3", named["register_tokens"])):
            row = parameter[0, 3 if name != "class" else 0]
            row += torch.randn_like(row)
            model(pixel_values=pixels)
            changed = (keys[-1] != keys[-2]).any(-1)[0].nonzero().flatten().tolist()
            assert changed == [grid(model).position(name)]
    hook.remove()


def test_limelights_own_vit_and_parts_of_larger_models(tmp_path: Path) -> None:
    vision_model("vit").save_pretrained(tmp_path)
    ours = ll.models.load(tmp_path)
    assert grid(ours) == Grid(5, 5, before=CLASS)
    with torch.no_grad(), ll.watch(ours) as record:
        ours(torch.randn(1, 3, 20, 20))
    assert {call.grids for call in record.log} == {(Grid(5, 5, before=CLASS),) * 2}
    text = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 23, "vocab_size": 31}
    config = tf.CLIPConfig(text_config=text, vision_config={**VISION, "image_size": 20}, projection_dim=12)
    clip = tf.CLIPModel(config).eval()
    with torch.no_grad(), ll.watch(clip) as record:  # as many words as tokens of the picture
        clip(input_ids=torch.randint(3, 31, (1, 26)), pixel_values=torch.randn(1, 3, 20, 20))
    by_tower = {call.name.split(".")[0]: call.grids for call in record.log}
    assert by_tower == {"text_model": (None, None), "vision_model": (Grid(5, 5, before=CLASS),) * 2}


def test_what_has_no_grid_says_so() -> None:
    with pytest.raises(ValueError, match="names no patch_size"):
        grid(tf.BertModel(tf.BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1)))
    with pytest.raises(ValueError, match="no patch of 4 × 4"):
        grid(vision_model("vit"), size=3)
    with pytest.raises(ValueError, match="neither a square"):
        Grid.of_length(30)
    with pytest.raises(ValueError, match="special tokens: 'class'"):
        Grid(3, 5, before=CLASS).position("register 0")
    with pytest.raises(ValueError, match="must be from 0 to 2"):
        Grid(3, 5).position((3, 0))
    with pytest.raises(ValueError, match="which has 16"):
        Grid(3, 5, before=CLASS).heat(torch.zeros(17))
    with pytest.raises(TypeError, match="names of tokens"):
        Grid(3, 5, before="class")  # type: ignore[arg-type]


def gpt2_captioner() -> Any:
    decoder = tf.GPT2Config(
        vocab_size=53, n_embd=20, n_layer=2, n_head=5, n_positions=40, bos_token_id=1, eos_token_id=2
    )
    decoder.add_cross_attention = True
    return pair(tf.ViTConfig(**VISION, image_size=20), decoder)


def trocr() -> Any:
    decoder = tf.TrOCRConfig(
        vocab_size=53,
        d_model=20,
        decoder_layers=2,
        decoder_attention_heads=5,
        decoder_ffn_dim=31,
        max_position_embeddings=40,
        cross_attention_hidden_size=24,
        init_std=0.4,
    )
    return pair(tf.DeiTConfig(**VISION, image_size=20), decoder)


def pair(encoder: Any, decoder: Any) -> Any:
    config = tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = tf.VisionEncoderDecoderModel(config=config).eval()
    for name, number in (("decoder_start_token_id", 1), ("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 52)):
        setattr(model.generation_config, name, number)
    return model


def blip() -> Any:
    text = {
        "vocab_size": 53,
        "hidden_size": 20,
        "encoder_hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 31,
        "max_position_embeddings": 40,
        "bos_token_id": 1,
        "eos_token_id": 52,
        "sep_token_id": 52,
        "pad_token_id": 0,
        "initializer_range": 0.4,
    }
    config = tf.BlipConfig(text_config=text, vision_config={**VISION, "image_size": 20}, projection_dim=12)
    return tf.BlipForConditionalGeneration(config).eval()


def cross_attentions(model: Any, pixels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The weights (layers, heads, tokens, keys) of transformers' own eager attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        if isinstance(model, tf.BlipForConditionalGeneration):
            seen = model.vision_model(pixel_values=pixels).last_hidden_state
            out = model.text_decoder(input_ids=ids, encoder_hidden_states=seen, output_attentions=True)
        else:
            out = model(pixel_values=pixels, decoder_input_ids=ids, output_attentions=True)
    return torch.stack(out.cross_attentions)[:, 0]


@pytest.mark.parametrize("make", [gpt2_captioner, trocr, blip])
def test_each_written_word_has_its_heat(make: Any) -> None:
    model, pixels = make(), torch.randn(1, 3, 20, 20)
    dense = make is not gpt2_captioner  # these compute attention themselves
    with torch.no_grad(), ll.watch(model, dense=dense) as steps:
        ids = model.generate(pixel_values=pixels, max_new_tokens=7, min_new_tokens=7, do_sample=False)
    assert ids.shape == (1, 8)
    tokens = ["▁a", "▁gi", "raf", "fe", "▁stand", "s", "</s>"]
    found = caption_maps(steps, tokens)
    assert found.words == ["a", "giraffe", "stands"]
    truth = cross_attentions(model, pixels, ids[:, :-1]).double()
    special = truth.shape[-1] - 25
    by_token = truth.mean((0, 1))[:, special:].reshape(7, 5, 5)
    expected = torch.stack([by_token[:1].sum(0), by_token[1:4].sum(0), by_token[4:6].sum(0)])
    assert torch.allclose(found.maps.double(), expected, atol=1e-5)
    assert torch.equal(found["giraffe"], found.maps[1])
    one = caption_maps(steps, tokens, layers=[1], heads=[2, 4])
    assert torch.allclose(one.maps[1].double(), truth[1, [2, 4]].mean(0)[1:4, special:].sum(0).reshape(5, 5), atol=1e-5)
    inputs = {"input_ids" if make is blip else "decoder_input_ids": ids[:, :-1]}
    with torch.no_grad(), ll.watch(model, dense=dense) as whole:
        model(pixel_values=pixels, **inputs)
    assert torch.allclose(caption_maps(whole, tokens).maps, found.maps, atol=1e-5)
    with pytest.raises(ValueError, match="7 queries in 7 calls for 6 written tokens"):
        caption_maps(steps, tokens[:-1])


def test_beams_are_refused_with_the_way_out() -> None:
    model = gpt2_captioner()
    with torch.no_grad(), ll.watch(model) as record:
        model.generate(pixel_values=torch.randn(1, 3, 20, 20), max_new_tokens=4, min_new_tokens=4, num_beams=3)
    with pytest.raises(ValueError, match="beam search"):
        caption_maps(record, ["▁a"] * 4)


def test_words_of_many_tokenizers() -> None:
    assert pieces_of_words(["Ġa", "Ġgi", "raffe", "."]) == [("a", [0]), ("giraffe", [1, 2]), (".", [3])]
    assert pieces_of_words(["a</w>", "gi", "raf", "fe</w>"]) == [("a", [0]), ("giraffe", [1, 2, 3])]
    assert pieces_of_words(["a", "gi", "##raffe", "##"]) == [("a", [0]), ("giraffe##", [1, 2, 3])]


def weights_on(picture: Grid, queries: int | None = None) -> ll.Weights:
    n = len(picture) if queries is None else queries
    return ll.weights(2 * torch.randn(3, n, 8), torch.randn(3, len(picture), 8))


def test_show_draws_the_weights_of_a_query_or_key() -> None:
    picture = Grid(3, 7, before=CLASS)
    A = weights_on(picture)
    image = np.random.default_rng(0).integers(0, 255, (12, 28, 3), dtype=np.uint8)
    figure = A.show(image=image, grid=picture, query=(1, 4), on="figure")
    drawn = {axis.get_title(): axis.images for axis in figure.axes if axis.images}
    assert list(drawn) == ["picture", "mean of the heads", "head 0", "head 1", "head 2"]
    truth = A.dense()[:, 1 + 7 + 4, 1:].reshape(3, 3, 7)
    for head in range(3):
        assert np.allclose(drawn[f"head {head}"][-1].get_array(), truth[head], atol=1e-6)
    assert np.allclose(drawn["mean of the heads"][-1].get_array(), truth.mean(0), atol=1e-6)
    figure = A.show(grid=picture, key="class", head=1, on="figure")
    assert np.allclose(figure.axes[0].images[0].get_array(), A.dense()[1, 1:, 0].reshape(3, 7), atol=1e-6)
    figure = A.show(grid=picture, head=-1, on="figure")  # the class token attends
    assert np.allclose(figure.axes[0].images[0].get_array(), A.dense()[2, 0, 1:].reshape(3, 7), atol=1e-6)
    words = weights_on(Grid(3, 7), queries=5)
    figure = words.show(grid=Grid(3, 7), head=0, on="figure")  # no query is given: the mean of all
    truth = words.dense()[0].mean(0).reshape(3, 7)
    assert np.allclose(figure.axes[0].images[0].get_array(), truth, atol=rounding(5, 1, torch.float32))


def printed(console_options: dict[str, Any], A: ll.Weights, **options: Any) -> str:
    file = io.StringIO()
    A.show(on=Console(file=file, width=100, **console_options), **options)
    return file.getvalue()


def test_a_terminal_shows_the_brightest_patch() -> None:
    picture = Grid(3, 7)
    matrix = torch.full((1, 21, 21), 0.01)
    matrix[0, 4, 16] = 0.8
    A = ll.Weights.from_dense(matrix)
    lines = printed({}, A, grid=picture, query=4).splitlines()
    assert lines[3] == "··" * 2 + "██" + "··" * 4
    text = printed(
        {"force_terminal": True, "color_system": "truecolor"}, A, grid=picture, query=4, image=np.zeros((9, 9))
    )
    assert "▀" in text
    pixels = overlay(matrix[0, 4].reshape(3, 7), None, 2, 0.8)
    assert pixels.shape == (6, 14, 3)
    assert np.unravel_index(pixels.sum(2).argmax(), (6, 14)) == (4, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grid": Grid(3, 5)}, "15 tokens, and the matrix has 22 keys"),
        ({"grid": Grid(3, 7, before=CLASS), "query": 1, "key": 2}, "give one of them"),
        ({"grid": Grid(3, 7, before=CLASS), "query": "word"}, "special tokens: 'class'"),
        ({"image": np.zeros((5, 5))}, "neither a square"),
        ({"grid": Grid(3, 7, before=CLASS), "image": np.zeros((5, 5, 7))}, "image has shape"),
    ],
)
def test_clashes_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        weights_on(Grid(3, 7, before=CLASS)).show(**options)


def test_pixels_of_many_kinds() -> None:
    bytes_ = np.random.default_rng(1).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    bytes_[0, 0], bytes_[4, 6] = 0, 255
    kinds = [bytes_, bytes_ / 255, torch.from_numpy(bytes_).permute(2, 0, 1), torch.from_numpy(bytes_ / 127.5 - 1)]
    for kind in kinds:
        assert np.array_equal(as_pixels(kind), bytes_)
