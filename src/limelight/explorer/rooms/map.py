"""Map: one head's matrix, from the whole to single weights."""

from __future__ import annotations

from limelight.explorer.questions import QUICK, SLOW, Answer, Arguments, question, wholes
from limelight.explorer.subject import Subject
from limelight.explorer.tiles import SIDE, Region, top_level

_TOGETHER = 16  # tiles in a request, at most
REDUCE = ("mean", "max")


def _lane(subject: Subject, arguments: Arguments) -> str:
    head, reduce = arguments.head(subject), arguments.choice("reduce", REDUCE, "mean")
    ready = all(head.is_ready(level, reduce) for level, _, _ in _tiles(arguments, head.size))
    return QUICK if ready else SLOW


def _tiles(arguments: Arguments, size: tuple[int, int]) -> list[tuple[int, int, int]]:
    found = []
    for tile in arguments.items("tiles", _TOGETHER):
        top = top_level(*size)
        level, *_ = wholes("tile", tile, [(0, top), (0, 2**31), (0, 2**31)])
        rows, cols = (-(-n // (SIDE << level)) for n in size)
        level, row, col = wholes("tile", tile, [(0, top), (0, rows - 1), (0, cols - 1)])
        found.append((level, row, col))
    return found


@question("tiles", _lane)
def tiles(subject: Subject, arguments: Arguments) -> Answer:
    """Return the cells of some tiles ``[level, row, column]``: float32, −1 where all of a cell is masked."""
    head, reduce = arguments.head(subject), arguments.choice("reduce", REDUCE, "mean")
    wanted = _tiles(arguments, head.size)
    return Answer({}, {"/".join(map(str, tile)): head.tile(*tile, reduce) for tile in wanted})


@question("strips", SLOW)
def strips(subject: Subject, arguments: Arguments) -> Answer:
    """Return the entropy of every row, the attention that every key receives, and the mean weight by distance."""
    return Answer({}, dict(arguments.head(subject).strips()))


@question("cell")
def cell(subject: Subject, arguments: Arguments) -> Answer:
    """Describe the cell of a level at ``row, col``: its strongest weight, and the strongest of that row and column."""
    head = arguments.head(subject)
    N, M = head.size
    level = arguments.whole("level", 0, top_level(N, M), 0)
    size = 1 << level
    top = arguments.whole("row", 0, (N - 1) >> level) << level
    left = arguments.whole("col", 0, (M - 1) >> level) << level
    return Answer(head.cell(Region(top, min(N, top + size), left, min(M, left + size))))


QUESTIONS = (tiles, strips, cell)
