"""Training of a translator on pairs of sentences, which can be stopped at any moment and goes on where it was."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from limelight import models
from limelight.core.masks import Padding
from limelight.nn import Seq2Seq
from limelight.translate import stand_ins, vocabulary
from limelight.translate.augmentation import Augmenter, Shares, known_words
from limelight.translate.copying import WORDS
from limelight.translate.data import Batch, Pair, batches, divide, padded
from limelight.translate.warm_start import begin_with

_SHARES = ("names", "numbers", "phrases", "quotes", "joined")
_MAY_BE_ZERO = ("dropout", "label_smoothing", "warm_up", "seed", "average", "bfloat16", *_SHARES)


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the result besides the pairs: the same recipe on the same pairs gives the same model."""

    vocabulary: int = 5800
    width: int = 256
    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 2
    hidden: int = 768
    dropout: float = 0.1
    label_smoothing: float = 0.1
    epochs: int = 20
    part: float = 1.0  # share of the pairs that an epoch has
    tokens: int = 2500  # of the targets of a batch
    rate: float = 1e-3  # at its highest, after the warm-up; it falls to 0 as a cosine
    warm_up: int = 1500
    clip: float = 1.0  # of the gradient's norm
    average: float = 0.999  # of the parameters: what is validated and kept is their moving average
    blend: float = 1.0  # share of what was trained in what is kept; the rest are the parameters that it started from
    held_out: int = 1500
    validated: int = 300  # sentences that BLEU after every epoch is measured on; none of those that are held out
    patience: int = 5  # epochs without a better BLEU, after which training ends
    falling: float = 1.0  # share of the training, at its end, in which the rate falls
    names: float = 0.6  # of the pairs with a name on both sides, those that get another one in an epoch
    numbers: float = 0.6  # the same of numbers
    phrases: float = 0.06  # of all pairs, those that get a phrase with a number or a name
    quotes: float = 0.02  # of all pairs, those that get quotation marks
    joined: float = 0.45  # of all pairs, those that are joined to long sentences
    longest: int = 65  # words of a joined sentence
    bfloat16: bool = False  # matrix products in bfloat16: twice as fast where the processor has them
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in _MAY_BE_ZERO else 1e-12
            if not isinstance(value, (int, float)):
                raise TypeError(f"{name} = {value!r} must be a number")
            if not value >= least:
                raise ValueError(f"{name} = {value} must be {'at least' if least == 0 else 'above'} 0")
        for name in ("dropout", "label_smoothing", "average"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be below 1")
        for name in ("part", "falling", "blend", *_SHARES):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at most 1")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} must be a multiple of heads = {self.heads}")

    @property
    def shares(self) -> Shares:
        """The shares of the pairs that are changed in an epoch."""
        return Shares(**{name: getattr(self, name) for name in _SHARES}, longest=self.longest)

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The configuration of the original Transformer, in the words of Marian's checkpoints."""
        shape: dict[str, Any] = {}
        for stack, depth in (("encoder", self.encoder_layers), ("decoder", self.decoder_layers)):
            shape |= {f"{stack}_layers": depth, f"{stack}_attention_heads": self.heads, f"{stack}_ffn_dim": self.hidden}
        end, padding = vocabulary.number(tokenizer, vocabulary.END), vocabulary.number(tokenizer, vocabulary.PADDING)
        return {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "vocab_size": tokenizer.get_vocab_size(),
            "d_model": self.width,
            **shape,
            "activation_function": "relu",
            "dropout": self.dropout,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "scale_embedding": True,
            "initializer_range": self.width**-0.5,
            "max_position_embeddings": 512,
            "eos_token_id": end,
            "forced_eos_token_id": None,
            "pad_token_id": padding,
            "decoder_start_token_id": padding,
            "is_encoder_decoder": True,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
        }


@dataclass(frozen=True)
class Progress:
    """The state of a training: after ``step`` updates, ``done`` of ``batches`` of ``epoch``."""

    step: int
    epoch: int
    done: int
    batches: int
    loss: float
    tokens: int  # so far in this run, of both languages


@dataclass
class _State:
    """All that an update changes."""

    model: Seq2Seq
    average: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    begun: dict[str, Tensor]  # the parameters at first
    step: int = 0
    epoch: int = 0
    done: int = 0
    scores: list[float] = field(default_factory=list)


class Stopped(Exception):
    """Raised by ``train`` after ``stop`` returned True and everything was saved."""

    def __init__(self, step: int, epoch: int) -> None:
        super().__init__(f"stopped after update {step:,}, in epoch {epoch + 1}")
        self.step, self.epoch = step, epoch


def train(
    pairs: list[Pair],
    folder: str | Path,
    recipe: Recipe,
    *,
    start: str | Path | None = None,
    finish: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    scored: Callable[[int, float], None] = lambda *_: None,
    resumed: Callable[[int, int], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
    save_every: float = 300.0,
) -> float:
    """Trains on ``pairs`` and leaves the model with the best BLEU in ``folder``, in float16; returns that BLEU.

    BLEU is that of sentences that are not trained on, as they are and changed as the training pairs are; the sentences
    of ``divide(pairs, recipe.held_out, recipe.seed)`` are not looked at, so that they can be a test.

    Where ``folder`` holds a training with the same recipe that was interrupted, it goes on to the same result as if it
    had not been. ``start`` is the folder of a model with the same width to begin with; decoder layers that it does not
    have are added. ``finish`` trains no further: it leaves the model of a training that was interrupted in an epoch as
    it is, even where an earlier epoch had a better BLEU. ``watch`` is called after every update, ``scored`` after every
    epoch, ``resumed`` with the number of updates and epochs of a training that goes on. Everything is saved every
    ``save_every`` seconds, and when ``stop``, called after every update, returns True; then ``Stopped`` is raised.
    """
    folder = Path(folder)
    _needs_sacrebleu()
    training, references = split_for_training(pairs, recipe)
    tokenizer = _begin(folder, training, recipe, None if start is None else Path(start))
    augmenter = Augmenter(training, recipe.shares)
    state = _restored(folder, recipe, tokenizer, None if start is None else Path(start))
    if state.step:
        resumed(state.step, state.epoch)
    saved, seen = time.monotonic(), 0
    if finish:
        with _averaged(state, recipe.blend):
            models.save(copy.deepcopy(state.model).half(), folder)
            return bleu(state.model, tokenizer, references)
    while state.epoch < recipe.epochs and not _ended(state.scores, recipe.patience):
        for count, batch in _rest_of_epoch(augmenter, state, recipe, tokenizer):
            loss = _update(state, batch, recipe, (state.epoch + state.done / count) / recipe.epochs)
            seen += int(batch.source_lengths.sum() + batch.target_lengths.sum())
            watch(Progress(state.step, state.epoch, state.done, count, loss, seen))
            stopping = stop()
            if stopping or time.monotonic() - saved > save_every:
                _save(folder, state)
                saved = time.monotonic()
            if stopping:
                raise Stopped(state.step, state.epoch)
        with _averaged(state, recipe.blend):
            score = bleu(state.model, tokenizer, references)
            if score > max(state.scores, default=-1.0):
                models.save(copy.deepcopy(state.model).half(), folder)
        state.scores.append(score)
        state.epoch, state.done = state.epoch + 1, 0
        _save(folder, state)
        scored(state.epoch, score)
    return max(state.scores)


def split_for_training(pairs: list[Pair], recipe: Recipe) -> tuple[list[Pair], dict[str, list[str]]]:
    """Pairs to train on, and sentences with their translations to validate on: as they are, and changed."""
    training, _ = divide(pairs, recipe.held_out, recipe.seed)
    training, plain = divide(training, recipe.validated, recipe.seed)
    kept = [Pair(source, target) for source, targets in plain.items() for target in targets]
    changed = Augmenter(kept, recipe.shares).epoch(f"{recipe.seed} validation")
    return training, {**{source: [target] for source, target in changed}, **plain}


def _ended(scores: list[float], patience: int) -> bool:
    """Return True if the last ``patience`` epochs brought nothing better."""
    return len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience])


def _rest_of_epoch(
    augmenter: Augmenter, state: _State, recipe: Recipe, tokenizer: Tokenizer
) -> Iterator[tuple[int, Batch]]:
    seed = f"{recipe.seed} {state.epoch}"
    pairs = augmenter.epoch(seed, recipe.part)
    sources = vocabulary.encode(tokenizer, [pair.source for pair in pairs])
    targets = vocabulary.encode(tokenizer, [pair.target for pair in pairs])
    ids = list(zip(sources, targets, strict=True))
    every = batches(ids, recipe.tokens, vocabulary.number(tokenizer, vocabulary.PADDING), seed)
    for batch in every[state.done :]:
        yield len(every), batch


def _update(state: _State, batch: Batch, recipe: Recipe, share: float) -> float:
    """One step of Adam, at ``share`` of the whole training."""
    state.model.train()
    torch.manual_seed(recipe.seed * 1_000_003 + state.step)  # of dropout: a step has its own, whatever came before
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
        loss = loss_of(state.model, batch, recipe.label_smoothing)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(state.model.parameters(), recipe.clip)
    state.step += 1
    warm = state.step / recipe.warm_up if recipe.warm_up else 1.0
    fallen = max(0.0, (share - 1 + recipe.falling) / recipe.falling)
    for group in state.optimizer.param_groups:
        group["lr"] = recipe.rate * min(1.0, warm) * 0.5 * (1 + math.cos(math.pi * fallen))
    state.optimizer.step()
    state.done += 1
    # The average forgets its beginning faster while it is young.
    keep = min(recipe.average, (1 + state.step) / (10 + state.step))
    with torch.no_grad():
        torch._foreach_lerp_(list(state.average.values()), list(_parameters(state.model).values()), 1 - keep)
    return float(loss.detach())


def loss_of(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of the target's tokens, each given those before it and the source."""
    config: Any = model.config
    begin = torch.full_like(batch.target[:, :1], config["decoder_start_token_id"])
    before = torch.cat([begin, batch.target[:, :-1]], 1)
    real = torch.arange(before.shape[1]) < batch.target_lengths[:, None]
    mask = Padding(batch.source_lengths)
    head, model.head = model.head, None
    try:
        hidden = model(batch.source, before, mask=mask)
    finally:
        model.head = head
    assert head is not None
    logits = head(hidden[real])  # of real tokens only
    return nn.functional.cross_entropy(logits, batch.target[real], label_smoothing=label_smoothing)


def _needs_sacrebleu() -> None:
    try:
        import sacrebleu  # noqa: F401
    except ImportError:
        raise ImportError("BLEU needs sacrebleu: pip install 'limelight[train]'") from None


def bleu(model: Seq2Seq, tokenizer: Tokenizer, references: dict[str, list[str]], beams: int = 1) -> float:
    """BLEU of the translations of the references' keys, by sacrebleu."""
    import sacrebleu

    sources = list(references)
    found = _translated(model, tokenizer, sources, beams)
    most = max(map(len, references.values()))
    columns = [[refs[n] if n < len(refs) else None for refs in references.values()] for n in range(most)]
    return float(sacrebleu.corpus_bleu(found, columns).score)  # type: ignore[arg-type]


def _translated(model: Seq2Seq, tokenizer: Tokenizer, texts: list[str], beams: int, size: int = 64) -> list[str]:
    ids = vocabulary.encode(tokenizer, texts)
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    found: dict[int, str] = {}
    for begin in range(0, len(order), size):
        part = order[begin : begin + size]
        source, lengths = padded([ids[n] for n in part], vocabulary.number(tokenizer, vocabulary.PADDING))
        longest = 2 * source.shape[1] + 10
        out = models.generate(model, source, mask=Padding(lengths), max_new_tokens=longest, beams=beams)
        found.update(zip(part, tokenizer.decode_batch(out.tolist()), strict=True))
    return [found[n] for n in range(len(ids))]


@contextmanager
def _averaged(state: _State, blend: float) -> Iterator[None]:
    """The model with the parameters that are kept: their average, mixed with those that training began with."""
    named = _parameters(state.model)
    trained = {name: x.clone() for name, x in named.items()}
    with torch.no_grad():
        for name, x in named.items():
            x.copy_(torch.lerp(state.begun[name], state.average[name], blend))
    try:
        yield
    finally:
        for name, x in named.items():
            x.copy_(trained[name])


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.data for name, x in model.named_parameters()}


_RECIPE, _STATE = "recipe.json", "training.safetensors"
_MOMENTS = "exp_avg", "exp_avg_sq"


def _begin(folder: Path, training: list[Pair], recipe: Recipe, start: Path | None) -> Tokenizer:
    """The vocabulary of this training, which must have the recipe of an earlier one in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join(f"{a}\t{b}" for a, b in training).encode()).hexdigest()
    wanted = {**asdict(recipe), "pairs": len(training), "digest of the pairs": digest}
    if start is not None:
        wanted["digest of the start"] = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    if (folder / _RECIPE).is_file():
        found = json.loads((folder / _RECIPE).read_text(encoding="utf-8"))
        clash = [f"{name} = {found.get(name)}, not {x}" for name, x in wanted.items() if found.get(name) != x]
        if clash:
            raise ValueError(f"{folder} holds a training with {'; '.join(clash)}: give the same, or another folder")
        return vocabulary.read(folder)
    if start is not None:
        tokenizer = vocabulary.read(start)
    else:
        tokenizer = vocabulary.learn((text for pair in training for text in pair), recipe.vocabulary)
    tokenizer = vocabulary.with_letters(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / WORDS).write_text("\n".join(known_words(training)) + "\n", encoding="utf-8")
    stand_ins.write(folder, stand_ins.learn(training))
    (folder / _RECIPE).write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    return tokenizer


def _restored(folder: Path, recipe: Recipe, tokenizer: Tokenizer, start: Path | None) -> _State:
    torch.manual_seed(recipe.seed)
    model = models.build(recipe.config(tokenizer))
    assert isinstance(model, Seq2Seq)
    if start is not None:
        begin_with(model, models.load(start, dtype=torch.float32))
    named = dict(model.named_parameters())
    optimizer = torch.optim.Adam(named.values(), lr=recipe.rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    average, begun = ({name: x.clone() for name, x in _parameters(model).items()} for _ in range(2))
    state = _State(model, average, optimizer, begun)
    if not (folder / _STATE).is_file():
        return state
    tensors = load_file(folder / _STATE)
    for name, x in named.items():
        x.data.copy_(tensors[f"model.{name}"])
        state.average[name].copy_(tensors[f"average.{name}"])
        moments = {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS}
        optimizer.state[x] = {"step": tensors["step"].float(), **moments}
    state.step, state.epoch, state.done = (int(tensors[name]) for name in ("step", "epoch", "done"))
    state.scores = tensors["scores"].tolist()
    return state


def _save(folder: Path, state: _State) -> None:
    """All at once: a training that is stopped while it saves still has what it saved before."""
    tensors = {f"average.{name}": x for name, x in state.average.items()}
    for name, x in state.model.named_parameters():
        tensors[f"model.{name}"] = x.data
        tensors |= {f"{moment}.{name}": state.optimizer.state[x][moment] for moment in _MOMENTS}
    for name in ("step", "epoch", "done"):
        tensors[name] = torch.tensor(getattr(state, name))
    tensors["scores"] = torch.tensor(state.scores, dtype=torch.float64)
    beside = folder / f"{_STATE}.new"
    save_file(tensors, beside)
    os.replace(beside, folder / _STATE)
