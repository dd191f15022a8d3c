"""Looking into models: ``watch``, the record, reports on heads, and relations between tokens."""

from limelight.lens.record import Call, Record
from limelight.lens.relations import Relation, relation
from limelight.lens.report import Heads, heads
from limelight.lens.watching import watch

__all__ = ["Call", "Heads", "Record", "Relation", "heads", "relation", "watch"]
