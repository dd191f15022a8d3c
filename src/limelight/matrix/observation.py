"""The results of ``Weights.observe``."""

from __future__ import annotations

from typing import Any

from limelight.matrix.statistics import STATISTICS


class Observation:
    """The statistics that were asked for, as attributes; those that were not are None."""

    def __init__(self, **found: Any) -> None:
        self.__dict__.update(found)

    def __getattr__(self, name: str) -> Any:
        if name in STATISTICS:
            return None
        raise AttributeError(f"an observation has {', '.join(STATISTICS)}, and no {name!r}")

    def __repr__(self) -> str:
        return f"Observation({', '.join(vars(self))})"
