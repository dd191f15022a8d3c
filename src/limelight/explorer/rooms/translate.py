"""Translate: English to French while it is typed, with the source words of each written word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.core.masks import Padding
from limelight.explorer.questions import SLOW, Answer, Arguments, RefusedError, question, wholes
from limelight.explorer.subject import Subject
from limelight.lens.alignment import words
from limelight.translate import Sentence, Translator, vocabulary
from limelight.translate.display import alignment_of

_LONGEST = 2000  # characters of a text, at most
_WRITTEN = 256  # tokens of a sentence, at most
_OFFERED = 6  # alternatives offered for a token


def _translator(subject: Subject) -> Translator:
    if subject.translator is None:
        raise RefusedError("this model does not translate; limelight explore without --model does")
    return subject.translator


@question("translate", SLOW)
def translation(subject: Subject, arguments: Arguments) -> Answer:
    """Translate a text, and describe every sentence of it."""
    translator = _translator(subject)
    text = arguments.text("text", _LONGEST)
    beams = arguments.whole("beams", 1, 8, 4)
    with subject.running:
        try:
            found = translator(text, beams=beams)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        described = [_described(translator, sentence) for sentence in found.sentences]
    return Answer({"text": found.text, "notes": found.notes, "sentences": described})


@question("continue", SLOW)
def continued(subject: Subject, arguments: Arguments) -> Answer:
    """Continue a translation from a prefix of tokens, always with the likeliest token."""
    translator = _translator(subject)
    known = translator.tokenizer.get_vocab_size()
    given = arguments.items("prefix", _WRITTEN)
    prefix = wholes("prefix", given, [(0, known - 1)] * len(given))
    source = arguments.text("source", _LONGEST)
    if not source.strip():
        raise RefusedError("source is empty")
    (ids,) = vocabulary.encode(translator.tokenizer, [source])
    if len(ids) > _WRITTEN:
        raise RefusedError(f"source has {len(ids)} tokens; a sentence has at most {_WRITTEN}")
    with subject.running:
        return Answer({"sentence": _described(translator, _written_on(translator, source, ids, prefix))})


def _written_on(translator: Translator, text: str, source: list[int], prefix: list[int]) -> Sentence:
    end = vocabulary.number(translator.tokenizer, vocabulary.END)
    target = list(prefix)
    with torch.no_grad():
        while target[-1] != end and len(target) < 2 * len(source) + 10:
            target.append(int(_logits(translator, source, target)[-1].argmax()))
        scores = _logits(translator, source, target[:-1]).log_softmax(-1)
    chosen = [float(scores[n, token]) for n, token in enumerate(target[1:])]
    return translator._sentence(text, source, target, chosen)


def _logits(translator: Translator, source: list[int], target: list[int]) -> Tensor:
    """Return the logits ``(tokens, vocabulary)`` of what follows each token of a target."""
    mask = Padding([len(source)])
    logits: Tensor = translator.model(torch.tensor([source]), torch.tensor([target]), mask=mask)
    return logits[0]


def _described(translator: Translator, sentence: Sentence) -> dict[str, Any]:
    source, target = (ids[0].tolist() for ids in sentence._ids)
    aligned = alignment_of(sentence)
    with torch.no_grad():
        likely = _logits(translator, source, target[:-1]).softmax(-1).topk(_OFFERED)
    alternatives = [
        [{"id": i, "token": translator.tokenizer.id_to_token(i), "probability": p} for i, p in zip(*row, strict=True)]
        for row in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]
    return {
        "source": sentence.source,
        "text": sentence.text,
        "doubtful": sentence.doubtful,
        "ids": target,
        "tokens": sentence.tokens,
        "probabilities": torch.tensor(sentence.scores).exp().tolist(),
        "alternatives": alternatives,
        "written": [{"word": name, "places": places} for name, places in words(sentence.tokens)],
        "read": [{"word": name, "places": places} for name, places in words(sentence.source_tokens)],
        "weights": aligned.weights.tolist(),
        "head": f"layer {aligned.call.layer}, head {aligned.head}",
    }


QUESTIONS = (translation, continued)
