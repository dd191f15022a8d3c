"""``limelight look``: what it prints, its page, and what it says of models and texts that do not suit it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from rich.console import Console

import limelight as ll
from families import STACKS
from limelight.cli import main

SIZES = {**STACKS, "vocab_size": 30522}  # the vocabulary of MiniLM, whose tokenizer reads the text
TEXT = "The animal didn't cross the street because it was too tired."


def _look(*arguments: str, code: int = 0, text: str | None = None) -> Any:
    done = CliRunner().invoke(main, ["look", *arguments], input=text)
    assert done.exit_code == code, done.output
    return done


def test_look(tmp_path: Path, minilm: Path) -> None:
    folder = "--model", str(minilm)
    shown = _look(TEXT, *folder).stdout
    assert "previous token" in shown
    assert "animal" in shown
    assert "█" in shown
    assert "\x1b[" not in shown
    file = tmp_path / "page.html"
    found = json.loads(_look(TEXT, *folder, "--json", "--html", str(file), "--layer", "3").stdout)
    assert {row["layer"] for row in found["heads"]} == {3}
    assert len(found["heads"]) == 12
    assert ("it", "animal") in {(link["from"], link["to"]) for link in found["links"]}
    model = tf.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    ids = tf.AutoTokenizer.from_pretrained(minilm)(TEXT, return_tensors="pt")
    with torch.no_grad():
        matrix = model(**ids, output_attentions=True).attentions[3][0, found["drawn"]["head"]]
    torch.testing.assert_close(torch.tensor(found["drawn"]["weights"]), matrix, atol=1e-5, rtol=0)
    page = file.read_text(encoding="utf-8")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    data = json.loads(page.split('id="limelight-data">')[1].split("</script>")[0])
    assert [call["heads"] for call in data["about"]["calls"]] == [12] * 6
    assert data["about"]["opens"][0] == 3
    flat = json.loads(_look("-", *folder, "--json", "--temperature", "1000", text=TEXT).stdout)
    assert min(row["spread"] for row in flat["heads"]) > 0.99


def test_look_without_a_model() -> None:
    """The translator: what it reads, what it writes, and what it writes from."""
    found = json.loads(_look("The cat is sleeping.", "--json", "--top", "30").stdout)
    kinds = {(row["stack"], row["kind"]): row["layer"] for row in found["heads"]}
    assert kinds == {("encoder", "self"): 3, ("decoder", "self"): 1, ("decoder", "cross"): 1}
    assert found["tokens"]["encoder"] == ["▁The", "▁cat", "▁is", "▁sleeping", ".", "</s>"]
    assert found["tokens"]["written"] == ["▁Le", "▁chat", "▁dort", ".", "</s>"]
    assert ("▁chat", "▁cat") in {(link["from"], link["to"]) for link in found["links"]}


def test_look_at_other_models(tmp_path: Path, minilm: Path) -> None:
    """An encoder-decoder of ours, and one that only transformers has."""
    tokenizer = (minilm / "tokenizer.json").read_bytes()
    marian = ll.models.build({**SIZES, "model_type": "marian", "architectures": ["MarianMTModel"]})
    ll.models.save(marian, tmp_path / "marian")
    opt = tf.OPTModel(
        tf.OPTConfig(vocab_size=30522, hidden_size=24, ffn_dim=31, num_hidden_layers=2, num_attention_heads=3)
    )
    opt.save_pretrained(tmp_path / "opt")
    for name in ("marian", "opt"):
        (tmp_path / name / "tokenizer.json").write_bytes(tokenizer)
    file = tmp_path / "text.txt"
    file.write_text("a cat sat on a mat " * 40, encoding="utf-8")
    found = json.loads(_look("a cat", "--model", str(tmp_path / "marian"), "--json").stdout)
    assert {(row["stack"], row["kind"]) for row in found["heads"]} == {
        ("encoder", "self"),
        ("decoder", "self"),
        ("decoder", "cross"),
    }
    page = tmp_path / "page.html"
    found = json.loads(
        _look("--file", str(file), "--model", str(tmp_path / "opt"), "--json", "--html", str(page)).stdout
    )
    assert len(found["heads"]) == 6
    assert len(found["tokens"]["decoder"]) == 242


def test_look_at_folders_that_do_not_help(tmp_path: Path, minilm: Path) -> None:
    small = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 1, "num_attention_heads": 3}
    words = {"vocab_size": 30522}
    saved = {
        "<!--<script>": tf.RobertaModel(tf.RobertaConfig(**small, **words, max_position_embeddings=64)),
        "bart": tf.BartForConditionalGeneration(tf.BartConfig(**SIZES, max_position_embeddings=64)),
        "mamba": tf.MambaModel(tf.MambaConfig(**words, hidden_size=16, num_hidden_layers=1)),
        "vit": tf.ViTModel(tf.ViTConfig(**small)),
        "bert": tf.BertModel(tf.BertConfig(**small)),
    }
    for name, model in saved.items():
        model.save_pretrained(tmp_path / name)
    for name in ("<!--<script>", "bart", "mamba", "vit"):
        (tmp_path / name / "tokenizer.json").write_bytes((minilm / "tokenizer.json").read_bytes())
    page = tmp_path / "page.html"
    done = _look("word " * 100, "--model", str(tmp_path / "<!--<script>"), "--html", str(page))
    assert "positions for 62 tokens" in done.stderr
    assert page.read_text(encoding="utf-8").count("<!--") == 0
    _look("word " * 60, "--model", str(tmp_path / "bart"))
    with pytest.warns(UserWarning, match="no attention"):
        assert "no attention" in _look("a", "--model", str(tmp_path / "mamba"), code=1).stderr
    assert "does not read text" in _look("a", "--model", str(tmp_path / "vit"), code=1).stderr
    assert "no tokenizer.json" in _look("a", "--model", str(tmp_path / "bert"), code=1).stderr


def test_look_at_a_text_that_is_too_long(minilm: Path) -> None:
    done = _look("word " * 600, "--layer", "0", "--model", str(minilm))
    assert "positions for 512 tokens" in done.stderr
    assert "90 are left out" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give a text"),
        (("a", "--file", "nothing.txt"), 2, "nothing.txt"),
        (("  ",), 2, "empty"),
        (("a", "--layer", "9"), 1, "there is no layer 9; there are 0 to 3"),
        (("a", "--head", "12"), 1, "there is no head 12; there are 0 to 7"),
        (("a", "--temperature", "0"), 2, "x>0"),
        (("a", "--model", "."), 1, "config.json"),
    ],
)
def test_look_says_what_is_wrong(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in _look(*arguments, code=code).stderr


def test_the_table_fits_a_narrow_terminal_and_begins_with_the_most_telling_heads(minilm: Path) -> None:
    shown = _look(TEXT, "--model", str(minilm)).stdout
    assert "the 24 most telling of 72 heads" in shown
    assert "--all" not in _look(TEXT, "--model", str(minilm), "--all").stdout
    model = tf.AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad(), ll.watch(model) as record:
        model(torch.arange(2000, 2017)[None])
    heads = record.heads()
    assert "previous token" in {row["label"] for row in heads.telling(5)}
    for width in (60, 80, 100):
        text = StringIO()
        Console(width=width, file=text).print(heads)
        lines = text.getvalue().splitlines()
        assert "…" not in "".join(lines)
        assert max(len(line.rstrip()) for line in lines) <= width
        assert sum(f" {heads[0]['label']}" in line for line in lines) == sum(
            row["label"] == heads[0]["label"] for row in heads
        )
