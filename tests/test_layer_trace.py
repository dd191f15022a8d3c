"""Traces of whole layers, blocks and models, against PyTorch and transformers."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional as F

import limelight as ll
from limelight.cli import main
from limelight.lens.layer_trace import LayerTrace

WORDS = ["the", "cat", "sat", "on", "mats"]


def test_layer_has_the_weights_and_output_of_pytorch() -> None:
    theirs = torch.nn.MultiheadAttention(21, 3, batch_first=True).eval()
    layer = ll.nn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(1, 5, 21)
    out, weights = theirs(x, x, x, average_attn_weights=False)
    t = ll.trace(layer, x, tokens=WORDS)
    torch.testing.assert_close(t["weights"], weights[0])
    torch.testing.assert_close(t["out"], out[0])
    torch.testing.assert_close(t["contributions"].sum(0) + theirs.out_proj.bias, out[0])
    W_Q, b = theirs.in_proj_weight[:21], theirs.in_proj_bias[:21]
    torch.testing.assert_close(t["query"], F.linear(x[0], W_Q, b))
    torch.testing.assert_close(t["q"], F.linear(x[0], W_Q, b).view(5, 3, 7).transpose(0, 1))


def test_outputs_and_contributions_of_each_head() -> None:
    layer = ll.nn.MultiHeadAttention(22, 6, kv_heads=3, head_width=5, value_width=7)
    x, context = torch.randn(2, 11, 22), torch.randn(2, 13, 22)
    parts = layer.heads(x, context, mask=ll.Padding([7, 13]))
    want = layer(x, context, mask=ll.Padding([7, 13]))
    torch.testing.assert_close(parts.contributions.sum(1) + layer.out.bias, want)
    only = torch.zeros_like(parts.outputs)
    only[:, 4] = parts.outputs[:, 4]
    by_hand = F.linear(only.transpose(1, 2).flatten(2), layer.out.weight)
    torch.testing.assert_close(parts.contributions[:, 4], by_hand)
    torch.testing.assert_close(layer.out(parts.outputs.transpose(1, 2).flatten(2)), want)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_block_names_its_residuals(order: str) -> None:
    block = ll.nn.Block(ll.nn.MultiHeadAttention(12, 4, kv_heads=2), ll.nn.FeedForward(12, 17), order=order).eval()
    x = torch.randn(1, 5, 12)
    t = ll.trace(block, x, mask=ll.Causal(), tokens=WORDS)
    sums = [step.title for step in t.steps if step.title.startswith("residual")]
    attended = "x" if order == "pre" else "attention_norm"
    assert sums[0] == "residual = x + attention.out"
    assert sums[1] == f"residual = {'residual' if order == 'pre' else attended} + feed_forward.down"
    torch.testing.assert_close(t.steps[-1].value, block(x, mask=ll.Causal())[0])
    assert t["masked"].isneginf().sum() == 4 * 10
    assert t.head(3)["k"].equal(t["k"][1])  # query heads 2 and 3 share key head 1


def hf_model(name: str) -> tf.PreTrainedModel:
    sizes = {"vocab_size": 53, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        return tf.GPT2Model(tf.GPT2Config(**sizes, n_embd=12, n_layer=3, n_head=3)).eval()
    widths = {"hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 19, "num_attention_heads": 6}
    if name == "bert":
        return tf.BertModel(tf.BertConfig(vocab_size=53, **widths)).eval()
    return tf.LlamaModel(tf.LlamaConfig(**sizes, **widths, num_key_value_heads=2)).eval()


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_layer_of_a_model_of_transformers(name: str) -> None:
    model = hf_model(name)
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    t = ll.trace(model, ids, layer=1, tokens=WORDS)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        want = model(ids, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(t["weights"], want.attentions[1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(t["x"], want.hidden_states[1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(t.steps[-1].value, want.hidden_states[2][0], rtol=1e-4, atol=1e-5)
    projection = next(s for s in t.steps if s.name in ("attn.c_proj", "attention.output.dense", "self_attn.o_proj"))
    bias = 0 if name == "llama" else model.get_submodule(f"{_block(t)}.{projection.name}").bias
    torch.testing.assert_close(t["contributions"].sum(0) + bias, projection.value, rtol=1e-4, atol=1e-5)
    assert sum(step.title.startswith("residual") for step in t.steps) == 2
    equations = " ".join(step.title for step in t.steps)
    assert all(matrix in equations for matrix in ("W_Q", "W_K", "W_V"))
    assert projection.title.startswith("result of all heads = concatenated W_O")


def _block(t: LayerTrace) -> str:
    parts = t.module.split(".")
    return ".".join(parts[: parts.index("1") + 1])


class OneHead(torch.nn.Module):
    """Three projections and attention, as people write it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(7, 5) for _ in range(3))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.softmax(q @ k.mT / 5**0.5, -1) @ v


def test_modules_that_call_sdpa() -> None:
    layer, x = OneHead(fused=True), torch.randn(1, 5, 7)
    model = torch.nn.Sequential(torch.nn.LayerNorm(7), layer, torch.nn.Linear(5, 3))
    for module, before in ((layer, torch.nn.Identity()), (model, model[0])):
        t = ll.trace(module, x, tokens=WORDS)
        y = before(x)[0]
        q, k, v = (F.linear(y, p.weight, p.bias) for p in (layer.q, layer.k, layer.v))
        want = torch.softmax((q @ k.T / 5**0.5).masked_fill(~ll.Causal().dense(5), -torch.inf), -1)
        torch.testing.assert_close(t["weights"][0], want)
        torch.testing.assert_close(t["heads"][0], want @ v)
    with pytest.raises(ValueError, match=r"its q, k and v are not seen: trace\(q, k, v\) shows their steps"):
        ll.trace(OneHead(fused=False), x)


def test_shows_itself() -> None:
    t = ll.trace(ll.nn.MultiHeadAttention(18, 2), torch.randn(1, 5, 18), tokens=WORDS)
    assert "weights: 2 heads, 5 × 5" in repr(t)
    assert "x, the input (5 × 18, first 8 columns)" in str(t)
    html = t._repr_html_()
    assert "<script" not in html
    assert html.count("<table") == len(t.pictures())
    many = ll.trace(ll.nn.MultiHeadAttention(18, 9), torch.randn(1, 5, 18))
    tables = re.findall(r"<table", many._repr_html_())
    assert len(tables) == sum(4 if step.value.ndim == 3 else 1 for step in many.steps)
    assert "9 heads, 5 × 5; the first 4 heads, .head(h) shows one" in many._repr_html_()
    assert many.head(7)._repr_html_().count("<table") == len(many.steps)
    picture = next(p for p in t.pictures() if p.title.startswith("weights"))
    torch.testing.assert_close(picture.matrix[:, -1], torch.ones(5, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_errors_say_what_to_do() -> None:
    model = hf_model("gpt2")
    with pytest.raises(ValueError, match=r"choose a layer with layer=; there are 0 to 2"):
        ll.trace(model, torch.tensor([[3, 5]]))
    with pytest.raises(ValueError, match=r"no self-attention of layer 7 of this GPT2Model ran; its layers are 0 to 2"):
        ll.trace(model, torch.tensor([[3, 5]]), layer=7)
    with pytest.raises(ValueError, match=r"give one sequence, not a batch of 2"):
        ll.trace(model, torch.tensor([[3, 5], [7, 11]]), layer=0)
    with pytest.raises(ValueError, match=r"there is no head 3; there are 0 to 2"):
        ll.trace(model, torch.tensor([[3, 5]]), layer=0).head(3)


MATRICES = {
    "x": [[1, 2, 3], [0, 1, 2]],
    "W_Q": [[1, 0], [0, 1], [1, 1]],
    "W_K": [[1, 2], [0, 1], [1, 1]],
    "W_V": [[1, 0], [0, 3], [1, 1]],
    "W_O": [[1, 2, 3], [0, 1, 0]],
    "heads": 2,
    "mask": "causal",
    "tokens": ["a", "b"],
}


def test_command_with_heads_and_output_projection() -> None:
    result = CliRunner().invoke(main, ["trace", "-", "--json"], input=json.dumps(MATRICES))
    assert result.exit_code == 0
    listed = json.loads(result.output)["steps"]
    titles = [step["title"].split(" (")[0] for step in listed]
    for equation in ("queries of all heads = x W_Q", "keys of all heads = x W_K", "values of all heads = x W_V"):
        assert equation in titles
    assert titles[-1] == "result of all heads = concatenated W_O"
    found = {step["name"]: step["value"] for step in listed}
    steps = {name: torch.tensor(found[name]) for name in ("out", "contributions")}
    x, W_V, W_O = (torch.tensor(MATRICES[n], dtype=torch.float32) for n in ("x", "W_V", "W_O"))
    # The first token sees itself alone, so its output is its value, projected.
    torch.testing.assert_close(steps["out"][0], (x @ W_V @ W_O)[0])
    torch.testing.assert_close(steps["contributions"].sum(0), steps["out"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"Wo": [[1]]}, '"Wo" is unknown; the nearest is "W_O"'),
        ({"heads": 3}, '"W_Q" has 2 columns, which 3 heads cannot share'),
        ({"heads": "two"}, "\"heads\" is 'two'; give a whole number"),
        ({"W_O": [[1]]}, '"W_O" has 1 rows and "W_V" has 2 columns'),
        ({"mask": [[1, 0]]}, '"mask" must be "causal", "none", or rows of true and false'),
    ],
)
def test_command_explains_bad_files(change: dict[str, object], says: str) -> None:
    result = CliRunner().invoke(main, ["trace", "-"], input=json.dumps({**MATRICES, **change}))
    assert result.exit_code == 2
    assert says in result.output


def test_command_on_a_text() -> None:
    result = CliRunner().invoke(main, ["trace", "--text", "The cat sat.", "--layer", "1", "--cross", "--head", "5"])
    assert result.exit_code == 0, result.output
    assert "Le→chat" in result.output
    assert "▁" not in result.output
    assert "residual = " in result.output
