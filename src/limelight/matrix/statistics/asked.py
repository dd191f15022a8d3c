"""The base of the statistics that ``Weights`` offers: how an option of ``observe`` becomes a statistic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limelight.backends import Statistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class AskedStatistic(Statistic):
    """A statistic that ``observe(name=value)`` can ask for."""

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for an option of ``observe``, or None where it is not asked for."""
        raise NotImplementedError


class YesOrNo(AskedStatistic):
    """A statistic without parameters, which ``observe`` takes as True or False."""

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic where the value is true."""
        return cls() if value else None
