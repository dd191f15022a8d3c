"""Named architectures: their checkpoints, and generation."""

from limelight.models.checkpoint import build, load, save

__all__ = ["build", "load", "save"]
