"""A survey of a corpus: its documents are cut into parts, and parts that are finished are kept on disk.

Which documents make a part depends on the corpus alone. Processes take parts in turn, write each to a file of its own
under a temporary name first, and at the end the first process adds the parts up in their order. So the result does not
depend on the number of processes, and a survey that was stopped at any moment continues from the parts that are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from limelight.lens import strict_json
from limelight.lens.reading import Reader
from limelight.parallel.group import Processes
from limelight.parallel.survey.documents import Corpus
from limelight.parallel.survey.measure import Findings

_DOCUMENTS = 8  # documents in a part, at least
_PARTS = 1024  # parts, at most
_SETTINGS, _FOLDER = "settings.json", "parts"

# Called with the number of documents that are done, in all processes as far as it is known, and their number.
Progress = Callable[[int, int], None]


def survey(
    model: str | Path, corpus: Corpus, out: str | Path, *, group: Any = None, progress: Progress | None = None
) -> Findings | None:
    """Measure every head of a model on every document, and return the findings on the first process.

    Args:
        model: the folder of a model.
        corpus: the documents.
        out: the folder for the parts; all processes must see it. A survey that was stopped continues from there.
        group: the processes that share the work; one process where ``torch.distributed`` is not initialised.
        progress: called after every document.

    """
    model, out = Path(model), Path(out)
    processes = Processes(group) if dist.is_available() and dist.is_initialized() else None
    rank, size = (0, 1) if processes is None else (processes.rank, processes.size)
    count = corpus.count()
    length = max(_DOCUMENTS, -(-count // _PARTS))
    settings = {"model": _fingerprint(model), "corpus": corpus.describe(), "documents": count, "part": length}
    _open(out, settings, rank, processes)
    parts = -(-count // length)
    missing = [n for n in range(parts) if not _file(out, n).exists() and n % size == rank]
    if missing:
        _measure(model, corpus, out, missing, length, _Counter(out, count, length, progress))
    if processes is not None:
        _wait(processes)
        if progress is not None:  # another process may have finished the last document
            progress(count, count)
    return _merge(out, parts) if rank == 0 else None


def _measure(model: Path, corpus: Corpus, out: Path, parts: list[int], length: int, count: _Counter) -> None:
    """Measure the documents of some parts, and write each part when it is complete."""
    reader = Reader(model)
    wanted = set(parts)
    found, present = Findings(), -1
    for document in corpus.read(lambda number: number // length in wanted):
        part = document.number // length
        if part != present:
            _write(out, present, found)
            found, present = Findings(), part
        if document.problem:
            found.skip(document.name, document.problem)
        else:
            try:
                found.add(document.number, document.name, reader.read(document.text))
            except ValueError as error:
                found.skip(document.name, str(error))
        count.advance()
    _write(out, present, found)


class _Counter:
    """Counts the documents that are done: those of this process, and the parts that others have finished."""

    def __init__(self, out: Path, total: int, length: int, progress: Progress | None) -> None:
        self._out, self._total, self._length, self._progress = out, total, length, progress
        self._mine = 0

    def advance(self) -> None:
        """Count one more document."""
        self._mine += 1
        if self._progress is not None:
            finished = sum(1 for _ in (self._out / _FOLDER).glob("*.npz"))
            self._progress(min(finished * self._length + self._mine % self._length, self._total), self._total)


def _file(out: Path, part: int) -> Path:
    return out / _FOLDER / f"{part:06d}.npz"


def _write(out: Path, part: int, found: Findings) -> None:
    """Write a part under another name, and rename it once it is on the disk, so that no file is ever incomplete."""
    if part < 0:
        return
    file = _file(out, part)
    unfinished = file.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as stream:
        stream.write(found.to_bytes())
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def _merge(out: Path, parts: int) -> Findings:
    """Add up all parts in their order."""
    total = Findings()
    for part in range(parts):
        total.merge(Findings.from_bytes(_file(out, part).read_bytes()))
    return total


def _fingerprint(model: Path) -> dict[str, Any]:
    """The files of a model and their sizes."""
    return {x.name: x.stat().st_size for x in sorted(model.iterdir()) if x.is_file()}


def _open(out: Path, settings: dict[str, Any], rank: int, processes: Processes | None) -> None:
    """Make the folder, or check that it holds parts of the same survey."""
    file = out / _SETTINGS
    if rank == 0:
        (out / _FOLDER).mkdir(parents=True, exist_ok=True)
        if not file.exists():
            unfinished = file.with_suffix(".new")
            unfinished.write_text(strict_json.dumps(settings), encoding="utf-8")
            unfinished.replace(file)
    _wait(processes)
    if not file.exists():
        raise ValueError(f"{out} is not the same folder on rank {rank}; give one that all machines see")
    known = json.loads(file.read_text(encoding="utf-8"))
    if known != json.loads(strict_json.dumps(settings)):
        differs = ", ".join(key for key in settings if known.get(key) != settings[key])
        raise ValueError(f"{out} holds another survey, which differs in its {differs}; give another folder for --out")


def _wait(processes: Processes | None) -> None:
    if processes is not None:
        with processes.explained("waiting for the end of the survey"):
            dist.barrier(group=processes.group)
