"""The translator: text in, text out, with what it looked at while it wrote every word."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
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
from limelight.translate.data import padded
from limelight.translate.sentences import split

_LONGEST = 24  # tokens of a piece: the model has learned from short sentences, and leaves words of longer ones out
_BATCH = 32
# What makes a translation doubtful: an unlikely token on average, or a source in more pieces than English words have.
# Of English sentences that were held out, one in twenty-five is; of other languages, nearly all.
_UNSURE, _PIECES = 0.48, 2.5
_FEW = 0.5  # tokens for each of the source's, below which something must be missing
_LOUD = 4  # letters, from which on capitals are no name
_SHOWN = 60  # characters of a text in a note
# The model knows straight quotation marks only.
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "‚": "'"})
_BULLET = re.compile(r"\s*(?:[-–—*•]+|\(?\d{1,3}[.)])\s+")


@dataclass(frozen=True)
class Sentence:
    """A sentence and its translation.

    ``source_tokens`` and ``tokens`` both end with ``</s>``; ``scores`` are the log-probabilities of ``tokens``, each
    given those before it.
    """

    source: str
    text: str
    source_tokens: list[str]
    tokens: list[str]
    scores: list[float]
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
        strange = len(self.source_tokens) - 1 > _PIECES * len(self.source.split())
        return short or strange or math.exp(sum(self.scores) / len(self.scores)) < _UNSURE


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

    def __init__(self, model: Seq2Seq, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
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
        wanted = sorted({part.text for plan in plans for part in plan.parts if part.text}, key=len)
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
        for piece in split(text, lambda part: len(self.tokenizer.encode(part).ids) <= _LONGEST):
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
            # The model has hardly seen a sentence without its mark, so it is lent one.
            bare = inside[-1:].isalnum()
            parts.append(Part(before, inside + "." * bare, after + piece.after, bare, loud))
        return _Plan(parts, notes)

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
        return text[:begin], text[begin:end], text[end:]

    def _sentences(self, texts: list[str], beams: int) -> list[Sentence]:
        ids = vocabulary.encode(self.tokenizer, texts)
        source, lengths = padded(ids, self._padding)
        with torch.no_grad():
            out = models.generate(
                self.model, source, mask=Padding(lengths), beams=beams, max_new_tokens=2 * source.shape[1] + 10
            )
            logits = self.model(source, out[:, :-1], mask=Padding(lengths))
            scores = logits.log_softmax(-1).gather(2, out[:, 1:, None])[..., 0]
        return [self._sentence(*given) for given in zip(texts, ids, out.tolist(), scores.tolist(), strict=True)]

    def _sentence(self, text: str, source: list[int], target: list[int], scores: list[float]) -> Sentence:
        end = vocabulary.number(self.tokenizer, vocabulary.END)
        if end in target:
            target = target[: target.index(end) + 1]

        def names(ids: list[int]) -> list[str]:
            return [self.tokenizer.id_to_token(i) or "" for i in ids]

        ids = torch.tensor([source]), torch.tensor([target])
        written = names(target[1:])
        text_of = self.tokenizer.decode(target)
        return Sentence(text, text_of, names(source), written, scores[: len(written)], self.model, ids)


@dataclass(frozen=True)
class Part:
    """A sentence to be translated, with what stands around it and is not."""

    before: str
    text: str
    after: str
    bare: bool = False  # the full stop at the end of the text is not its own
    loud: bool = False  # it was in capitals

    def translated(self, found: dict[str, Sentence]) -> str:
        """With what stands around it."""
        text = found[self.text].text if self.text else ""
        text = text.removesuffix(".") if self.bare else text
        return self.before + (text.upper() if self.loud else text) + self.after


@dataclass(frozen=True)
class _Plan:
    """What is to be done for a text."""

    parts: list[Part]
    notes: list[str]

    def joined(self, found: dict[str, Sentence]) -> Translation:
        """What was done."""
        sentences = [found[part.text] for part in self.parts if part.text]
        doubts = [f"doubtful, is it everyday English? {_shown(s.source)}" for s in sentences if s.doubtful]
        text = "".join(part.translated(found) for part in self.parts)
        return Translation(text, sentences, [*self.notes, *dict.fromkeys(doubts)])


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
    return Translator(model, vocabulary.read(home))
