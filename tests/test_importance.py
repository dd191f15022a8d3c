"""Importance of heads against one run for each head, attributions against dense products, and shared layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional

import limelight as ll
from conftest import assert_within
from families import inputs_of, random_model
from limelight.cli import main
from limelight.core import reference
from limelight.lens import Divergence, Knockout, LogitDifference, Mean, Off, Temperature, importance, logit_attribution
from limelight.lens.importance_table import rank_correlation


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert"])
@torch.no_grad()
def test_importance_is_that_of_one_run_for_each_head(name: str) -> None:
    """Sharing the blocks below a layer, and batching its heads, changes nothing."""
    model = random_model(name)
    inputs = inputs_of(model, padded=True)
    clean = model(**inputs)[0]
    found = importance(model, inputs)
    rows = {"gpt2": 12, "llama": 12, "bert": 12, "t5": 36}[name]
    assert len(found) == rows
    for row in found[:: 1 if name == "llama" else 5]:
        with ll.edit(model, {row["module"]: Off(row["head"])}):
            edited = model(**inputs)[0]
        want = _default_metric(name, edited, clean, inputs) - _default_metric(name, clean, clean, inputs)
        assert row["effect"] == pytest.approx(float(want), abs=1e-4)
    assert max(abs(row["effect"]) for row in found) > 1e-3


def _default_metric(name: str, output: Tensor, clean: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """The default metrics, written out again."""
    real = inputs["attention_mask"].bool()
    if name == "t5":
        target = inputs["decoder_input_ids"][:, 1:]
        return output[:, :-1].log_softmax(-1).gather(2, target[..., None]).sum((1, 2)).mean()
    if name == "bert":
        a, b = ((x * real[..., None]).sum(1) / real.sum(1, keepdim=True) for x in (output, clean))
        return functional.cosine_similarity(a, b).mean()
    counted = real[:, 1:]
    return -output[:, :-1].log_softmax(-1).gather(2, inputs["input_ids"][:, 1:, None])[..., 0][counted].mean()


@torch.no_grad()
def test_other_edits_metrics_and_layers() -> None:
    model = random_model("gpt2")
    ids = torch.randint(3, 101, (1, 11))
    with ll.watch(model, values=True) as reference_record:
        model(torch.randint(3, 101, (2, 11)))
    clean = model(ids).logits
    edits = (
        lambda heads: Mean(heads, reference_record),
        lambda heads: Temperature(3.0, heads),
        lambda heads: Knockout(~ll.Window(1), heads),
    )
    for edit in edits:
        found = importance(model, ids, metric=LogitDifference(7, 9), edit=edit, layers=[1])
        assert [row["layer"] for row in found] == [1] * 6
        for h in (0, 5):
            with ll.edit(model, {1: edit(h)}):
                last = model(ids).logits[0, -1]
            want = (last[7] - last[9]) - (clean[0, -1, 7] - clean[0, -1, 9])
            assert found[h]["effect"] == pytest.approx(float(want), abs=1e-4)
    whole = importance(model, {"input_ids": ids}, by="layer", metric=Divergence(last=True))
    for n, row in enumerate(whole):
        with ll.edit(model, {n: Off()}):
            edited = model(ids).logits[0, -1]
        want = functional.kl_div(edited.log_softmax(-1), clean[0, -1].log_softmax(-1), log_target=True, reduction="sum")
        assert row["effect"] == pytest.approx(float(want), abs=1e-4)
        assert row["head"] is None
    own = importance(model, ids, metric=lambda out: out.logits[0, -1, 5])
    with ll.edit(model, {0: Off(2)}):
        assert own[2]["effect"] == pytest.approx(float(model(ids).logits[0, -1, 5] - clean[0, -1, 5]), abs=1e-4)


def test_the_gradient_estimate_is_the_derivative() -> None:
    """Against the slope of the metric along the way from the head's output to its edited one."""
    model = random_model("llama").double()
    ids = torch.randint(3, 101, (1, 9))
    both = importance(model, ids, method="both")
    assert both.correlation == rank_correlation([r["effect"] for r in both], [r["estimate"] for r in both])
    assert f"{both.correlation:.2f}" in str(both)
    gate = torch.ones(6, dtype=torch.float64, requires_grad=True)
    projection = model.model.layers[1].self_attn.o_proj
    handle = projection.register_forward_pre_hook(
        lambda module, args: (args[0] * gate.repeat_interleave(args[0].shape[-1] // 6),)
    )
    loss = functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    (slope,) = torch.autograd.grad(loss, gate)
    handle.remove()
    got = torch.tensor([row["estimate"] for row in both if row["layer"] == 1], dtype=torch.float64)
    assert_within(got, -slope, 1e-9)
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="gradient of the KL divergence is 0"):
        importance(model, ids, method="gradient", metric="kl")


def test_importance_as_table_figure_and_json() -> None:
    model = random_model("gpt2")
    found = importance(model, torch.randint(3, 101, (1, 7)))
    read = json.loads(found.json())
    assert read["metric"] == "next-token loss"
    assert [row["effect"] for row in read["rows"]] == [row["effect"] for row in found]
    top = found.top(3)
    assert abs(top[0]["effect"]) == max(abs(row["effect"]) for row in found)
    assert "layer 1" in str(found)
    assert found.figure().axes[0].get_xlabel() == "heads"
    for arguments, message in (
        ({"by": "token"}, "by ="),
        ({"method": "guess"}, "method ="),
        ({"metric": "bleu"}, "no metric 'bleu'"),
        ({"layers": [9]}, "match none"),
        ({"edit": lambda h: h}, "not an edit"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            importance(model, torch.randint(3, 101, (1, 7)), **arguments)  # type: ignore[arg-type]


def test_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 2.0, 4.0], [5.0, 6.0, 6.0, 9.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 1.0], [3.0, 2.0]) == 0.0


@pytest.mark.parametrize("projected", [False, True])
def test_weights_by_value(projected: bool) -> None:
    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 4)
    v[:, :, 3] = 0.0
    W_O = torch.randn(24, 13) if projected else None
    options: list[dict[str, Any]] = [
        {"mask": ll.Causal(), "temperature": 1.7},
        {"sink": torch.randn(6), "bias": ll.ALiBi(6)},
    ]
    for option in options:
        A = ll.weights(q, k, **option).by_value(v, W_O)
        dense = reference.steps(q.double(), k.double(), **option).weights
        moved = v.repeat_interleave(2, 1).double()
        if W_O is not None:
            moved = torch.stack([moved[:, h] @ W_O.double()[4 * h : 4 * h + 4] for h in range(6)], 1)
        want = dense * moved.norm(dim=-1)[:, :, None]
        want = want / want.sum(-1, keepdim=True)
        assert_within(A.dense(), want, 1e-6)
        assert_within(A.received(), want.sum(2), 1e-5)
        assert not A.dense()[..., 3].any()
    with pytest.raises(ValueError, match="does not fit"):
        ll.weights(q, k).by_value(v[:, :, 1:])
    with pytest.raises(ValueError, match=r"linear\.weight\.T"):
        ll.weights(q, k).by_value(v, torch.randn(13, 24))


def test_attribution_is_attention_times_its_gradient() -> None:
    q, k, v = torch.randn(2, 6, 17, 5), torch.randn(2, 3, 23, 5), torch.randn(2, 3, 23, 4)
    dout = torch.randn(2, 6, 17, 4)
    A = ll.weights(q, k, mask=ll.Causal())
    dense = reference.steps(q.double(), k.double(), mask=ll.Causal()).weights
    want = dense * (dout.double() @ v.double().repeat_interleave(2, 1).mT)
    C = A.attribution(v, dout)
    assert_within(C.dense(), want, 1e-5)
    assert_within(C.received(), want.sum(2), 1e-5)
    assert_within(C.sums(), want.sum(3), 1e-5)
    assert_within(C[1, 2:4, 5:9, 3], want[1, 2:4, 5:9, 3], 1e-5)
    assert_within(C[:, :, [3, 4], [1, 2]], want[:, :, [3, 4], [1, 2]], 1e-5)
    assert_within(C.pool(5, 7), ll.Weights.from_dense(want).pool(5, 7), 1e-5)
    top = C.top(3)
    assert_within(top.values, want.gather(-1, top.indices), 1e-5)
    assert_within(top.values.abs(), want.abs().topk(3).values, 1e-5)
    with pytest.raises(ValueError, match="dout"):
        A.attribution(v, dout[:, :1])


def test_the_record_has_attributions_after_a_backward_pass() -> None:
    model = random_model("llama")
    ids = torch.randint(3, 101, (1, 9))
    with ll.watch(model, values=True) as record:
        loss = functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    name = next(iter(record))
    with pytest.raises(ValueError, match="no gradient"):
        record.attribution(name)
    plain = record.heads()
    assert plain[0]["value"] > 0
    assert plain[0]["attribution"] is None
    loss.backward()
    estimate = importance(model, ids, method="gradient")
    for row, head in zip(estimate, record.heads(), strict=True):
        total = record.attribution(row["module"]).sums()[0, row["head"]].sum().detach()
        assert float(total) == pytest.approx(-row["effect"], abs=1e-5)  # Off removes the whole of it
        assert head["attribution"] == pytest.approx(float(total), abs=1e-5)
    assert "attr" in str(record.heads())


@pytest.mark.parametrize("name", ["gpt2", "llama", "post"])
@torch.no_grad()
def test_logit_attribution(name: str) -> None:
    """Against the path written out: W_O, the residual stream, frozen norms, and the rows of the vocabulary."""
    if name == "post":
        blocks = [
            ll.nn.Block(ll.nn.MultiHeadAttention(24, 4), ll.nn.FeedForward(24, 31), order="post") for _ in range(2)
        ]
        model: Any = ll.nn.LanguageModel(
            ll.nn.Embedding(101, 24), ll.nn.Decoder(blocks), torch.nn.Linear(24, 101, bias=False)
        )
    else:
        model = random_model(name)
    ids, token = torch.randint(3, 101, (1, 11)), 17
    with ll.watch(model, values=True) as record:
        logits = model(ids)
    logits = logits if isinstance(logits, Tensor) else logits.logits
    found = logit_attribution(record, token)
    assert found.logit == pytest.approx(float(logits[0, -1, token]), abs=1e-5)
    parts = _path_by_hand(name, model, ids, token, record)
    assert len(found) == len(parts)
    for row, part, want in zip(found, found.parts, parts, strict=True):
        assert_within(part, want, 1e-4, str(row))
        assert row["part"] == pytest.approx(float(want.sum()), abs=1e-4)
    assert_within(found.by_source(), torch.stack(parts).sum(0), 1e-4)


def _path_by_hand(name: str, model: Any, ids: Tensor, token: int, record: ll.lens.Record) -> list[Tensor]:
    """Move ``a_ij v_j W_O`` along the residual stream to the logit, for every head and source token."""
    norms: list[Any] = []

    def keep(module: Any, args: Any, out: Any) -> None:
        norms.append((module, args[0][0, -1].double()))

    kinds = {"gpt2": "LayerNorm", "llama": "LlamaRMSNorm", "post": "LayerNorm"}
    handles = [m.register_forward_hook(keep) for m in model.modules() if type(m).__name__ == kinds[name]]
    model(ids)
    for handle in handles:
        handle.remove()

    def through(norm: Any, x: Tensor, c: Tensor) -> Tensor:
        if name == "llama":
            return c * norm.weight.double() / (x.pow(2).mean() + norm.variance_epsilon).sqrt()
        centred = c - c.mean(-1, keepdim=True)
        return centred * norm.weight.double() / (x.var(correction=0) + norm.eps).sqrt()

    table = (model.lm_head if name != "post" else model.head).weight.double()
    parts = []
    for n, call in enumerate(record.log):
        A, v = call.weights.dense()[0, :, -1].double(), call.v[0].double()
        if name == "gpt2":
            W = model.transformer.h[n].attn.c_proj.weight.double()
        else:
            layer = model.model.layers[n].self_attn.o_proj if name == "llama" else model.stack.blocks[n].attention.out
            W = layer.weight.double().T
        later = norms[-1:] if name != "post" else norms[2 * n :]
        width = v.shape[-1]
        for h in range(len(A)):
            c = A[h][:, None] * v[h * len(v) // len(A)] @ W[h * width : (h + 1) * width]
            for norm, x in later:
                c = through(norm, x, c)
            parts.append(c @ table[token])
    return parts


def test_shared_layers_are_layers_of_their_own() -> None:
    config = tf.AlbertConfig(
        vocab_size=101,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=31,
    )
    model = tf.AlbertModel(config).eval()
    ids = torch.randint(3, 101, (1, 9))
    with torch.no_grad():
        eager = tf.AlbertModel(config).eval()
        eager.load_state_dict(model.state_dict())
        eager.set_attn_implementation("eager")
        want = eager(ids, output_attentions=True).attentions
        with ll.watch(model) as record:
            model(ids)
        with ll.watch(model, layers=[3]) as one:
            model(ids)
        with ll.watch(model, edits={3: Off(1)}) as edited:
            model(ids)
    assert [call.layer for call in record.log] == list(range(5))
    assert len(record) == 5
    for call, dense in zip(record.log, want, strict=True):
        assert_within(call.weights.dense(), dense, 1e-5)
    assert [call.layer for call in one.log] == [3]
    assert torch.equal(one.log[0].weights.dense(), record.log[3].weights.dense())
    assert torch.equal(edited.log[3].weights.dense(), record.log[3].weights.dense())
    assert not torch.equal(edited.log[4].weights.dense(), record.log[4].weights.dense())
    rows = record.heads()
    assert [row["layer"] for row in rows] == [n for n in range(5) for _ in range(4)]
    assert {row["module"] for row in rows} == {"encoder.albert_layer_groups.0.albert_layers.0.attention"}
    assert {row["layer"] for row in ll.lens.relation(record, [(3, 1)])} == set(range(5))
    assert [row["layer"] for row in importance(model, ids)] == [n for n in range(5) for _ in range(4)]


def test_a_module_that_runs_in_a_loop() -> None:
    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = ll.nn.MultiHeadAttention(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = x + self.layer(x)
            return x

    model = Loop()
    with ll.watch(model) as record:
        model(torch.randn(1, 5, 12))
        model(torch.randn(1, 5, 12))
    assert [call.name for call in record.log] == ["layer#0", "layer#1", "layer#2"] * 2
    assert len(record.calls("layer")) == 6
    assert len(record.calls("layer#1")) == 2


def test_the_command(tmp_path: Path, minilm: Path) -> None:
    result = CliRunner().invoke(main, ["matter", "The cat sat on the mat.", "--model", str(minilm), "--json"])
    assert result.exit_code == 0, result.output
    read = json.loads(result.stdout)
    assert len(read["rows"]) == 6 * 12
    assert read["metric"] == "cosine"
    assert len(read["top"]) == 10
    assert all(row["label"] for row in read["top"])
    assert -1 <= read["agreement"] <= 1
