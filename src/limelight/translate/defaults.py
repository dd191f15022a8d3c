"""Training choices that suit the amount of data: enough updates for few pairs, large batches for many."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from limelight.translate.data import Pair
from limelight.translate.recipe import Recipe

_PIECES = 1.4  # tokens for each word, with the end of the sentence
_EACH_EPOCH, _UPDATES = 100, 4000  # updates in an epoch and in all, at least
_MOST_EPOCHS = 100
_FEW = 20_000  # with fewer pairs, a model learns little more than these pairs


def choices_for(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the fields of ``Recipe`` that depend on the number of pairs; its defaults suit 160,000 pairs."""
    usual = Recipe()
    sources = len({pair.source for pair in pairs})
    tokens = _PIECES * sum(len(pair.target.split()) for pair in pairs)
    batch = max(60, min(usual.tokens, round(tokens / _EACH_EPOCH)))
    each = max(1, round(tokens / batch))
    epochs = max(usual.epochs, min(_MOST_EPOCHS, ceil(_UPDATES / each)))
    return {
        "tokens": batch,
        "epochs": epochs,
        "warm_up": min(usual.warm_up, max(10, epochs * each // 8)),
        "patience": max(usual.patience, epochs // 4),
        "held_out": min(usual.held_out, max(1, sources // 20)),
        "validated": min(usual.validated, max(1, sources // 20)),
    }


def advice_on(pairs: Sequence[Pair]) -> str | None:
    """Return a warning if the pairs are too few for a translator, or None."""
    if len(pairs) >= _FEW:
        return None
    return (
        f"{len(pairs):,} pairs are few: the model will know these sentences and hardly any others; "
        f"everyday language needs {_FEW:,} or more"
    )
