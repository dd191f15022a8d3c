"""The command for hardness runs, in its quick form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need


@pytest.mark.slow
def test_harden_quickly() -> None:
    need("g++")
    command = [sys.executable, "-m", "tests.harden", "--quick"]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr[-6000:]
    assert run.stdout.count("| passed |") == 9
