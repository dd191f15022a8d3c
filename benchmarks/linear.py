"""Linear layers of a few rows, as in decoding several sequences: beside torch's, and beside reading the matrix once.

    python benchmarks/linear.py

Matrices of SmolLM2 and of a larger model, one thread. A cell is torch's time over ours, and how many times as long as
reading the matrix ours takes.
"""

from __future__ import annotations

import torch

from limelight import backends
from limelight.backends import linear
from limelight.cli._bench.measuring import best

ROWS = (1, 2, 3, 4, 5, 6, 8)
SHAPES = ((576, 576), (576, 1536), (2048, 2048), (2048, 8192))
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def cell(x: torch.Tensor, weight: torch.Tensor) -> str:
    """Measure one layer."""
    calls = {
        "limelight": lambda: linear(x, weight),
        "torch": lambda: torch.nn.functional.linear(x, weight),
        "reading": lambda: backends.read_once(1, weight),
    }
    times = best(calls, 0.1)
    return f"{times['torch'] / times['limelight']:.2f}, {times['limelight'] / times['reading']:.1f}"


def main() -> None:
    torch.set_num_threads(1)
    print(f"one thread, {backends.isa()}: torch / limelight, limelight / reading\n")
    print("| type | D | N |", *(f"{rows} rows |" for rows in ROWS))
    print("|---|--:|--:|" + "--:|" * len(ROWS))
    with torch.inference_mode():
        for dtype in TYPES:
            for D, N in SHAPES:
                weight = torch.randn(N, D).to(dtype)
                cells = [cell(torch.randn(rows, D).to(dtype), weight) for rows in ROWS]
                print("|", " | ".join([str(dtype).removeprefix("torch."), str(D), str(N), *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
