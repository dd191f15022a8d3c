"""The command line as a program: what it imports, and what happens to its output and errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from limelight.cli import main


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from limelight.cli import main; main(sys.argv[1:], prog_name='limelight')"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from limelight.cli import main; main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'rich', 'transformers', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("trace", "look", "translate", "train", "experiment"):
        assert f"\n  {command} " in done.stdout


def test_without_arguments_it_says_what_to_try_first() -> None:
    done = run()
    assert done.returncode == 2
    assert 'Try first:\n    limelight translate "The cat sat on the mat."' in done.stderr
    assert "..." not in done.stderr.split("Commands:")[1]  # no description is cut


def test_version() -> None:
    assert run("--version", stdout=subprocess.PIPE).stdout.split()[-1] == version("limelight-attention")


@pytest.mark.parametrize("arguments", [("trace",), ("trace", "--json"), ("--help",), ("experiment",)])
def test_a_full_disk(arguments: tuple[str, ...]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "Error: the output could not be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [("trace",), ("trace", "--json", "--causal"), ("trace", "--help")])
def test_an_output_without_unicode(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "set PYTHONIOENCODING=utf-8" in done.stderr


def test_a_closed_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = run("trace", stdout=closed)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        ["translate", "Hi", "--html", "--model", "folder"],
        ["look", "Hi", "--word", "--json"],
        ["matter", "Hi", "--figure", "--json"],
        ["train", "pairs.tsv", "--out", "--epochs", "3"],
        ["bench", "--out", "--json"],
    ],
)
def test_an_option_is_not_the_value_of_another(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert re.search(r"Error: --\w+ needs a value, not --\w+; write --\w+=--\w+ if you mean it", result.output)
    assert not list(tmp_path.iterdir())


def test_text_that_looks_like_an_option() -> None:
    asked = CliRunner().invoke(main, ["look", "Hi there", "--word=--json"])
    assert "'--json'" in asked.output  # as a word that the text does not have
    assert CliRunner().invoke(main, ["translate", "--json", "--beams", "1", "--", "--model"]).exit_code == 0
