"""``limelight survey``: what the heads of a model do over a whole corpus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from limelight.cli._processes import processes
from limelight.cli._shared import model_option


@click.command("survey", short_help="Measure the heads of a model on a whole corpus.")
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False))
@model_option("The folder of a model; unless given, that of the translator.")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="The folder for the result.")
@click.option("--field", default="text", show_default=True, help="The field of jsonl and parquet that holds the text.")
@click.option("--whole-files", is_flag=True, help="Each text file is one document; otherwise each line is one.")
def command(files: tuple[str, ...], model: str | None, out: str, field: str, whole_files: bool) -> None:
    """Measure what every head of a model does on every document of FILES (text, .jsonl, .parquet).

    With torchrun the work is shared: torchrun --nproc-per-node 2 -m limelight survey FILES… --out FOLDER. A survey that
    was stopped goes on where it was, with any number of processes, and comes to the same result.
    """
    from limelight.explorer.front import FRONT
    from limelight.parallel.survey import Corpus, survey
    from limelight.parallel.survey.output import as_dict, write
    from limelight.parallel.survey.page import page
    from limelight.translate import shipped

    folder, target = Path(model or shipped()), Path(out)
    corpus = Corpus([Path(file) for file in files], field, whole_files)
    with processes() as rank, _progress(rank) as progress:
        found = survey(folder, corpus, target, progress=progress)
    if found is None:
        return
    if not found.documents:
        first = "".join(f"; the first, {x['document']}: {x['reason']}" for x in found.skipped[:1])
        raise ValueError(f"none of the {len(found.skipped)} documents could be read{first}")
    result = as_dict(found, _name(folder.resolve()))
    written = write(result, target)
    (target / "survey.html").write_text(
        page(result, (FRONT / "style.css").read_text(encoding="utf-8")), encoding="utf-8"
    )
    for problem in found.skipped[:10]:
        click.echo(f"skipped {problem['document']}: {problem['reason']}", err=True)
    names = ", ".join(x.name for x in (*written, target / "survey.html"))
    click.echo(
        f"{found.documents} documents, {found.tokens} tokens, {len(found.skipped)} skipped; {names} are in {target}"
    )


def _name(folder: Path) -> str:
    """Return the name of a model: its folder, or the package that carries the folder as ``model``."""
    return folder.parent.name if folder.name == "model" else folder.name


@contextmanager
def _progress(rank: int) -> Iterator[Any]:
    """Show documents a second and the time left on the first process: a bar, or lines where there is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if rank:
        yield None
    elif console.is_terminal:
        with _bar(console) as advance:
            yield advance
    else:
        yield _Lines()


@contextmanager
def _bar(console: Any) -> Iterator[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("documents"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("documents", total=None, rate="")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            speed = bar.tasks[0].speed
            bar.update(task, rate="" if not speed else f"{speed:.1f} a second")

        yield advance


class _Lines:
    """Writes a line every few seconds, and one at the end."""

    _SECONDS = 10

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """Count documents; those of an earlier run do not count for the speed."""
        now = time.monotonic()
        if self._first is None:
            self._first = done - 1
        if done < total and now - self._last < self._SECONDS:
            return
        self._last = now
        rate = (done - self._first) / max(now - self._begin, 1e-9)
        left = timedelta(seconds=round((total - done) / rate))
        click.echo(f"{done} of {total} documents, {rate:.1f} a second, {left} left", err=True)
