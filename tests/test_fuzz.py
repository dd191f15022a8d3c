"""Random input of every kind: every outcome is a success or one line of error (see ``tests/fuzz.py``)."""

from __future__ import annotations

import os

import pytest

import fuzz
from conftest import SEED


# click leaves a file open that a refused command line names.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_random_input() -> None:
    outcomes = fuzz.run(int(os.environ.get("LIMELIGHT_FUZZ_CASES", "2000")), SEED)
    assert {kind for kind, _ in outcomes} == {
        "config",
        "index",
        "header",
        "tokenizer",
        "table",
        "matrices",
        "arguments",
    }
    for kind in ("config", "arguments", "table"):  # and not everything is refused
        assert outcomes[kind, "success"]
        assert outcomes[kind, "error"]
