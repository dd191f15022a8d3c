"""The kernels compile without a warning under GCC and Clang, and what comes out computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build import build
from conftest import need

CODE = """
import limelight, torch
from limelight import backends
for isa in backends.available_isas():
    backends.set_isa(isa)
    q, k, v = (torch.randn(2, 3, n, 17) for n in (29, 31, 31))
    got = limelight.attention(q, k, v, mask=limelight.Causal(), backend="native")
    torch.testing.assert_close(got, limelight.attention(q, k, v, mask=limelight.Causal(), backend="portable"))
    print(isa, limelight.__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_builds_without_warnings(compiler: str, tmp_path: Path) -> None:
    path = build(tmp_path, compiler=need(compiler), flags="-Werror")
    environment = {**os.environ, "PYTHONPATH": str(path)}
    run = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert str(path) in run.stdout
    assert "baseline" in run.stdout
