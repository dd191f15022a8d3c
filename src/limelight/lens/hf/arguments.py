"""Models of transformers and diffusers, and the names of their arguments; imports neither."""

from __future__ import annotations

from torch import nn

CONTEXTS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
SOURCE_IDS = ("input_ids",)
TARGET_IDS = ("decoder_input_ids",)
CACHES = ("past_key_values",)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether the model's configuration says that it has an encoder and a decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def is_transformers_model(model: nn.Module) -> bool:
    """Return whether any part of the model is a ``PreTrainedModel``, by the names of its base classes."""
    bases = (base for part in model.modules() for base in type(part).__mro__)
    return any(base.__module__ == "transformers.modeling_utils" for base in bases)


def is_diffusers_model(model: nn.Module) -> bool:
    """Return whether a model is one of diffusers, by the names of its base classes."""
    return any(base.__module__.startswith("diffusers.") for base in type(model).__mro__)
