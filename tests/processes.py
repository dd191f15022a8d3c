"""Several processes that run cases of tests/test_parallel.py, and the comparisons that the cases share.

``run(processes, cases)`` starts them once for many cases, because importing torch takes seconds. A case is a function
of no arguments that every process calls; a failure in any process comes back as text.
"""

from __future__ import annotations

import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from conftest import seed_everything

Case = Callable[[], None]


def run(processes: int, cases: list[Case], timeout: float = 120) -> dict[str, str]:
    """Run cases on so many processes, and return what went wrong in each."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        mp.spawn(_process, (processes, port, folder, cases, timeout), nprocs=processes)
        texts = {case.__name__: [_read(_file(folder, case, r)) for r in range(processes)] for case in cases}
    return {name: "\n".join(filter(None, found)) for name, found in texts.items() if any(found)}


def _file(folder: str, case: Case, rank: int) -> Path:
    return Path(folder) / f"{case.__name__}.{rank}"


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _process(rank: int, size: int, port: int, folder: str, cases: list[Case], timeout: float) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    for case in cases:
        seed_everything(case.__name__)
        try:
            case()
            text = ""
        except BaseException:
            text = f"rank {rank}: {traceback.format_exc()}"
        _file(folder, case, rank).write_text(text)
    dist.destroy_process_group()


def close(got: Tensor, want: Tensor, what: str, tolerance: float, rounding: float = 0.0) -> None:
    """Compare with an error relative to the largest number, or that of roundings; −∞ and shapes must be the same."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} and {tuple(want.shape)}"
    got, want = got.detach().double(), want.detach().double()
    assert torch.equal(got.isfinite(), want.isfinite()), f"{what}: not finite in other places"
    error = (got - want).nan_to_num(posinf=0, neginf=0).abs()
    relative = tolerance * (want.nan_to_num(posinf=0, neginf=0).abs().max() if want.numel() else 0.0)
    bound = relative + max(tolerance * 1e-2, rounding)
    assert not error.numel() or error.max() <= bound, f"{what}: {error.max():.2e} > {bound:.2e}"


def expect_error(call: Any, *words: str) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError)) as error:
        call()
    for word in words:
        assert word in str(error.value), f"{word!r} is not in {error.value}"
