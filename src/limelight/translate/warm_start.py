"""Initialises a model with the weights of a smaller one, so that both compute the same at first."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from limelight.nn import Seq2Seq

_BLOCK = re.compile(r"decoder\.blocks\.(\d+)\.(.+)")
_OUTPUTS = ("attention.out", "cross.out", "feed_forward.down")


@torch.no_grad()
def begin_with(model: Seq2Seq, other: nn.Module) -> None:
    """Copy the weights of ``other`` into ``model``, which may have more decoder layers and more tokens.

    An added layer is the identity at first: its attention and feed-forward parts add 0. Layers are post-norm, so the
    scale and shift of the last norm of ``other`` move to the last norm of ``model``, and all norms between become
    plain ones, which do not change vectors that are normalised already.
    """
    old = dict(other.named_parameters())
    depth = 1 + max(int(found[1]) for found in map(_BLOCK.match, old) if found)
    grown = len(model.decoder.blocks) > depth
    for name, x in model.named_parameters():
        block = _BLOCK.match(name)
        if block and int(block[1]) >= depth:
            _pass_on(x, block[2])
            if block[2].startswith("feed_forward_norm") and int(block[1]) == len(model.decoder.blocks) - 1:
                x.copy_(old[f"decoder.blocks.{depth - 1}.{block[2]}"])
        elif block and grown and int(block[1]) == depth - 1 and block[2].startswith("feed_forward_norm"):
            x.fill_(1.0 if name.endswith("weight") else 0.0)
        else:
            _copy_rows(x, old[name], name)


def _pass_on(x: Tensor, name: str) -> None:
    """Make an added layer the identity: zeros in the last product of each part, norms without scale and shift."""
    if name.startswith(_OUTPUTS):
        x.zero_()
    elif "norm" in name:
        x.fill_(1.0 if name.endswith("weight") else 0.0)


def _copy_rows(x: Tensor, old: Tensor, name: str) -> None:
    """Copy a parameter; rows of new tokens keep small random values and get an unlikely bias."""
    if x.shape[1:] != old.shape[1:] or len(x) < len(old):
        raise ValueError(f"{name}: {tuple(old.shape)} cannot be the start of {tuple(x.shape)}; give the same sizes")
    x[: len(old)] = old
    if len(x) > len(old):
        rows = x[len(old) :]
        rows.fill_(float(old.min())) if x.ndim == 1 else rows.normal_(std=float(old.std()))
