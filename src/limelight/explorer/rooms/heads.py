"""Heads: a thumbnail, a label and the measures of every head."""

from __future__ import annotations

from limelight.explorer.head import SMALL
from limelight.explorer.questions import BACKGROUND, QUICK, Answer, Arguments, question
from limelight.explorer.subject import Subject

_CELLS = 64  # cells of a thumbnail, on a side
_TOGETHER = 64  # thumbnails in a request, at most


@question("about")
def about(subject: Subject, arguments: Arguments) -> Answer:
    """Describe the model, its attention calls and its tokens."""
    return Answer(subject.about())


def _lane(subject: Subject, arguments: Arguments) -> str:
    matrix = arguments.matrix(subject)
    return BACKGROUND if matrix.N * matrix.M > SMALL else QUICK


@question("thumbnails", _lane)
def thumbnails(subject: Subject, arguments: Arguments) -> Answer:
    """Return small pictures of some heads of a call."""
    matrix = arguments.matrix(subject)
    batch, first = arguments.batch(matrix), arguments.whole("head", 0, matrix.H - 1)
    count = arguments.whole("count", 1, min(_TOGETHER, matrix.H - first), 1)
    found = subject.thumbnails(matrix.number, batch, range(first, first + count), _CELLS)
    return Answer({}, {str(head): cells for head, cells in found.items()})


@question("report", BACKGROUND)
def report(subject: Subject, arguments: Arguments) -> Answer:
    """Return the measures and the label of every head of a call."""
    return Answer({"rows": subject.report(arguments.matrix(subject).number)})


QUESTIONS = (about, thumbnails, report)
