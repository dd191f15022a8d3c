"""Looking into models: ``watch``, the record, reports on heads, and relations between tokens."""

from importlib import import_module
from typing import TYPE_CHECKING

from limelight.lens.record import Call, Record
from limelight.lens.relations import Relation, relation
from limelight.lens.report import Heads, heads
from limelight.lens.watching import watch

if TYPE_CHECKING:
    from limelight.explorer.page import save_page as save_page

__all__ = ["Call", "Heads", "Record", "Relation", "heads", "relation", "save_page", "watch"]


def __getattr__(name: str) -> object:
    """Find ``save_page`` in the explorer, which stands on this package, when it is first used."""
    if name == "save_page":
        return import_module("limelight.explorer.page").save_page
    raise AttributeError(f"module 'limelight.lens' has no attribute {name!r}")
