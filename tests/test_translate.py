"""Translation: data, training that can be interrupted, and text of every kind."""

from __future__ import annotations

import gzip
import json
import random
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from limelight import models, translate
from limelight.cli import main
from limelight.models.generation import beam_hypotheses
from limelight.translate import Pair, Recipe, display, ordinals, stand_ins, training, vocabulary
from limelight.translate.augmentation import Augmenter
from limelight.translate.copying import Phrase, changes, phrases, whole_names
from limelight.translate.data import Batch, batches, padded
from limelight.translate.defaults import advice_on, choices_for
from limelight.translate.distillation import own_pairs
from limelight.translate.first_names import read_as_names
from limelight.translate.numerals import numbers
from limelight.translate.quotes import without_marks
from limelight.translate.search import PhraseSearch
from limelight.translate.sentences import split
from limelight.translate.training import loss_of
from limelight.translate.warm_start import begin_with
from limelight.translate.words import known_words, reserved

WORDS = {"the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "a": "un", "man": "homme", "eats": "mange"}
TINY = Recipe(
    vocabulary=60,
    width=32,
    heads=4,
    encoder_layers=1,
    decoder_layers=1,
    hidden=64,
    epochs=2,
    tokens=90,
    held_out=20,
    validated=20,
    warm_up=10,
    rate=3e-3,
    average=0.9,
)

PLAIN = {"phrases": 0.0, "quotes": 0.0, "joined": 0.0}  # pairs as they are


def toy_pairs(count: int = 400) -> list[Pair]:
    """Word for word, in reverse order."""
    draw = random.Random(3)
    pairs = []
    for _ in range(count):
        words = draw.choices(list(WORDS), k=draw.randint(1, 6))
        pairs.append(Pair(" ".join(words) + ".", " ".join(WORDS[w] for w in reversed(words)) + "."))
    return pairs


def test_pairs_are_read(tmp_path: Path) -> None:
    lines = "Go.\tVa !\nGo.\tAllez !\tCC-BY\n\nHi.\tSalut.\n"
    plain, packed = tmp_path / "a.tsv", tmp_path / "a.tsv.gz"
    plain.write_text(lines, encoding="utf-8")
    packed.write_bytes(gzip.compress(lines.encode()))
    assert (
        translate.read_pairs(plain)
        == translate.read_pairs(packed)
        == [("Go.", "Va !"), ("Go.", "Allez !"), ("Hi.", "Salut.")]
    )
    notes: list[str] = []
    translate.read_pairs(plain, note=notes.append)
    (note,) = notes
    assert "columns after the second are not used; 1 lines have a third one, such as 'CC-BY'" in note
    for text, message in ((b"only one\n", "line 1"), (b"", "no pairs"), (b"\xff\xfe\x00", "UTF-8")):
        plain.write_bytes(text)
        with pytest.raises(ValueError, match=message):
            translate.read_pairs(plain)


def test_no_sentence_is_on_both_sides() -> None:
    pairs = [Pair(f"e{n % 97}", f"f{n % 61}") for n in range(400)]
    training, references = translate.divide(pairs, 10, seed=1)
    assert len(references) == 10
    assert not {p.source for p in training} & set(references)
    assert not {p.target for p in training} & {t for ts in references.values() for t in ts}
    assert all(set(ts) == {p.target for p in pairs if p.source == s} for s, ts in references.items())
    assert translate.divide(pairs, 10, seed=1) == (training, references)
    with pytest.raises(ValueError, match="held_out"):
        translate.divide(pairs, 97, seed=1)


def test_batches_hold_everything_once() -> None:
    draw = random.Random(1)
    ids = [([n + 10] * draw.randint(1, 9), [n + 10] * draw.randint(1, 13)) for n in range(500)]
    found = batches(ids, 60, 2, "a")
    rows = [
        (s[:a].tolist(), t[:b].tolist())
        for batch in found
        for s, a, t, b in zip(*batch, strict=True)  # type: ignore[call-overload]
    ]
    assert sorted(rows) == sorted(ids)
    assert all(batch.target.numel() <= 60 for batch in found)
    real = sum(int(batch.target_lengths.sum()) for batch in found) / sum(batch.target.numel() for batch in found)
    assert real > 0.9
    assert [b.target.tolist() for b in batches(ids, 60, 2, "a")] == [b.target.tolist() for b in found]
    assert [b.target.tolist() for b in batches(ids, 60, 2, "b")] != [b.target.tolist() for b in found]


def test_the_vocabulary_gives_back_what_it_took() -> None:
    tokenizer = vocabulary.learn(["Où est l'été ?", "It isn't 1987!"] * 9, 200)
    for text in ("Où est l'été ?", "It isn't 1987!"):
        (ids,) = vocabulary.encode(tokenizer, [text])
        assert tokenizer.decode(ids) == text
        assert tokenizer.id_to_token(ids[-1]) == "</s>"
    assert tokenizer.encode("l’été\u202f?").ids == tokenizer.encode("l'été ?").ids


def test_the_loss() -> None:
    """Of real tokens alone, by PyTorch, sentence by sentence."""
    torch.manual_seed(0)
    tokenizer = vocabulary.learn([text for pair in toy_pairs() for text in pair], 60)
    model: Any = models.build(TINY.config(tokenizer)).eval()
    pairs = toy_pairs(5)
    sources, targets = (vocabulary.encode(tokenizer, [pair[n] for pair in pairs]) for n in (0, 1))
    (batch,) = batches(list(zip(sources, targets, strict=True)), 10_000, 2, "x")
    total = torch.zeros(())
    for source, target in zip(sources, targets, strict=True):
        before = torch.tensor([[model.config["decoder_start_token_id"], *target[:-1]]])
        logits = model(torch.tensor([source]), before)[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum")
    torch.testing.assert_close(loss_of(model, batch), total / sum(map(len, targets)))


def test_the_loss_of_two_passes() -> None:
    """With dropout, the entropy and the symmetric divergence of the same two passes, by PyTorch; without, none."""
    torch.manual_seed(0)
    tokenizer = vocabulary.learn([text for pair in toy_pairs() for text in pair], 60)
    model: Any = models.build(TINY.config(tokenizer))
    sources, targets = (vocabulary.encode(tokenizer, [pair[n] for pair in toy_pairs(5)]) for n in (0, 1))
    (batch,) = batches(list(zip(sources, targets, strict=True)), 10_000, 2, "x")
    torch.testing.assert_close(loss_of(model.eval(), batch, 0.1, 3.0), loss_of(model, batch, 0.1))
    model.train()
    torch.manual_seed(1)
    logits, wanted = training._predictions(model, Batch(*(torch.cat([x, x]) for x in batch)))
    p, q = logits.log_softmax(-1).chunk(2)
    kl = partial(torch.nn.functional.kl_div, reduction="batchmean", log_target=True)
    expected = torch.nn.functional.cross_entropy(logits, wanted) + 3.0 * 0.5 * (kl(p, q) + kl(q, p))
    torch.manual_seed(1)
    torch.testing.assert_close(loss_of(model, batch, consistency=3.0), expected)
    assert float(kl(p, q).detach()) > 1e-3


class Interrupted(Exception):
    pass


def test_an_interrupted_training_comes_to_the_same_result(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    best = translate.train(toy_pairs(), whole, TINY)
    stops = iter((3, 7, 33))
    at = next(stops)

    def watch(now: translate.Progress) -> None:
        nonlocal at
        if now.step == at:
            at = next(stops, -1)
            raise Interrupted

    for _ in range(3):
        with pytest.raises(Interrupted):
            translate.train(toy_pairs(), parts, TINY, watch=watch, save_every=0.0)
    assert translate.train(toy_pairs(), parts, TINY, watch=watch, save_every=0.0) == best
    a, b = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match="holds a training with epochs = 2, not 3"):
        translate.train(toy_pairs(), parts, Recipe(**{**vars(TINY), "epochs": 3}))
    loaded = translate.load(whole)
    assert loaded("the cat.").tokens[-1] == "</s>" or len(loaded("the cat.").tokens) > 5


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator of the toy language."""
    folder = tmp_path_factory.mktemp("toy")
    recipe = Recipe(**{**vars(TINY), "epochs": 12, "dropout": 0.0, "average": 0.97, **PLAIN})
    seen: list[translate.Progress] = []
    scores: list[float] = []
    best = translate.train(toy_pairs(1500), folder, recipe, watch=seen.append, scored=lambda _, x: scores.append(x))
    assert best == max(scores) > 60
    assert seen[-1].loss < seen[0].loss / 3
    return folder


def test_it_learns(toy: Path) -> None:
    t = translate.load(toy)
    found = t("the dog sees a cat.")
    assert found.text == str(found) == "chat un voit chien le."
    assert found.tokens == [*found.sentences[0].tokens]
    assert found.tokens[-1] == "</s>"
    assert len(found.scores) == len(found.tokens)
    assert max(found.scores) <= 0
    assert t("the dog sees a cat.", beams=1).text == found.text
    cross = found.record["decoder.blocks.0.cross"]
    assert cross.shape == (1, 4, len(found.tokens), len(found.sentences[0].source_tokens))
    with pytest.raises(TypeError, match="translate_all"):
        t(["the cat."])  # type: ignore[arg-type]


def test_scores_are_those_of_the_model(toy: Path) -> None:
    t = translate.load(toy)
    (sentence,) = t("a man eats.").sentences
    ids = [t.tokenizer.token_to_id(token) for token in sentence.tokens]
    source = torch.tensor([[t.tokenizer.token_to_id(token) for token in sentence.source_tokens]])
    before = [t.model.config["decoder_start_token_id"]]  # type: ignore[index]
    for token, score in zip(ids, sentence.scores, strict=True):
        with torch.no_grad():
            logits = t.model(source, torch.tensor([before]))[0, -1]
        assert score == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
        before.append(token)


def test_text_of_every_kind(toy: Path) -> None:
    t = translate.load(toy)
    one, two = t("the cat.").text, t("a dog eats.").text
    assert t("the cat. A dog.\n\nthe cat.").text.count("\n\n") == 1
    assert t("  the cat. \n").text == f"  {one} \n"
    assert t("the cat").text == one.removesuffix(".")  # without a mark
    assert [x.text for x in t.translate_all(["the cat.", "", "a dog eats."])] == [one, "", two]
    smile = t("the cat. 😀")
    assert smile.text.endswith("😀")
    strange = t("日本語です。")
    assert strange.text == "日本語です。"
    assert "kept as it is" in strange.notes[0]
    inside = t("the € cat.")
    assert "€" in inside.notes[0]
    long = t("the cat sees a dog " * 400)
    assert len(long.sentences) > 10
    assert len(long.text.split()) > 100


def test_translate_on_the_command_line(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(main, ["translate", "--model", str(toy), *arguments])
        assert done.exit_code == code, done.output
        return done

    shown = run("the dog sees a cat.").stdout
    assert shown.splitlines()[0] == "chat un voit chien le."
    assert "█" in shown
    page = tmp_path / "page.html"
    found = json.loads(run("the dog. A cat eats.", "--json", "--html", str(page)).stdout)
    assert [s["source"] for s in found["sentences"]] == ["the dog.", "A cat eats."]
    matrix = torch.tensor(found["sentences"][0]["alignment"]["weights"])
    torch.testing.assert_close(matrix.sum(-1), torch.ones(len(matrix)))
    assert '"kind":"cross"' in page.read_text(encoding="utf-8").replace(" ", "")
    file = tmp_path / "lines.txt"
    file.write_text(
        "the cat.\n\nthe dog. The cat.\n日本\n" + "the cat sees " * 400 + "\nthe\u2028dog.", encoding="utf-8"
    )
    monkeypatch.setattr(display, "_TOGETHER", 2)
    lines = run("--file", str(file)).stdout.split("\n")
    assert len(lines) == 7
    assert lines[5] == run("the dog.").stdout.splitlines()[0]
    assert lines[1] == ""
    assert lines[3] == "日本"
    assert lines[0] == run("the cat.", "--beams", "4").stdout.splitlines()[0]
    file.write_text("the cat.\n[/b] 你好你好\nthe dog.\n", encoding="utf-8-sig")
    done = run("--file", str(file))
    assert [line.split()[0] for line in done.stdout.split("\n")[:-1]] == ["chat", "[/b]", "chien"]
    assert "line 2: kept as it is, in letters that the model does not know: '[/b] 你好你好'" in done.stderr
    assert "no folder" in run("the cat.", "--html", str(tmp_path / "none" / "page.html"), code=2).stderr
    assert "nothing was translated" in run("你好", "--html", str(tmp_path / "other.html")).stderr
    assert "empty" in run(" ", code=2).stderr
    several = run("the dog. A cat eats.").stdout
    assert "the dog. → " in several
    assert "A cat eats. → " in several
    assert "the dog. → " not in run("the dog.").stdout  # one needs no heading
    assert "▁" not in several + run("the dog. A cat eats.", "--json").stdout
    run(code=2)
    run("a", "--file", str(file), code=2)
    run("--file", str(file), "--json", code=2)


def test_a_given_translation_is_scored(toy: Path, tmp_path: Path) -> None:
    t = translate.load(toy)
    given = t.score("a man eats.", "mange chat le.")
    (sentence,) = given.sentences
    assert sentence.text == given.text == "mange chat le."
    source, target = vocabulary.encode(t.tokenizer, ["a man eats.", "mange chat le."])
    with torch.no_grad():
        logits = t.model(torch.tensor([source]), torch.tensor([[t._padding, *target[:-1]]]))[0]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="none")
    torch.testing.assert_close(-torch.tensor(sentence.scores), expected, atol=1e-4, rtol=1e-4)
    own = t("a man eats.")
    assert sum(own.scores) > sum(given.scores)
    assert t.score("a man eats.", own.text).scores == pytest.approx(own.scores, abs=1e-4)
    assert t.score("the cat 74.", "chat le 75.").notes == ["the number 74 became 75: 'the cat 74.'"]
    for text, other, message in (("", "le.", "text is empty"), ("a", " ", "translation is empty")):
        with pytest.raises(ValueError, match=message):
            t.score(text, other)
    with pytest.raises(ValueError, match="at most 512"):
        t.score("a " * 600, "un")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["translate", "--model", str(toy), *arguments])

    found = json.loads(run("a man eats.", "--as", "mange chat le.", "--json").stdout)
    assert found["text"] == "mange chat le."
    assert found["own"]["text"] == own.text
    assert found["own"]["score"] > sum(found["sentences"][0]["scores"])
    assert found["sentences"][0]["alignment"]["written"] == ["mange", "chat", "le", ".", "</s>"]
    shown = run("a man eats.", "--as", "mange chat le.").stdout
    assert "mange chat le. (given)" in shown
    assert f"{own.text} (its own)" in shown
    assert "--as needs a text" in run("--as", "le").stderr


@pytest.mark.parametrize(
    ("field", "value"), [("dropout", 1.0), ("epochs", 0), ("heads", 5), ("rate", -1.0), ("label_smoothing", 1.5)]
)
def test_recipes_that_cannot_work(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})  # type: ignore[arg-type]


def test_sentences() -> None:
    def fits(text: str) -> bool:
        return len(text) <= 40

    text = '  Hello, Mr. Smith!  How are you? "Fine." she said.\n\nJ. R. came at 5 p.m. It rained… Then 3 left.'
    pieces = split(text, lambda _: True)
    assert [p.text for p in pieces] == [
        "  Hello, Mr. Smith!",
        "How are you?",
        '"Fine."',
        "she said.",
        "J. R. came at 5 p.m. It rained…",
        "Then 3 left.",
    ]
    assert "".join(p.text + p.after for p in pieces) == text
    long = "word " * 300 + "end"
    assert "".join(p.text + p.after for p in split(long, fits)) == long
    assert all(fits(p.text) for p in split(long, fits))
    assert "".join(p.text + p.after for p in split("x" * 200, fits)) == "x" * 200
    assert split("", fits) == []
    clauses = ["I do not know how,", "but I did it", "and when we began it rained", "and Tom and Mary were late."]
    assert [p.text for p in split(" ".join(clauses), fits)] == clauses  # no "and" is left at the end of a part
    assert [p.text for p in split("I saw it and we left.", fits)] == ["I saw it and we left."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Are you coming? No. I am tired.", ["Are you coming?", "No.", "I am tired."]),
        ("See Fig. 3 on p. 12. It is No. 5.", ["See Fig. 3 on p. 12.", "It is No. 5."]),
        ("Name\tAge\nTom\t5", ["Name", "Age", "Tom", "5"]),
        ("I love you. 😀 See you!", ["I love you.", "😀 See you!"]),
        ("See https://a.b/c?d=e#f for more.", ["See", "for more."]),
        ("http://a.b www.c.d a@b.cd", ["", "", ""]),
        ("a" * 5000 + " dog", ["", "dog"]),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    pieces = split(text, lambda _: True)
    assert [piece.text for piece in pieces] == sentences
    assert "".join(piece.text + piece.after for piece in pieces) == text


def test_long_white_space_takes_no_time() -> None:
    begin = time.perf_counter()
    split("a" + " " * 200_000 + "b." + " " * 200_000 + "c", lambda _: True)
    assert time.perf_counter() - begin < 2


def test_what_is_no_sentence_is_kept(toy: Path) -> None:
    t = translate.load(toy)
    for text in (".", "?!...", "12.", "[/b] 日本語です", "http://a.b", "x@y.zz"):
        assert t(text).text == text
    assert t("1. the cat.\n- the dog").text.startswith("1. chat le.\n- chien")
    assert t("THE CAT SEES A DOG.").text == t("The cat sees a dog.").text.upper()
    quoted = t("“the cat.”")
    assert quoted.text.count('"') == 2 or "quotation marks are missing" in quoted.notes[0]
    assert t("the cafe\u0301.").sentences[0].source == "the café."
    special = t("the </s> cat.").sentences[0]
    assert special.source_tokens.count("</s>") == 1
    assert t("the cat.") == t("the cat.")
    assert [x.text for x in t.translate_all("the cat.")] == [t("the cat.").text]
    with pytest.raises(TypeError, match="text 1 is no text but int"):
        t.translate_all(["a", 1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="beams = 0"):
        t("", beams=0)
    with pytest.raises(ValueError, match="no UTF-8"):
        t("caf\udce9")


def test_vocabularies_that_are_none(toy: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((toy / name).read_bytes())
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json"):
        translate.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{[", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        translate.load(tmp_path)


def test_train_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    small = "--vocabulary 60 --width 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --hidden 16 --epochs 1"
    arguments = [
        "train",
        str(file),
        "--out",
        str(tmp_path / "m"),
        *small.split(),
        "--held-out",
        "20",
        "--validated",
        "20",
        "--tokens",
        "300",
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "BLEU" in done.stdout
    assert json.loads((tmp_path / "m" / "config.json").read_text())["d_model"] == 16
    wrong = CliRunner().invoke(main, ["train", str(file), "--out", str(tmp_path / "n"), "--held-out", "9999"])
    assert wrong.exit_code == 1
    assert "held_out = 9999" in wrong.stderr


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    small = "--vocabulary 60 --width 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --hidden 16 --epochs 1"

    def run(out: str) -> Any:
        return CliRunner().invoke(
            main, ["train", str(file), "--out", str(tmp_path / out), *small.split(), "--tokens", "300"]
        )

    whole = run("whole")
    assert whole.exit_code == 0, whole.output
    assert "400 pairs are few" in whole.stderr
    assert "--held-out" in whole.stderr  # 1,500 would be all
    update, steps = training._update, 0

    def interrupted(*arguments: Any) -> float:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return update(*arguments)

    monkeypatch.setattr(training, "_update", interrupted)
    stopped = run("parts")
    assert stopped.exit_code == 130, stopped.output
    assert steps == 3
    assert f"stopped after update 3, in epoch 1: saved in {tmp_path / 'parts'}" in stopped.stderr
    assert f"To go on: limelight train {file} --out {tmp_path / 'parts'} --vocabulary 60" in stopped.stderr
    again = run("parts")
    assert again.exit_code == 0, again.output
    assert "going on after update 3, in epoch 1" in again.stderr
    a, b = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_choices_suit_the_number_of_pairs() -> None:
    many = [Pair(f"{n} is it.", f"{n} est " + "un nombre " * 20) for n in range(40_000)]
    usual = Recipe()
    assert choices_for(many) == {name: getattr(usual, name) for name in choices_for(many)}
    few = choices_for(many[:2016])
    updates = few["epochs"] * sum(1.4 * len(pair.target.split()) for pair in many[:2016]) / few["tokens"]
    assert updates > 3000
    assert few["warm_up"] < updates / 5
    assert few["held_out"] + few["validated"] < 0.15 * 2016
    assert "2,016 pairs are few" in (advice_on(many[:2016]) or "")
    assert advice_on(many) is None
    translate.divide(many[:3], **{name: choices_for(many[:3])[name] for name in ("held_out",)}, seed=1)


def test_its_own_best_translations(toy: Path) -> None:
    """Each source once, with the hypothesis that is most like what was given."""
    t = translate.load(toy)
    pairs = toy_pairs(60)
    found = list(own_pairs(t.model, t.tokenizer, pairs, beams=3, batch=7))
    sources = [pair.source for pair in found]
    assert len(sources) == len(set(sources))
    assert set(sources) <= {pair.source for pair in pairs}
    references = dict(pairs)
    assert sum(pair.target == references[pair.source] for pair in found) > 0.7 * len(references)
    source = torch.tensor(vocabulary.encode(t.tokenizer, ["the dog sees a cat."]))
    (three,) = beam_hypotheses(t.model, source, 3, 1.0, max_new_tokens=20)
    best = max(three, key=lambda one: one[0])[1]
    assert torch.equal(best, models.generate(t.model, source, beams=3, max_new_tokens=20)[0][: len(best)])
    assert len({tuple(ids.tolist()) for _, ids in three}) == 3
    text = t.tokenizer.decode(three[-1][1].tolist())
    (pair,) = own_pairs(t.model, t.tokenizer, [Pair("the dog sees a cat.", text)], beams=3)
    assert pair.target == text  # the least likely one, as it is the one that was given
    assert not list(own_pairs(t.model, t.tokenizer, [Pair("the dog sees a cat.", "rien")], beams=3))


def test_padding() -> None:
    rows, lengths = padded([[1, 2, 3], [4]], 0)
    assert rows.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [3, 1]


NAMED = [
    Pair("Tom has 30 dollars.", "Tom a 30 dollars."),
    Pair("Tom's dog died in 1998.", "Le chien de Tom est mort en 1998."),
    Pair("He bought three books.", "Il a acheté trois livres."),
    Pair("She lives in Boston.", "Elle vit à Boston."),
    Pair("I paid $200.", "J'ai payé deux cents dollars."),
    Pair("The cat eats.", "Le chat mange."),
]


def test_both_sides_get_the_same_numbers_and_names() -> None:
    shares = Recipe(names=1.0, numbers=1.0, phrases=0.5, quotes=0.2, joined=0.3, longest=20).shares
    augmenter = Augmenter(NAMED * 50, shares)
    pairs = augmenter.epoch("a")
    assert pairs == augmenter.epoch("a") != augmenter.epoch("b")
    assert not any("deux cents" in pair.target for pair in pairs)  # it would teach not to copy
    known = set(known_words(NAMED))
    own = {"He", "She", "Tom", "Boston", "Van", "San", "Saint", "The", "Street", "Avenue", "Road"}
    for source, target in pairs:
        assert numbers(source) == numbers(target), (source, target)
        assert len(source.split()) <= 20 + 16  # a phrase and who said it are added at most
        for word in set(re.findall(r"[^\W\d_]{3,}", source)) - own:
            if word[0].isupper() and word.lower() not in known and word in target:
                assert not reserved(word)
    found = {number for pair in pairs for number in numbers(pair.source) if len(number) == 4}
    assert len(found) > 50
    assert len(set(re.findall(r"[A-Z][a-z]+", " ".join(pair.source for pair in pairs)))) > 100


@pytest.mark.parametrize(
    ("english", "french"),
    [
        ("12,500 people paid $3.50 at 4:30.", "12 500 personnes ont payé 3,50 $ à 4 h 30."),
        ("On 1 May 2024, 7 came.", "Le 1 mai 2024, 7 sont venus."),
        ("1,000,000", "1\u202f000\u202f000"),
    ],
)
def test_numbers_of_two_languages(english: str, french: str) -> None:
    assert numbers(english) == numbers(french)
    assert numbers(english) != numbers(french + " 8")


def test_what_a_translation_loses() -> None:
    known = frozenset(["has", "dogs", "is", "here", "said", "in", "the", "morning"])
    assert changes("Zelda has 5 dogs.", "Zelda a 5 chiens.", known) == []
    assert changes("Zelda has 5 dogs.", "Elle a 50 chiens.", known) == [
        "the number 5 became 50",
        "the name Zelda is missing",
    ]
    assert changes("5 dogs", "des chiens", known) == ["the number 5 is missing"]
    assert changes("dogs", "7 chiens", known) == ["the number 7 was added"]
    assert changes("seven dogs", "7 chiens", known) == []
    assert changes('Said "dogs"', "chiens", known) == ["quotation marks are missing"]
    assert changes('Said "dogs"', "« chiens »", known) == []
    assert changes("Zelda is here.", "Elle est ici.", None) == []
    assert [phrase.text for phrase in phrases("Mr. Jo Zelda has 1,500.5 dogs in Oz.", known)] == [
        "1 500,5",
        "Jo Zelda",
        "Oz",
    ]


def test_a_start_computes_the_same_at_first(toy: Path) -> None:
    before = translate.load(toy)
    tokenizer = vocabulary.with_letters(vocabulary.learn(["the cat", "le chat"] * 9, 60))
    assert tokenizer.decode(tokenizer.encode("Łukasz Nguyễn #@").ids) == "Łukasz Nguyễn #@"
    config = {**before.model.config, "decoder_layers": 3, "vocab_size": before.model.config["vocab_size"] + 5}  # type: ignore[dict-item, operator, index]
    grown: Any = models.build(config)
    begin_with(grown, before.model)
    source, target = torch.tensor([[5, 9, 7, 0]]), torch.tensor([[2, 8, 6]])
    with torch.no_grad():
        expected = before.model(source, target)
        torch.testing.assert_close(grown.eval()(source, target)[..., :-5], expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="give the same sizes"):
        begin_with(models.build({**config, "vocab_size": 7}), before.model)  # type: ignore[arg-type]


def test_training_from_a_start(toy: Path, tmp_path: Path) -> None:
    recipe = Recipe(**{**vars(TINY), "epochs": 1, "decoder_layers": 2, "rate": 1e-4, "falling": 0.5, **PLAIN})
    assert translate.train(toy_pairs(), tmp_path, recipe, start=toy) > 60
    assert len(translate.load(tmp_path).model.decoder.blocks) == 2


def test_training_on_distilled_pairs(toy: Path, tmp_path: Path) -> None:
    """The model learns their targets, which the given pairs do not have; sentences to validate on are refused."""
    recipe = Recipe(**{**vars(TINY), "epochs": 1, "rate": 1e-2, **PLAIN})
    allowed, aside = training.split_for_training(toy_pairs(), recipe)
    distilled = [Pair(pair.source, "chat") for pair in allowed]
    translate.train(toy_pairs(), tmp_path, recipe, start=toy, distilled=distilled)
    assert translate.load(toy)("a dog sees a man").text != "chat"
    assert translate.load(tmp_path)("a dog sees a man").text == "chat"
    distilled.append(Pair(next(iter(aside)), "chat"))
    with pytest.raises(ValueError, match=r"1 distilled pairs, such as .* are not among those to train on"):
        translate.train(toy_pairs(), tmp_path / "other", recipe, start=toy, distilled=distilled)


def test_a_search_for_phrases(toy: Path) -> None:
    """The toy has never seen a digit or a name, and yet all of them are there, once and whole."""
    t = translate.load(toy)
    search = PhraseSearch(t.model, t.tokenizer)
    (source,) = vocabulary.encode(t.tokenizer, ["the cat sees Zelda Oz at 15,300."])
    wanted = [Phrase("Zelda Oz", False), Phrase("15 300", True)]
    found = search(source, wanted, longest=30, digits=False)
    assert found is not None
    text = t.tokenizer.decode(found)
    assert re.search(r"(?<!\w)Zelda Oz(?!\w)", text), text
    assert numbers(text) == {"15300": 1}, text
    assert search(source, wanted, longest=3, digits=False) is None
    kept = t("the cat sees Zelda.")
    assert "Zelda" in kept.text
    assert not kept.sentences[0].changes


def test_names_that_stand_in() -> None:
    pairs = [Pair(f"Tom saw it {n}.", f"Tom l'a vu {n}.") for n in range(50)]
    pairs += [Pair(f"I live in Boston {n}.", f"Je vis à Boston {n}.") for n in range(50)]
    pairs += [Pair(f"I like France {n}.", f"J'aime la France {n}.") for n in range(50)]
    pairs += [Pair("you and I", "toi et moi"), Pair("now or never", "jamais")]
    found = stand_ins.learn(pairs)
    assert found == stand_ins.StandIns(["Tom"], ["Boston"], {"and": "et"})
    text = "Zelda lives in Oz."
    first, second = found.variants(text, ["Zelda", "Oz"])
    assert first == {"Zelda": "Tom", "Oz": "Boston"}
    assert second == {"Zelda": "Boston", "Oz": "Tom"}
    assert stand_ins.put_in(text, first) == "Tom lives in Boston."
    assert stand_ins.put_back("Le chien de Tom vit à Boston.", first) == "Le chien de Zelda vit à Oz."
    assert stand_ins.put_back("Le chien de Tom.", {"Anna": "Tom"}) == "Le chien d'Anna."
    assert not list(found.variants("Zelda, Jo and Oz", ["Zelda", "Jo", "Oz"]))


def test_what_is_lost_is_noted(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhraseSearch, "__call__", lambda *_, **__: None)  # which would find it
    note = "the number 74 is missing: 'the cat 74.'"
    t = translate.load(toy)
    assert note in t("the cat 74.").notes
    file = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["translate", "--model", str(toy), "the cat 74.", "--json", "--html", str(file)])
    found = json.loads(done.stdout)
    assert found["sentences"][0]["changes"] == ["the number 74 is missing"]
    assert note in found["notes"]
    assert f"note: {note}" in done.stderr
    assert "the number 74 is missing" in file.read_text(encoding="utf-8")


def test_typing(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["the dog sees a cat.", "", "a man"])

    def typed(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with pytest.raises(SystemExit) as ended:
        main(["translate", "--model", str(toy)])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert "chat un voit chien le." in said.out
    assert "homme un" in said.out
    assert "Ctrl-D" in said.err


def test_an_address_is_one_name_and_its_loss_is_noted() -> None:
    known = frozenset({"we", "met", "at", "in"})
    text = "We met Zelda at 14 Rue Street, Oslo in 1987."
    assert phrases(text, known) == [Phrase("1987", True), Phrase("14 Rue Street, Oslo", False), Phrase("Zelda", False)]
    assert changes(text, "Zelda, 14 Rue Street, Oslo, 1987", known) == []
    assert "the address 14 Rue Street, Oslo is missing" in changes(text, "Zelda, 14, Rue, Oslo, 1987", known)
    assert whole_names("We met 3 times in Street View.", known) == ["Street View"]


def test_an_address_in_place_of_a_city() -> None:
    chosen = {"14 Elm Street": "Boston"}
    assert stand_ins.put_in("He lives at 14 Elm Street now.", chosen) == "He lives in Boston now."
    assert stand_ins.put_back("Il vit à Boston maintenant.", chosen) == "Il vit au 14 Elm Street maintenant."


def test_speech_and_speaker_are_apart() -> None:
    def pieces(text: str) -> list[str]:
        return [piece.text for piece in split(text, lambda _: True)]

    assert pieces('She asked, "Where?"') == ["She asked,", '"Where?"']
    assert pieces('"Here," he said.') == ['"Here,"', "he said."]
    assert pieces('He said "yes" twice.') == ['He said "yes" twice.']
    assert pieces('"A" and "B," he said.') == ['"A" and "B," he said.']
    for text in ('She asked, "Where?"', '"Here," he said.'):
        assert "".join(piece.text + piece.after for piece in split(text, lambda _: True)) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("January is my sister.", ["January"]),
        ("January is the first month.", []),
        ("Will is my brother, and will you come?", ["Will"]),
        ("Will this do?", []),
        ("May I come in May?", []),
        ("I met Rose and April in April.", ["Rose"]),  # after "and", a month is as likely
        ("Autumn is my favorite season.", []),
        ("We were there on Christmas Eve.", []),
        ("His birthday is August 21st.", []),
    ],
)
def test_first_names_are_told_from_words(text: str, names: list[str]) -> None:
    assert read_as_names(text) == names


@pytest.mark.parametrize(
    ("english", "french", "lost"),
    [
        ("He came on May 5th.", "Il vint le 5 mai.", []),
        ("He came on the 3rd.", "Il vint le 3.", []),
        ("They live on the 12th floor.", "Ils vivent au douzième étage.", []),
        ("a church of the 17th century", "une église du XVIIe siècle", []),
        ("They live on the 12th floor.", "Ils ont 12 étages.", ["the ordinal 12th became 12"]),
        ("the 1970s", "les années soixante-dix", []),
        ("the 1970s", "ce temps", ["the decade 1970s is missing"]),
    ],
)
def test_ordinals_and_decades(english: str, french: str, lost: list[str]) -> None:
    assert ordinals.lost(english, french) == lost


def test_one_pair_of_quotation_marks_inside() -> None:
    assert without_marks('He said "yes, now." twice.') == ("He said yes, now. twice.", 8, 16)
    for text in ('"All of it."', "none", 'an "odd one', 'two "a" and "b"', 'an empty "…" one'):
        assert without_marks(text) is None
