"""The layers of the package: each file imports from its own layer and from those below it, never from one above."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import limelight

ROOT = Path(limelight.__file__).parent
LAYERS = [
    "core",
    "backends",
    "viz",
    "matrix",
    "functional",
    "nn",
    "positions",
    "models",
    "lens",
    "parallel",
    "translate",
    "experiments",
    "explorer",
    "cli",
]
FILES = sorted(ROOT.rglob("*.py"))
# Public names of a lower layer that live in a higher one, imported when they are first used.
EXCEPTIONS = {"lens/__init__.py": {"explorer"}, "__init__.py": set(LAYERS)}


def layers_imported(source: str) -> set[str]:
    """Return the layers that a file imports, also inside functions and by import_module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("limelight."):
            names = [node.value] if " " not in node.value else []
        found |= {name.split(".")[1] for name in names if name.startswith("limelight.")}
    return found & set(LAYERS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_imports_a_higher_layer(file: Path) -> None:
    name = file.relative_to(ROOT).as_posix()
    own = name.split("/")[0].removesuffix(".py")
    if own not in LAYERS:
        assert name in ("__init__.py", "__main__.py")
        return
    allowed = set(LAYERS[: LAYERS.index(own) + 1]) | EXCEPTIONS.get(name, set())
    higher = layers_imported(file.read_text(encoding="utf-8")) - allowed
    assert not higher, f"{name} is in {own} and imports {', '.join(sorted(higher))}"


def test_the_test_itself_finds_imports_of_every_kind() -> None:
    source = (
        "import limelight.nn\ndef f():\n    from limelight.lens import watch\n    import_module('limelight.cli.look')"
    )
    assert layers_imported(source) == {"nn", "lens", "cli"}
    assert layers_imported("from limelight import models") == {"models"}


def test_only_backends_import_the_native_backend() -> None:
    direct = r"\b_native\b|limelight\.backends\.native\b|from limelight\.backends import .*\bnative\b"
    for file in FILES:
        if re.search(direct, file.read_text(encoding="utf-8")):
            assert file.relative_to(ROOT).parts[0] == "backends", f"{file} imports the native backend"


def test_only_one_file_asks_for_addresses() -> None:
    # Experiments may ask for an address to tell tensors apart.
    library = [file for file in FILES if file.parent.name != "experiments"]
    holders = [file.relative_to(ROOT).as_posix() for file in library if "data_ptr" in file.read_text(encoding="utf-8")]
    assert holders == ["backends/native/memory.py"]


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import limelight as ll, torch; x = torch.ones(1, 1, 2); ll.attention(x, x, x); ll.weights(x, x).entropy()",
            ["rich", "matplotlib", "transformers", "click", "tokenizers"],
        ),
        ("from limelight.cli import main; main(['--help'], standalone_mode=False)", ["torch", "rich", "transformers"]),
    ],
)
def test_a_fresh_process_loads_little(code: str, absent: list[str]) -> None:
    code += f"; import sys; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_no_module_shadows_a_public_name() -> None:
    modules = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    exported = set(limelight.__all__)
    packages = {"experiments", "explorer", "lens", "models", "nn", "parallel", "positions", "translate"}
    assert not (modules & exported) - packages
