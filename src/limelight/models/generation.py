"""Generation of tokens from models with a language-model head: greedy, sampling, beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limelight.core.checks import check_count
from limelight.core.masks import Mask, Padding
from limelight.models.beams import Beams, best_hypotheses
from limelight.nn import Encoder, LanguageModel, Seq2Seq
from limelight.nn.cache import KVCache, check_cache


@dataclass(frozen=True)
class Choice:
    """The rule for the next token: the likeliest, or a random one if ``temperature`` is above 0.

    ``top_k`` keeps the k likeliest tokens, ``top_p`` the likeliest whose probabilities reach p. ``repetition_penalty``
    divides the positive logits of tokens that have occurred and multiplies the negative ones.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature = {self.temperature} must be at least 0; 0 takes the likeliest token")
        if self.top_k is not None:
            check_count("generate", "top_k", self.top_k, 1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p} must be above 0 and at most 1")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty = {self.repetition_penalty} must be above 0")

    def scores(self, logits: Tensor, earlier: Tensor, real: Tensor | None) -> Tensor:
        """Return logits ``(B, V)`` with the penalty for tokens in ``earlier (B, n)``; ``real`` is False for padding."""
        if self.repetition_penalty == 1.0:
            return logits
        occurred = torch.zeros_like(logits, dtype=torch.bool)
        kept = torch.ones_like(earlier, dtype=torch.bool) if real is None else real
        for row, ids, keep in zip(occurred, earlier, kept, strict=True):
            row[ids[keep]] = True
        p = self.repetition_penalty
        return torch.where(occurred, torch.where(logits > 0, logits / p, logits * p), logits)

    def next(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the next token of each row, ``(B,)``."""
        if self.temperature == 0.0:
            return scores.argmax(-1)
        return torch.multinomial(self.probabilities(scores), 1, generator=generator)[:, 0]

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the distribution that tokens are drawn from."""
        scores = scores.float() / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(self.top_k).values[:, -1:], -torch.inf)
        if self.top_p is not None:
            ordered, index = torch.sort(scores, dim=-1, descending=True, stable=True)
            share = ordered.softmax(-1)
            beyond = share.cumsum(-1) - share >= self.top_p  # likelier tokens reach top_p without this one
            scores = scores.masked_fill(beyond.gather(-1, index.argsort(-1)), -torch.inf)
        return scores.softmax(-1)


class _Run:
    """The state of a generation: the model, its cache and the encoded source; tokens in, next logits out."""

    def __init__(self, model: nn.Module, ids: Tensor, mask: Mask | None, cache: KVCache | None) -> None:
        self.model: Any = model
        self.cache = cache
        self.context: Tensor | None = None
        self.lengths: Tensor | None = None  # of the prompts, where they differ
        self.ids = ids
        self.sources: Tensor | None = None  # lengths of the sources, where they differ
        if not isinstance(model, (Seq2Seq, LanguageModel)) or isinstance(getattr(model, "stack", None), Encoder):
            raise TypeError(
                f"generate: {type(model).__name__} does not predict next tokens; give a decoder or a Seq2Seq"
            )
        if model.head is None:
            raise ValueError("generate: the model has no language-model head, so there are no logits to choose from")
        if isinstance(model, Seq2Seq):
            if cache is not None and cache.count:
                raise ValueError("generate: this cache belongs to another source; begin with an empty cache")
            self.context = model.encode(ids, mask=mask)
            self.sources = None if mask is None else _lengths(mask, ids)
            self.ids = ids.new_full((len(ids), 1), _start(model))
        elif mask is not None:
            self.lengths = _lengths(mask, ids)
            self.ids = _align_ends(ids, self.lengths)
        if cache is not None:
            cache.expect(self.lengths)

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits of the token after ``ids (B, n)``: all tokens so far, or with a cache the new ones."""
        if self.context is not None:
            real = None if self.sources is None else Padding(self.sources)
            found: Tensor = self.model.decode(ids, self.context, context_mask=real, cache=self.cache, last=True)
        elif self.cache is not None or self.lengths is None:
            found = self.model(ids, cache=self.cache, last=True)
        else:  # prompts of different lengths, aligned at their ends, without a cache
            missing = int(self.lengths.max()) - self.lengths
            found = self.model(ids, mask=Padding(ids.shape[1] - missing, left=True), first=-missing, last=True)
        logits = found[:, -1].float()
        if bool(logits.isnan().any()):
            raise ValueError("generate: the model's logits are NaN; its parameters or its input are not finite")
        for token in getattr(self.model, "never", ()):
            logits[:, token] = -torch.inf
        return logits

    def reorder(self, index: Tensor) -> None:
        """Keep these sequences, in this order."""
        if self.cache is not None:
            self.cache.reorder(index)
        if self.context is not None:
            self.context = self.context[index]
            if self.sources is not None:
                self.sources = self.sources[index]
        if self.lengths is not None:
            self.lengths = self.lengths[index]


def _start(model: nn.Module) -> int:
    config: dict[str, Any] = getattr(model, "config", {})
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        if config.get(name) is not None:
            return int(config[name])
    raise ValueError("generate: the model's config names no decoder_start_token_id to begin with")


def _lengths(mask: Mask, ids: Tensor) -> Tensor:
    if not isinstance(mask, Padding) or mask.left:
        raise TypeError(f"generate: give the lengths of the prompts as Padding(lengths), not {mask!r}")
    lengths = mask.counts(len(ids), int(torch.as_tensor(mask.lengths).max())).to(ids.device)
    if int(lengths.min()) < 1 or int(lengths.max()) > ids.shape[1]:
        raise ValueError(f"generate: lengths {lengths.tolist()} must be from 1 to the {ids.shape[1]} tokens of ids")
    return lengths


def _align_ends(ids: Tensor, lengths: Tensor) -> Tensor:
    """Move the padding of prompts from the right to the left."""
    longest = int(lengths.max())
    place = torch.arange(longest, device=ids.device) - (longest - lengths)[:, None]
    return ids.gather(1, place.clamp(min=0))


def _align_starts(ids: Tensor, missing: Tensor, fill: int) -> Tensor:
    """Undo ``_align_ends``: move the padding from the left to the right, as ``fill``."""
    place = torch.arange(ids.shape[1], device=ids.device) + missing[:, None]
    moved = ids.gather(1, place.clamp(max=ids.shape[1] - 1))
    return moved.masked_fill(place >= ids.shape[1], fill)


@torch.no_grad()
def stream(
    model: nn.Module,
    ids: Tensor,
    *,
    max_new_tokens: int = 64,
    mask: Mask | None = None,
    stop: int | Sequence[int] | None = None,
    cache: KVCache | bool = True,
    seed: int | None = None,
    **choice: Any,
) -> Iterator[Tensor]:
    """Yield the new tokens ``(B,)`` step by step; -1 where a sequence has ended.

    The arguments are those of ``generate`` except ``beams`` and ``length_penalty``, which look ahead.
    """
    how = Choice(**choice)
    stops = _stops(model, stop)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with _in_eval_mode(model):
        run = _Run(model, _checked(ids), mask, _cache(cache))
        all_ids, new = run.ids, run.ids
        real = None if run.lengths is None else _real(run.lengths, all_ids)
        ended = torch.zeros(len(all_ids), dtype=torch.bool)
        for _ in range(check_count("generate", "max_new_tokens", max_new_tokens, 0)):
            logits = run.logits(new if run.cache is not None else all_ids)
            token = how.next(how.scores(logits, all_ids, real), generator)
            yield token.masked_fill(ended, -1)
            ended = ended | torch.isin(token, stops)
            if bool(ended.all()):
                return
            new = token[:, None]
            all_ids = torch.cat([all_ids, new], 1)
            if real is not None:
                real = torch.cat([real, torch.ones_like(new, dtype=torch.bool)], 1)


def generate(
    model: nn.Module,
    ids: Tensor,
    *,
    max_new_tokens: int = 64,
    mask: Mask | None = None,
    stop: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    beams: int = 1,
    length_penalty: float = 1.0,
    cache: KVCache | bool = True,
    seed: int | None = None,
) -> Tensor:
    """Return ``ids (B, N)`` followed by the generated tokens, ``(B, N + new)``; of an encoder-decoder, the target.

    Args:
        model: a model of ``models.load`` or ``models.build`` with a language-model head.
        ids: the prompts, or the sources of an encoder-decoder.
        max_new_tokens: the largest number of new tokens.
        mask: ``Padding(lengths)`` if the prompts have different lengths; new tokens follow each prompt directly.
        stop: ids of tokens that end a sequence; those of the model's configuration unless given. Padding follows.
        temperature: 0 takes the likeliest token; above 0 tokens are drawn, limited by ``top_k`` and ``top_p``.
        top_k: draw from the k likeliest.
        top_p: draw from the likeliest whose probabilities reach p.
        repetition_penalty: above 1 makes tokens that have occurred less likely.
        beams: the number of hypotheses of beam search; the best one is returned.
        length_penalty: hypotheses are compared by log-probability / length ** length_penalty.
        cache: ``True``, a cache such as ``KVCache()``, or ``False`` to compute all tokens again at every step.
        seed: seed of the random draws; torch's global generator unless given.

    >>> from limelight import models
    >>> sizes = {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
    >>> model = models.build({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes})
    >>> generate(model, torch.tensor([[1, 2]]), max_new_tokens=3, stop=[]).shape
    torch.Size([1, 5])

    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "mask": mask, "stop": stop, "cache": cache}
    if check_count("generate", "beams", beams, 1) > 1:
        if temperature:
            raise ValueError("generate: beam search takes no temperature; give beams=1 to draw tokens")
        how = Choice(repetition_penalty=repetition_penalty)
        return _beam_search(model, ids, beams, length_penalty, how, **options)
    how = Choice(temperature, top_k, top_p, repetition_penalty)
    steps = list(stream(model, ids, seed=seed, **vars(how), **options))
    fill = _fill(model, _stops(model, stop))
    begin = ids.new_full((len(ids), 1), _start(model)) if isinstance(model, Seq2Seq) else ids
    new = torch.stack(steps, 1) if steps else ids.new_zeros(len(ids), 0)
    new = new.masked_fill(new < 0, fill)
    if mask is None or isinstance(model, Seq2Seq):
        return torch.cat([begin, new], 1)
    lengths = _lengths(mask, ids)
    missing = int(lengths.max()) - lengths
    return _align_starts(torch.cat([_align_ends(ids, lengths), new], 1), missing, fill)


def _beam_search(
    model: nn.Module,
    ids: Tensor,
    beams: int,
    length_penalty: float,
    how: Choice,
    *,
    mask: Mask | None,
    stop: int | Sequence[int] | None,
    **options: Any,
) -> Tensor:
    found = beam_hypotheses(model, ids, beams, length_penalty, how, mask=mask, stop=stop, **options)
    fill = _fill(model, _stops(model, stop))
    out = best_hypotheses(found, fill)
    if mask is None or isinstance(model, Seq2Seq):
        return out
    prompts = _lengths(mask, ids)
    return _align_starts(out, int(prompts.max()) - prompts, fill)


@torch.no_grad()
def beam_hypotheses(
    model: nn.Module,
    ids: Tensor,
    beams: int,
    length_penalty: float,
    how: Choice | None = None,
    *,
    max_new_tokens: int,
    mask: Mask | None = None,
    stop: int | Sequence[int] | None = None,
    cache: KVCache | bool = True,
) -> list[list[tuple[float, Tensor]]]:
    """Return the hypotheses of each sequence with their scores; prompts of different lengths end together."""
    how = Choice() if how is None else how
    longest = check_count("generate", "max_new_tokens", max_new_tokens, 1)
    stops, every = _stops(model, stop), torch.arange(len(_checked(ids))).repeat_interleave(beams)
    with _in_eval_mode(model):
        run = _Run(model, ids, mask, _cache(cache))
        logits = run.logits(run.ids)[every]
        run.reorder(every)
        all_ids = run.ids[every]
        real = None if run.lengths is None else _real(run.lengths, all_ids)
        found = Beams(all_ids, real, beams=beams, stops=stops, length_penalty=length_penalty, longest=longest)
        while True:
            rows, new = found.extend(how.scores(logits.log_softmax(-1), found.ids, found.real))
            if found.settled():
                return found.finish()
            run.reorder(rows)
            logits = run.logits(new if run.cache is not None else found.ids)


def _checked(ids: Tensor) -> Tensor:
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or not ids.numel():
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"generate: give token ids (batch, length) with at least one token, not {got}")
    return ids


def _cache(cache: KVCache | bool) -> KVCache | None:
    if isinstance(cache, bool):
        return KVCache() if cache else None
    return check_cache("generate", cache)


def _real(lengths: Tensor, ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device) >= (ids.shape[1] - lengths)[:, None]


def _stops(model: nn.Module, stop: int | Sequence[int] | None) -> Tensor:
    if stop is None:
        stop = getattr(model, "config", {}).get("eos_token_id")
    stop = [] if stop is None else [stop] if isinstance(stop, int) else stop
    if not isinstance(stop, Iterable) or not all(isinstance(token, int) for token in stop):
        raise TypeError(f"generate: stop must be the id of a token or a list of ids, not {stop!r}")
    return torch.tensor(list(stop), dtype=torch.long)


def _fill(model: nn.Module, stops: Tensor) -> int:
    pad = getattr(model, "config", {}).get("pad_token_id")
    return int(pad) if pad is not None else int(stops[0]) if len(stops) else 0


class _in_eval_mode:
    """Switches dropout off inside a ``with`` block."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.training = model, model.training

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.training)
