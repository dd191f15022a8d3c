"""The interfaces of transformers that limelight builds on; importing it fails with the version that is needed."""

from __future__ import annotations

try:
    from transformers import PreTrainedModel, masking_utils
    from transformers.masking_utils import AttentionMaskInterface, prepare_padding_mask, sdpa_mask
    from transformers.modeling_utils import AttentionInterface
except ImportError:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = f"transformers {version('transformers')} is installed"
    except PackageNotFoundError:
        found = "transformers is not installed"
    raise ImportError(
        f"limelight reads models of transformers with transformers 4.57 or later, and {found}: "
        "pip install --upgrade 'transformers>=4.57'"
    ) from None

__all__ = [
    "AttentionInterface",
    "AttentionMaskInterface",
    "PreTrainedModel",
    "masking_utils",
    "prepare_padding_mask",
    "sdpa_mask",
]
