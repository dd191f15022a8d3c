"""A small translator: what it learns, text of every kind, scores, searches and the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from limelight import models, translate
from limelight.cli import main
from limelight.models.generation import beam_hypotheses
from limelight.translate import Pair, Recipe, display, training, vocabulary
from limelight.translate.copying import Phrase
from limelight.translate.distillation import own_pairs
from limelight.translate.numerals import numbers
from limelight.translate.search import PhraseSearch
from limelight.translate.warm_start import begin_with
from toy_language import PLAIN, TINY, toy_pairs


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
    with pytest.raises(ValueError, match="not UTF-8"):
        t("caf\udce9")


def test_vocabularies_that_are_none(toy: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((toy / name).read_bytes())
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json"):
        translate.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{[", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        translate.load(tmp_path)


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
