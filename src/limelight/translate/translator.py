"""The translator: text in, text out, with the attention of every word that it writes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path

import torch
from tokenizers import Tokenizer

from limelight import models
from limelight.core.masks import Padding
from limelight.nn import Seq2Seq
from limelight.translate import vocabulary
from limelight.translate.copying import (
    WORDS,
    Phrase,
    changes,
    may_write_digits,
    names,
    phrases,
    read_words,
    whole_names,
)
from limelight.translate.data import padded
from limelight.translate.dates import DATE
from limelight.translate.first_names import read_as_names
from limelight.translate.numerals import NUMBER
from limelight.translate.ordinals import with_decades
from limelight.translate.plan import Part, Plan, shown
from limelight.translate.quotes import with_marks, without_marks
from limelight.translate.results import Sentence, Translation
from limelight.translate.search import PhraseSearch
from limelight.translate.sentences import split, subject_first
from limelight.translate.stand_ins import StandIns, numbers_put_back, numbers_put_in, put_back, put_in
from limelight.translate.stand_ins import read as read_stand_ins

_LONGEST = 16  # tokens of a piece, at most: the shipped model has learned from short sentences
_BATCH = 32
# A sentence is foreign above this share of unknown words or, without a list of known words, tokens for each word.
_UNKNOWN, _PIECES = 0.34, 2.5
_ALL_CAPS = 4  # letters; a longer text in capitals is not an abbreviation
# The model knows straight quotation marks only.
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "‚": "'"})
_BULLET = re.compile(r"\s*(?:[-–—*•]+|\(?\d{1,3}[.)])\s+")


class Translator:
    """A model with its vocabulary that translates text; ``limelight.translate.load()`` makes one.

    Args:
        model: an encoder-decoder.
        tokenizer: its vocabulary, of the tokenizers library.
        words: the English words that the model knows; other words with a capital are names, which it copies.
        stand_ins: names that the model knows by heart, which stand in for those that it does not know.

    >>> from limelight import translate
    >>> translate.load()("The cat is sleeping.").text
    'Le chat dort.'

    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        words: frozenset[str] | None = None,
        stand_ins: StandIns | None = None,
    ) -> None:
        self.model, self.tokenizer, self.words = model, tokenizer, words
        self.stand_ins = StandIns() if stand_ins is None else stand_ins
        self._search = PhraseSearch(model, tokenizer)
        tokenizer.encode_special_tokens = True  # "</s>" in a text is read as text
        self._unknown = vocabulary.number(tokenizer, vocabulary.UNKNOWN)
        self._padding = vocabulary.number(tokenizer, vocabulary.PADDING)

    def __call__(self, text: str, *, beams: int = 4) -> Translation:
        """Translate a text of any length.

        ``beams`` is the number of hypotheses of beam search; 1 takes the likeliest token at every step.
        """
        if not isinstance(text, str):
            raise TypeError(f"translate: give a text, not {type(text).__name__}; many are for translate_all")
        return self.translate_all([text], beams=beams)[0]

    def translate_all(self, texts: Iterable[str], *, beams: int = 4) -> list[Translation]:
        """Translate each of ``texts``, with ``beams`` as in a call; their sentences are translated in batches."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        for n, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"translate: text {n} is no text but {type(text).__name__}")
        if beams < 1:
            raise ValueError(f"translate: beams = {beams} must be at least 1")
        plans = [self._plan(text) for text in texts]
        wanted = sorted({text for plan in plans for part in plan.parts for text in part.texts}, key=len)
        found: dict[str, Sentence] = {}
        batches = [wanted[n : n + _BATCH] for n in range(0, len(wanted), _BATCH)]
        for batch in batches:
            found |= zip(batch, self._sentences(batch, beams), strict=True)
        return [plan.joined(found) for plan in plans]

    def score(self, text: str, target: str) -> Translation:
        """Score ``target``, a given translation of the sentence ``text``, by the log-probability of each of its tokens.

        >>> from limelight import translate
        >>> t = translate.load()
        >>> cat, dog = (t.score("The cat is sleeping.", f"Le {x} dort.").sentences[0] for x in ("chat", "chien"))
        >>> cat.likelihood > dog.likelihood
        True
        """
        texts = [_normalise(given).strip() for given in (text, target)]
        if not all(texts):
            raise ValueError(f"score: the {'text' if not texts[0] else 'translation'} is empty")
        source, written = vocabulary.encode(self.tokenizer, texts)
        most = int(self.model.config["max_position_embeddings"])  # type: ignore[index]
        if max(len(source), len(written)) > most:
            raise ValueError(f"score: {len(source)} and {len(written)} tokens; give at most {most}, such as a sentence")
        ids = [self._padding, *written]
        sentence = self._sentence(texts[0], source, ids, self._scores([source], [ids])[0])
        unknown = [character for given in texts for character in self._unknown_characters(given)]
        notes = (
            [f"left out, characters that the model does not know: {' '.join(dict.fromkeys(unknown))}"]
            if unknown
            else []
        )
        return Translation(texts[1], [sentence], [*notes, *(f"{x}: {shown(texts[0])}" for x in sentence.changes)])

    def _plan(self, text: str) -> Plan:
        parts, notes = [], []
        text = _normalise(text)
        pieces = split(text, lambda part: self._length(part) <= _LONGEST)
        for piece, following in zip_longest(pieces, pieces[1:]):
            before, inside, after = self._trim(piece.text)
            inside = subject_first(inside) if piece.continues else inside
            all_caps = inside.isupper() and len(inside) > _ALL_CAPS  # rare in training, so it loses them
            inside = inside.capitalize() if all_caps else inside
            unknown = self._unknown_characters(inside)
            foreign = len(unknown) > len(inside) / 3
            if foreign or not any(map(str.isalpha, inside)):
                parts.append(Part(piece.text, "", piece.after))
                if foreign:
                    notes.append(f"kept as it is, in letters that the model does not know: {shown(piece.text)}")
                continue
            if unknown:
                letters = shown(" ".join(dict.fromkeys(unknown)))
                notes.append(f"left out, characters that the model does not know: {letters} in {shown(piece.text)}")
            if piece.continues and (joining := inside.split(" ")[0]) in self.stand_ins.joining:
                before += self.stand_ins.joining[joining] + " "
                inside = inside[len(joining) :].lstrip()
            # Sentences without a capital and a full stop are rare in training, so a part of a sentence gets both.
            inside, mark = _without_comma(inside) if piece.after and inside[-1:] in ",;:" else (inside, "")
            stop_added = bool(mark) or inside[-1:].isalnum() or (following is not None and following.continues)
            lower_case = piece.continues and inside[:1].islower()
            parts.append(
                Part(
                    before=before,
                    text=(inside[:1].upper() + inside[1:] if lower_case else inside)
                    + "." * (stop_added and inside[-1:] not in ".!?…"),
                    after=mark + after + piece.after,
                    stop_added=stop_added,
                    all_caps=all_caps,
                    continues=lower_case or (piece.continues and inside.startswith(("I ", "I'"))),
                )
            )
        return Plan(parts, notes)

    def _length(self, text: str) -> int:
        """Count the tokens of a text; names and numbers count as long as those that the model knows."""
        text = text.capitalize() if text.isupper() else text
        for name in whole_names(text, self.words):
            text = text.replace(name, "Tom")
        known = numbers_put_in(text)
        return len(self.tokenizer.encode(known[0] if known else NUMBER.sub("30", text)).ids)

    def _unknown_characters(self, text: str) -> list[str]:
        """Return the characters that are not in the vocabulary."""
        return [c for c in text if not c.isspace() and self._unknown in self.tokenizer.encode(c).ids]

    def _trim(self, text: str) -> tuple[str, str, str]:
        """Split a piece into its text, and what is kept before and after it: white space, signs, emoji."""
        bullet = _BULLET.match(text)
        begin, end = bullet.end() if bullet else 0, len(text)
        while begin < end and self._is_untranslated(text[begin]):
            begin += 1
        while end > begin and self._is_untranslated(text[end - 1]):
            end -= 1
        if text[begin:end].count('"') == 2 and text[begin] == text[end - 1] == '"' and end - begin > 2:
            begin, end = begin + 1, end - 1
        return text[:begin], text[begin:end], text[end:]

    def _is_untranslated(self, character: str) -> bool:
        return not character.isalpha() and (character.isspace() or bool(self._unknown_characters(character)))

    def _sentences(self, texts: list[str], beams: int) -> list[Sentence]:
        """Translate each sentence; try a doubtful one once more with a lower-case first letter.

        A word with a capital has other tokens, and many words were rare at the beginning of sentences in training.
        """
        found = self._translate(texts, beams)
        again = [
            n
            for n, one in enumerate(found)
            if one.doubtful and not one._foreign and self._may_be_lower_case(one.source)
        ]
        if again:
            lower_case = self._translate([texts[n][0].lower() + texts[n][1:] for n in again], beams)
            for n, other in zip(again, lower_case, strict=True):
                if other.likelihood > found[n].likelihood and len(other.changes) <= len(found[n].changes):
                    found[n] = replace(other, text=other.text[:1].upper() + other.text[1:])
        return found

    def _may_be_lower_case(self, text: str) -> bool:
        """Return whether the first word has its capital only because it begins the sentence."""
        first = re.match(r"[^\W\d_]+", text)
        if first is None or first[0] == "I" or first[0] in read_as_names(text) or DATE.match(text):
            return False
        return self.words is not None and first[0].lower() in self.words

    def _translate(self, texts: list[str], beams: int) -> list[Sentence]:
        ids = vocabulary.encode(self.tokenizer, texts)
        targets = [
            self._with_copies(*given, beams) for given in zip(texts, ids, self._generated(ids, beams), strict=True)
        ]
        scores = self._scores(ids, targets)
        return [self._sentence(*given) for given in zip(texts, ids, targets, scores, strict=True)]

    def _scores(self, ids: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return the log-probability of each token of the targets after the first, and of the padding after them."""
        source, lengths = padded(ids, self._padding)
        target, _ = padded(targets, self._padding)
        with torch.no_grad():
            logits = self.model(source, target[:, :-1], mask=Padding(lengths))
            scores: list[list[float]] = logits.log_softmax(-1).gather(2, target[:, 1:, None])[..., 0].tolist()
        return scores

    def _ended(self, target: list[int]) -> list[int]:
        """Return the tokens up to the one that ends the text."""
        end = vocabulary.number(self.tokenizer, vocabulary.END)
        return target[: target.index(end) + 1] if end in target else target

    def _with_copies(self, text: str, source: list[int], target: list[int], beams: int) -> list[int]:
        """Return the translation, or another one that keeps more of the numbers and names."""
        target = self._quoted(text, beams) or target

        def lost(ids: list[int]) -> int:
            return len(self._lost(text, ids))

        if not lost(target):
            return target
        best = target
        for found in chain([target], self._alternatives(text, source, beams)):
            other = self._encoded(found[0], with_decades(text, self.tokenizer.decode(found)))
            best = other if lost(other) < lost(best) else best
            if not lost(best):
                break
        return best

    def _quoted(self, text: str, beams: int) -> list[int] | None:
        """Translate a sentence without the quotation marks inside it, and put them around the words they belong to."""
        quote = without_marks(text)
        if quote is None:
            return None
        (source,) = vocabulary.encode(self.tokenizer, [quote.text])
        target = self._with_copies(quote.text, source, self._generated([source], beams)[0], beams)
        sentence = self._sentence(quote.text, source, target, [0.0] * len(target))
        marked = with_marks(quote, sentence)
        return None if marked is None else self._encoded(target[0], marked)

    def _lost(self, text: str, target: list[int]) -> list[str]:
        """Return the numbers and names that a translation does not keep."""
        return [
            change for change in changes(text, self.tokenizer.decode(target), self.words) if change.startswith("the ")
        ]

    def _alternatives(self, text: str, source: list[int], beams: int) -> Iterator[list[int]]:
        """Yield other translations of a sentence: with stand-ins for its names, and by a search for phrases."""
        wholes = whole_names(text, self.words)
        templates = []  # sentences with stand-ins, and what to put back into their translations
        for chosen in list(self.stand_ins.variants(text, wholes)) if wholes else [{}]:
            named = put_in(text, chosen)
            if numbered := numbers_put_in(named):
                templates.append((numbered[0], chosen, numbered[1]))
            elif chosen:
                templates.append((named, chosen, {}))
        encoded = vocabulary.encode(self.tokenizer, [other for other, _, _ in templates])
        for ids, (_, chosen, numbers) in zip(encoded, templates, strict=True):
            yield self._restored(self._generated([ids], beams)[0], chosen, numbers)
        for ids, (other, chosen, numbers) in zip(encoded, templates, strict=True):
            known = [Phrase(name, is_number=name.isdigit()) for name in (*chosen.values(), *numbers)]
            wanted = known if numbers else [*phrases(other, self.words), *known]
            if found := self._search_phrases(other, ids, wanted):
                yield self._restored(found, chosen, numbers)
        if found := self._search_phrases(text, source, phrases(text, self.words)):
            yield found

    def _search_phrases(self, text: str, source: list[int], wanted: list[Phrase]) -> list[int] | None:
        return self._search(source, wanted, longest=round(1.5 * len(source)) + 8, digits=may_write_digits(text))

    def _restored(self, target: list[int], chosen: dict[str, str], numbers: dict[str, str]) -> list[int]:
        """Return the tokens of a translation with the real names and numbers in place of stand-ins."""
        text = put_back(numbers_put_back(self.tokenizer.decode(target), numbers), chosen)
        return self._encoded(target[0], text)

    def _encoded(self, first: int, text: str) -> list[int]:
        """Return the tokens of a translation after the token ``first``."""
        return [first, *vocabulary.encode(self.tokenizer, [text])[0]]

    def _generated(self, ids: list[list[int]], beams: int) -> list[list[int]]:
        source, lengths = padded(ids, self._padding)
        longest = 2 * source.shape[1] + 10
        with torch.no_grad():
            out = models.generate(self.model, source, mask=Padding(lengths), beams=beams, max_new_tokens=longest)
        return [self._ended(target) for target in out.tolist()]

    def _sentence(self, text: str, source: list[int], target: list[int], scores: list[float]) -> Sentence:
        def pieces(ids: list[int]) -> list[str]:
            return [self.tokenizer.id_to_token(i) or "" for i in ids]

        written, translated = pieces(target[1:]), self.tokenizer.decode(target)
        return Sentence(
            source=text,
            text=translated,
            source_tokens=pieces(source),
            tokens=written,
            scores=scores[: len(written)],
            changes=changes(text, translated, self.words),
            _foreign=self._is_foreign(text),
            _model=self.model,
            _ids=(torch.tensor([source]), torch.tensor([target])),
        )

    def _is_foreign(self, text: str) -> bool:
        """Return whether many words other than names are unknown, or are split into more tokens than English words."""
        copied = set(names(text, self.words))
        plain = [word for word in re.findall(r"[^\W\d_]+", text) if word not in copied]
        if self.words is not None:
            unknown = sum(word.lower() not in self.words for word in plain)
            return unknown > _UNKNOWN * len(plain) or not plain
        count = sum(len(self.tokenizer.encode(word, add_special_tokens=False).ids) for word in plain)
        return count > _PIECES * len(plain)


def _normalise(text: str) -> str:
    """Normalise a text to characters that the model knows: composed letters and straight quotation marks."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"translate: the text is not UTF-8: {error.reason} at {error.start}") from None
    return unicodedata.normalize("NFC", text).translate(_QUOTES)


def _without_comma(text: str) -> tuple[str, str]:
    """Split off the comma, colon or semicolon at the end of a part, with the space that French puts before it."""
    return text[:-1].rstrip(), text[-1] if text[-1] == "," else f" {text[-1]}"


def shipped() -> Path:
    """Return the folder of the model that comes with limelight."""
    return Path(str(files("limelight.translate").joinpath("english-french")))


def load(folder: str | Path | None = None) -> Translator:
    """Load the English–French translator that comes with limelight, or that which was trained in ``folder``."""
    home = shipped() if folder is None else Path(folder)
    model = models.load(home, dtype=torch.float32)
    if not isinstance(model, Seq2Seq):
        raise ValueError(f"{home} holds a model that is not an encoder-decoder, and only those translate")
    words = home / WORDS
    known = read_words(words.read_text(encoding="utf-8").splitlines()) if words.is_file() else None
    return Translator(model, vocabulary.read(home), known, read_stand_ins(home))
