"""A plugin of pytest that runs only the tests that draw random numbers: those that another seed can change.

``pytest -p tests.drawing`` runs the tests that the file LIMELIGHT_TEST_DRAWING names. If there is no such file yet, it
runs all, and writes the names of those that draw. A test counts if it, a fixture of it or the import of its file
changes the state of a generator or asks conftest.py for one, if hypothesis makes its examples, or if it passes the seed
on: to code that it calls, or to other processes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

_FILE = Path(os.environ["LIMELIGHT_TEST_DRAWING"])
_known = set(_FILE.read_text().splitlines()) if _FILE.is_file() else None
_modules: set[str] = set()
_fixtures: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _known is not None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in _known])
        items[:] = [item for item in items if item.nodeid in _known]


def _state() -> tuple[Any, ...]:
    """Return the state of all generators, and how many conftest.py has made."""
    import conftest

    numpy = np.random.get_state()  # noqa: NPY002  (what libraries draw from)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(numpy), conftest.generator.made


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    if not isinstance(collector, pytest.Module):
        return (yield)
    before = _state()
    report = yield
    if _state() != before:
        _modules.add(collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    before = _state()
    value = yield
    if _state() != before and fixturedef.argname != "_seeded":
        _fixtures.add(fixturedef.argname)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    before = _state()
    try:
        return (yield)
    finally:
        if _known is None and (_state() != before or _given_the_seed(item)):
            with _FILE.open("a") as names:
                names.write(f"{item.nodeid}\n")


def _given_the_seed(item: pytest.Function) -> bool:
    names = vars(item.module)
    return (
        getattr(item.obj, "is_hypothesis_test", False)
        or item.nodeid.split("::")[0] in _modules
        or not _fixtures.isdisjoint(item.fixturenames)
        or "SEED" in names
        or any(getattr(x, "__module__", None) == "processes" for x in names.values())
    )
