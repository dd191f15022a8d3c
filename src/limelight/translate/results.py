"""Translations: sentences in two languages, with scores, attention, and notes on what was difficult."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from limelight.lens.record import Record
from limelight.lens.recorder import recording
from limelight.nn import Seq2Seq

_UNSURE = 0.48  # a translation with a lower mean probability of a token is doubtful
_FEW = 0.5  # a translation with fewer tokens for each source token has left something out


@dataclass(frozen=True)
class Sentence:
    """A sentence and its translation.

    Attributes:
        source: the sentence.
        text: its translation.
        source_tokens: the tokens of the sentence, with ``</s>`` at the end.
        tokens: those of the translation, with ``</s>`` at the end.
        scores: the log-probability of each of ``tokens``, given those before it.
        changes: numbers, names and quotation marks that are lost: "the number 5 became 50".

    """

    source: str
    text: str
    source_tokens: list[str]
    tokens: list[str]
    scores: list[float]
    changes: list[str]
    _foreign: bool  # most words are unknown to the model
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
        """True if the model finds the translation unlikely, or if it is too short to be complete."""
        short = len(self.tokens) < _FEW * len(self.source_tokens)
        return short or self._foreign or self.likelihood < _UNSURE

    @property
    def likelihood(self) -> float:
        """The geometric mean of the probabilities of the tokens."""
        return math.exp(sum(self.scores) / len(self.scores))


@dataclass(frozen=True)
class Translation:
    """A translated text.

    Attributes:
        text: the translation.
        sentences: the sentences that it is made of, each with its tokens, scores and attention.
        notes: remarks on what was difficult, such as unknown words or numbers that were lost.

    """

    text: str
    sentences: list[Sentence]
    notes: list[str]

    @property
    def tokens(self) -> list[str]:
        """The tokens of all sentences."""
        return [token for sentence in self.sentences for token in sentence.tokens]

    @property
    def scores(self) -> list[float]:
        """The log-probabilities of all tokens."""
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

    def _repr_html_(self) -> str:
        from limelight.translate.display import translation_html

        return translation_html(self)
