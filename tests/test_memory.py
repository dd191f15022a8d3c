"""Memory grows with n: at n = 32768 and 8 heads, inputs and outputs plus 64 MB; gradients or questions, plus 128 MB."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What getrusage says of a child may be its parent's peak, so the kernel's own figure (KiB) is read where there is one.
# Scratch memory grows with the number of threads, so that is fixed.
PEAK = """
import pathlib, re, resource, torch
torch.set_num_threads(2)

def peak():
    status = pathlib.Path("/proc/self/status")
    found = re.search(r"VmHWM:\\s+(\\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""


def printed_by(code: str) -> float:
    run = subprocess.run([sys.executable, "-c", PEAK + code], capture_output=True, text=True, check=True)
    return float(run.stdout)


CODE = """
import torch, limelight as ll
n, H, D = 32768, 8, 64
q, k, v = (torch.randn(1, H, n, D) for _ in range(3))
small = q[:, :, :256]
ll.attention(small, small, small, mask=ll.Causal(), backend={backend!r})
before = peak()
out = ll.attention(q[:, :, -{rows}:], k, v, mask={mask}, bias={bias}, backend={backend!r})
after = peak()
print((after - before) / 1024 - out.numel() * 4 / 2**20)
"""


@pytest.mark.parametrize(
    ("mask", "bias", "rows", "backend"),
    [
        ("ll.Causal()", "None", 8192, "native"),
        ("ll.Causal() & (ll.Window(1000) | ll.First(4)) & ll.Padding(32000)", "ll.ALiBi(8)", 32768, "native"),
        ("ll.Window(500)", "ll.Relative.t5(torch.randn(8, 32))", 32768, "native"),
        ("ll.Window(100)", "None", 2048, "portable"),
    ],
)
def test_peak_memory(mask: str, bias: str, rows: int, backend: str) -> None:
    code = CODE.format(mask=mask, bias=bias, rows=rows, backend=backend)
    extra = printed_by(code)
    assert extra < (64 if backend == "native" else 200), f"{extra:.0f} MB beyond inputs and outputs"


TRAINING = """
import torch, limelight as ll
H, D = 8, 64
table = torch.nn.Parameter(torch.randn(H, 1001))

def train(n):
    q, k, v = (torch.randn(1, H, n, D, requires_grad=True) for _ in range(3))
    dout = torch.randn(1, H, n, D)
    before = peak()
    out = ll.attention(q, k, v, mask={mask}, bias={bias}, dropout={dropout})
    out.backward(dout)
    after = peak()
    return (after - before) / 1024 - 4 * out.numel() * 4 / 2**20

train(256)
print(train(32768))
"""


@pytest.mark.parametrize(
    ("mask", "bias", "dropout"),
    [
        ("ll.Causal() & ll.Window(300)", "None", 0.0),
        ("ll.Documents(torch.arange(n) // 512)", "ll.ALiBi(torch.rand(8, requires_grad=True))", 0.1),
        ("ll.Window(200) | ll.First(2)", "ll.Relative(table)", 0.0),
        ("ll.Window(200)", "ll.DenseBias(torch.randn(8, 1, n, requires_grad=True))", 0.0),
    ],
)
def test_peak_memory_of_training(mask: str, bias: str, dropout: float) -> None:
    """The output and three gradients of its size are accounted for; what is left may be 128 MB."""
    code = TRAINING.format(mask=mask, bias=bias, dropout=dropout)
    extra = printed_by(code)
    assert extra < 128, f"{extra:.0f} MB beyond inputs, outputs and gradients"


QUESTIONS = """
import torch, limelight as ll
asked = dict(entropy=True, received=True, top=8, mass=ll.First(1), distance=True, pool=(256, 256), profile=100)
asked["similarity"] = True

def ask(n):
    q, k = (torch.randn(1, 8, n, 64) for _ in range(2))
    before = peak()
    seen = ll.weights(q, k, mask={mask}).observe(**asked)
    after = peak()
    results = [x for x in vars(seen).values() if isinstance(x, torch.Tensor)] + list(seen.top)
    return (after - before) / 1024 - sum(x.numel() * x.itemsize for x in results) / 2**20

ask(256)
print(ask(32768))
"""


@pytest.mark.parametrize("mask", ["ll.Window(300)", "ll.Causal() & (ll.Window(200) | ll.First(4))"])
def test_peak_memory_of_questions(mask: str) -> None:
    code = QUESTIONS.format(mask=mask)
    extra = printed_by(code)
    assert extra < 128, f"{extra:.0f} MB beyond inputs and results"


SPARSE_QUESTIONS = """
import torch, limelight as ll

def ask(n):
    q, k = (torch.randn(1, 2, n, 64) for _ in range(2))
    before = peak()
    seen = ll.weights(q, k, mask={mask}).observe({asked})
    after = peak()
    results = [x for x in vars(seen).values() if isinstance(x, torch.Tensor)] + list(seen.top or ())
    return (after - before) / 1024 - sum(x.numel() * x.itemsize for x in results) / 2**20

ask(256)
print(ask(32768))
"""


@pytest.mark.parametrize(
    ("mask", "asked"),
    [
        ("ll.Strided(64)", "entropy=True, received=True, top=4, distance=True, cover=0.5"),
        ("ll.Causal() & (ll.Window(100) | ll.Strided(64))", "max=True, received=True, top=4, mass=ll.Strided(128)"),
    ],
)
def test_peak_memory_of_questions_in_passes(mask: str, asked: str) -> None:
    """Copies of queries and keys in another order are 32 MB; the spans of such masks would be 64 MB and more."""
    extra = printed_by(SPARSE_QUESTIONS.format(mask=mask, asked=asked))
    assert extra < 32 + 64, f"{extra:.0f} MB beyond inputs and results"
