"""Beam search for a translation that contains given phrases, after Post & Vilar (2018).

Hypotheses are grouped by the number of tokens of phrases that they contain, and each group keeps its own best ones.
So a hypothesis that has begun a phrase, which the model finds unlikely, competes only with others that are as far. A
hypothesis may end only when it contains all phrases. Digits are written only as part of a phrase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from limelight import KVCache
from limelight.nn import Seq2Seq
from limelight.translate import vocabulary
from limelight.translate.copying import Phrase

_IN_GROUP = 3  # hypotheses that are kept in each group
_OPENING = tuple("'’-–—\"«([/$€£#▁")


@dataclass(frozen=True)
class _Goal:
    """The tokens of a phrase, in two forms: after a space, and directly after an apostrophe, a hyphen or a sign."""

    forms: tuple[tuple[int, ...], ...]
    is_number: bool


@dataclass(frozen=True)
class _Hypothesis:
    """The tokens written so far, the goals that they contain, and the goal that is being written."""

    tokens: tuple[int, ...]
    score: float
    reached: frozenset[int]
    in_progress: tuple[int, int, int] | None = None  # goal, its form, and how many of its tokens are written
    closed: bool = False  # a goal ends here, and no letter or digit may follow directly
    complete: int = 0  # tokens of the goals that it contains

    @property
    def group(self) -> int:
        return self.complete + (self.in_progress[2] if self.in_progress is not None else 0)


class PhraseSearch:
    """Writes translations that contain phrases."""

    def __init__(self, model: Seq2Seq, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.end = vocabulary.number(tokenizer, vocabulary.END)
        self.start = vocabulary.number(tokenizer, vocabulary.PADDING)
        pieces = [tokenizer.id_to_token(n) or "" for n in range(tokenizer.get_vocab_size())]
        self.digits = torch.tensor([any(map(str.isdigit, piece)) for piece in pieces])
        self.continues = torch.tensor([piece[:1].isalnum() for piece in pieces])
        # Tokens that a phrase may follow without a space: l', Jean-, «, (, $, but not a word, a full stop or a comma.
        self.opens = [piece[-1:] in _OPENING and n != self.start for n, piece in enumerate(pieces)]

    @torch.no_grad()
    def __call__(
        self, source: Sequence[int], phrases: Sequence[Phrase], longest: int, digits: bool
    ) -> list[int] | None:
        """Return the best tokens, with those of start and end, or None if no hypothesis contains all phrases.

        ``digits`` allows digits outside of the phrases.
        """
        goals = [self._goal(phrase) for phrase in phrases]
        context = self.model.encode(torch.tensor([list(source)]))
        beams = [_Hypothesis((self.start,), 0.0, frozenset())]
        cache, new = KVCache(), torch.tensor([[self.start]])
        ended: list[_Hypothesis] = []
        for _ in range(longest):
            logits = self.model.decode(new, context.expand(len(beams), -1, -1), cache=cache, last=True)[:, -1]
            unmasked = logits.float().log_softmax(-1)
            scores = unmasked.clone()
            scores[:, list(self.model.never)] = -torch.inf
            if not digits:
                scores = scores.masked_fill(self.digits, -torch.inf)
            found = [
                (row, hypothesis)
                for row, beam in enumerate(beams)
                for hypothesis in self._continuations(beam, goals, scores[row], unmasked[row])
            ]
            ended += [h for _, h in found if h.tokens[-1] == self.end]
            kept = _kept([(row, h) for row, h in found if h.tokens[-1] != self.end])
            if not kept or _settled(ended, [h for _, h in kept], longest):
                break
            beams = [h for _, h in kept]
            cache.reorder(torch.tensor([row for row, _ in kept]))
            new = torch.tensor([[h.tokens[-1]] for h in beams])
        return list(max(ended, key=_mean).tokens) if ended else None

    def _goal(self, phrase: Phrase) -> _Goal:
        apart = self.tokenizer.encode(phrase.text, add_special_tokens=False).ids
        before = len(self.tokenizer.encode("l'", add_special_tokens=False).ids)
        joined = self.tokenizer.encode("l'" + phrase.text, add_special_tokens=False).ids[before:]
        return _Goal(tuple(dict.fromkeys((tuple(apart), tuple(joined)))), phrase.is_number)

    def _continuations(
        self, beam: _Hypothesis, goals: Sequence[_Goal], scores: Tensor, unmasked: Tensor
    ) -> Iterator[_Hypothesis]:
        """Yield the continuations of a hypothesis: the likeliest tokens, and the next token of every goal."""
        if beam.in_progress is not None:
            goal, form, done = beam.in_progress
            yield self._advanced(beam, goals, goal, form, done, unmasked)
            if goals[goal].is_number:
                return
        if beam.closed:
            scores = scores.masked_fill(self.continues, -torch.inf)
        end, scores = float(scores[self.end]), scores.clone()
        scores[self.end] = -torch.inf
        if len(beam.reached) == len(goals):
            yield replace(beam, tokens=(*beam.tokens, self.end), score=beam.score + end)
        best = scores.topk(2 * _IN_GROUP)
        for token, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            if score > -torch.inf:
                yield replace(
                    beam, tokens=(*beam.tokens, token), score=beam.score + score, in_progress=None, closed=False
                )
        if beam.in_progress is None:
            for n, other in enumerate(goals):
                for form in range(len(other.forms)):
                    first = other.forms[form][0]
                    fits_here = not self.continues[first] or self.opens[beam.tokens[-1]]
                    if n not in beam.reached and fits_here:
                        yield self._advanced(beam, goals, n, form, 0, unmasked)

    def _advanced(
        self, beam: _Hypothesis, goals: Sequence[_Goal], goal: int, form: int, done: int, unmasked: Tensor
    ) -> _Hypothesis:
        tokens = goals[goal].forms[form]
        token = tokens[done]
        written, score = (*beam.tokens, token), beam.score + float(unmasked[token])
        if done + 1 == len(tokens):
            reached, complete = beam.reached | {goal}, beam.complete + len(tokens)
            return _Hypothesis(written, score, reached, closed=True, complete=complete)
        return replace(beam, tokens=written, score=score, in_progress=(goal, form, done + 1), closed=False)


def _mean(hypothesis: _Hypothesis) -> float:
    return hypothesis.score / (len(hypothesis.tokens) - 1)


def _kept(found: list[tuple[int, _Hypothesis]]) -> list[tuple[int, _Hypothesis]]:
    """Return the best hypotheses of every group, each text once."""
    groups: dict[int, list[tuple[int, _Hypothesis]]] = {}
    seen = set()
    for row, h in sorted(found, key=lambda x: (-x[1].score, x[1].in_progress is None)):
        group = groups.setdefault(h.group, [])
        if len(group) < _IN_GROUP and (h.tokens, h.in_progress, h.reached) not in seen:
            seen.add((h.tokens, h.in_progress, h.reached))
            group.append((row, h))
    return [kept for group in groups.values() for kept in group]


def _settled(ended: Sequence[_Hypothesis], going: Sequence[_Hypothesis], longest: int) -> bool:
    """Return whether no unfinished hypothesis can become better than the best finished one."""
    if not ended:
        return False
    best = max(map(_mean, ended))
    return best >= max(h.score for h in going) / longest
