"""Metrics of a model's output: what ``importance`` measures while heads are edited.

A metric takes the output of the edited run, that of the run without edits, and the inputs of both, and returns one
number as a tensor. Any function of the output alone is a metric, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from limelight.core.masks import Padding

_IDS = ("input_ids", "ids", "source")
_TARGETS = ("decoder_input_ids", "target")


class Metric:
    """Base of all metrics."""

    flat = False  # True if the gradient of the metric is 0 without edits
    name = ""

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Return the metric of an output."""
        raise NotImplementedError

    def last_only(self) -> bool:
        """Return whether only the last token's output counts."""
        return False


@dataclass(frozen=True)
class NextTokenLoss(Metric):
    """The mean of ``−log p(next token)`` over the text, in nats; the default for decoders."""

    name = "next-token loss"

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        logits, ids, real = logits_of(output), _token_ids(inputs, _IDS), _real_tokens(output, inputs)
        if ids.shape[1] < 2:
            raise ValueError("NextTokenLoss: the text has one token, and no next one; give a longer text")
        losses = functional.cross_entropy(
            _precise(logits[:, :-1].flatten(0, 1)), ids[:, 1:].flatten(), reduction="none"
        )
        counted = (real[:, 1:] & real[:, :-1]).flatten()
        return (losses * counted).sum() / counted.sum().clamp(min=1)


@dataclass(frozen=True)
class LogitDifference(Metric):
    """``logit[better] − logit[worse]`` at the last token, a mean over the batch.

    Args:
        better: the id of a token, or one for each batch element.
        worse: likewise.

    """

    better: int | Tensor
    worse: int | Tensor
    name = "logit difference"

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        last = _last(logits_of(output), inputs)
        better, worse = (
            torch.as_tensor(x, device=last.device).reshape(-1, 1).expand(len(last), 1)
            for x in (self.better, self.worse)
        )
        return _precise(last.gather(1, better) - last.gather(1, worse)).mean()

    def last_only(self) -> bool:
        return True


@dataclass(frozen=True)
class Divergence(Metric):
    """``KL(p without edits ‖ p with edits)`` of the next token, in nats: a mean over all tokens, or the last."""

    last: bool = False
    flat = True
    name = "KL divergence"

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        p, q = (_precise(logits_of(x)).log_softmax(-1) for x in (clean, output))
        if self.last:
            p, q = _last(p, inputs), _last(q, inputs)
            return (p.exp() * (p - q)).sum(-1).mean()
        real = _real_tokens(output, inputs)
        return ((p.exp() * (p - q)).sum(-1) * real).sum() / real.sum().clamp(min=1)

    def last_only(self) -> bool:
        return self.last


@dataclass(frozen=True)
class Cosine(Metric):
    """The cosine between the text's embedding with and without edits; the default for encoders.

    The embedding is the mean of the output vectors over the tokens that are not padding.
    """

    flat = True
    name = "cosine"

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        a, b = (_pooled(x, inputs) for x in (output, clean))
        return functional.cosine_similarity(a, b, dim=-1).mean()


@dataclass(frozen=True)
class SequenceLogProbability(Metric):
    """``log p(target | source)``, a mean over the batch; the default for encoder-decoders.

    ``target`` holds the ids that the decoder should write, ``(batch, length)``: unless given, those that follow in the
    decoder's own input. Negative ids, such as −100, and ids of ``padding`` do not count.
    """

    target: Tensor | None = None
    padding: int | None = None
    name = "log-probability of the target"

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        logits = logits_of(output)
        if self.target is None:
            target = _token_ids(inputs, _TARGETS)[:, 1:]
            logits = logits[:, :-1]
        else:
            target = self.target.expand(len(logits), -1)
        if target.shape[1] != logits.shape[1]:
            raise ValueError(
                f"SequenceLogProbability: {target.shape[1]} target tokens for {logits.shape[1]} outputs of the decoder"
            )
        counted = (target >= 0) if self.padding is None else (target >= 0) & (target != self.padding)
        each = _precise(logits).log_softmax(-1).gather(2, target.clamp(min=0)[..., None])[..., 0]
        return (each * counted).sum(1).mean()


@dataclass(frozen=True)
class _Function(Metric):
    """A function of the output."""

    function: Callable[[Any], Any]

    @property
    def name(self) -> str:  # type: ignore[override]
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, output: Any, clean: Any, inputs: Mapping[str, Any]) -> Tensor:
        found = torch.as_tensor(self.function(output))
        if found.numel() != 1:
            raise ValueError(f"importance: the metric returns {tuple(found.shape)}; it must return one number")
        return found.reshape(())


_BY_NAME = {
    "loss": NextTokenLoss(),
    "kl": Divergence(),
    "cosine": Cosine(),
    "logprob": SequenceLogProbability(),
}


def as_metric(metric: Any, output: Any, inputs: Mapping[str, Any], is_decoder: bool) -> Metric:
    """Return the metric that a name, a function or None (the default for the model's output) stands for."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in _BY_NAME:
            raise ValueError(
                f"importance: there is no metric {metric!r}; there are {', '.join(_BY_NAME)}, the classes "
                "of limelight.lens such as LogitDifference(a, b), and any function of the output"
            )
        return _BY_NAME[metric]
    if callable(metric):
        return _Function(metric)
    if metric is not None:
        raise TypeError(f"importance: metric = {metric!r} is neither a metric, nor a name, nor a function")
    if _find(inputs, _TARGETS) is not None:
        return _BY_NAME["logprob"]
    if is_decoder and has_logits(output, inputs):
        return _BY_NAME["loss"]
    return _BY_NAME["cosine"]


def has_logits(output: Any, inputs: Mapping[str, Any]) -> bool:
    """Return whether an output holds logits over a vocabulary; a bare tensor is taken for logits if it may be."""
    if hasattr(output, "logits"):
        return True
    ids = _find(inputs, _IDS)
    wide = isinstance(output, Tensor) and output.ndim == 3 and ids is not None and not ids.is_floating_point()
    return bool(wide and int(ids.max()) < output.shape[-1])


def logits_of(output: Any) -> Tensor:
    """Return the logits in a model's output, ``(batch, length, vocabulary)``."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None:
        raise ValueError(
            f"the model's output, {type(output).__name__}, has no logits; load it with its language-model head, or use "
            "the metric Cosine() or a function of the output"
        )
    logits: Tensor = found
    return logits


def _precise(x: Tensor) -> Tensor:
    """Return half precision as float32, other types unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _pooled(output: Any, inputs: Mapping[str, Any]) -> Tensor:
    names = ("last_hidden_state", "encoder_last_hidden_state", "logits")
    hidden = output
    if not isinstance(output, Tensor):
        hidden = next((x for name in names if (x := getattr(output, name, None)) is not None), None)
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        raise ValueError(f"Cosine: {type(output).__name__} has no hidden states (batch, length, width)")
    real = _real_tokens(hidden, inputs).to(hidden.dtype)[..., None]
    pooled: Tensor = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
    return pooled


def _last(x: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Return the rows of the last real tokens, ``(batch, width)``."""
    if x.shape[1] == 1:
        return x[:, 0]
    real = _real_tokens(x, inputs)
    at = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    return x[torch.arange(len(x)), at]


def _real_tokens(output: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Return which tokens of the output, ``(batch, length)``, are not padding."""
    tensor = output if isinstance(output, Tensor) else next(x for x in output.values() if isinstance(x, Tensor))
    B, N = (logits_of(output) if not isinstance(output, Tensor) and hasattr(output, "logits") else tensor).shape[:2]
    name = "decoder_attention_mask" if _find(inputs, _TARGETS) is not None else "attention_mask"
    given, mask = inputs.get(name), inputs.get("mask")
    if isinstance(given, Tensor) and given.shape == (B, N):
        return given.bool()
    if isinstance(mask, Padding) and _find(inputs, _TARGETS) is None:
        place, lengths = torch.arange(N), mask.counts(B, N)[:, None]
        return place >= N - lengths if mask.left else place < lengths
    return torch.ones(B, N, dtype=torch.bool)


def _find(inputs: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((inputs[name] for name in names if isinstance(inputs.get(name), Tensor)), None)


def _token_ids(inputs: Mapping[str, Any], names: tuple[str, ...]) -> Tensor:
    found = _find(inputs, names)
    if found is None:
        raise ValueError(f"importance: the metric needs token ids, and the inputs have none of {', '.join(names)}")
    ids: Tensor = found
    return ids


def is_decoder(model: nn.Module) -> bool:
    """Return whether a model predicts the next token: a decoder of limelight or of transformers."""
    from limelight.nn.stack import Decoder

    config = getattr(model, "config", None)
    if config is not None and not isinstance(config, Mapping):  # a configuration of transformers
        names = getattr(config, "architectures", None) or [type(model).__name__]
        causal = any(part in type(model).__name__ for part in ("CausalLM", "LMHead"))
        return causal or (getattr(config, "is_decoder", False) and any("CausalLM" in name for name in names))
    return any(isinstance(m, Decoder) for m in model.modules())
