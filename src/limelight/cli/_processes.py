"""Commands that ``torchrun`` starts in several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


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
