"""Edits: against the same edit made by hand on the dense weights of transformers' eager attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

import limelight as ll
from conftest import assert_within
from families import inputs_of, random_model
from limelight.lens import Bias, Knockout, Mean, Off, Only, Pattern, Rectangle, Temperature
from limelight.lens.hf import registration
from limelight.lens.hf.registration import using_implementation

TOLERANCE = 1e-4
HEADS = [1, 4]
LAYER = 1


@contextmanager
def edited_by_hand(model: nn.Module, change: Callable[..., tuple[Tensor, Tensor]]) -> Iterator[list[Tensor]]:
    """Compute dense attention for every module of a model; ``change`` edits logits and output of layer 1."""
    seen: list[Tensor] = []

    def attend(module: Any, q: Any, k: Any, v: Any, attention_mask: Any, scaling: Any = None, **options: Any) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        if options.get("position_bias") is not None:
            logits = logits + options["position_bias"]
        if attention_mask is not None:
            logits = logits + attention_mask[..., : k.shape[2]]
        elif getattr(module, "is_causal", True) and q.shape[2] > 1:
            logits = logits + torch.full(logits.shape[-2:], -torch.inf).triu(1 + k.shape[2] - q.shape[2])
        name = next(name for name, m in model.named_modules() if m is module)
        is_layer = next(int(part) for part in name.split(".") if part.isdecimal()) == LAYER
        if is_layer:
            weights, out = change(logits, v)
        else:
            weights = logits.softmax(-1)
            out = weights @ v
        seen.append(weights)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("by_hand", attend)
    AttentionMaskInterface.register("by_hand", eager_mask)
    with using_implementation(model, "by_hand"):
        yield seen


def softmax_at(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = logits.softmax(-1)
    return weights, weights @ v


def off(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights, out = softmax_at(logits, v)
    out[:, HEADS] = 0.0
    return weights, out


def only(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights, out = softmax_at(logits, v)
    out[:, [h for h in range(logits.shape[1]) if h not in HEADS]] = 0.0
    return weights, out


def knockout(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    N, M = logits.shape[-2:]
    far = (torch.arange(M - N, M)[:, None] - torch.arange(M)).abs() > 2
    logits = logits.masked_fill(logits < torch.finfo(logits.dtype).min / 2, -torch.inf)
    logits[:, HEADS] = logits[:, HEADS].masked_fill(far, -torch.inf)
    weights = logits.softmax(-1).nan_to_num(0.0)  # a query that may attend to nothing adds nothing
    return weights, weights @ v


def temperature(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone()
    for h, t in zip(HEADS, (0.5, 3.0), strict=True):
        logits[:, h] = logits[:, h] / t
    return softmax_at(logits.clamp(min=torch.finfo(logits.dtype).min), v)


def bias(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    N, M = logits.shape[-2:]
    logits = logits.clone()
    distance = (torch.arange(M - N, M)[:, None] - torch.arange(M)).abs()
    logits[:, HEADS] = logits[:, HEADS] - torch.tensor([0.3, 0.7])[:, None, None] * distance
    return softmax_at(logits, v)


EDITS: dict[str, tuple[Any, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = {
    "off": (Off(HEADS), off),
    "only": (Only(HEADS), only),
    "knockout": (Knockout(~ll.Window(2), heads=HEADS), knockout),
    "temperature": (Temperature([0.5, 3.0], heads=HEADS), temperature),
    "bias": (Bias(ll.ALiBi(torch.tensor([0.3, 0.7])), heads=HEADS), bias),
}


def output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The output at tokens that are not padding."""
    found = model(**inputs)[0]
    if "decoder_input_ids" in inputs:
        return found
    return found[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
@torch.no_grad()
def test_edits_of_models(name: str, padded: bool) -> None:
    model = random_model(name)
    inputs = inputs_of(model, padded)
    before = output(model, inputs)
    for edit, by_hand in EDITS.values():
        with edited_by_hand(model, by_hand) as weights:
            want = output(model, inputs)
        with ll.edit(model, {LAYER: edit}):
            got = output(model, inputs)
        assert_within(got, want, TOLERANCE, repr(edit))
        assert float((want - before).abs().max()) > 100 * TOLERANCE  # the edit matters
        with ll.watch(model, edits={LAYER: edit}) as record:
            assert torch.equal(output(model, inputs), got)
        for call, dense in zip(record.log, weights, strict=True):
            real = (dense - dense.softmax(-1).mean()).isfinite()
            if not padded:
                assert_within(call.weights.dense() * real, dense * real, TOLERANCE, call.name)
    assert torch.equal(output(model, inputs), before)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
@torch.no_grad()
def test_edits_hold_during_generation(name: str) -> None:
    model = random_model(name)
    ids = torch.randint(3, 101, (1, 11))
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    options |= {"pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(ids, **options)
    for edit, by_hand in EDITS.values():
        with edited_by_hand(model, by_hand):
            want = model.generate(ids, **options)
        with ll.edit(model, {LAYER: edit}):
            got = model.generate(ids, **options)
        assert torch.equal(got.sequences, want.sequences)
        assert_within(torch.stack(got.logits), torch.stack(want.logits), TOLERANCE)
    after = model.generate(ids, **options)
    assert torch.equal(torch.stack(after.logits), torch.stack(plain.logits))


@torch.no_grad()
def test_edits_of_a_real_model(minilm: Path) -> None:
    model = tf.AutoModel.from_pretrained(minilm).eval()
    inputs = {
        "input_ids": torch.randint(1000, 20000, (2, 17)),
        "attention_mask": (torch.arange(17) < torch.tensor([[17], [11]])).long(),
    }
    for name in ("off", "knockout", "temperature"):
        edit, by_hand = EDITS[name]
        with edited_by_hand(model, by_hand):
            want = output(model, inputs)
        with ll.edit(model, {LAYER: edit}):
            assert_within(output(model, inputs), want, TOLERANCE)


@torch.no_grad()
def test_mean_ablation() -> None:
    model = random_model("llama")
    inputs, other = inputs_of(model, padded=True), inputs_of(model, padded=False)
    with ll.watch(model, values=True) as reference:
        model(**other)
    name = next(name for name in reference if f".{LAYER}." in name)
    call = next(call for call in reference.log if call.name == name)
    mean = (call.weights.dense() @ call.v.repeat_interleave(3, 1)).mean((0, 2))  # (heads, width)

    def by_hand(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights, out = softmax_at(logits, v)
        out[:, HEADS] = mean[HEADS][:, None].expand(2, -1, out.shape[2], -1)
        return weights, out

    with edited_by_hand(model, by_hand):
        want = output(model, inputs)
    with ll.edit(model, {LAYER: Mean(HEADS, reference)}):
        assert_within(output(model, inputs), want, TOLERANCE)
    with ll.watch(model) as without:
        model(**other)
    with pytest.raises(ValueError, match="values=True"), ll.edit(model, {LAYER: Mean(1, without)}):
        model(**inputs)


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
@torch.no_grad()
def test_patterns_of_another_run(name: str) -> None:
    model = random_model(name)
    inputs, other = inputs_of(model, padded=False), inputs_of(model, padded=False)
    with ll.watch(model) as record:
        model(**other)
    calls = [call for call in record.log if call.layer == LAYER]
    seen = iter([])  # type: ignore[var-annotated]

    def by_hand(logits: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = logits.softmax(-1)
        weights[:, HEADS] = next(seen).weights.dense()[:, HEADS]
        return weights, weights @ v

    seen = iter(calls)
    with edited_by_hand(model, by_hand):
        want = output(model, inputs)
    with ll.edit(model, {LAYER: Pattern(record, heads=HEADS)}):
        assert_within(output(model, inputs), want, TOLERANCE)
    with ll.edit(model, {LAYER: Pattern(record)}):  # the same run again
        assert_within(output(model, other), output(model, other), TOLERANCE)


@torch.no_grad()
def test_patterns_during_generation() -> None:
    """The pattern of a run makes a run of the same text what it was, step by step."""
    model = random_model("gpt2")
    ids = torch.randint(3, 101, (1, 11))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with ll.watch(model) as steps:
        written = model.generate(ids, **options)
    with ll.watch(model) as whole:
        model(written[:, :-1])
    noise = {0: Temperature(5.0)}
    assert not torch.equal(_generated(model, ids, noise, options), written)
    for record in (steps, whole):
        every = {n: Pattern(record) for n in range(2)}
        assert torch.equal(_generated(model, ids, every, options), written)
    with ll.edit(model, {1: Pattern(whole)}):
        assert_within(model(written[:, :-1].expand(3, -1)).logits[2], model(written[:, :-1]).logits[0], TOLERANCE)
        with pytest.raises(ValueError, match="does not have"):
            model(torch.cat([written, written], 1))


def _generated(model: Any, ids: Tensor, edits: Any, options: dict[str, Any]) -> Tensor:
    with ll.edit(model, edits):
        found: Tensor = model.generate(ids, **options)
        return found


@torch.no_grad()
def test_rectangles_speak_of_tokens() -> None:
    """A rectangle and a dense mask mean the same tokens in one pass and step by step, also in cross-attention."""
    model = random_model("t5")
    ids, target = torch.randint(3, 101, (1, 13)), torch.randint(3, 101, (1, 7))
    dense = torch.zeros(7, 13, dtype=torch.bool)
    dense[2:5, 3:9] = True
    pattern = "decoder*EncDecAttention"
    results = []
    for mask in (Rectangle(range(2, 5), range(3, 9)), ll.Dense(dense)):
        with ll.watch(model, edits={pattern: Knockout(mask, heads=HEADS)}) as record:
            results.append(model(input_ids=ids, decoder_input_ids=target).logits)
            cache = None
            for t in range(7):
                out = model(input_ids=ids, decoder_input_ids=target[:, t : t + 1], past_key_values=cache)
                cache = out.past_key_values
                assert_within(out.logits[:, 0], results[-1][:, t], TOLERANCE, f"token {t}")
        weights = next(call for call in record.log if call.kind == "cross").weights.dense()
        assert not weights[0, HEADS, 2:5, 3:9].any()
        assert bool(weights[0, 0, 2:5, 3:9].all())
        assert bool(weights[0, HEADS, 5:].all())
    assert_within(results[0], results[1], 1e-6)


@torch.no_grad()
def test_our_layers_and_nesting() -> None:
    layer = ll.nn.MultiHeadAttention(35, 5, bias=False)
    x = torch.randn(2, 11, 35)
    before = layer(x)
    parts = []
    for h in range(5):
        with ll.edit(layer, {"*": Only(h)}):
            parts.append(layer(x))
    assert_within(torch.stack(parts).sum(0), before, 1e-5)  # heads add up
    with ll.edit(layer, {"*": Off(0)}), ll.watch(layer, edits={"*": Off([1, 2])}) as record:
        assert_within(layer(x), parts[3] + parts[4], 1e-5)  # both hold
    assert len(record.log) == 1
    with pytest.raises(ValueError, match="width 34"), ll.edit(layer, {"*": Off()}):
        layer(x[..., 1:])
    assert torch.equal(layer(x), before)
    assert "attend" not in vars(layer)
    assert not registration.recorders


@torch.no_grad()
@pytest.mark.parametrize("name", ["off", "only", "knockout", "temperature", "bias"])
def test_models_that_compute_attention_themselves(name: str) -> None:
    """With dense=True the same edits act on the weights that the model's own softmax makes."""
    model = random_model("bert")
    inputs = inputs_of(model, padded=True)
    edit, by_hand = EDITS[name]
    with edited_by_hand(model, by_hand):
        want = output(model, inputs)
    with ll.watch(model, dense=True, edits={LAYER: edit}):
        assert_within(output(model, inputs), want, TOLERANCE)


def test_clashes_and_errors() -> None:
    model = ll.nn.Encoder([ll.nn.Block(ll.nn.MultiHeadAttention(24, 4), ll.nn.FeedForward(24, 31)) for _ in range(2)])
    x = torch.randn(1, 5, 24)
    with ll.watch(model, values=True) as record:
        model(x)
    clashing = [
        (
            Off([1, 2]) + Mean([2, 3], record),
            r"Off\(\[1, 2\]\) and Mean\(\[2, 3\], <record>\) clash .*blocks.1.*head 2",
        ),
        (Off(1) + Temperature(2.0, heads=[1]), "Off.*Temperature"),
        (Temperature(2.0) + Temperature(3.0, heads=0), "Temperature"),
        (Pattern(record, heads=3) + Knockout(ll.First(1), heads=[3]), "Pattern.*Knockout.*head 3"),
        (Only([0]) + Only([1]), "Only.*Only"),
        (Only([0]) + Off(0), "Only.*Off"),
    ]
    for edit, message in clashing:
        with pytest.raises(ValueError, match=message), ll.edit(model, {1: edit}):
            model(x)
    with pytest.raises(ValueError, match="clash"), ll.edit(model, {1: Off(0), "blocks.*": Mean(0, record)}):
        model(x)
    for fine in (
        Off(1) + Off([1, 2]),
        Off(1) + Temperature(2.0),
        Knockout(ll.First(1)) + Knockout(ll.Window(1)) + Bias(ll.ALiBi(4)) + Temperature(0.5, heads=slice(0, 2)),
    ):
        with ll.edit(model, {1: fine}):
            model(x)
    for edits, message in (
        ({7: Off(0)}, "layer 7 matches no module"),
        ({"decoder.*": Off(0)}, "matches no module"),
        ({1: Off}, "make one"),
        ({1.5: Off(0)}, "neither the number"),
        ([Off(0)], "must be a dict"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            ll.edit(model, edits)  # type: ignore[arg-type]
    for wrong in (
        lambda: Off("all"),
        lambda: Off([]),
        lambda: Knockout(torch.ones(3, 3) > 0),
        lambda: Bias(torch.ones(3, 3)),
        lambda: Temperature(0.0),
        lambda: Temperature([1.0, 2.0], heads=[1]),
        lambda: Pattern(torch.ones(3, 3)),
        lambda: Mean(1, "reference"),
        lambda: Off(1) + 2,
        lambda: Only(None),
    ):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    with pytest.raises(ValueError, match="no head 4; the layer has 4"), ll.edit(model, {0: Off(4)}):
        model(x)
    with pytest.warns(UserWarning, match="matched no attention call"), ll.edit(model, {"*feed_forward": Off(0)}):
        model(x)
