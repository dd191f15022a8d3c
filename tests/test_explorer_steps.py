"""The steps of attention that the explorer shows: of the worked example, of a query and of a head for any text."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from explorer_cases import ask, random_weights
from limelight.explorer.questions import RefusedError
from limelight.explorer.subject import Subject
from limelight.lens.reading import read
from limelight.translate import shipped


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Any page will do: the worked example brings its own numbers."""
    return Subject.of(random_weights(3, 3))


EXAMPLE = {
    "x": [[1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]],
    "W_Q": [[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]],
    "W_K": [[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]],
    "W_V": [[0.9, 0.1], [0.2, 0.8], [-0.1, 0.6]],
}


def test_the_worked_example(subject: Subject) -> None:
    begin = ask(subject, "example").data
    assert {name: begin[name] for name in EXAMPLE} == EXAMPLE
    found = ask(subject, "trace", **EXAMPLE).data
    assert found["scores"][0][0] == pytest.approx([2.71, 1.355, 2.475])  # as texts print them
    assert found["weights"][0][0] == pytest.approx([0.448, 0.172, 0.380], abs=5e-4)
    assert found["output"][0][0] == pytest.approx([1.275, 2.363], abs=1e-3)
    assert found["scale"] == pytest.approx(2**-0.5)


def test_the_worked_example_with_other_options(subject: Subject) -> None:
    options = {"mask": "causal", "temperature": 0.5, "scale": 0.3, "heads": 2}
    found = ask(subject, "trace", **EXAMPLE, **options).data
    x, q, k, v = (np.array(EXAMPLE[name]) for name in ("x", "W_Q", "W_K", "W_V"))
    for h in range(2):
        logits = 0.3 * np.outer(x @ q[:, h], x @ k[:, h])
        e = np.exp(logits / 0.5) * np.tril(np.ones((3, 3)))
        weights = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(found["weights"][h], weights)
        np.testing.assert_allclose(np.array(found["output"][h])[:, 0], weights @ (x @ v[:, h]))
        assert found["masked"][h][0][1] is None
    json.loads(ask(subject, "trace", **EXAMPLE, **options).packed()[4:].decode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [[1.0] * 9]}, "rows of 1 to 8"),
        ({"x": [[1.0, 2.0], [1.0]]}, "all of one length"),
        ({"x": [["1"] * 3]}, "x must be a number"),
        ({"x": [[1e9] * 3]}, "x = 1e+09 must be from"),
        ({"W_Q": [[1.0]]}, "W_Q has 1 rows and x has 3"),
        ({"W_K": [[1.0]] * 3, "heads": 1}, "W_Q has 2 columns and W_K has 1"),
        ({"W_V": [[1.0] * 3] * 3, "heads": 2}, "must be a multiple"),
        ({"temperature": 0}, "temperature = 0"),
        ({"mask": "other"}, "one of none, causal"),
    ],
)
def test_examples_that_cannot_be_worked_out(subject: Subject, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(message)):
        ask(subject, "trace", **{**EXAMPLE, **changes})


def test_the_steps_of_a_query_are_those_of_trace() -> None:
    g = torch.Generator().manual_seed(5)
    q, k = torch.randn(1, 4, 19, 7, generator=g), torch.randn(1, 2, 19, 7, generator=g)
    options: dict[str, Any] = {"mask": ll.Causal(), "bias": ll.ALiBi(4), "softcap": 3.0, "temperature": 1.7}
    truth = ll.trace(q.double(), k.double(), torch.zeros(1, 2, 19, 1).double(), **options)
    answer = ask(Subject.of(ll.weights(q, k, **options)), "query", call=0, head=3, query=11)
    keys = answer.data["keys"]
    assert sorted(keys) == list(range(12))
    for name, step in (
        ("scores", truth.scores),
        ("scaled", truth.scaled),
        ("capped", truth.capped),
        ("biased", truth.biased),
    ):
        np.testing.assert_allclose(answer.data[name], step[0, 3, 11, keys], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(answer.data["weights"], truth.weights[0, 3, 11, keys], rtol=1e-4)
    np.testing.assert_allclose(answer.arrays["k"], k[0, 1, keys])
    dense = Subject.of(ll.Weights.from_dense(torch.rand(1, 2, 5, 5)))
    with pytest.raises(RefusedError, match="only the weights are known"):
        ask(dense, "query", call=0, head=0, query=0)


@pytest.mark.parametrize(("name", "head"), [("encoder.blocks.1.attention", 3), ("decoder.blocks.0.cross", 5)])
def test_the_steps_of_a_head_for_any_text(name: str, head: int) -> None:
    reading = read(shipped(), "Good.")
    assert reading.reader is not None
    subject = Subject.of(reading)
    (call,) = (m.number for m in subject.matrices if m.call.name == name)
    text = "She reads a long book."
    found = ask(subject, "own", call=call, head=head, text=text)
    layer: Any = reading.reader.model.get_submodule(name)
    seen: list[torch.Tensor] = []
    hook = layer.out.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    again = reading.reader.read(text)  # by the kernels
    hook.remove()
    truth = again.record[name].dense()[0, head]
    x = {key: torch.from_numpy(value) for key, value in found.arrays.items()}
    width = layer.query.out_features // 8
    part = slice(head * width, (head + 1) * width)
    close, half = {"atol": 2e-5, "rtol": 2e-4}, {"atol": 4e-3, "rtol": 4e-3}  # the model is in float16
    weight, bias = layer.query.weight.float(), layer.query.bias.float()
    (reads,) = next(step["of"] for step in found.data["steps"] if step["name"] == "q")
    torch.testing.assert_close(x["q"], (x[reads] @ weight.T + bias)[:, part].detach(), **half)
    torch.testing.assert_close(x["scores"], x["q"] @ x["k"].T, **close)
    torch.testing.assert_close(x["scaled"], x["scores"] * found.data["scale"], **close)
    torch.testing.assert_close(x["weights"], truth, **close)
    torch.testing.assert_close(x["heads"], seen[-1][0, :, part].detach().float(), **half)
    assert (found.data["queries"], found.data["keys"]) == tuple(again.names(again.record.log[call]))
    # The rest of the layer: every head's part, their sum in the output projection, and the residual connection.
    steps = {step["name"]: step for step in found.data["steps"]}
    out = name.rpartition(".")[2] + ".out"
    W = layer.out.weight.float()[:, part].detach()
    torch.testing.assert_close(x["contributions"], x["heads"] @ W.T, **half)
    every = [ask(subject, "own", call=call, head=h, text=text).arrays["contributions"] for h in range(8)]
    whole = torch.from_numpy(np.stack(every))
    torch.testing.assert_close(whole.sum(0) + layer.out.bias.float().detach(), x[out], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(whole.norm(dim=-1).T, x["lengths"], **half)
    torch.testing.assert_close(x["concatenated"][:, part], x["heads"])
    residual = next(step for step in steps.values() if out in step["of"] and step["name"].startswith("residual"))
    torch.testing.assert_close(sum(x[source] for source in residual["of"]), x[residual["name"]], **half)
    assert [step["name"] for step in found.data["steps"]] == list(found.arrays)
    assert steps["weights"]["sizes"] == f"8 heads, {len(found.data['queries'])} × {len(found.data['keys'])}"
    with pytest.raises(RefusedError, match="tokens; write at most 48"):
        ask(subject, "own", call=call, head=head, text="a " * 150)
    with pytest.raises(RefusedError, match="only what it attended to"):
        ask(Subject.of(random_weights(3, 3)), "own", call=0, head=0, text="a")
