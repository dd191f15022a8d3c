"""Next tokens: what a decoder expects after each token of a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from limelight.lens.metrics import is_decoder, logits_of
from limelight.models.tokenizers import readable_tokens
from limelight.nn import LanguageModel, Seq2Seq

_COUNT = 10  # likeliest tokens
_CLOSE = 1e-3  # relative error between the head's logits and the model's own


@dataclass(frozen=True)
class NextTokens:
    """A decoder's last hidden states of a text, and the head that makes logits of them.

    All logits of a long text would take more memory than everything else, so they are computed one token at a time.

    Attributes:
        hidden: the hidden states, ``(tokens, width)``, of all tokens of the text or of its last ones.
        head: makes logits ``(1, 1, vocabulary)`` of ``(1, 1, width)``.
        first: the place of the first token whose hidden state is there.
        came: the ids of the tokens that came next, from place 0; the last token of a text may have none.
        tokenizer: names the tokens.

    """

    hidden: Tensor
    head: Callable[[Tensor], Tensor]
    first: int
    came: Tensor
    tokenizer: Tokenizer

    @property
    def end(self) -> int:
        """The number of tokens of the text."""
        return self.first + len(self.hidden)

    @torch.no_grad()
    def probabilities(self, place: int) -> Tensor:
        """Return the probability of every token of the vocabulary after the token at ``place``."""
        logits = self.head(self.hidden[place - self.first][None, None])
        return logits.flatten().float().softmax(0)

    def likeliest(self, place: int, count: int = _COUNT) -> list[tuple[str, float]]:
        """Return the likeliest tokens after the token at ``place``, with their probabilities."""
        found = self.probabilities(place)
        values, ids = found.topk(min(count, len(found)))
        return list(zip(self._names(ids), values.tolist(), strict=True))

    def actual(self, place: int) -> tuple[str, float, int] | None:
        """Return the token that came next, its probability and its rank from 1; None at the end of the text."""
        if place >= len(self.came):
            return None
        found, came = self.probabilities(place), self.came[place : place + 1]
        p = float(found[came])
        return self._names(came)[0], p, int((found > p).sum()) + 1

    def _names(self, ids: Tensor) -> list[str]:
        return readable_tokens(self.tokenizer, {"next": ids})["next"]


def predict(model: Any, source: Tensor, target: Tensor | None, tokenizer: Tokenizer, ours: bool) -> NextTokens | None:
    """Run a model on ``source (1, N)``, and its decoder on ``target``; return its predictions, if it makes any."""
    if target is None and not is_decoder(model):
        model(source)
        return None
    body, head = _body_and_head(model)
    states: list[Any] = []
    hook = body.register_forward_hook(lambda module, given, output: states.append(output))
    try:
        output = last_logits(model, source) if target is None else _decode(model, source, target[:, :-1], ours)
    finally:
        hook.remove()
    if head is None:
        return None
    came, logits = (source if target is None else target)[0, 1:], logits_of(output)[0]
    end = len(came) + (target is None)
    if states:
        hidden = states[-1] if isinstance(states[-1], Tensor) else states[-1][0]
        found, own = NextTokens(hidden[0], head, 0, came, tokenizer), logits[-1].float().softmax(0)
        if torch.allclose(found.probabilities(end - 1), own, rtol=_CLOSE, atol=_CLOSE / len(own)):
            return found
    # The model changes the logits after its head (a cap, a scale): keep those of the last token, which are at hand.
    return NextTokens(logits, nn.Identity(), end - len(logits), came, tokenizer)


def last_logits(model: Any, source: Tensor) -> Any:
    """Return the output of a decoder: logits of the last token alone, where it can be asked for them."""
    if isinstance(model, LanguageModel):
        return model(source, last=model.head is not None)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        return model(source, logits_to_keep=1)
    return model(source)


def _decode(model: Any, source: Tensor, inputs: Tensor, ours: bool) -> Any:
    return model(source, inputs) if ours else model(input_ids=source, decoder_input_ids=inputs)


def _body_and_head(model: Any) -> tuple[nn.Module, nn.Module | None]:
    """Return the part of a model that gives its last hidden states, and the one that makes logits of them."""
    if isinstance(model, LanguageModel):
        return model.stack, model.head
    if isinstance(model, Seq2Seq):
        return model.decoder, model.head
    return model.get_decoder(), model.get_output_embeddings()
