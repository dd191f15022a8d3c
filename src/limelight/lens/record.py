"""What a model attended to while it was watched, with a report on its heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from limelight.lens import calls as record

if TYPE_CHECKING:
    from limelight.lens.heads import Heads


class Record(record.Record):
    """The ``Weights`` of every attention call by the name of its module, in the order in which they came.

    ``record[name]`` is the latest one of a module, ``record.calls(name)`` are all, and ``record.log`` has those of all
    modules, each with its kind, stack and phase.
    """

    def heads(self, tokens: Sequence[str] | None = None, **options: Any) -> Heads:
        """A report on every head: see ``limelight.lens.heads``."""
        from limelight.lens.heads import heads

        return heads(self, tokens, **options)
