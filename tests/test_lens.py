"""Looking into models of transformers: outputs and entropies against eager attention, which makes its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf

import limelight as ll
from families import FAMILIES, PADDED, build, entropies, inputs, result
from limelight.lens.hf import registration

CAUSAL = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss", "gpt_neox", "qwen2", "qwen3")


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


def test_a_gradient_flows_through_the_record() -> None:
    model, given = build("bert"), inputs("bert")
    with ll.watch(model) as record:
        model(**given)
    record["encoder.layer.0.attention.self"].entropy().mean().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad is not None
