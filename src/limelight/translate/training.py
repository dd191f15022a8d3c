"""Training of a translator on pairs of sentences; it can be stopped at any moment and continued later."""

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
from limelight.translate.augmentation import Augmenter
from limelight.translate.copying import WORDS
from limelight.translate.data import Batch, Pair, batches, divide, padded
from limelight.translate.merges import Merges
from limelight.translate.muon import Muon
from limelight.translate.recipe import Recipe
from limelight.translate.team import Team
from limelight.translate.warm_start import begin_with
from limelight.translate.words import known_words


@dataclass(frozen=True)
class Progress:
    """The state of a training after an update.

    Attributes:
        step: updates so far.
        epoch: the number of the epoch, from 0.
        done: batches of the epoch that are done.
        batches: all batches of the epoch.
        loss: that of the last batch, in nats a token.
        tokens: tokens of both languages so far in this run.

    """

    step: int
    epoch: int
    done: int
    batches: int
    loss: float
    tokens: int


@dataclass
class _State:
    """Everything that an update changes."""

    model: Seq2Seq
    average: dict[str, Tensor]
    optimizers: list[torch.optim.Optimizer]
    team: Team
    begun: dict[str, Tensor]  # the parameters at the start
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
    distilled: list[Pair] | None = None,
    finish: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    scored: Callable[[int, float], None] = lambda *_: None,
    resumed: Callable[[int, int], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
    save_every: float = 300.0,
) -> float:
    """Train on ``pairs``, save the model with the best BLEU in ``folder``, in float16, and return that BLEU.

    BLEU is measured on sentences that are not trained on, both as they are and augmented as the training pairs are.
    The sentences of ``divide(pairs, recipe.held_out, recipe.seed)`` are not used at all, so that they can be a test.
    If ``folder`` holds an interrupted training with the same recipe, it is continued, with the same result as if it
    had not been interrupted.

    Where there is a process group (``torchrun``), its processes share every batch: each computes the gradients of its
    part, and all make the same step. Two processes of one thread each are faster than one of two threads. Their number
    changes the model a little, by dropout and by the rounding of sums.

    Args:
        pairs: pairs of sentences.
        folder: the folder of the model and of the state of its training.
        recipe: the settings.
        start: the folder of a model of the same width to begin with; decoder layers that it lacks are added.
        distilled: pairs to train on in place of ``pairs``: the same sentences with other translations (see
            ``distillation``). The vocabulary and the sentences to validate on are still those of ``pairs``.
        finish: save the model of an interrupted training as it is, without further updates, even if an earlier epoch
            had a better BLEU.
        watch: called after every update.
        scored: called after every epoch, with its number and BLEU.
        resumed: called with the numbers of updates and epochs of a training that is continued.
        stop: called after every update; if it returns True, everything is saved and ``Stopped`` is raised.
        save_every: seconds after which everything is saved.

    """
    folder, start = Path(folder), None if start is None else Path(start)
    _needs_sacrebleu()
    team = Team()
    training, references = split_for_training(pairs, recipe)
    with team.first_one_first():
        tokenizer = _begin(folder, training, recipe, start, distilled)
    augmenter = Augmenter(training if distilled is None else distilled, recipe.shares)
    state = _restored(folder, recipe, tokenizer, start, team)
    if state.step:
        resumed(state.step, state.epoch)
    if finish:
        with _averaged(state, recipe.blend):
            _keep(state, folder)
            return bleu(state.model, tokenizer, references)
    autosave, seen = _Autosave(folder, save_every, stop), 0
    while state.epoch < recipe.epochs and not _ended(state.scores, recipe.patience):
        for count, batch in _rest_of_epoch(augmenter, state, recipe, tokenizer):
            loss = _update(state, batch, recipe, (state.epoch + state.done / count) / recipe.epochs)
            seen += int(batch.source_lengths.sum() + batch.target_lengths.sum())
            watch(Progress(state.step, state.epoch, state.done, count, loss, seen))
            autosave(state)
        score = _end_epoch(state, folder, recipe, tokenizer, references)
        scored(state.epoch, score)
    return max(state.scores)


def _end_epoch(
    state: _State, folder: Path, recipe: Recipe, tokenizer: Tokenizer, references: dict[str, list[str]]
) -> float:
    """Return the BLEU of the averaged model, which is saved if it is the best so far; save the state."""
    with _averaged(state, recipe.blend):
        score = bleu(state.model, tokenizer, references)
        if score > max(state.scores, default=-1.0):
            _keep(state, folder)
    state.scores.append(score)
    state.epoch, state.done = state.epoch + 1, 0
    _save(folder, state)
    return score


def _keep(state: _State, folder: Path) -> None:
    """Save the model itself, in float16."""
    if state.team.writes:
        models.save(copy.deepcopy(state.model).half(), folder)


class _Autosave:
    """Saves the state of a training every ``seconds``, and ends the training when ``stop`` returns True."""

    def __init__(self, folder: Path, seconds: float, stop: Callable[[], bool]) -> None:
        self._folder, self._seconds, self._stop = folder, seconds, stop
        self._saved_at = time.monotonic()

    def __call__(self, state: _State) -> None:
        stopping = state.team.any(self._stop())
        if stopping or time.monotonic() - self._saved_at > self._seconds:
            _save(self._folder, state)
            self._saved_at = time.monotonic()
        if stopping:
            raise Stopped(state.step, state.epoch)


def split_for_training(pairs: list[Pair], recipe: Recipe) -> tuple[list[Pair], dict[str, list[str]]]:
    """Return pairs to train on, and sentences with their translations to validate on: plain and augmented ones."""
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
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    if recipe.merges_dropped:
        merges = Merges(tokenizer)
        ids = [merges.encode(texts, recipe.merges_dropped, f"{seed} {n}") for n, texts in enumerate((sources, targets))]
    else:
        ids = [vocabulary.encode(tokenizer, texts) for texts in (sources, targets)]
    every = batches(list(zip(*ids, strict=True)), recipe.tokens, vocabulary.number(tokenizer, vocabulary.PADDING), seed)
    for batch in every[state.done :]:
        yield len(every), batch


def _update(state: _State, batch: Batch, recipe: Recipe, share: float) -> float:
    """Make one step of Adam, after a ``share`` of the whole training."""
    state.model.train()
    parameters, team = list(state.model.parameters()), state.team
    state.model.zero_grad(set_to_none=True)
    # The dropout of a step depends on its number and the process alone.
    torch.manual_seed((recipe.seed * 1_000_003 + state.step) * team.size + team.rank)
    part, loss = team.part(batch), torch.zeros(())
    if len(part.target):
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            mean = loss_of(state.model, part, recipe.label_smoothing, recipe.consistency)
        loss = mean * (part.target_lengths.sum() / batch.target_lengths.sum())
        loss.backward()
    team.sum_gradients(parameters)
    nn.utils.clip_grad_norm_(parameters, recipe.clip)
    state.step += 1
    warm = state.step / recipe.warm_up if recipe.warm_up else 1.0
    fallen = max(0.0, (share - 1 + recipe.falling) / recipe.falling)
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, warm) * 0.5 * (1 + math.cos(math.pi * fallen))
        optimizer.step()
    state.done += 1
    # The average starts with a faster decay, so that it forgets the initial parameters.
    keep = min(recipe.average, (1 + state.step) / (10 + state.step))
    with torch.no_grad():
        torch._foreach_lerp_(list(state.average.values()), list(_parameters(state.model).values()), 1 - keep)
    return float(team.sum([loss.detach()])[0])


def loss_of(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0, consistency: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of the target's tokens, each given those before it and the source.

    ``consistency`` above 0 passes every pair through the model twice, with different dropout, and adds the divergence
    between the two predictions, ``½ KL(p ‖ q) + ½ KL(q ‖ p)`` a token, with this weight (R-Drop, Liang et al. 2021).
    """
    if not consistency:
        logits, wanted = _predictions(model, batch)
        return nn.functional.cross_entropy(logits, wanted, label_smoothing=label_smoothing)
    logits, wanted = _predictions(model, Batch(*(torch.cat([x, x]) for x in batch)))
    first, second = logits.float().log_softmax(-1).chunk(2)
    divergence = 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(-1).mean()
    entropy = nn.functional.cross_entropy(logits, wanted, label_smoothing=label_smoothing)
    return entropy + consistency * divergence


def _predictions(model: Seq2Seq, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits ``(T, V)`` of all target tokens that are not padding, and these tokens ``(T,)``."""
    config: Any = model.config
    begin = torch.full_like(batch.target[:, :1], config["decoder_start_token_id"])
    before = torch.cat([begin, batch.target[:, :-1]], 1)
    real = torch.arange(before.shape[1]) < batch.target_lengths[:, None]
    head, model.head = model.head, None
    try:
        hidden = model(batch.source, before, mask=Padding(batch.source_lengths))
    finally:
        model.head = head
    assert head is not None
    return head(hidden[real]), batch.target[real]


def _needs_sacrebleu() -> None:
    try:
        import sacrebleu  # noqa: F401
    except ImportError:
        raise ImportError("BLEU needs sacrebleu: pip install 'limelight-attention[train]'") from None


def bleu(model: Seq2Seq, tokenizer: Tokenizer, references: dict[str, list[str]], beams: int = 1) -> float:
    """Translate the keys of ``references``, and return their BLEU by sacrebleu, from 0 to 100.

    Args:
        model: the model of a translator.
        tokenizer: its vocabulary.
        references: sentences with their translations, as ``divide`` returns them.
        beams: the number of hypotheses of beam search; 1 takes the likeliest token at every step.

    """
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
    """Give the model, inside a ``with`` block, the averaged parameters, blended with those at the start."""
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


def _digest(pairs: list[Pair]) -> str:
    return hashlib.sha256("\n".join(f"{a}\t{b}" for a, b in pairs).encode()).hexdigest()


def _check_distilled(distilled: list[Pair], training: list[Pair]) -> None:
    """Refuse pairs whose sentences are held out, set aside to validate on, or not among the given ones."""
    known = {pair.source for pair in training}
    others = [pair.source for pair in distilled if pair.source not in known]
    if others:
        raise ValueError(
            f"{len(others):,} distilled pairs, such as {others[0]!r}, are not among those to train on: "
            "give the pairs, --held-out and --validated that they were made with"
        )


def _begin(
    folder: Path, training: list[Pair], recipe: Recipe, start: Path | None, distilled: list[Pair] | None
) -> Tokenizer:
    """Prepare the folder and return the vocabulary; raise if the folder holds a training with another recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {**asdict(recipe), "pairs": len(training), "digest of the pairs": _digest(training)}
    if distilled is not None:
        _check_distilled(distilled, training)
        wanted["digest of the distilled pairs"] = _digest(distilled)
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


def _restored(folder: Path, recipe: Recipe, tokenizer: Tokenizer, start: Path | None, team: Team) -> _State:
    torch.manual_seed(recipe.seed)
    model = models.build(recipe.config(tokenizer))
    assert isinstance(model, Seq2Seq)
    if start is not None:
        begin_with(model, models.load(start, dtype=torch.float32))
    average, begun = ({name: x.clone() for name, x in _parameters(model).items()} for _ in range(2))
    state = _State(model, average, _optimizers(model, recipe, team), team, begun)
    if not (folder / _STATE).is_file():
        return state
    tensors = load_file(folder / _STATE)
    named = dict(model.named_parameters())
    for name, x in named.items():
        x.data.copy_(tensors[f"model.{name}"])
        state.average[name].copy_(tensors[f"average.{name}"])
    for optimizer in state.optimizers:
        own = {x for group in optimizer.param_groups for x in group["params"]}
        for kind, name in (key.split(".", 2)[1:] for key in tensors if key.startswith("optimizer.")):
            if named[name] in own:
                optimizer.state[named[name]][kind] = tensors[f"optimizer.{kind}.{name}"]
    state.step, state.epoch, state.done = (int(tensors[name]) for name in ("step", "epoch", "done"))
    state.scores = tensors["scores"].tolist()
    return state


def _optimizers(model: Seq2Seq, recipe: Recipe, team: Team) -> list[torch.optim.Optimizer]:
    """Return Adam, and before it Muon for the matrices inside the layers if the recipe says so."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, x in model.named_parameters():
        (matrices if recipe.muon and x.ndim == 2 and ".blocks." in name else others).append(x)
    adam = torch.optim.Adam(others, lr=recipe.rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    return [Muon(matrices, recipe.rate, team=team), adam] if recipe.muon else [adam]


def _save(folder: Path, state: _State) -> None:
    """Save the state in one step: a training that is killed while it saves still has what it saved before."""
    if not state.team.writes:
        return
    tensors = {f"average.{name}": x for name, x in state.average.items()}
    remembered = {x: kinds for optimizer in state.optimizers for x, kinds in optimizer.state.items()}
    for name, x in state.model.named_parameters():
        tensors[f"model.{name}"] = x.data
        tensors |= {f"optimizer.{kind}.{name}": value for kind, value in remembered[x].items()}
    for name in ("step", "epoch", "done"):
        tensors[name] = torch.tensor(getattr(state, name))
    tensors["scores"] = torch.tensor(state.scores, dtype=torch.float64)
    unfinished = folder / f"{_STATE}.new"
    save_file(tensors, unfinished)
    os.replace(unfinished, folder / _STATE)
