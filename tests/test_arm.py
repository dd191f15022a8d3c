"""The kernels on ARM: cross-compiled, run under an emulator against plain loops, and searched for spills."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from build import ROOT
from conftest import need

FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"]
FLAGS += ["-Wno-psabi", "-Wno-ignored-attributes", "-Werror"]
ISA = ["-DLIMELIGHT_ISA=baseline", "-DLIMELIGHT_BYTES=16", "-DLIMELIGHT_REGISTERS=32"]
TILE = 40  # multiply-adds by an element in a loop that is the inside of a register tile
BY_ELEMENT = re.compile(r"\tfmla\t.*\.[sd]\[\d\]")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kernels as an object file for ARM."""
    file = tmp_path_factory.mktemp("arm") / "kernels.o"
    command = [need("aarch64-linux-gnu-g++"), *FLAGS, *ISA, "-c", str(ROOT / "cpp" / "kernels.cpp"), "-o", str(file)]
    subprocess.run(command, check=True)
    return file


@pytest.mark.slow
def test_the_kernels_agree_with_plain_loops(kernels: Path) -> None:
    program = kernels.with_name("check")
    sources = [ROOT / "tests" / "kernels_check.cpp"]
    sources += [ROOT / "cpp" / f"{name}.cpp" for name in ("isa", "thread_pool", "torch_threads", "large_pages")]
    flags = [*FLAGS, "-static", "-pthread", "-DLIMELIGHT_OWN_THREADS"]  # there is no PyTorch whose threads it could use
    command = ["aarch64-linux-gnu-g++", *flags, *map(str, sources), str(kernels)]
    subprocess.run([*command, "-o", str(program)], check=True)
    run = subprocess.run([need("qemu-aarch64"), str(program)], capture_output=True, text=True)
    assert run.returncode == 0, "\n".join(x for x in run.stdout.splitlines() if not x.startswith("ok"))
    assert run.stdout.endswith("all passed\n")
    assert run.stdout.count("ok    ") > 100


@pytest.mark.slow
def test_no_register_is_spilled_inside_a_tile(kernels: Path) -> None:
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(kernels)],
        capture_output=True,
        text=True,
        check=True,
    )
    tiles = [loop for loop in innermost_loops(listing.stdout) if sum(bool(BY_ELEMENT.search(x)) for x in loop) >= TILE]
    assert len(tiles) >= 8  # scores, values and products, in float and double
    spilled = {loop[0]: n for loop in tiles if (n := sum(bool(re.search(r"\[sp\b|\[x29\b", x)) for x in loop))}
    assert not spilled, f"stack accesses in {len(spilled)} of {len(tiles)} tiles: {spilled}"


def innermost_loops(listing: str) -> list[list[str]]:
    """Return the instructions of each loop without a loop inside, from a disassembly."""
    loops = []
    for function in re.split(r"^[0-9a-f]+ <.*>:$", listing, flags=re.MULTILINE):  # addresses begin again in each
        lines = [x for x in function.splitlines() if re.match(r"\s*[0-9a-f]+:\t", x)]
        at = {int(x.split(":")[0], 16): n for n, x in enumerate(lines)}
        last_end = -1
        for n, line in enumerate(lines):
            jump = re.search(r"\t(?:b\.\w+|b|cbn?z|tbn?z)\t(?:.*, )?([0-9a-f]+) <", line)
            target = at.get(int(jump.group(1), 16), n + 1) if jump else n + 1
            if last_end < target <= n:
                loops.append(lines[target : n + 1])
                last_end = n
    return loops


def test_the_test_itself_finds_loops() -> None:
    code = ("nop", "fmla\tv0.4s, v1.4s, v2.s[0]", "ldr\tq1, [sp, #16]", "b.ne\t4 <f+0x4>", "ret")
    listing = "0 <f>:\n" + "".join(f"  {4 * n:x}:\t{x}\n" for n, x in enumerate(code))
    assert [x.split("\t")[1] for x in innermost_loops(listing)[0]] == ["fmla", "ldr", "b.ne"]
    assert len(innermost_loops(listing + listing)) == 2
