"""Looking into models: ``watch``, the record, reports on heads, and relations between tokens."""

from importlib import import_module
from typing import TYPE_CHECKING

from limelight.lens.edits import Bias, Edit, Knockout, Mean, Off, Only, Pattern, Rectangle, Temperature
from limelight.lens.importance import Importance, importance
from limelight.lens.logit_attribution import LogitAttribution, logit_attribution
from limelight.lens.metrics import Cosine, Divergence, LogitDifference, NextTokenLoss, SequenceLogProbability
from limelight.lens.record import Call, Record
from limelight.lens.relations import Relation, relation
from limelight.lens.report import Heads, heads
from limelight.lens.watching import edit, watch

if TYPE_CHECKING:
    from limelight.explorer.page import save_page as save_page

__all__ = [
    "Bias",
    "Call",
    "Cosine",
    "Divergence",
    "Edit",
    "Heads",
    "Importance",
    "Knockout",
    "LogitAttribution",
    "LogitDifference",
    "Mean",
    "NextTokenLoss",
    "Off",
    "Only",
    "Pattern",
    "Record",
    "Rectangle",
    "Relation",
    "SequenceLogProbability",
    "Temperature",
    "edit",
    "heads",
    "importance",
    "logit_attribution",
    "relation",
    "save_page",
    "watch",
]


def __getattr__(name: str) -> object:
    """Find ``save_page`` in the explorer, which stands on this package, when it is first used."""
    if name == "save_page":
        return import_module("limelight.explorer.page").save_page
    raise AttributeError(f"module 'limelight.lens' has no attribute {name!r}")
