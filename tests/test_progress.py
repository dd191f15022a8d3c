"""Progress of long work where the standard error is a file, and the defaults that ``--help`` shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from limelight import translate
from limelight.cli import main, train
from limelight.translate.defaults import choices_for
from limelight.translate.recipe import Recipe
from limelight.viz import progress


def test_lines_have_an_estimate_and_short_work_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    file = io.StringIO()
    with progress.progress(Console(file=file, width=200)) as advance:
        for n in progress.tracked(range(70), "short", advance):
            clock[0] += 0.05 if n < 60 else 0.0
        for _ in progress.tracked(range(7), "long", advance):
            clock[0] += 3.0
    lines = file.getvalue().splitlines()
    # 3 s of short work; then a line whenever 5 s have passed since the last: after 3, 9, 15 and 21 s of the long
    assert lines == [
        "long: 1 of 7, about 0:00:18 left",
        "long: 3 of 7, about 0:00:12 left",
        "long: 5 of 7, about 0:00:06 left",
        "long: 7 of 7, about 0:00:00 left",
    ]


def test_look_reports_every_part_of_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, page = "The cat sat on the mat.", str(tmp_path / "page.html")
    quiet = CliRunner().invoke(main, ["look", text])
    assert quiet.exit_code == 0, quiet.output
    assert quiet.stderr == ""
    lines = progress.Lines
    monkeypatch.setattr(progress, "Lines", lambda console: lines(console, every=0))
    done = CliRunner().invoke(main, ["look", text, "--html", page])
    assert done.exit_code == 0, done.output
    for part in ("writing: 1 of", "reading 8 tokens: 6 of 6", "links: 8 of 8", "heads: 8 of 8", "page: 64 of 64"):
        assert f"\n{part}" in f"\n{done.stderr}", part


def test_help_of_train_shows_the_defaults() -> None:
    chosen = choices_for([translate.Pair("a", "b")])
    options = {option.name: option.help or "" for option in train.command.params if hasattr(option, "help")}
    for name, value in vars(Recipe()).items():
        if name in options and not isinstance(value, bool):
            expected = train._CHOSEN if name in chosen else str(value)
            assert options[name].endswith(f"[default: {expected}]"), name
