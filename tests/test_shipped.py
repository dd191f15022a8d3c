"""The translator that comes with limelight: what it writes, what it looks at, and that transformers reads it alike."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as tf
from click.testing import CliRunner

from limelight import translate
from limelight.cli import main
from limelight.lens.alignment import words
from limelight.translate import Translator, vocabulary
from limelight.translate.display import alignment_of

RIGHT = {
    "The cat is sleeping.": ["Le chat dort.", "La chatte dort.", "Le chat est en train de dormir."],
    "I am happy.": ["Je suis heureux.", "Je suis heureuse.", "Je suis content.", "Je suis contente."],
    "Where is the station?": ["Où est la gare ?", "Où se trouve la gare ?"],
    "She is reading a book.": ["Elle lit un livre.", "Elle est en train de lire un livre."],
    "We don't have much time.": ["Nous n'avons pas beaucoup de temps.", "On n'a pas beaucoup de temps."],
    "The cat sat on the mat.": [
        *("Le chat s'assit sur le tapis.", "Le chat s'est assis sur le tapis.", "Le chat était assis sur le tapis."),
        *("La chatte s'assit sur le tapis.", "La chatte s'est assise sur le tapis."),
    ],
}


@pytest.fixture(scope="module")
def translator() -> Translator:
    return translate.load()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("english", RIGHT)
def test_what_everyone_tries_first(translator: Translator, english: str, beams: int) -> None:
    french = translator(english, beams=beams).text
    assert " ".join(french.split()) in RIGHT[english]  # French has narrow spaces before ? and !


def test_writing_chat_it_looks_at_cat() -> None:
    done = CliRunner().invoke(main, ["translate", "The cat sat on the mat.", "--json"])
    found = json.loads(done.stdout)
    links = {(link["from"], link["to"]): link["weight"] for link in found["sentences"][0]["links"]}
    assert links["chat", "cat"] > 0.8
    assert links["tapis", "mat"] > 0.5
    alignment = found["sentences"][0]["alignment"]
    matrix = torch.tensor(alignment["weights"])
    assert matrix.shape == (len(alignment["written"]), len(alignment["read"]))
    torch.testing.assert_close(matrix.sum(-1), torch.ones(len(matrix)))


def test_alignment_of_words(translator: Translator) -> None:
    """Rows of first pieces, columns summed over pieces, against the matrix of the tokens."""
    (sentence,) = translator("Wash the umbrella.").sentences
    one = alignment_of(sentence)
    dense = one.call.weights.dense()[0, one.head]
    for i, (name, rows) in enumerate(words(sentence.tokens)):
        assert one.written[i] == name
        for j, (_, cols) in enumerate(words(sentence.source_tokens)):
            torch.testing.assert_close(one.weights[i, j], dense[rows[0], cols].sum())
    assert "".join(one.read) == "Washtheumbrella.</s>"
    weights = [weight for *_, weight in one.links(3)]
    assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (
            ["▁J'", "ai", "▁per", "du", "▁", "«", "tout", "»", ".", "</s>"],
            ["J'", "ai", "perdu", "«", "tout", "»", ".", "</s>"],
        ),
        (["▁Tom", "▁a", "▁2", "0", "▁ans", "\u202f", "!"], ["Tom", "a", "20", "ans", "\u202f", "!"]),
        ([], []),
    ],
)
def test_words(tokens: list[str], expected: list[str]) -> None:
    found = words(tokens)
    assert [name for name, _ in found] == expected
    assert [place for _, places in found for place in places] == list(range(len(tokens)))


def test_texts_of_several_sentences_and_of_other_kinds(translator: Translator) -> None:
    several = translator("The cat is sleeping. I am happy.\n\nWhere is the station?")
    assert len(several.sentences) == 3
    assert several.text.startswith("Le chat dort. Je suis")
    assert "\n\nOù" in several.text
    assert len(several.scores) == len(several.tokens)
    assert not any(sentence.doubtful for sentence in several.sentences)
    for other in ("Wo ist der Bahnhof?", "El gato duerme.", "Elle lit un livre.", "Il gatto dorme sul tappeto."):
        assert translator(other).sentences[0].doubtful
        assert "doubtful, is it everyday English?" in translator(other).notes[0]
    long = translator("The cat is sleeping. " * 300)
    assert long.text.split() == ["Le", "chat", "dort."] * 300


def test_it_is_small_and_says_where_it_comes_from() -> None:
    folder = translate.shipped()
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    for said in ("tatoeba.org", "CC BY 2.0", "limelight train", "BLEU", "Limits"):
        assert said in card


@torch.no_grad()
def test_transformers_reads_it_alike(translator: Translator) -> None:
    theirs = tf.MarianMTModel.from_pretrained(translate.shipped(), dtype=torch.float32).eval()
    source, target = vocabulary.encode(translator.tokenizer, ["He drank a glass of cold water.", "Il a bu de l'eau."])
    begin = vocabulary.number(translator.tokenizer, vocabulary.PADDING)
    ids, before = torch.tensor([source]), torch.tensor([[begin, *target[:-1]]])
    expected = theirs(input_ids=ids, decoder_input_ids=before).logits
    torch.testing.assert_close(translator.model(ids, before), expected, atol=1e-3, rtol=0)
    written = theirs.generate(ids, num_beams=4, max_new_tokens=40)
    ours = translator("He drank a glass of cold water.").text
    assert translator.tokenizer.decode(written[0].tolist()) == ours
