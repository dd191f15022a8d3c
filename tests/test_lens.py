"""Looking into models: against transformers' eager attention, which makes its weights."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from transformers import masking_utils

import limelight as ll
from limelight.lens import relation
from limelight.lens.hf import registration
from limelight.lens.hf.masks import SpanMask, span_mask

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
CAUSAL = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss", "gpt_neox", "qwen2", "qwen3")
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


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, padded: str) -> None:
    """Outputs and entropies are those of eager attention, and the model is as before."""
    model, given = build(name), inputs(name, padded)
    with torch.no_grad():
        expected = model(**given, output_attentions=True)
        with ll.watch(model) as record:
            got = model(**given)
    assert model.config._attn_implementation == "eager"
    real = given.get("attention_mask", torch.ones(1, 1)).bool()
    a, b = result(expected), result(got)
    if "decoder_input_ids" not in given and "attention_mask" in given:
        a, b = a[real], b[real]
    torch.testing.assert_close(a, b, atol=1e-4, rtol=0)
    for names, kind, stack in (
        ("attentions", "self", None),
        ("encoder_attentions", "self", "encoder"),
        ("decoder_attentions", "self", "decoder"),
        ("cross_attentions", "cross", "decoder"),
    ):
        matrices = getattr(expected, names, None) or ()
        if not matrices:
            continue
        calls = [call for call in record.log if call.kind == kind and stack in (None, call.stack)]
        assert len(calls) == len(matrices) == 2, names
        for call, matrix in zip(calls, matrices, strict=True):
            rows = real[:, None] if stack != "decoder" and "attention_mask" in given else torch.ones(1, 1, 1)
            error = (call.weights.entropy() - entropies(matrix)) * rows
            assert float(error.abs().max()) < 1e-4
            assert call.phase == "prefill"


def test_a_real_model(minilm: Path) -> None:
    model = tf.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    ids = tf.AutoTokenizer.from_pretrained(minilm)(
        ["The animal didn't cross the street because it was too tired.", "A cat."], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(**ids, output_attentions=True)
        with ll.watch(model) as record:
            got = model(**ids)
    real = ids["attention_mask"].bool()
    torch.testing.assert_close(got.last_hidden_state[real], expected.last_hidden_state[real], atol=1e-4, rtol=0)
    for layer, matrix in enumerate(expected.attentions):
        error = record[f"encoder.layer.{layer}.attention.self"].entropy() - entropies(matrix)
        assert float((error * real[:, None]).abs().max()) < 1e-4


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", ["none", "left"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generation(name: str, cache: str, padded: str) -> None:
    """The same tokens with every cache, and the weights of every step."""
    registration.register()
    model, given = build(name), inputs(name, padded, n=13)
    options = {"do_sample": False, "max_new_tokens": 9, "min_new_tokens": 9, "return_dict_in_generate": True}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    expected = model.generate(**given, **options, output_attentions=True)
    with ll.watch(model) as record:
        got = model.generate(**given, **options)
    assert torch.equal(expected.sequences, got.sequences)
    for layer, module in enumerate(record):
        calls = record.calls(module)
        assert len(calls) == 9
        phases = [call.phase for call in record.log if call.name == module]
        assert phases == ["prefill"] + ["decode"] * 8
        for step, call in enumerate(calls):
            error = call.entropy() - entropies(expected.attentions[step][layer])
            if padded == "left" and step == 0:
                error = error * given["attention_mask"][:, None]
            assert float(error.abs().max()) < 1e-4
    model.set_attn_implementation("limelight")
    assert torch.equal(model.generate(**given, **options).sequences, expected.sequences)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_generation_from_a_source(name: str) -> None:
    model, given = build(name), inputs(name, "right")
    given.pop("decoder_input_ids")
    options = {"do_sample": False, "max_new_tokens": 7, "min_new_tokens": 7}
    expected = model.generate(**given, **options)
    with ll.watch(model) as record:
        got = model.generate(**given, **options)
    assert torch.equal(expected, got)
    steps = [(call.kind, call.phase, call.shape[2]) for call in record.log if call.stack == "decoder"]
    begun = 1 if name != "whisper" else steps[0][2]
    assert steps[:2] == [("self", "prefill", begun), ("cross", "prefill", begun)]
    assert set(steps[4:]) == {("self", "decode", 1), ("cross", "decode", 1)}


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


@pytest.mark.parametrize("name", ["llama", "t5", "gpt_oss", "bert"])
def test_training(name: str) -> None:
    """Gradients of all parameters, with padding."""
    registration.register()
    model, given = build(name), inputs(name, "right")
    real = given["attention_mask"].bool()
    gradients = {}
    for implementation in ("eager", "limelight"):
        model.set_attn_implementation(implementation)
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.zero_grad()
        for module in model.modules():
            for rate in ("dropout", "attention_dropout"):
                if isinstance(getattr(module, rate, None), float):
                    setattr(module, rate, 0.0)
        out = result(model(**given))
        (out if name == "t5" else out[real]).pow(2).mean().backward()
        gradients[implementation] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert gradients["eager"].keys() == gradients["limelight"].keys()
    for n, expected in gradients["eager"].items():
        got = gradients["limelight"][n]
        assert float((got - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max())), n


OTHERS = {
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=101, hidden_size=48, n_layer=2, n_head=6)),
    "mpt": lambda: tf.MptForCausalLM(tf.MptConfig(vocab_size=101, d_model=48, n_layers=2, n_heads=6, max_seq_len=64)),
    "falcon": lambda: tf.FalconForCausalLM._from_config(
        tf.FalconConfig(vocab_size=101, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, alibi=False),
        attn_implementation="eager",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_with_an_attention_of_their_own(name: str) -> None:
    torch.manual_seed(5)
    model = OTHERS[name]().eval()
    ids = inputs("llama")["input_ids"]
    with pytest.raises(ValueError, match=r"watch\(model, dense=True\)") as error, ll.watch(model):
        pass
    assert ("limelight.models.load" in str(error.value)) == (name == "bloom")
    assert type(model).__name__ in str(error.value)
    with torch.no_grad(), ll.watch(model, dense=True) as record:
        out = model(ids)
    with torch.no_grad():
        expected = model(ids, output_attentions=True)
    torch.testing.assert_close(out.logits, expected.logits)
    assert len(record) == 2
    for call, matrix in zip(record.log, expected.attentions, strict=True):
        assert call.kind == "self"
        torch.testing.assert_close(call.weights.dense().float(), matrix.float(), atol=1e-5, rtol=0)
    assert len(record.heads()) == 12


def test_dense_reading_of_a_model_of_ones_own() -> None:
    """Any module that calls softmax or PyTorch's attention."""

    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.softmax(x @ x.mT, dim=-1) @ x
            return torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    x = torch.randn(2, 3, 5, 7)
    model = torch.nn.Sequential(Own())
    with pytest.raises(ValueError, match="neither"), ll.watch(model):
        pass
    with ll.watch(model, dense=True) as record:
        model(x)
    first, second = record.calls("0")
    torch.testing.assert_close(first.dense(), torch.softmax(x @ x.mT, -1))
    y = first.dense() @ x
    torch.testing.assert_close(second @ y, torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True))


def _translator() -> Any:
    torch.manual_seed(2)
    model = ll.models.build(
        {
            **STACKS,
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "initializer_range": 0.3,
        }
    )
    return model.eval()


def test_our_models() -> None:
    """Padded batches, cross-attention, caches, and everything as before."""
    model = _translator()
    source, target = inputs("t5")["input_ids"], inputs("t5")["decoder_input_ids"]
    lengths = ll.Padding([23, 11, 5])
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    with torch.no_grad():
        expected = model(source, target, mask=lengths)
        with ll.watch(model) as record:
            got = model(source, target, mask=lengths)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    kinds = {call.name: (call.stack, call.kind, call.shape) for call in record.log}
    assert kinds["encoder.blocks.1.attention"] == ("encoder", "self", (3, 6, 23, 23))
    assert kinds["decoder.blocks.0.cross"] == ("decoder", "cross", (3, 6, 11, 23))
    cross = record["decoder.blocks.0.cross"]
    assert float(cross.dense()[2, :, :, 5:].abs().max()) == 0
    with torch.no_grad():
        hidden = model.encode(source, mask=lengths)
        x = model.decoder.blocks[0].attention_norm(model.target(target))
        block = model.decoder.blocks[0]
        inner = model.target(target)
        inner = block.attention_norm(inner + block.attention(inner, mask=ll.Causal()))
        same = block.cross.weights(inner, hidden, mask=lengths)
    del x
    torch.testing.assert_close(cross.dense(), same.dense(), atol=1e-5, rtol=1e-4)
    with ll.watch(model) as record:
        ll.models.generate(model, source, mask=lengths, max_new_tokens=4, stop=[])
    assert [call.phase for call in record.log if call.name == "decoder.blocks.0.cross"] == ["prefill"] + ["decode"] * 3


def test_an_exception_leaves_the_model_as_it_was() -> None:
    model, ours = build("llama"), _translator()
    for each in (model, ours):
        hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in each.modules()]
        with pytest.raises(RuntimeError, match="stop"), ll.watch(each):
            raise RuntimeError("stop")
        assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in each.modules()] == hooks
    assert model.config._attn_implementation == "eager"
    assert not registration.recorders
    assert not any("attend" in vars(module) for module in ours.modules())
    assert all(m._packs for m in ours.modules() if isinstance(m, ll.nn.Encoder))


def test_importing_registers_nothing() -> None:
    code = (
        "import limelight as ll, limelight.lens; from transformers.modeling_utils import AttentionInterface as A\n"
        "import limelight.lens.hf.registration as h\n"
        "assert 'limelight' not in A._global_mapping; h.register(); assert 'limelight' in A._global_mapping"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    light = "import limelight as ll, sys; ll.watch; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True)


def test_versions_that_are_too_old() -> None:
    """Before 4.57 there is no registry of masks; one line says which version is needed."""
    code = "import sys; sys.modules['transformers.masking_utils'] = None; import limelight.lens.hf.registration"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: limelight reads models of transformers with transformers 4.57 or later")
    assert f"transformers {tf.__version__} is installed" in last


def test_what_is_kept() -> None:
    model, given = build("bert"), inputs("bert")
    with torch.no_grad(), ll.watch(model) as whole:
        model(**given)
    with torch.no_grad(), ll.watch(model, layers=[1]) as some:
        model(**given)
    assert list(some) == ["encoder.layer.1.attention.self"]
    with torch.no_grad(), ll.watch(model, layers="*.0.*", keep=("entropy", "received")) as answers:
        model(**given)
    (name,) = answers
    torch.testing.assert_close(answers[name].entropy, whole[name].entropy())
    torch.testing.assert_close(answers[name].received, whole[name].received())
    assert answers[name].top is None
    with pytest.raises(ValueError, match="needs the weights themselves"):
        answers.heads()
    with torch.no_grad(), ll.watch(model, keep={"top": 3}) as answers:
        model(**given)
    assert answers[name].top.indices.shape == (3, 6, 23, 3)
    with pytest.warns(UserWarning, match="1 attention calls were dropped"), ll.watch(model, limit=1e-6) as little:
        model(**given)
    assert len(little) == 1
    assert little.missed == 1
    assert "limit" in repr(little)
    for wrong, message in (
        ({"keep": ("entropie",)}, "there are entropy, received"),
        ({"keep": ("top",)}, "needs a value"),
        ({"layers": [7]}, "match no module"),
        ({"limit": 0}, "above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ll.watch(model, **wrong)
    with pytest.raises(KeyError, match=r"recorded modules: encoder\.layer\.0"):
        whole["encoder"]


def test_the_record_of_a_translation_reports_on_its_heads() -> None:
    """It is the same class as that of ``watch``, with the same report."""
    from limelight import translate

    translator = translate.load()
    sentence = translator("The cat is sleeping.").sentences[0]
    record = translator("The cat is sleeping.").record
    assert type(record) is ll.lens.Record
    source, target = sentence._ids
    with torch.no_grad(), ll.watch(translator.model) as watched:
        translator.model(source, target[:, :-1])
    assert type(watched) is type(record)
    report, expected = record.heads(), watched.heads()
    assert len(report) == len(expected) == sum(call.shape[1] for call in watched.log)
    assert [row["label"] for row in report] == [row["label"] for row in expected]
    assert report[0]["entropy"] == pytest.approx(expected[0]["entropy"], abs=1e-5)


def test_a_gradient_flows_through_the_record() -> None:
    model, given = build("bert"), inputs("bert")
    with ll.watch(model) as record:
        model(**given)
    record["encoder.layer.0.attention.self"].entropy().mean().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad is not None


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral"])
@pytest.mark.parametrize("padded", PADDED)
def test_heads(name: str, padded: str) -> None:
    """Every number of the report, from the dense matrices, row by row."""
    model, given = build(name), inputs(name, padded)
    given["input_ids"] = given["input_ids"] % 5 + 3  # so that tokens occur again
    with torch.no_grad(), ll.watch(model) as record:
        model(**given)
    with torch.no_grad():
        matrices = model(**given, output_attentions=True).attentions
    ids = given["input_ids"]
    real = given.get("attention_mask", torch.ones_like(ids)).bool()
    tokens = [["." if x == 3 else f"w{x}" for x in row] for row in ids.tolist()]
    report = record.heads(tokens)
    assert len(report) == 12
    for layer, matrix in enumerate(matrices):
        for head in range(6):
            row = report[6 * layer + head]
            assert (row["layer"], row["head"]) == (layer, head)
            expected = _by_hand(matrix[:, head].double(), ids, real, causal=name != "bert")
            for measure, x in expected.items():
                assert row[measure] == pytest.approx(x, abs=1e-4), measure
        flat = (matrix.double() * real[:, None, :, None]).flatten(2)
        cosine = torch.nn.functional.cosine_similarity(flat[:, :, None], flat[:, None], dim=-1)
        mean = ((cosine.sum(-1) - 1) / 5 * real.sum(1)[:, None]).sum(0) / real.sum()
        for head in range(6):
            assert report[6 * layer + head]["similarity"] == pytest.approx(float(mean[head]), abs=1e-4)


def _by_hand(a: torch.Tensor, ids: torch.Tensor, real: torch.Tensor, causal: bool) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for b in range(len(ids)):
        places = real[b].nonzero()[:, 0].tolist()
        for i in places:
            w = a[b, i]
            here = {
                "entropy": float(torch.special.entr(w).sum()),
                "first": float(w[places[0]]),
                "self": float(w[i]),
                "previous": float(w[i - 1]) if i else 0.0,
                "next": float(w[i + 1]) if i + 1 < len(w) else 0.0,
                "near": float(w[max(0, i - 8) : i + 9].sum()),
                "separators": float(w[ids[b] == 3].sum()),
                "distance": float((w * (torch.arange(len(w)) - i).abs()).sum()),
            }
            before = [j for j in places if j < i and ids[b, j] == ids[b, i]]
            after = [j for j in places if j > i and ids[b, j] == ids[b, i]]
            others = before[-8:] + ([] if causal else after[:8])
            if others:
                here["duplicate"] = float(w[others].sum())
            followed = [j + 1 for j in before[-8:] if j + 1 < i]
            if followed:
                here["induction"] = float(w[followed].sum())
            for measure, x in here.items():
                sums.setdefault(measure, []).append(x)
    return {measure: sum(x) / len(x) for measure, x in sums.items()}


def test_heads_of_a_generation() -> None:
    """A prompt and the steps after it are together what the whole text is at once."""
    model, given = build("llama"), inputs("llama", n=13)
    given = {"input_ids": given["input_ids"][:1]}  # those of several might change places, and are not followed
    with ll.watch(model) as steps:
        out = model.generate(**given, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    with torch.no_grad(), ll.watch(model) as whole:
        model(out[:, :-1])
    for a, b in zip(steps.heads(), whole.heads(), strict=True):
        for measure in ("entropy", "first", "previous", "near", "distance", "duplicate", "induction"):
            assert a[measure] == pytest.approx(b[measure], abs=1e-4), measure


def test_the_first_token_after_padding() -> None:
    """A prompt alone, and the same with padding before it, in a generation, with a cache that drops what is old."""
    for name in ("llama", "mistral"):
        model = build(name)
        ids = inputs(name, n=13)["input_ids"][:1]
        options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
        with ll.watch(model) as alone:
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        padded = torch.nn.functional.pad(ids, (4, 0))
        with ll.watch(model) as behind:
            model.generate(input_ids=padded, attention_mask=(padded != 0).long(), **options)
        for a, b in zip(alone.heads(), behind.heads(), strict=True):
            for measure in ("entropy", "first", "self", "previous", "near", "distance"):
                assert a[measure] == pytest.approx(b[measure], abs=1e-4), measure


def test_which_tokens_the_keys_are() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    options = {"do_sample": False, "max_new_tokens": 3, "min_new_tokens": 3}
    with ll.watch(model) as record:
        first = model.generate(ids[:1], **options)
        second = model.generate(ids[1:2], **options)
        model.generate(ids[:2], num_beams=2, **options)
        model(inputs_embeds=model.get_input_embeddings()(ids))
    calls = [call for call in record.log if call.layer == 0]
    for text, some in ((first, calls[:3]), (second, calls[3:6])):
        for call in some:
            assert torch.equal(call.ids, text[:, : call.shape[3]])
    assert all(call.ids is None for call in calls[7:])
    model = build("t5")
    with torch.no_grad(), ll.watch(model) as record:
        model(input_ids=ids, labels=ids[:, :5].contiguous())
        model.generate(ids, max_new_tokens=2)
    for call in record.log:
        expected = ids if call.stack == "encoder" or call.kind == "cross" else None
        assert (call.ids is None) == (expected is None) or call.shape[2] <= 2
        assert expected is None or torch.equal(call.ids, expected)


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


def test_what_was_not_seen_is_said() -> None:
    ids = inputs("llama")["input_ids"]
    mamba = tf.MambaModel(tf.MambaConfig(vocab_size=101, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="no attention was recorded"), ll.watch(mamba):
        mamba(ids)
    own = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(2, 5, 12)
    with (
        pytest.warns(UserWarning, match="could not record what they attend to"),
        ll.watch(torch.nn.Sequential(own), dense=True),
    ):
        own(x, x, x)


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


def test_watches_that_overlap() -> None:
    one, two, given = build("llama"), build("bert"), inputs("llama")
    a, b = ll.watch(one), ll.watch(two)
    first, second = a.__enter__(), b.__enter__()
    a.__exit__(None, None, None)
    with torch.no_grad():
        two(**given)
        with ll.watch(two) as inner:
            two(**given)
    b.__exit__(None, None, None)
    assert (len(first.log), len(second.log), len(inner.log)) == (0, 2, 2)
    seen = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: seen.append(graph) or graph)(torch.ones(2))
    assert seen  # models can be compiled again
    ours = _translator()
    with ll.watch(ours) as outer:
        with ll.watch(ours) as inner:
            ours.encode(given["input_ids"])
        ours.encode(given["input_ids"])
    assert (len(inner.log), len(outer.log)) == (2, 2)


def test_compiled_and_checkpointed() -> None:
    model, given = build("llama"), inputs("llama")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad(), ll.watch(model) as record:
        compiled(**given)
    assert list(record) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    model.train()
    # transformers 5.23 renamed it
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    with ll.watch(model) as record:
        model(**given, use_cache=False).logits.sum().backward()
    assert len(record.log) == 2


def test_heads_says_what_is_wrong() -> None:
    model, given = build("bert"), inputs("bert")
    with torch.no_grad(), ll.watch(model) as record:
        model(**given)
    for tokens, message in (
        ([], "tokens of 1 texts"),
        ([1, 2], "list of strings"),
        (["a", "b"], "tokens of 1 texts for 3"),
        ({"encodr": ["a"]}, "encodr"),
        ([["a"] * 24] * 3, "24 tokens for 23 keys"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            record.heads(tokens)  # type: ignore[arg-type]


def test_labels() -> None:
    """Heads that are made to do one thing are called after it."""
    n = 40
    ids = torch.arange(n) % 20  # the second half repeats the first
    i = torch.arange(n)
    patterns = {
        "previous token": (i - 1).clamp(min=0),
        "next token": (i + 1).clamp(max=n - 1),
        "itself": i,
        "induction": torch.where(i >= 20, i - 19, 0),
        "duplicate token": (i + 20) % n,
        "sink": torch.zeros_like(i),
        "separator": torch.full_like(i, 17),
    }
    matrix = torch.stack([torch.nn.functional.one_hot(at, n).float() for at in patterns.values()])[None]
    near = ((i[:, None] - i).abs() <= 4).float()
    extra = torch.stack([near / near.sum(-1, keepdim=True), torch.full((n, n), 1 / n)])[None]
    record = ll.lens.Record()
    weights = ll.Weights.from_dense(torch.cat([matrix, extra], 1))
    record.add(ll.lens.Call("layers.3.attention", "self", "encoder", "prefill", weights, weights.shape, ids[None]))
    tokens = ["," if x == 17 else "w" for x in range(n)]
    report = record.heads(tokens)
    assert [row["label"] for row in report] == [*patterns, "local", "broad"]
    assert json.loads(report.json())[0]["layer"] == 3
    assert "previous token" in str(report)
    assert "layers.*.attention" in str(report)


def test_relation() -> None:
    matrix = torch.full((1, 2, 6, 6), 0.1)
    matrix[0, 0, 4, 1] = 0.5
    matrix[0, 1, 4, 2:4] = 0.3
    weights = ll.Weights.from_dense(matrix / matrix.sum(-1, keepdim=True))
    record = ll.lens.Record()
    record.add(ll.lens.Call("layers.0.attention", "self", "decoder", "prefill", weights, weights.shape))
    best, other = relation(record, [(4, 1), (4, 1)])
    assert (best["head"], best["accuracy"], best["pairs"]) == (0, 1.0, 2)
    assert best["weight"] == pytest.approx(0.5)
    assert other["accuracy"] == 0.0
    assert relation(record, [(4, [2, 3])])[0]["head"] == 1
    assert relation(record, [(4, [2, 3])])[0]["weight"] == pytest.approx(0.6)
    assert relation(record, [(torch.tensor(4), [3, 2, 2])])[0]["weight"] == pytest.approx(0.6)
    for pairs, message in (
        ([], "at least one pair"),
        ([(6, 1)], "not within the 6 tokens"),
        ([(1, [])], "one token"),
        ([3], "not a pair"),
        ([("it", 1)], "neither the position"),
        ([(1.5, 1)], "neither the position"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            relation(record, pairs)
    with pytest.raises(ValueError, match="no cross-attention"):
        relation(record, [(1, 1)], kind="cross")
