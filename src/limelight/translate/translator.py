"""The translator: text in, text out, with what it looked at while it wrote every word."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from limelight import models
from limelight.core.masks import Padding
from limelight.lens.record import Record
from limelight.lens.recorder import recording
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
from limelight.translate.numerals import NUMBER
from limelight.translate.search import PhraseSearch
from limelight.translate.sentences import split
from limelight.translate.stand_ins import StandIns, numbers_put_back, numbers_put_in, put_back, put_in
from limelight.translate.stand_ins import read as read_stand_ins

_LONGEST = 16  # tokens of a piece: the model that is shipped has learned from short sentences
_BATCH = 32
# What makes a translation doubtful: unlikely tokens, unknown words, or, where the known ones are not listed, words in
# more pieces than English words have.
_UNSURE, _UNKNOWN, _PIECES = 0.48, 0.34, 2.5
_FEW = 0.5  # tokens for each of the source's, below which something must be missing
_LOUD = 4  # letters, from which on capitals are no name
_SHORT = 3  # words of a text that may be a greeting
_SHOWN = 60  # characters of a text in a note
# The model knows straight quotation marks only.
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "‚": "'"})
_BULLET = re.compile(r"\s*(?:[-–—*•]+|\(?\d{1,3}[.)])\s+")


@dataclass(frozen=True)
class Sentence:
    """A sentence and its translation.

    ``changes`` says what of its numbers, names and quotation marks is lost: "the number 5 became 50".
    ``source_tokens`` and ``tokens`` both end with ``</s>``; ``scores`` are the log-probabilities of ``tokens``, each
    given those before it.
    """

    source: str
    text: str
    source_tokens: list[str]
    tokens: list[str]
    scores: list[float]
    changes: list[str]
    _foreign: bool  # made of words that the model does not know
    _model: Seq2Seq = field(repr=False, compare=False)
    _ids: tuple[Tensor, Tensor] = field(repr=False, compare=False)

    @cached_property
    def record(self) -> Record:
        """The attention of every head; row i of the decoder holds the weights with which token i was written."""
        source, target = self._ids
        with torch.no_grad(), recording(self._model) as record:
            self._model(source, target[:, :-1])
        return record

    def read_by(self, model: Seq2Seq) -> Record:
        """Return the attention of another model with the same vocabulary to the same tokens on both sides."""
        return replace(self, _model=model).record

    @property
    def doubtful(self) -> bool:
        """Whether the model finds its words unlikely, as it does with what is no plain English, or left any out."""
        short = len(self.tokens) < _FEW * len(self.source_tokens)
        return short or self._foreign or self.likelihood < _UNSURE

    @property
    def likelihood(self) -> float:
        """Of a token: the geometric mean of their probabilities."""
        return math.exp(sum(self.scores) / len(self.scores))


@dataclass(frozen=True)
class Translation:
    """What a text became: the ``text``, the ``sentences`` that it is made of, and ``notes`` on what was difficult."""

    text: str
    sentences: list[Sentence]
    notes: list[str]

    @property
    def tokens(self) -> list[str]:
        """Of all sentences."""
        return [token for sentence in self.sentences for token in sentence.tokens]

    @property
    def scores(self) -> list[float]:
        """Of all tokens: log-probabilities."""
        return [score for sentence in self.sentences for score in sentence.scores]

    @property
    def record(self) -> Record:
        """The attention of every head; ``record.calls(name)`` has a ``Weights`` for each sentence."""
        record = Record()
        for sentence in self.sentences:
            for call in sentence.record.log:
                record.add(call)
        return record

    def __str__(self) -> str:
        return self.text


class Translator:
    """``t("The cat is sleeping.").text``: a model and its vocabulary."""

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        words: frozenset[str] | None = None,
        stand_ins: StandIns | None = None,
    ) -> None:
        """``words`` are the English words that the model knows: others with a capital are names, which it copies.

        ``stand_ins`` are names that it knows.
        """
        self.model, self.tokenizer, self.words = model, tokenizer, words
        self.stand_ins = StandIns() if stand_ins is None else stand_ins
        self._search = PhraseSearch(model, tokenizer)
        tokenizer.encode_special_tokens = True  # "</s>" in a text is a text
        self._unknown = vocabulary.number(tokenizer, vocabulary.UNKNOWN)
        self._padding = vocabulary.number(tokenizer, vocabulary.PADDING)

    def __call__(self, text: str, *, beams: int = 4) -> Translation:
        """The translation of a text of any length; ``beams=1`` takes the likeliest token at every step."""
        if not isinstance(text, str):
            raise TypeError(f"translate: give a text, not {type(text).__name__}; many are for translate_all")
        return self.translate_all([text], beams=beams)[0]

    def translate_all(self, texts: Iterable[str], *, beams: int = 4) -> list[Translation]:
        """The translation of each text; their sentences are translated in batches."""
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

    def _plan(self, text: str) -> _Plan:
        parts, notes = [], []
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"translate: the text is no UTF-8: {error.reason} at {error.start}") from None
        text = unicodedata.normalize("NFC", text).translate(_QUOTES)
        pieces = split(text, lambda part: self._length(part) <= _LONGEST)
        for piece, following in zip_longest(pieces, pieces[1:]):
            before, inside, after = self._edges(piece.text)
            loud = inside.isupper() and len(inside) > _LOUD  # of which the model has hardly seen any, either
            inside = inside.capitalize() if loud else inside
            strange = self._strange(inside)
            foreign = len(strange) > len(inside) / 3
            if foreign or not any(map(str.isalpha, inside)):
                parts.append(Part(piece.text, "", piece.after))
                if foreign:
                    notes.append(f"kept as it is, in letters that the model does not know: {_shown(piece.text)}")
                continue
            if strange:
                letters = _shown(" ".join(dict.fromkeys(strange)))
                notes.append(f"left out, characters that the model does not know: {letters} in {_shown(piece.text)}")
            if piece.goes_on and (joining := inside.split(" ")[0]) in self.stand_ins.joining:
                before += self.stand_ins.joining[joining] + " "
                inside = inside[len(joining) :].lstrip()
            # The model has hardly seen a sentence without a capital and a mark, so a part of one is lent them.
            inside, mark = _without_comma(inside) if piece.after and inside[-1:] in ",;:" else (inside, "")
            bare = bool(mark) or inside[-1:].isalnum() or (following is not None and following.goes_on)
            small = piece.goes_on and inside[:1].islower()
            parts.append(
                Part(
                    before=before,
                    text=(inside[:1].upper() + inside[1:] if small else inside)
                    + "." * (bare and inside[-1:] not in ".!?…"),
                    after=mark + after + piece.after,
                    bare=bare,
                    loud=loud,
                    small=small or (piece.goes_on and inside.startswith(("I ", "I'"))),
                )
            )
        return _Plan(parts, notes)

    def _length(self, text: str) -> int:
        """The number of tokens, where a name or a number is as long as one that the model knows."""
        text = text.capitalize() if text.isupper() else text
        for name in whole_names(text, self.words):
            text = text.replace(name, "Tom")
        known = numbers_put_in(text)
        return len(self.tokenizer.encode(known[0] if known else NUMBER.sub("30", text)).ids)

    def _strange(self, text: str) -> list[str]:
        """The characters that the vocabulary has no piece for."""
        return [c for c in text if not c.isspace() and self._unknown in self.tokenizer.encode(c).ids]

    def _edges(self, text: str) -> tuple[str, str, str]:
        """What of a piece is to be translated, and what stands before and after it that is not: space, signs, emoji."""
        bullet = _BULLET.match(text)
        begin, end = bullet.end() if bullet else 0, len(text)
        while begin < end and (text[begin].isspace() or self._strange(text[begin])) and not text[begin].isalpha():
            begin += 1
        while end > begin and (text[end - 1].isspace() or self._strange(text[end - 1])) and not text[end - 1].isalpha():
            end -= 1
        if text[begin:end].count('"') == 2 and text[begin] == text[end - 1] == '"' and end - begin > 2:
            begin, end = begin + 1, end - 1
        return text[:begin], text[begin:end], text[end:]

    def _sentences(self, texts: list[str], beams: int) -> list[Sentence]:
        """The translation of each sentence; a doubtful one is tried once more with a small first letter.

        Many words have hardly been seen at the beginning of a sentence, where they are made of other pieces.
        """
        found = self._read(texts, beams)
        again = [
            n for n, one in enumerate(found) if one.doubtful and not one._foreign and self._may_be_small(one.source)
        ]
        if again:
            small = self._read([texts[n][0].lower() + texts[n][1:] for n in again], beams)
            for n, other in zip(again, small, strict=True):
                if other.likelihood > found[n].likelihood and len(other.changes) <= len(found[n].changes):
                    found[n] = replace(other, text=other.text[:1].upper() + other.text[1:])
        return found

    def _may_be_small(self, text: str) -> bool:
        """Tells whether the first word is a known one with a capital that it has from its place only."""
        first = re.match(r"[^\W\d_]+", text)
        return first is not None and first[0] != "I" and self.words is not None and first[0].lower() in self.words

    def _read(self, texts: list[str], beams: int) -> list[Sentence]:
        ids = vocabulary.encode(self.tokenizer, texts)
        targets = [self._kept(*given, beams) for given in zip(texts, ids, self._generated(ids, beams), strict=True)]
        source, lengths = padded(ids, self._padding)
        target, _ = padded(targets, self._padding)
        with torch.no_grad():
            logits = self.model(source, target[:, :-1], mask=Padding(lengths))
            scores = logits.log_softmax(-1).gather(2, target[:, 1:, None])[..., 0]
        return [self._sentence(*given) for given in zip(texts, ids, targets, scores.tolist(), strict=True)]

    def _ended(self, target: list[int]) -> list[int]:
        """Tokens up to the one that ends the text."""
        end = vocabulary.number(self.tokenizer, vocabulary.END)
        return target[: target.index(end) + 1] if end in target else target

    def _kept(self, text: str, source: list[int], target: list[int], beams: int) -> list[int]:
        """The translation, or another one where it lost a number or a name and the other one does not."""

        def lost(ids: list[int]) -> int:
            return len(self._lost(text, ids))

        if not lost(target):
            return target
        best = target
        for other in self._others(text, source, beams):
            best = other if lost(other) < lost(best) else best
            if not lost(best):
                break
        return best

    def _lost(self, text: str, target: list[int]) -> list[str]:
        """Numbers and names that a translation does not keep."""
        return [change for change in changes(text, self.tokenizer.decode(target), self.words) if change[:5] == "the n"]

    def _others(self, text: str, source: list[int], beams: int) -> Iterator[list[int]]:
        """Other translations of a sentence: with names that the model knows by heart, and by a search for phrases."""
        wholes = whole_names(text, self.words)
        templates = []  # other sentences, and what is to be put back into their translations
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
            if found := self._searched(other, ids, wanted):
                yield self._restored(found, chosen, numbers)
        if found := self._searched(text, source, phrases(text, self.words)):
            yield found

    def _searched(self, text: str, source: list[int], wanted: list[Phrase]) -> list[int] | None:
        return self._search(source, wanted, longest=round(1.5 * len(source)) + 8, digits=may_write_digits(text))

    def _restored(self, target: list[int], chosen: dict[str, str], numbers: dict[str, str]) -> list[int]:
        """A translation with the real names and numbers, as tokens."""
        text = put_back(numbers_put_back(self.tokenizer.decode(target), numbers), chosen)
        return [target[0], *vocabulary.encode(self.tokenizer, [text])[0]]

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
        """Tells whether many words that are no names are unknown, or have more pieces than English words have."""
        copied = set(names(text, self.words))
        plain = [word for word in re.findall(r"[^\W\d_]+", text) if word not in copied]
        if self.words is not None:
            unknown = sum(word.lower() not in self.words for word in plain)
            return unknown > _UNKNOWN * len(plain) or not plain
        count = sum(len(self.tokenizer.encode(word, add_special_tokens=False).ids) for word in plain)
        return count > _PIECES * len(plain)


@dataclass(frozen=True)
class Part:
    """A sentence to be translated, with what stands around it and is not."""

    before: str
    text: str
    after: str
    bare: bool = False  # the full stop at the end of the text is not its own
    loud: bool = False  # it was in capitals
    small: bool = False  # it goes on after a part of the same sentence

    @property
    def texts(self) -> list[str]:
        """The sentence as it may be translated: a greeting without its mark may want an exclamation mark."""
        if self.bare and len(self.text.split()) <= _SHORT:
            return [self.text, f"{self.text[:-1]}!"]
        return [self.text] if self.text else []

    def chosen(self, found: dict[str, Sentence]) -> Sentence:
        """The translation that the model finds likelier."""
        return max((found[text] for text in self.texts), key=lambda one: one.likelihood)

    def translated(self, found: dict[str, Sentence]) -> str:
        """With what stands around it."""
        text = self.chosen(found).text if self.text else ""
        text = text.rstrip(".!\u00a0\u202f ") if self.bare else text
        first = re.match(r"[^\W\d_]*", text)
        named = first is not None and first[0] in re.findall(r"[^\W\d_]+", self.text)
        text = text[:1].lower() + text[1:] if self.small and not named else text
        return self.before + (text.upper() if self.loud else text) + self.after


@dataclass(frozen=True)
class _Plan:
    """What is to be done for a text."""

    parts: list[Part]
    notes: list[str]

    def joined(self, found: dict[str, Sentence]) -> Translation:
        """What was done."""
        sentences = [part.chosen(found) for part in self.parts if part.text]
        doubts = [f"doubtful, is it everyday English? {_shown(s.source)}" for s in sentences if s.doubtful]
        lost = [f"{change}: {_shown(s.source)}" for s in sentences for change in s.changes]
        text = "".join(part.translated(found) for part in self.parts)
        return Translation(text, sentences, [*self.notes, *dict.fromkeys([*lost, *doubts])])


def _without_comma(text: str) -> tuple[str, str]:
    """A part of a sentence and the comma, colon or semicolon after it, with the space that French has before these."""
    return text[:-1].rstrip(), text[-1] if text[-1] == "," else f" {text[-1]}"


def _shown(text: str) -> str:
    """For a note: in quotation marks, short, and with no character that a terminal would obey."""
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def shipped() -> Path:
    """The folder of the model that comes with limelight."""
    return Path(str(files("limelight.translate").joinpath("english-french")))


def load(folder: str | Path | None = None) -> Translator:
    """The translator that comes with limelight, English to French, or one that ``limelight train`` left in a folder."""
    home = shipped() if folder is None else Path(folder)
    model = models.load(home, dtype=torch.float32)
    if not isinstance(model, Seq2Seq):
        raise ValueError(f"{home} holds no encoder-decoder, and only those translate")
    words = home / WORDS
    known = read_words(words.read_text(encoding="utf-8").splitlines()) if words.is_file() else None
    return Translator(model, vocabulary.read(home), known, read_stand_ins(home))
