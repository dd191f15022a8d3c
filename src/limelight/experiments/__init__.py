"""Experiments: every claim of teaching texts about attention, checked.

Each experiment is a module with ``run(quick, seed)``, which returns its findings and data, and ``draw(result)``, which
makes a figure of them.

>>> from limelight import experiments
>>> result = experiments.run("worked-example")
>>> {finding.verdict for finding in result.findings if finding.theirs is not None}
{'reproduced'}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limelight.experiments.findings import Finding, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By name: the module, the claims, and a line on what it asks.
EXPERIMENTS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "worked-example": ("worked_example", (1,), "every step of attention on three words"),
    "rows": ("rows", (2, 3, 4), "what rows and columns sum to, the two sides of attention, and the causal mask"),
    "scaling": ("scaling", (8, 9, 10, 11), "why scores are divided by √d: variance, entropy, gradients"),
    "temperature": ("temperature", (12,), "from one-hot to uniform"),
    "projections": ("projections", (13,), "one projection for queries and keys, or two"),
    "positions": ("positions", (14,), "shuffled tokens, and what each scheme makes of distance"),
    "patterns": ("patterns", (15, 21), "full, causal and local attention, and how they grow"),
    "heads": ("heads", (5, 6, 16), "how alike heads are, what they do, and what they cost"),
    "dropout": ("dropout", (7,), "where it acts"),
    "mixing": ("mixing", (22,), "what one changed token changes"),
    "generalisation": ("generalisation", (17,), "a rule learned on some tokens, tried on others"),
    "cost": ("cost", (18, 19, 20), "streaming against storing, caches, and recurrent networks"),
}


def _module(name: str) -> Any:
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return import_module(f"limelight.experiments.{EXPERIMENTS[name][0]}")


def run(name: str, *, quick: bool = False, seed: int = 0) -> Result:
    """Runs an experiment; ``quick`` with fewer seeds and shorter texts."""
    result: Result = _module(name).run(quick=quick, seed=seed)
    return result


def draw(result: Result, *, dark: bool = False) -> Figure:
    """The figure of a result, on white or on dark."""
    from limelight.experiments.figures import styled

    module = _module(result.name)
    return styled(lambda: module.draw(result), dark=dark)


__all__ = ["EXPERIMENTS", "Finding", "Result", "draw", "run"]
