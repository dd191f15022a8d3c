"""Looking into models: ``watch``, reports on heads, relations between tokens, and models of transformers."""

from limelight.lens.calls import Call
from limelight.lens.heads import Heads, heads
from limelight.lens.record import Record
from limelight.lens.relations import Relation, relation
from limelight.lens.watching import watch

__all__ = ["Call", "Heads", "Record", "Relation", "heads", "relation", "watch"]
