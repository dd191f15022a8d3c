"""The parts of an experiment that teach: its title, equation, method and code to try."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lesson:
    """The text around the measurements of an experiment.

    Attributes:
        title: the question in a few words.
        equation: the question in symbols.
        method: what was done, in a few sentences.
        code: a program of about ten lines that runs by itself and shows the same thing.

    """

    title: str
    equation: str
    method: str
    code: str
