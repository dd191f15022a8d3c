"""Attention over several processes: the same as in one."""

from __future__ import annotations

import time

import pytest

import parallel_attention
import parallel_messages
import parallel_statistics
from limelight.core.problem import AttentionOptions, AttentionSpec
from processes import Case, run

QUICK: list[Case] = [
    parallel_attention.shards_of_any_size,
    parallel_attention.attention_with_everything,
    parallel_attention.disagreement,
    parallel_messages.no_messages_without_need,
    parallel_attention.decoding,
    parallel_attention.models,
    parallel_messages.balance,
    parallel_messages.communication_is_hidden,
    parallel_messages.ticks_are_balanced,
    parallel_attention.device_mesh,
]
THOROUGH: list[Case] = [
    parallel_attention.attention_of_random_problems,
    parallel_statistics.statistics,
    parallel_statistics.gradients_of_statistics,
]


@pytest.mark.parametrize(
    ("processes", "cases"),
    [
        (2, QUICK),
        pytest.param(2, THOROUGH, marks=pytest.mark.slow),
        pytest.param(3, QUICK + THOROUGH, marks=pytest.mark.slow),
        pytest.param(4, QUICK + THOROUGH, marks=pytest.mark.slow),
    ],
)
def test_several_processes_compute_what_one_does(processes: int, cases: list[Case]) -> None:
    failures = run(processes, cases)
    assert not failures, "\n".join(failures.values())


def test_keyword_options_are_those_of_a_specification() -> None:
    assert list(AttentionOptions.__annotations__) == list(AttentionSpec._fields)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_that_dies_is_named_and_the_others_do_not_hang(processes: int) -> None:
    begin = time.monotonic()
    failures = run(processes, [parallel_attention.dies], timeout=15)
    assert time.monotonic() - begin < 120
    assert not failures, "\n".join(failures.values())
