"""Experiments: every claim of teaching texts about attention, checked.

Each experiment is a module with a ``LESSON``, ``run(quick, seed)``, which returns its findings and data, and
``draw(result)``, which makes the figure.

>>> from limelight import experiments
>>> result = experiments.run("worked-example")
>>> {finding.verdict for finding in result.findings if finding.theirs is not None}
{'reproduced'}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limelight.experiments.catalogue import CHAPTERS, EXPERIMENTS, Experiment
from limelight.experiments.findings import Finding, Result
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _module(name: str) -> Any:
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return import_module(f"limelight.experiments.{EXPERIMENTS[name].module}")


def run(name: str, *, quick: bool = False, seed: int = 0) -> Result:
    """Run an experiment and return what it measured.

    It runs on one thread, which is faster for models this small; results do not depend on the number of cores.

    Args:
        name: a key of ``EXPERIMENTS``, such as ``"worked-example"``.
        quick: use fewer seeds, shorter texts and shorter trainings.
        seed: the seed of everything random.

    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result: Result = _module(name).run(quick=quick, seed=seed)
    finally:
        torch.set_num_threads(threads)
    return result


def lesson(name: str) -> Lesson:
    """Return the title, equation, method and code to try of the experiment ``name``, a key of ``EXPERIMENTS``."""
    found: Lesson = _module(name).LESSON
    return found


def draw(result: Result, *, dark: bool = False) -> Figure:
    """Draw a result as a figure of matplotlib, for a light or a dark background."""
    from limelight.experiments.figures import styled

    module = _module(result.name)
    return styled(lambda: module.draw(result), dark=dark)


__all__ = ["CHAPTERS", "EXPERIMENTS", "Experiment", "Finding", "Lesson", "Result", "draw", "lesson", "run"]
