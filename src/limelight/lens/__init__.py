"""Looking into models: ``watch``, the record, reports on heads, and relations between tokens."""

from importlib import import_module
from typing import TYPE_CHECKING

from limelight.lens.edits import Bias, Edit, Knockout, Mean, Off, Only, Pattern, Rectangle, Temperature
from limelight.lens.heads_table import Heads
from limelight.lens.importance import Importance, importance
from limelight.lens.logit_attribution import LogitAttribution, logit_attribution
from limelight.lens.metrics import Cosine, Divergence, LogitDifference, NextTokenLoss, SequenceLogProbability
from limelight.lens.patches import grid
from limelight.lens.prompts import PromptMaps, prompt_maps
from limelight.lens.record import Call, Record
from limelight.lens.relations import Relation, relation
from limelight.lens.report import heads
from limelight.lens.watching import edit, watch
from limelight.lens.word_maps import WordMaps, caption_maps
from limelight.matrix.grid import Grid

if TYPE_CHECKING:
    from limelight.explorer.page import save_page as save_page

__all__ = [
    "Bias",
    "Call",
    "Cosine",
    "Divergence",
    "Edit",
    "Grid",
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
    "PromptMaps",
    "Record",
    "Rectangle",
    "Relation",
    "SequenceLogProbability",
    "Temperature",
    "WordMaps",
    "caption_maps",
    "edit",
    "grid",
    "heads",
    "importance",
    "logit_attribution",
    "prompt_maps",
    "relation",
    "save_page",
    "watch",
]


def __getattr__(name: str) -> object:
    """Import ``save_page`` from the explorer, a higher layer, when it is first used."""
    if name == "save_page":
        return import_module("limelight.explorer.page").save_page
    raise AttributeError(f"module 'limelight.lens' has no attribute {name!r}")
