"""Every architecture against transformers, built from a config with random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import limelight as ll
from limelight import models

WIDTHS: dict[str, Any] = {
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 56,
    "vocab_size": 97,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


def grouped(kind: Any, **more: Any) -> Any:
    return kind(**{**WIDTHS, "num_attention_heads": 6, "hidden_size": 48, "num_key_value_heads": 2}, **more)


GPT2 = hf.GPT2Config(n_embd=40, n_layer=3, n_head=5, vocab_size=97, n_positions=64)
LLAMA = grouped(hf.LlamaConfig)
DECODERS = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "llama": (hf.LlamaForCausalLM, LLAMA),
    "llama, tied, biased": (
        hf.LlamaForCausalLM,
        grouped(hf.LlamaConfig, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=10),
    ),
    "llama 3": (hf.LlamaForCausalLM, grouped(hf.LlamaConfig, rope_parameters=LLAMA3)),
    "llama, yarn": (hf.LlamaForCausalLM, grouped(hf.LlamaConfig, rope_parameters=YARN)),
    "llama, interpolated": (
        hf.LlamaForCausalLM,
        grouped(hf.LlamaConfig, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
    ),
    "mistral": (hf.MistralForCausalLM, grouped(hf.MistralConfig, sliding_window=7)),
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**WIDTHS, rotary_pct=0.5)),
    "gpt_neox, in turn": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**WIDTHS, use_parallel_residual=False)),
    "bloom": (hf.BloomForCausalLM, hf.BloomConfig(hidden_size=40, n_layer=3, n_head=5, vocab_size=97)),
}
T5 = {"d_model": 40, "d_kv": 11, "d_ff": 56, "num_layers": 3, "num_heads": 5, "vocab_size": 97}
MARIAN = {
    "vocab_size": 97,
    "d_model": 40,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 48,
    "pad_token_id": 96,
    "decoder_start_token_id": 96,
    "scale_embedding": True,
    "max_position_embeddings": 64,
}
SEQ2SEQ = {
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(**T5, decoder_start_token_id=0)),
    "t5, gated": (
        hf.T5ForConditionalGeneration,
        hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0),
    ),
    "marian": (hf.MarianMTModel, hf.MarianConfig(**MARIAN)),
}
ENCODERS = {
    "bert": (hf.BertModel, hf.BertConfig(**WIDTHS)),
    "bert, masked": (hf.BertForMaskedLM, hf.BertConfig(**WIDTHS)),
}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Path]:
    """Theirs, ours, and the folder that ours was loaded from."""
    kind, config = request.param
    torch.manual_seed(0)
    theirs = kind(config).eval()
    with torch.no_grad():
        for p in filter(
            lambda p: p.requires_grad, theirs.parameters()
        ):  # far from the small numbers of a new model, so that every part matters
            p.add_(torch.randn_like(p) * 0.15)
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, models.load(tmp_path / "theirs"), tmp_path / "theirs"


def over(cases: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("pair", list(cases.values()), ids=list(cases), indirect=True)


def agree(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    error = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
    assert error < 1e-4, f"{error:.1e}"


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 96, shape, generator=torch.Generator().manual_seed(seed))


@over(DECODERS)
@torch.no_grad()
def test_decoders(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    x, lengths = ids(3, 29), torch.tensor([29, 17, 5])
    agree(ours(x), theirs(x).logits)
    attention = (torch.arange(29) < lengths[:, None]).long()
    padded = ours(x, mask=ll.Padding(lengths))
    want = theirs(x, attention_mask=attention).logits
    for n, length in enumerate(lengths.tolist()):
        agree(padded[n, :length], want[n, :length])
    cache = ll.KVCache()
    steps = [ours(part, cache=cache) for part in x.split([11, 7, 1, 1, 9], 1)]
    agree(torch.cat(steps, 1), theirs(x).logits)


@over(SEQ2SEQ)
@torch.no_grad()
def test_encoder_decoders(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    source, target, lengths = ids(3, 23), ids(3, 17, seed=2), torch.tensor([23, 9, 14])
    agree(ours(source, target), theirs(input_ids=source, decoder_input_ids=target).logits)
    attention = (torch.arange(23) < lengths[:, None]).long()
    want = theirs(input_ids=source, attention_mask=attention, decoder_input_ids=target).logits
    agree(ours(source, target, mask=ll.Padding(lengths)), want)
    cache, context = ll.KVCache(), ours.encode(source, mask=ll.Padding(lengths))
    parts = target.split([5, 1, 11], 1)
    steps = [ours.decode(part, context, context_mask=ll.Padding(lengths), cache=cache) for part in parts]
    agree(torch.cat(steps, 1), want)


@over(ENCODERS)
@torch.no_grad()
def test_encoders(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    x, lengths = ids(3, 29), torch.tensor([29, 17, 5])

    def out(**more: Any) -> Tensor:
        found = theirs(x, **more)
        return found.logits if "logits" in found else found.last_hidden_state

    agree(ours(x), out())
    segments = (torch.arange(29) > 12).long().expand(3, -1)
    agree(ours(x, segments=segments), out(token_type_ids=segments))
    padded, want = ours(x, mask=ll.Padding(lengths)), out(attention_mask=(torch.arange(29) < lengths[:, None]).long())
    for n, length in enumerate(lengths.tolist()):
        agree(padded[n, :length], want[n, :length])


VIT = (hf.ViTModel, hf.ViTConfig(**{**WIDTHS, "image_size": 24, "patch_size": 8}))


@over({"vit": VIT})
@torch.no_grad()
def test_vit(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    pixels = torch.randn(2, 3, 24, 24)
    agree(ours(pixels), theirs(pixels).last_hidden_state)
    with pytest.raises(ValueError, match=r"give pixels \(batch, 3, 24, 24\), not \(2, 3, 16, 16\)"):
        ours(pixels[..., :16, :16])


@over({**DECODERS, **SEQ2SEQ, **ENCODERS, "vit": VIT})
def test_saving(pair: tuple[Any, Any, Path], tmp_path: Path) -> None:
    """Both read what we write, and it is the same."""
    theirs, ours, _ = pair
    folder = tmp_path / "ours"
    models.save(ours, folder)
    again = models.load(folder)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))
    loaded, info = type(theirs).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    want = theirs.state_dict()
    for name, x in loaded.state_dict().items():
        assert torch.equal(x, want[name]), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf.LlamaForCausalLM(LLAMA).save_pretrained(tmp_path / "x")
    return tmp_path / "x"


def edited(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_errors(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        models.load(folder / "nowhere")
    with pytest.raises(ValueError, match="'mamba' is unknown; there are bert, big_bird, bloom, gpt2, gpt_neox, llama"):
        models.load(edited(folder, model_type="mamba"))
    with pytest.raises(ValueError, match="rope_type = 'longrope' is not supported"):
        models.load(edited(folder, model_type="llama", rope_parameters={"rope_type": "longrope"}))
    with pytest.raises(ValueError, match="lacks hidden_size"):
        models.load(edited(folder, hidden_size=None, rope_parameters={}))
    with pytest.raises(ValueError, match=r"embed_tokens.weight has shape \(97, 48\); config.json makes it \(99, 48\)"):
        models.load(edited(folder, hidden_size=48, vocab_size=99))
    with pytest.raises(ValueError, match=r"lacks the tensors layers\.3\.input_layernorm\.weight, .* and 5 more"):
        models.load(edited(folder, vocab_size=97, num_hidden_layers=4))
    with pytest.raises(ValueError, match=r"takes the tensors layers\.2\..* and 5 more of the checkpoint"):
        models.load(edited(folder, num_hidden_layers=2))
    weights = folder / "model.safetensors"
    edited(folder, num_hidden_layers=3)
    tensors = load_file(weights)
    save_file({**tensors, "model.layers.0.surprise": torch.zeros(1)}, weights)
    with pytest.raises(ValueError, match=r"takes the tensor layers\.0\.surprise of the checkpoint"):
        models.load(folder)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
        models.load(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors; pickled weights are not read"):
        models.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        models.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match="has no config of a known architecture"):
        models.save(torch.nn.Linear(2, 2), folder)


def test_wrong_tokens() -> None:
    model = models.build({**LLAMA.to_dict(), "architectures": ["LlamaForCausalLM"]})
    with pytest.raises(ValueError, match="token ids from 3 to 97; the vocabulary has 0 to 96"):
        model(torch.tensor([[3, 97]]))
    with pytest.raises(ValueError, match=r"give token ids \(batch, length\) of whole numbers, not torch.int64 \(2,\)"):
        model(torch.tensor([3, 4]))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=40, n_layer=1, n_head=5, vocab_size=97, tie_word_embeddings=False)),
        (
            hf.BloomForCausalLM,
            hf.BloomConfig(hidden_size=40, n_layer=1, n_head=5, vocab_size=97, tie_word_embeddings=False),
        ),
        (hf.T5ForConditionalGeneration, hf.T5Config(**{**T5, "num_layers": 1}, tie_word_embeddings=False)),
        (hf.MT5ForConditionalGeneration, hf.MT5Config(**{**T5, "num_layers": 1})),
    ],
    ids=["gpt2", "bloom", "t5", "mt5"],
)
@torch.no_grad()
def test_heads_of_their_own(kind: Any, config: Any, tmp_path: Path) -> None:
    """Whatever the configuration says, a head that differs from the table is one of its own."""
    theirs = kind(config).eval()
    if config.model_type != "mt5":
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(97, 40))
    theirs.save_pretrained(tmp_path)
    ours, x = models.load(tmp_path), ids(2, 9)
    if config.is_encoder_decoder:
        agree(ours(x, x), theirs(input_ids=x, decoder_input_ids=x).logits)
    else:
        agree(ours(x), theirs(x).logits)


@torch.no_grad()
def test_half_precision_keeps_far_positions(folder: Path) -> None:
    x = ids(1, 1500)
    exact, half = models.load(folder)(x), models.load(folder, dtype=torch.bfloat16)(x)
    assert float((half.float() - exact)[:, -200:].abs().max() / exact.abs().max()) < 0.1


def test_a_configuration_without_architectures(folder: Path) -> None:
    want = models.load(folder)(ids(1, 5))
    edited(folder, architectures=None)
    assert torch.equal(models.load(folder)(ids(1, 5)), want)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert models.load(edited(folder, eos_token_id=None)).config["eos_token_id"] == 7  # type: ignore[union-attr, index]


def test_new_parameters_are_small() -> None:
    for config in (GPT2, LLAMA, DECODERS["bloom"][1]):
        model = models.build({**config.to_dict(), "architectures": ["LlamaForCausalLM"]})
        loss = torch.nn.functional.cross_entropy(model(ids(4, 20)).flatten(0, 1), ids(4, 20, seed=2).flatten())
        assert abs(loss.item() - torch.tensor(97.0).log().item()) < 0.5


def test_shards(folder: Path) -> None:
    want = models.load(folder)
    hf.LlamaForCausalLM.from_pretrained(folder).save_pretrained(folder.parent / "shards", max_shard_size="20KB")
    assert (folder.parent / "shards" / "model.safetensors.index.json").exists()
    got = models.load(folder.parent / "shards")
    assert all(torch.equal(a, b) for a, b in zip(want.parameters(), got.parameters(), strict=True))


CLASSIFIERS = {
    "sequence": (hf.BertForSequenceClassification, hf.BertConfig(**WIDTHS, num_labels=3)),
    "token": (hf.BertForTokenClassification, hf.BertConfig(**WIDTHS, num_labels=7)),
}


@over(CLASSIFIERS)
@torch.no_grad()
def test_classification(pair: tuple[Any, Any, Path], tmp_path: Path) -> None:
    """The logits of classes are those of transformers, also with padding, and after saving."""
    theirs, ours, _ = pair
    x, lengths = ids(3, 29), torch.tensor([29, 17, 5])
    agree(ours(x), theirs(x).logits)
    got = ours(x, mask=ll.Padding(lengths))
    want = theirs(x, attention_mask=(torch.arange(29) < lengths[:, None]).long()).logits
    for n, length in enumerate(lengths.tolist()):
        agree(got[n] if got.ndim == 2 else got[n, :length], want[n] if want.ndim == 2 else want[n, :length])
    models.save(ours, tmp_path / "again")
    agree(type(theirs).from_pretrained(tmp_path / "again")(x).logits, theirs(x).logits)


@pytest.mark.parametrize("named", [True, False])
@torch.no_grad()
def test_the_encoder_of_t5(named: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = hf.T5EncoderModel(hf.T5Config(**T5)).eval()
    theirs.save_pretrained(tmp_path)
    if not named:
        edited(tmp_path, architectures=None)
    ours, x = models.load(tmp_path), ids(2, 19)
    agree(ours(x), theirs(x).last_hidden_state)
    models.save(ours, tmp_path / "again")
    agree(hf.T5EncoderModel.from_pretrained(tmp_path / "again")(x).last_hidden_state, theirs(x).last_hidden_state)


@torch.no_grad()
def test_heads_that_are_not_used_are_named_once(tmp_path: Path) -> None:
    """BERT with the heads of its pretraining, for a configuration of the bare model; and a head for questions."""
    theirs = hf.BertForPreTraining(hf.BertConfig(**WIDTHS)).eval()
    theirs.save_pretrained(tmp_path)
    x = ids(2, 11)
    agree(models.load(tmp_path)(x), theirs(x).prediction_logits)
    edited(tmp_path, architectures=["BertModel"])
    with pytest.warns(
        UserWarning, match=r"not used here: the tensors cls\.predictions\.bias, .* of the checkpoint"
    ) as seen:
        ours = models.load(tmp_path)
    assert len(seen) == 1
    agree(ours(x), theirs.bert(x).last_hidden_state)
    theirs = hf.BertForQuestionAnswering(hf.BertConfig(**WIDTHS)).eval()
    theirs.save_pretrained(tmp_path / "questions")
    with pytest.warns(UserWarning, match=r"not used here: the tensors qa_outputs\.bias, qa_outputs\.weight"):
        agree(models.load(tmp_path / "questions")(x), theirs.bert(x).last_hidden_state)
