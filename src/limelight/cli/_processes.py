"""Commands that ``torchrun`` starts in several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


def how_it_was_started() -> list[str]:
    """Return the words before a command's own: ``limelight``, or those of torchrun with as many processes."""
    import torch.distributed as dist

    if not dist.is_torchelastic_launched():
        return ["limelight"]
    return ["torchrun", "--nproc-per-node", os.environ["WORLD_SIZE"], "-m", "limelight"]


@contextmanager
def processes() -> Iterator[int]:
    """Join the processes that torchrun has started, and yield this one's rank; 0 without torchrun."""
    import torch.distributed as dist

    if not dist.is_torchelastic_launched():
        yield 0
        return
    dist.init_process_group("gloo", timeout=timedelta(days=7))  # other processes may have much more work
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
