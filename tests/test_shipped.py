"""The translator that comes with limelight: what it writes, what it looks at, and that transformers reads it alike."""

from __future__ import annotations

import json
import re

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


@pytest.mark.parametrize(
    ("english", "kept"),
    [
        ("I have 7 dollars.", ["7"]),
        ("We have lived here since 1976.", ["1976"]),
        ("The meeting is on June 12, 2031 at 4:52 p.m.", ["12", "2031", "4", "52"]),
        ("Okonkwo is my best friend.", ["Okonkwo"]),
        ("I went to Ljubljana with Håkon.", ["Ljubljana", "Håkon"]),
        ("I paid 1,250 euros for 3.5 kilos.", ["1 250", "3,5"]),
        ("It is the 10th of May.", ["le 10 mai"]),
        ("Today is June 3rd.", ["le 3 juin"]),
        ("They worked from May 3 to May 5.", ["du 3 mai au 5 mai"]),
        ("I was born on 3/14/1998.", ["le 3/14/1998"]),
        ("He ate 1/3 of the cake.", ["1/3"]),
    ],
)
def test_numbers_and_names_are_kept(translator: Translator, english: str, kept: list[str]) -> None:
    found = translator(english)
    for text in kept:
        assert re.search(rf"(?<!\w){text}(?!\w)", " ".join(found.text.split())), found.text
    assert not found.sentences[0].changes


@pytest.mark.parametrize(
    ("english", "kept"),
    [
        ("January is my sister.", "January"),
        ("June called me yesterday.", "June"),
        ("Rose works in Paris.", "Rose"),
        ("I saw Mark yesterday.", "Mark"),
        ("I was born in the 1980s.", "années 1980"),
        ("He lived in the 90s.", "années 90"),
        ("He finished 3rd.", "3e"),
        ("I live on the 5th floor.", "5e étage"),
        ('"Where is Tom?" asked Mary.', '"Où est Tom ?" Mary a demandé.'),
    ],
)
def test_first_names_ordinals_decades_and_speakers_are_kept(translator: Translator, english: str, kept: str) -> None:
    found = translator(english)
    assert kept in re.sub(r"\s", " ", found.text)
    assert not any(sentence.changes for sentence in found.sentences)


def test_words_that_are_names_elsewhere_are_translated(translator: Translator) -> None:
    assert translator("Summer is over.").text == "L'été est fini."
    assert translator("I was born in May.").text == "Je suis né en mai."


def test_a_number_in_words_that_is_lost_is_noted(translator: Translator) -> None:
    (sentence,) = translator.score("He has two cats and twelve dogs.", "Il a deux chats et un chien.").sentences
    assert sentence.changes == ["twelve is missing"]
    noted = translator.score("He finished 3rd in the 1980s.", "Il a fini 3 en 1980.").notes
    assert [note.split(":")[0] for note in noted] == ["the ordinal 3rd became 3", "the decade 1980s became 1980"]


def test_quotation_marks_are_kept_or_noted(translator: Translator) -> None:
    assert len(re.findall('["«»]', translator('"I love you."').text)) == 2
    found = translator('He said, "I love you."')
    assert len(re.findall('["«»]', found.text)) == 2 or "quotation marks are missing" in found.notes[0]


def test_a_long_sentence_has_no_capitals_in_the_middle(translator: Translator) -> None:
    text = "The cat is sleeping and I am happy and she is reading a book and we don't have much time and it is late."
    found = translator(text)
    assert found.text.startswith("Le chat ")
    assert not re.search(r"\s[A-Z]", found.text)


@pytest.mark.parametrize("text", ["Hello", "Thank you", "Machine learning is fun"])
def test_what_is_not_doubtful(translator: Translator, text: str) -> None:
    assert not translator(text).sentences[0].doubtful


def test_it_is_small_and_says_where_it_comes_from() -> None:
    folder = translate.shipped()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16_000_000
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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("I live at 221 Baker Street.", "221 Baker Street"),
        ("He lives at 12 Oak Avenue, Springfield.", "12 Oak Avenue, Springfield"),
        ("Send it to 350 Fifth Avenue, New York, NY 10118.", "350 Fifth Avenue, New York, NY 10118"),
        ("The shop at 45 Elm Street closes at 9:30 p.m.", "45 Elm Street"),
        ('He said "yes" twice.', '"oui"'),
        ('He called it "a miracle" yesterday.', '"un miracle"'),
        ('She asked, "Where are you going?"', '"Où allez-vous ?"'),
        ('"I am tired," she said.', '"Je suis fatigué,"'),
    ],
)
def test_addresses_and_quotes_survive(translator: Translator, text: str, kept: str) -> None:
    found = translator(text)
    assert kept in found.text
    assert not [note for note in found.notes if "missing" in note or "became" in note]
