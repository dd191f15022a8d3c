"""Training choices that suit the amount of data: enough updates for few pairs, large batches for many."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from limelight.translate.data import Pair
from limelight.translate.recipe import Recipe

_PIECES = 1.4  # tokens of a word, with the end of the sentence
_EACH_EPOCH, _UPDATES = 100, 4000  # at least as many updates
_MOST_EPOCHS = 100
_FEW = 20_000  # pairs, below which a model learns hardly more than these


def choices_for(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Fields of ``Recipe`` that depend on the number of pairs; for 160,000 everyday sentences they are its defaults."""
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
    """A warning where the pairs are too few for a translator; None where they are not."""
    if len(pairs) >= _FEW:
        return None
    return (
        f"{len(pairs):,} pairs are few: the model will know these sentences and hardly any others; "
        f"everyday language needs {_FEW:,} or more"
    )
