"""Answers of the explorer: tiles, thumbnails, cells, lines of a text and translations, against the dense matrix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from conftest import leaf_masks
from explorer_cases import B, H, allowed_of, ask, pooled, random_weights, truth_of
from limelight.core.biases import Bias
from limelight.core.masks import Mask
from limelight.explorer.questions import RefusedError
from limelight.explorer.subject import Subject
from limelight.explorer.tiles import SIDE, base_level, top_level
from limelight.lens.reading import read
from limelight.translate import shipped

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
    A = random_weights(37, 41, n, mask=MASKS[n], bias=bias, sink=torch.arange(H) / 7, temperature=1.3, softcap=4.0)
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
    subject = Subject.of(random_weights(N_LARGE, M_LARGE, mask=mask))
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
    A = random_weights(131, 131, mask=ll.Causal())
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


@pytest.mark.parametrize("level", [0, 3])
def test_a_cell(level: int) -> None:
    n, subject = 1031, Subject.of(random_weights(1031, 1031, mask=ll.Causal()))
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
        (random_weights(5, 5), ["a", "b"], ValueError, "2 tokens for 5 queries"),
        (random_weights(5, 5), "abcde", TypeError, "list of strings, not str"),
        (random_weights(5, 5), [1, 2, 3, 4, 5], TypeError, "must be strings"),
        (random_weights(5, 7), list("abcde"), ValueError, "pair of lists"),
        (random_weights(5, 5), [list("abcde")] * 3, ValueError, "3 texts for 2 batch"),
        (random_weights(5, 5), {"other": list("abcde")}, ValueError, "tokens of the other"),
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


def test_translating() -> None:
    subject = Subject.of(random_weights(3, 3))
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
