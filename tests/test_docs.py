"""Every example in a docstring runs, everything public has a docstring, and importing changes nothing."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limelight

ROOT = Path(__file__).parent.parent
MODULES = [
    "limelight",
    *(m.name for m in pkgutil.walk_packages(limelight.__path__, "limelight.") if "_native" not in m.name),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.parametrize("name", limelight.__all__)
def test_public_names_are_documented(name: str) -> None:
    value = getattr(limelight, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and callable(member):
                assert inspect.getdoc(getattr(value, attribute)), f"{name}.{attribute}"


def undocumented_arguments(call: Any, docs: str) -> list[str]:
    """Return the arguments that a docstring does not name; it may refer to those of another function."""
    if "arguments are those of" in docs:
        return []
    arguments = inspect.signature(call).parameters.values()
    named = [x.name for x in arguments if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD) and x.name[0] != "_"]
    return [name for name in named if name != "self" and not re.search(rf"\b{name}\b", docs)]


@pytest.mark.parametrize("package", ["nn", "positions", "models", "lens", "parallel", "translate", "experiments", ""])
def test_docstrings_name_every_argument(package: str) -> None:
    not_made_by_users = {"Heads", "Importance", "Relation", "ParallelWeights", "SlowPathWarning"}
    module, missing = importlib.import_module(f"limelight.{package}".rstrip(".")), {}
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and name not in not_made_by_users):
            missing[name] = undocumented_arguments(value, inspect.getdoc(value) or "")
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            if not attribute.startswith("_") and inspect.isfunction(member):
                docs = inspect.getdoc(getattr(value, attribute)) or ""
                missing[f"{name}.{attribute}"] = undocumented_arguments(member, f"{docs} N M")
    assert not {name: arguments for name, arguments in missing.items() if arguments}


def test_the_reference_lists_every_public_name() -> None:
    pages = ROOT.glob("docs/api/*.md")
    listed = set(re.findall(r"^\.\. auto\w+:: limelight\.([\w.]+)$", "".join(p.read_text() for p in pages), re.M))
    public = set(limelight.__all__)
    for package in ("nn", "positions", "models", "lens", "parallel", "translate", "experiments"):
        public.remove(package)
        public |= {f"{package}.{name}" for name in getattr(limelight, package).__all__}
    elsewhere = {"lens.edit", "lens.watch", "experiments.CHAPTERS", "experiments.EXPERIMENTS"}  # the same, and data
    bases = {"core.masks.Mask", "core.biases.Bias"}  # of which masks and biases of one's own are derived
    assert listed == (public - elsewhere) | bases


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))], ids=lambda page: page.name
)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|cpp|tests|docs|benchmarks|examples|\.ci)/[\w./*-]+)`", text)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert not [name for name in named if not any(ROOT.glob(name.rstrip("/")))]
    assert not [link for link in links if not (page.parent / link).exists()]


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        _ = limelight.flash  # type: ignore[attr-defined]
    assert "attention" in dir(limelight)


def test_importing_limelight_changes_nothing() -> None:
    code = """
import sys, torch
state = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed())
import limelight
limelight.attention
assert state == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed())
assert 'transformers' not in sys.modules and 'matplotlib' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
