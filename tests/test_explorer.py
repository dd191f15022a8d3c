"""The explorer without a browser: tiles, questions, the saved page and the server."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from starlette.testclient import TestClient

import limelight as ll
from conftest import leaf_masks
from limelight.cli.explore import command as explore_command
from limelight.core.biases import Bias
from limelight.core.masks import Mask
from limelight.explorer import Explorer, explore, questions, save_page
from limelight.explorer.bundle import bundle
from limelight.explorer.memory import Memory
from limelight.explorer.questions import Answer, Arguments, RefusedError
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.server import app
from limelight.explorer.subject import Subject
from limelight.explorer.tiles import SIDE, base_level, top_level
from limelight.explorer.workers import COUNTS, Workers
from limelight.lens.reading import read
from limelight.translate import shipped

B, H, HKV, D = 2, 6, 3, 5


def made(N: int, M: int, seed: int = 0, **options: Any) -> ll.Weights:
    g = torch.Generator().manual_seed(seed)
    return ll.weights(torch.randn(B, H, N, D, generator=g), torch.randn(B, HKV, M, D, generator=g), **options)


def truth_of(N: int, M: int, batch: int, head: int, mask: Mask | None = None) -> np.ndarray:
    """One head of ``made(N, M)`` by the equation, in float64."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(B, H, N, D, generator=g), torch.randn(B, HKV, M, D, generator=g)
    logits = q[batch, head].double() @ k[batch, head // (H // HKV)].double().T / D**0.5
    if mask is not None:
        logits = logits.masked_fill(~allowed_of(N, M, batch, mask), -torch.inf)
    return logits.softmax(-1).nan_to_num(0.0).numpy()


def allowed_of(N: int, M: int, batch: int, mask: Mask) -> torch.Tensor:
    return mask.dense(N, M).expand(B, 1, N, M)[batch, 0]


def ask(subject: Subject, name: str, **arguments: Any) -> Answer:
    return QUESTIONS[name].ask(subject, Arguments(arguments))


def pooled(x: np.ndarray, cell: int, reduce: str) -> np.ndarray:
    """Means or maxima of cells; those at the ends are filled up with what does not count."""
    rows, cols = (-(-n // cell) for n in x.shape)
    full = np.full((rows * cell, cols * cell), np.nan)
    full[: x.shape[0], : x.shape[1]] = x
    return {"mean": np.nanmean, "max": np.nanmax}[reduce](full.reshape(rows, cell, cols, cell), (1, 3))


MASKS = [None, *leaf_masks(B, 37, 41, 3)]
BIASES: list[Bias] = [
    ll.ALiBi(H),
    ll.Relative(torch.randn(H, 15, generator=torch.Generator().manual_seed(1))),
    ll.Relative(torch.randn(1, 15, generator=torch.Generator().manual_seed(2))),
    ll.DenseBias(torch.randn(37, 41, generator=torch.Generator().manual_seed(3))),
    ll.DenseBias(torch.randn(B, H, 37, 41, generator=torch.Generator().manual_seed(4))),
]


@pytest.mark.parametrize("n", range(len(MASKS)))
@pytest.mark.parametrize("bias", [None, *BIASES], ids=repr)
def test_one_head_is_that_of_the_whole(n: int, bias: Bias | None) -> None:
    A = made(37, 41, n, mask=MASKS[n], bias=bias, sink=torch.arange(H) / 7, temperature=1.3, softcap=4.0)
    dense = A.dense()
    for ready in (False, True):
        if ready:
            A.logsumexp()
        for b, h in ((0, 0), (1, 5), (1, 2)):
            torch.testing.assert_close(A.select(b, h).batched().dense()[0, 0], dense[b, h])
            torch.testing.assert_close(A.select(b, h).batched().entropy()[0, 0], A.entropy()[b, h])


def test_one_head_of_a_dense_matrix() -> None:
    dense = torch.rand(B, H, 7, 11)
    assert torch.equal(ll.Weights.from_dense(dense).select(1, 4).batched().dense()[0, 0], dense[1, 4])


N_LARGE, M_LARGE = 601, 1303  # four levels; the cells at the ends are smaller than the others
LARGE: list[Mask | None] = [
    None,
    ll.Causal(),
    ll.Causal() & (ll.Window(150) | ll.First(3)),
    ll.Padding([1303, 700]),
    ll.Dense(torch.rand(B, 1, N_LARGE, M_LARGE, generator=torch.Generator().manual_seed(0)) > 0.9997),
]


@pytest.mark.parametrize("mask", LARGE, ids=repr)
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_tiles_are_the_matrix(mask: Mask | None, reduce: str) -> None:
    subject = Subject.of(made(N_LARGE, M_LARGE, mask=mask))
    batch, head = 1, 4
    truth = truth_of(N_LARGE, M_LARGE, batch, head, mask)
    allowed = np.ones(truth.shape, bool) if mask is None else allowed_of(N_LARGE, M_LARGE, batch, mask).numpy()
    assert (base_level(N_LARGE, M_LARGE), top_level(N_LARGE, M_LARGE)) == (1, 3)
    for level in range(4):
        cells = pooled(truth, 2**level, reduce)
        visible = pooled(allowed, 2**level, "max") > 0
        rows, cols = (-(-n // SIDE) for n in cells.shape)
        tiles = [[level, r, c] for r in range(rows) for c in range(cols)]
        wanted = tiles if level > 0 else [[0, 0, 0], [0, rows - 1, cols - 1], [0, 1, 4], [0, rows - 1, 0]]
        found = ask(subject, "tiles", call=0, batch=batch, head=head, reduce=reduce, tiles=wanted[:16]).arrays
        for _, r, c in wanted[:16]:
            part = np.s_[r * SIDE : (r + 1) * SIDE, c * SIDE : (c + 1) * SIDE]
            expected = np.where(visible[part], cells[part], -1)
            np.testing.assert_allclose(found[f"{level}/{r}/{c}"], expected, rtol=2e-5, atol=1e-7)


def test_thumbnails_and_strips() -> None:
    A = made(131, 131, mask=ll.Causal())
    subject = Subject.of(A)
    found = ask(subject, "thumbnails", call=0, batch=1, head=2, count=3).arrays
    truth = A.dense()[1].double().numpy()
    for h in (2, 3, 4):
        cells = pooled(truth[h], 4, "mean")
        np.testing.assert_allclose(np.maximum(found[str(h)], 0), cells, rtol=1e-5, atol=1e-8)
    strips = ask(subject, "strips", call=0, batch=1, head=3).arrays
    np.testing.assert_allclose(strips["received"], truth[3].sum(0), rtol=1e-5)
    entropy = -(truth[3] * np.log(np.where(truth[3] > 0, truth[3], 1))).sum(1)
    np.testing.assert_allclose(strips["entropy"], entropy, rtol=1e-4, atol=1e-6)
    assert strips["profile"][64 - 3] == pytest.approx(np.diagonal(truth[3], -3).mean(), rel=1e-4)


@pytest.mark.parametrize("level", [0, 3])
def test_a_cell(level: int) -> None:
    n, subject = 1031, Subject.of(made(1031, 1031, mask=ll.Causal()))
    truth = truth_of(n, n, 0, 1, ll.Causal())
    found = ask(subject, "cell", call=0, head=1, level=level, row=200 >> level, col=120 >> level).data
    size = 2**level
    top, left = 200 // size * size, 120 // size * size
    crop = truth[top : top + size, left : left + size]
    i, j = np.unravel_index(crop.argmax(), crop.shape)
    assert (found["query"], found["key"]) == (top + i, left + j)
    row, column = truth[top + i], truth[:, left + j]
    assert found["weight"] == pytest.approx(crop.max(), rel=1e-5)
    assert found["mean"] == pytest.approx(crop.mean(), rel=1e-5)
    assert found["rank"] == (row > crop.max()).sum() + 1
    assert found["visible"] == top + i + 1
    assert found["seen_by"] == n - (left + j)
    assert found["received"] == pytest.approx(column.sum(), rel=1e-5)
    assert [n for n, _ in found["looks_at"]] == np.argsort(-row)[:8].tolist()
    assert [n for n, _ in found["attended_by"]] == np.argsort(-column)[:8].tolist()
    above = ask(subject, "cell", call=0, head=1, level=level, row=0, col=(n - 1) >> level).data
    assert above["masked"]
    assert above["weight"] == 0


class Stack(torch.nn.Module):
    """Layers of which each reads the input alone, so that their attention is that of ``layers``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(ll.nn.MultiHeadAttention(12, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x) for layer in self.layers)


def test_lines_of_a_text() -> None:
    model = Stack()
    with torch.no_grad(), ll.watch(model) as record:
        model(torch.randn(2, 23, 12))
    subject = Subject.of(record, [[f"{b}.{n}" for n in range(23)] for b in range(2)])
    layers = [call.weights.dense()[1].double() for call in record.log]
    mean = torch.stack(layers).mean(1)
    hat = [0.5 * torch.eye(23).double() + 0.5 * x for x in mean]
    rolled = hat[2] @ hat[1] @ hat[0]
    sources = [{"call": 1, "head": 2}, *({"call": 1, "of": of} for of in ("layer", "stack", "rollout"))]
    truths = [layers[1][2], mean[1], mean.mean(0), rolled]
    for side, at in (("query", np.s_[7]), ("key", np.s_[:, 7])):
        found = ask(subject, "attention", sources=sources, batch=1, token=7, side=side).arrays
        for n, truth in enumerate(truths):
            np.testing.assert_allclose(found[str(n)], truth[at], rtol=1e-4, atol=1e-6)
    for source, truth in zip(sources, truths, strict=True):
        np.testing.assert_allclose(ask(subject, "matrix", **source, batch=1).arrays["weights"], truth, rtol=1e-4)
    assert subject.about()["texts"][1][7] == "1.7"
    rows = [row for call in range(3) for row in ask(subject, "report", call=call).data["rows"]]
    for mine, theirs in zip(rows, record.heads([[f"{b}.{n}" for n in range(23)] for b in range(2)]), strict=True):
        assert mine["label"] == theirs["label"]
        assert mine["entropy"] == pytest.approx(theirs["entropy"], rel=1e-5)


def test_a_reading_of_the_translator() -> None:
    subject = Subject.of(read(shipped(), "The cat is sleeping."))
    about = subject.about()
    cross = next(call for call in about["calls"] if call["kind"] == "cross")
    written, source = (about["texts"][n] for n in cross["texts"][0])
    assert written == ["▁Le", "▁chat", "▁dort", ".", "</s>"]
    assert source == ["▁The", "▁cat", "▁is", "▁sleeping", ".", "</s>"]
    assert about["wrote"] == "Le chat dort."


@pytest.mark.parametrize(
    ("given", "tokens", "error", "message"),
    [
        (torch.zeros(3, 3), None, TypeError, "not Tensor"),
        (made(5, 5), ["a", "b"], ValueError, "2 tokens for 5 queries"),
        (made(5, 5), "abcde", TypeError, "list of strings, not str"),
        (made(5, 5), [1, 2, 3, 4, 5], TypeError, "must be strings"),
        (made(5, 7), list("abcde"), ValueError, "pair of lists"),
        (made(5, 5), [list("abcde")] * 3, ValueError, "3 texts for 2 batch"),
        (made(5, 5), {"other": list("abcde")}, ValueError, "tokens of the other"),
        (ll.lens.Record(), None, ValueError, "empty"),
    ],
)
def test_what_cannot_be_explored(given: Any, tokens: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Subject.of(given, tokens)


def test_weights_without_a_batch() -> None:
    A = ll.weights(torch.randn(3, 11, 5), torch.randn(3, 7, 5), bias=ll.ALiBi(3))
    subject = Subject.of(A, (list("abcdefghijk"), list("ABCDEFG")))
    found = ask(subject, "tiles", call=0, head=2, tiles=[[0, 0, 0]]).arrays["0/0/0"]
    np.testing.assert_allclose(found, A.dense()[2], rtol=1e-5)
    assert subject.about()["texts"] == [list("abcdefghijk"), list("ABCDEFG")]


def test_memory_makes_nothing_twice_and_forgets_the_oldest() -> None:
    memory, made_of = Memory(limit=3000), []
    begin = threading.Barrier(8)

    def make() -> np.ndarray:
        made_of.append(1)
        threading.Event().wait(0.05)
        return np.zeros(125)

    def work() -> Any:
        begin.wait()
        return memory.get("a", make)

    with ThreadPoolExecutor(8) as threads:
        found = [f.result() for f in [threads.submit(work) for _ in range(8)]]
    assert len(made_of) == 1
    assert all(x is found[0] for x in found)
    for n in range(4):
        memory.get(n, lambda: np.zeros(125))
    assert memory.held <= 3000
    assert "a" not in memory
    assert 3 in memory
    with pytest.raises(ZeroDivisionError):
        memory.get("b", lambda: 1 // 0)
    assert memory.get("b", lambda: "again") == "again"


def test_nobody_waits_for_the_background() -> None:
    memory, workers, begun, go = Memory(limit=3000), Workers(), threading.Event(), threading.Event()

    def slowly() -> str:
        begun.set()
        go.wait(60)
        return "by the background"

    waiting = workers.submit(questions.BACKGROUND, lambda: memory.get("a", slowly))
    assert begun.wait(60)
    assert memory.get("a", lambda: "at once") == "at once"
    go.set()
    assert waiting.result(60) == "by the background"
    assert memory.get("a", lambda: "again") == "at once"
    workers.close()


# The lessons.

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
        ask(Subject.of(made(3, 3)), "own", call=0, head=0, text="a")


def test_thumbnails_come_from_one_pass_over_all_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that differ by head among them: each thumbnail is that of its own head."""
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, n, 8, generator=g) for n in (131, 149))
    allowed = torch.rand(2, 3, 131, 149, generator=g) < 0.02
    for mask in (ll.Dense(allowed), ll.Causal(), None):
        A = ll.weights(q, k, mask=mask)
        subject = Subject.of(A)
        found = ask(subject, "thumbnails", call=0, batch=1, head=0, count=1).arrays
        with monkeypatch.context() as patch:
            patch.delattr(ll.Weights, "pool")  # the others are known by now
            found |= ask(subject, "thumbnails", call=0, batch=1, head=1, count=2).arrays
        for head in range(3):
            dense = A.dense()[1, head].double().numpy()
            visible = (
                np.ones((131, 149), bool)
                if mask is None
                else (mask.dense(131, 149).expand(2, 3, -1, -1)[1, head].numpy())
            )
            for i, j in ((0, 0), (11, 7), (32, 37), (5, 30)):  # cells of 4 × 4
                cell = np.s_[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
                truth = dense[cell].mean() if visible[cell].any() else -1
                assert found[str(head)][i, j] == pytest.approx(truth, rel=1e-4, abs=1e-7)


def test_the_exit_waits_for_what_is_under_way_and_drops_what_waits() -> None:
    """Python would end threads in the middle of a kernel, which aborts the process."""
    script = """if True:
        import sys, time
        from limelight.explorer.questions import BACKGROUND
        from limelight.explorer.workers import COUNTS, Workers
        workers, begun = Workers(), []
        def work(n):
            begun.append(n)
            time.sleep(1)
            sys.stdout.write(f"done {n}\\n")  # in one piece
        for n in range(COUNTS[BACKGROUND] + 2):
            workers.submit(BACKGROUND, lambda n=n: work(n))
        while len(begun) < COUNTS[BACKGROUND]:
            time.sleep(0.01)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.split()) == ["0", "1", "done", "done"]


def test_the_exit_does_not_wait_for_workers_that_nobody_closed() -> None:
    script = """if True:
        from limelight.explorer.questions import QUICK
        from limelight.explorer.workers import Workers
        workers = Workers()
        print(workers.submit(QUICK, lambda: 7).result())
        del workers
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\n", "")


def test_translating() -> None:
    subject = Subject.of(made(3, 3))
    with pytest.raises(RefusedError, match="does not translate"):
        ask(subject, "translate", text="Hello.")
    subject.translator = ll.translate.load()
    found = ask(subject, "translate", text="The cat is sleeping.").data
    (sentence,) = found["sentences"]
    truth = subject.translator("The cat is sleeping.").sentences[0]
    assert found["text"] == truth.text == "Le chat dort."
    assert sentence["probabilities"] == pytest.approx(np.exp(truth.scores).tolist(), rel=1e-4)
    assert [w["word"] for w in sentence["written"]] == ["Le", "chat", "dort", ".", "</s>"]
    for row, token, sure in zip(sentence["alternatives"], sentence["ids"][1:], sentence["probabilities"], strict=True):
        probabilities = [x["probability"] for x in row]
        assert probabilities == sorted(probabilities, reverse=True)
        assert {x["id"]: x["probability"] for x in row}[token] == pytest.approx(sure, rel=1e-4)
    other = sentence["alternatives"][1][1]["id"]
    prefix = [*sentence["ids"][:2], other]
    changed = ask(subject, "continue", source=sentence["source"], prefix=prefix).data["sentence"]
    assert changed["ids"][:3] == prefix
    assert changed["text"].startswith("Le ")
    assert changed["text"] != truth.text
    again = ask(subject, "continue", source=sentence["source"], prefix=sentence["ids"][:1]).data["sentence"]
    assert again["ids"] == subject.translator("The cat is sleeping.", beams=1).sentences[0]._ids[1][0].tolist()
    with ThreadPoolExecutor(4) as threads:  # a record holds its own run alone
        texts = ["The cat is sleeping.", "Good.", "I like tea.", "She reads a long book in the garden."] * 2
        found = list(threads.map(lambda text: ask(subject, "translate", text=text).data["text"], texts))
    assert found == [subject.translator(text).text for text in texts]
    for wrong in ({"prefix": [10**6]}, {"prefix": []}, {"prefix": [1] * 300}, {"source": " "}):
        with pytest.raises(RefusedError):
            ask(subject, "continue", **{"source": "Hello.", "prefix": [2], **wrong})


# The saved page.


def data_of(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.split('id="limelight-data">')[1].split("</script>")[0])
    return found


def unpacked(stored: dict[str, Any], shape: tuple[int, int]) -> np.ndarray:
    levels = np.frombuffer(base64.b64decode(stored["cells"]), "<u2").reshape(shape)
    return np.where(levels == 65535, -1, (levels / 65534) ** 2 * stored["top"])


def test_a_saved_page_holds_the_weights(tmp_path: Path) -> None:
    A = made(29, 29, mask=ll.Causal())
    save_page(A, tmp_path / "page.html", ["</script><!--", *"abcdefghijklmnopqrstuvwxyz01"])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<!--" not in text.replace("<!doctype", "")
    data = data_of(tmp_path / "page.html")
    truth = A.dense()[1, 3].numpy()
    found = unpacked(data["heads"]["0/1/3"]["mean"], (29, 29))
    assert ((found < 0) == np.triu(np.ones((29, 29), bool), 1)).all()
    np.testing.assert_allclose(np.maximum(found, 0), truth, atol=4e-5)
    assert data["about"]["note"] == ""


def test_a_saved_page_has_at_most_ten_megabytes(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    A = ll.weights(torch.randn(1, 16, 601, 8, generator=g), torch.randn(1, 16, 601, 8, generator=g))
    ll.lens.save_page(A, tmp_path / "page.html")
    assert 10**6 < (tmp_path / "page.html").stat().st_size <= 10**7
    data = data_of(tmp_path / "page.html")
    level = data["about"]["calls"][0]["finest"]
    assert level > 0
    assert f"{2**level} × {2**level} weights" in data["about"]["note"]
    cells = pooled(A[0, 13].double().numpy(), 2**level, "mean")
    np.testing.assert_allclose(unpacked(data["heads"]["0/0/13"]["mean"], cells.shape), cells, rtol=1e-3)
    many = ll.weights(torch.randn(1, 9000, 40, 1), torch.randn(1, 1, 40, 1))
    with pytest.raises(ValueError, match="9000 heads are more than a page"):
        save_page(many, tmp_path / "never.html")
    assert not (tmp_path / "never.html").exists()


def test_modules_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in ("main.js", "saved.js", "widget.js"):
        text = bundle(entry)
        assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
        assert text.count("class HeadGrid") == 1
    monkeypatch.setattr("limelight.explorer.bundle.FRONT", tmp_path)
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = a;\n')
    with pytest.raises(ValueError, match=r"a\.js imports itself"):
        bundle("a.js")
    (tmp_path / "a.js").write_text("export default 3;\n")
    with pytest.raises(ValueError, match="export default"):
        bundle("a.js")


# The server.

TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(made(53, 53, mask=ll.Causal()), [f"t{n}" for n in range(53)], "a model")


@pytest.fixture
def client(subject: Subject) -> TestClient:
    return TestClient(app(subject, TOKEN, 8123), base_url="http://127.0.0.1:8123", follow_redirects=False)


@pytest.fixture
def visitor(client: TestClient) -> TestClient:
    client.get(f"/?token={TOKEN}")
    return client


def test_the_token_becomes_a_cookie(client: TestClient) -> None:
    assert client.get("/").status_code == 403
    assert client.post("/ask/about", json={}).status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    assert client.get("/?token=").status_code == 403
    entry = client.get(f"/?token={TOKEN}")
    assert entry.status_code == 303
    assert entry.headers["location"] == "/"
    cookie = entry.headers["set-cookie"]
    assert cookie.startswith(f"limelight-8123={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    page = client.get("/")
    assert page.status_code == 200
    assert TOKEN not in page.text
    for answer in (page, entry, client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8123", 200),
        ("localhost:9", 200),
        ("[::1]:8123", 200),
        ("LOCALHOST", 200),
        ("example.com", 421),
        ("127.0.0.1.example.com:8123", 421),
        ("localhost.example.com", 421),
        ("", 421),
    ],
)
def test_hosts(visitor: TestClient, host: str, status: int) -> None:
    assert visitor.get("/", headers={"host": host, "cookie": f"limelight-8123={TOKEN}"}).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/rooms/../../server.py",
        "/__init__.py",
        "//etc/passwd",
        "/rooms",
        "/%00",
        "/style.css%00.js",
        "/" + "a" * 5000,
    ],
)
def test_paths_that_lead_nowhere(visitor: TestClient, path: str) -> None:
    assert visitor.get(path).status_code in (400, 404)


def test_the_page_and_its_modules_are_there(visitor: TestClient) -> None:
    assert visitor.get("/").headers["content-type"].startswith("text/html")
    names = ["main.js"]
    for name in names:
        answer = visitor.get(f"/{name}")
        assert answer.headers["content-type"].startswith("text/javascript"), name
        for found in re.findall(r'from "([^"]+)"', answer.text):
            path = str((Path("/") / name).parent.joinpath(found).resolve())[1:]
            if path not in names:
                names.append(path)
    assert len(names) > 10


def test_an_answer(visitor: TestClient, subject: Subject) -> None:
    answer = visitor.post("/ask/tiles", json={"call": 0, "head": 2, "batch": 1, "tiles": [[0, 0, 0]]})
    length = int.from_bytes(answer.content[:4], "little")
    head = json.loads(answer.content[4 : 4 + length])
    assert (4 + length) % 8 == 0
    assert head["arrays"] == {"0/0/0": {"type": "float32", "shape": [53, 53]}}
    found = np.frombuffer(answer.content[4 + length :], "<f4").reshape(53, 53)
    truth = subject.matrices[0].call.weights.dense()[1, 2].numpy()
    np.testing.assert_allclose(np.maximum(found, 0), truth, rtol=1e-5)


HEAD = {"call": 0, "head": 0}


@pytest.mark.parametrize(
    ("name", "body", "status", "message"),
    [
        ("nothing", {}, 404, "no such question"),
        ("tiles", [], 400, "must be an object"),
        ("tiles", {}, 400, "call is missing"),
        ("tiles", {"call": 1, "head": 0, "tiles": [[0, 0, 0]]}, 400, "call = 1 must be from 0 to 0"),
        ("tiles", {**HEAD, "tiles": []}, 400, "list of 1 to 16"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 0]] * 17}, 400, "list of 1 to 16"),
        ("tiles", {**HEAD, "tiles": [[0, 1, 0]]}, 400, "tile = 1 must be from 0 to 0"),
        ("tiles", {**HEAD, "tiles": [[1, 0, 0]]}, 400, "tile = 1"),
        ("tiles", {**HEAD, "tiles": [[0, 0]]}, 400, "3 whole numbers"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 1e999]]}, 400, "whole number"),
        ("tiles", {**HEAD, "tiles": [[0, 0, True]]}, 400, "whole number"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 0]], "reduce": "sum"}, 400, "one of mean, max"),
        ("tiles", {**HEAD, "head": -1, "tiles": [[0, 0, 0]]}, 400, "head = -1"),
        ("cell", {**HEAD, "row": 53, "col": 0}, 400, "row = 53"),
        ("cell", {**HEAD, "row": 0, "col": 0, "level": 40}, 400, "level = 40"),
        ("thumbnails", {**HEAD, "count": 10**9}, 400, "count = 1000000000"),
        ("attention", {"sources": [HEAD] * 9, "token": 0}, 400, "list of 1 to 8"),
        ("attention", {"sources": ["x"], "token": 0}, 400, "must be an object"),
        ("attention", {"sources": [HEAD], "token": 53}, 400, "token = 53"),
        ("attention", {"sources": [{**HEAD, "of": "all"}], "token": 0}, 400, "one of head, layer"),
    ],
)
def test_questions_that_are_refused(visitor: TestClient, name: str, body: Any, status: int, message: str) -> None:
    answer = visitor.post(f"/ask/{name}", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_requests_that_are_no_questions(visitor: TestClient) -> None:
    json_type = {"content-type": "application/json"}
    assert visitor.post("/ask/about", content=b"{", headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b"\xff", headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b"[" * 200_000, headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b" " * (2**20 + 1), headers=json_type).status_code == 413
    assert visitor.post("/ask/about", content=iter([b" " * 2**19] * 3), headers=json_type).status_code == 413
    assert visitor.post("/ask/about", data={"a": "b"}).status_code == 415
    assert visitor.get("/ask/about").status_code in (404, 405)
    cross = {**json_type, "sec-fetch-site": "cross-site"}
    assert visitor.post("/ask/about", content=b"{}", headers=cross).status_code == 403


def test_a_slow_question_does_not_keep_others_waiting(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def wait(_: Subject, __: Arguments) -> Answer:
        go.wait(60)
        return Answer({"done": True})

    monkeypatch.setitem(QUESTIONS, "slow", questions.question("slow", questions.SLOW)(wait))
    with (
        Explorer(subject) as page,
        httpx.Client(trust_env=False, timeout=30) as client,
        ThreadPoolExecutor(64) as threads,
    ):
        address = f"http://127.0.0.1:{page.port}/ask"
        client.get(page.url)
        slow = [threads.submit(client.post, f"{address}/slow", json={}) for _ in range(4)]
        tiles = {"call": 0, "head": 1, "tiles": [[0, 0, 0]]}
        quick = [threads.submit(client.post, f"{address}/tiles", json=tiles) for _ in range(50)]
        found = [f.result(timeout=30) for f in quick]
        assert not any(f.done() for f in slow)
        go.set()
        assert {f.result(timeout=30).status_code for f in slow} == {200}
    assert {f.status_code for f in found} == {200}
    assert len({f.content for f in found}) == 1


def test_lanes() -> None:
    """Passes over whole matrices have all threads, and the background comes last."""
    workers = Workers()
    before = torch.get_num_threads()
    own = {
        lane: workers.submit(lane, lambda: (torch.get_num_threads(), os.getpriority(os.PRIO_PROCESS, 0)))
        for lane in COUNTS
    }
    found = {lane: future.result(30) for lane, future in own.items()}
    assert found[questions.BACKGROUND][0] == found[questions.QUICK][0] == 1
    assert found[questions.SLOW][0] == torch.get_num_threads() == before
    if sys.platform == "linux":
        assert found[questions.BACKGROUND][1] == 19 > found[questions.SLOW][1]
    failing = workers.submit(questions.QUICK, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(30)
    workers.close()
    subject = Subject.of(made(2100, 2100))
    thumbnail, tile = ({"call": 0, "head": 1, "count": 1}, {"call": 0, "head": 1, "tiles": [[4, 0, 0]]})
    lane = {
        name: QUESTIONS[name].lane(subject, Arguments(x)) for name, x in (("thumbnails", thumbnail), ("tiles", tile))
    }
    assert lane == {"thumbnails": questions.BACKGROUND, "tiles": questions.SLOW}
    ask(subject, "tiles", **tile)  # one pass, which thumbnails and strips share
    assert QUESTIONS["tiles"].lane(subject, Arguments(tile)) == questions.QUICK
    assert (0, 0, 1, "survey") in subject.memory


def test_explore_serves_until_it_is_closed() -> None:
    with explore(made(17, 17), list("abcdefghijklmnopq")) as page:
        assert page.url in repr(page)
        with httpx.Client(follow_redirects=True, trust_env=False) as visitor:
            assert visitor.get(page.url).status_code == 200
            assert visitor.post(f"http://127.0.0.1:{page.port}/ask/about", json={}).status_code == 200
        with pytest.raises(OSError, match=f"port {page.port}: .*; leave the port out"):
            explore(made(3, 3), port=page.port)
        for port in (65536, "80", True):
            with pytest.raises(ValueError, match=f"port = {port!r} must be a whole number up to 65535"):
                explore(made(3, 3), port=port)  # type: ignore[arg-type]
    assert repr(page) == "Explorer(closed)"
    page.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)


def test_arguments_say_what_is_wrong() -> None:
    with pytest.raises(RefusedError, match="x must be a number"):
        Arguments({"x": "3"}).number("x", 0, 1)
    with pytest.raises(RefusedError, match="x = 3 must be from 0 to 1"):
        Arguments({"x": 3}).number("x", 0, 1)
    with pytest.raises(RefusedError, match="at most 3 characters"):
        Arguments({"x": "four"}).text("x", 3)


# The command.


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The addresses that a browser was sent to, and what the page says of itself; then Ctrl-C is pressed."""
    found = []

    def visit(url: str) -> None:
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            assert client.get(url).status_code == 200
            answer = client.post(str(httpx.URL(url).join("/ask/about")), json={})
        length = int.from_bytes(answer.content[:4], "little")
        found.append((url, json.loads(answer.content[4 : 4 + length])["data"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", visit)
    monkeypatch.setattr("limelight.cli.explore._leave", lambda: None)  # it may end the process, which is the tests' own
    return found


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(explore_command, list(arguments), catch_exceptions=False, **options)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_command_and_its_options(visited: list[Any], tmp_path: Path) -> None:
    port = free_port()
    done = run("I like tea.", "--port", str(port), "--host", "localhost")
    assert done.exit_code == 0
    url, about = visited.pop()
    assert url.startswith(f"http://localhost:{port}/?token=")
    assert url in done.stdout
    assert (about["translates"], about["reads"]) == (True, True)
    assert any("tea" in token for text in about["texts"] for token in text)
    (tmp_path / "text.txt").write_text("She reads a long book.", encoding="utf-8")
    for given in (["--file", str(tmp_path / "text.txt")], ["-"], ["--file", "-"]):
        assert run(*given, "--model", str(shipped()), input="She reads a long book.").exit_code == 0
        _, about = visited.pop()
        assert any("book" in token for text in about["texts"] for token in text)
        assert not about["translates"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "--file", "pyproject.toml"], "not both"),
        (["  "], "the text is empty"),
        (["a", "--port", "70000"], "70000"),
        (["a", "--model", "nowhere"], "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(given: list[str], message: str) -> None:
    done = run(*given)
    assert done.exit_code != 0
    assert message in done.output
