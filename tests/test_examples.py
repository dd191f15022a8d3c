"""The programs in examples/, each run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {"attention_statistics", "checkpoint", "entropy_penalty", "translation", "watch_model"}


def printed_by(name: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return run.stdout


def numbers(pattern: str, text: str) -> list[float]:
    return [float(x) for x in re.findall(pattern, text)]


def test_every_example_is_tested_and_short() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 40, path


def test_attention_statistics() -> None:
    text = printed_by("attention_statistics")
    assert "output (1, 8, 4096, 64)" in text
    (entropy,) = numbers(r"entropy is ([\d.]+) nats", text)
    assert 4.5 < entropy < 5.56, "random weights are less than even"
    (share,) = numbers(r"four tokens get ([\d.]+)%", text)
    assert 0.5 < share < 4, "about four keys of 261"
    keys = [int(x) for x in re.findall(r"the keys (\d+), (\d+), (\d+)\n", text)[0]]
    assert all(key < 4 or 1744 <= key <= 2000 for key in keys), "within the window or among the first"


@pytest.mark.parametrize("text", ["The cat sat on the mat.", "The dog is sleeping."])
def test_translation(text: str) -> None:
    lines = printed_by("translation", text).splitlines()
    assert lines[0] == text
    noun, french = ("cat", "chat") if "cat" in text else ("dog", "chien")
    assert french in lines[1]
    assert any(re.search(rf"▁{french} +← +▁{noun} ", line) for line in lines), "the noun is read from the noun"


def test_watch_model(minilm: Path) -> None:
    text = printed_by("watch_model", str(minilm))
    assert sum(int(x) for x in re.findall(r"^ *(\d+) × ", text, re.MULTILINE)) == 6 * 12
    links = re.findall(r"^ *(\S+) → (\S+) +([\d.]+)$", text, re.MULTILINE)
    assert [token for token, _, _ in links][:3] == ["[CLS]", "the", "animal"]
    assert all(0 < float(weight) <= 1 for _, _, weight in links)


@pytest.mark.slow
def test_entropy_penalty() -> None:
    text = printed_by("entropy_penalty")
    (right, sharper), (plain, penalised) = numbers(r"(\d+)%", text), numbers(r"entropy ([\d.]+)", text)
    assert min(right, sharper) > 80, "both learn to repeat"
    assert penalised < 0.8 * plain


def test_checkpoint() -> None:
    text = printed_by("checkpoint")
    assert re.search(r"marian, \d+\.\d million parameters, \d+ tokens", text)
    assert text.count("café") == 2
