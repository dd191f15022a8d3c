"""Named architectures: checkpoints and generation."""

from limelight.models.checkpoint import build, load, save
from limelight.models.generation import generate, stream

__all__ = ["build", "generate", "load", "save", "stream"]
