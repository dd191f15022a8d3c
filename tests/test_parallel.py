"""Attention over several processes: the same as in one."""

from __future__ import annotations

import time

import pytest

import parallel_cases as cases
from limelight.core.problem import AttentionOptions, AttentionSpec

QUICK = ["shards_of_any_size", "attention_with_everything", "disagreement", "no_messages_without_need", "decoding"]
QUICK += ["models", "balance", "communication_is_hidden", "ticks_are_balanced", "device_mesh"]
THOROUGH = ["attention_of_random_problems", "statistics", "gradients_of_statistics"]


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        (2, QUICK),
        pytest.param(2, THOROUGH, marks=pytest.mark.slow),
        pytest.param(3, QUICK + THOROUGH, marks=pytest.mark.slow),
        pytest.param(4, QUICK + THOROUGH, marks=pytest.mark.slow),
    ],
)
def test_several_processes_compute_what_one_does(processes: int, names: list[str]) -> None:
    failures = cases.run(processes, names)
    assert not failures, "\n".join(failures.values())


def test_keyword_options_are_those_of_a_specification() -> None:
    assert list(AttentionOptions.__annotations__) == list(AttentionSpec._fields)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_that_dies_is_named_and_the_others_do_not_hang(processes: int) -> None:
    begin = time.monotonic()
    failures = cases.run(processes, ["dies"], timeout=15)
    assert time.monotonic() - begin < 120
    assert not failures, "\n".join(failures.values())
