"""Builds the kernels out of the source tree, with any compiler and flags."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# An editable installation finds its own files before those on PYTHONPATH.
WITHOUT_EDITABLE = """\
import sys

sys.meta_path = [x for x in sys.meta_path if "_editable_" not in type(x).__module__]
"""


def build(
    folder: Path, *, compiler: str = "c++", flags: str = "", build_type: str = "Release", kernels: str = "ON"
) -> Path:
    """Build the package in ``folder`` and return the directory to put on PYTHONPATH.

    It holds the package as it is in the source tree, with an extension made by ``compiler`` (``""``: none is installed)
    with ``flags``; without an extension where ``kernels`` is ``OFF``, or ``AUTO`` and the compiler cannot make it.
    """
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    nanobind = _output([sys.executable, "-m", "nanobind", "--cmake_dir"])
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja"]
    configure += [f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}", f"-DCMAKE_BUILD_TYPE={build_type}"]
    configure += [f"-DLIMELIGHT_KERNELS={kernels}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"]
    if compiler == "":
        environment["CXX"] = str(folder / "no-compiler")
        configure = [x for x in configure if not x.startswith("-DCMAKE_CXX_COMPILER=")]
    _output(configure, environment)
    targets = ["--target", "_native"] if kernels == "ON" else []  # no stub: Python cannot load what a sanitizer is in
    _output(["cmake", "--build", str(folder / "build"), *targets], environment)
    package = folder / "package" / "limelight"
    shutil.copytree(ROOT / "src" / "limelight", package, ignore=shutil.ignore_patterns("_native*", "__pycache__"))
    for extension in (folder / "build").glob("_native*.so"):
        shutil.copy(extension, package / "backends")
    (package.parent / "sitecustomize.py").write_text(WITHOUT_EDITABLE)
    return package.parent


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()
