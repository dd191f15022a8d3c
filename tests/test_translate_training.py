"""Training a translator: pairs, batches, the loss, recipes, and going on after an interruption."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from limelight import models, translate
from limelight.cli import main
from limelight.translate import Pair, Recipe, averaging, training, vocabulary
from limelight.translate.data import Batch, batches, padded
from limelight.translate.defaults import advice_on, choices_for
from limelight.translate.training import loss_of
from toy_language import TINY, toy_pairs


def test_pairs_are_read(tmp_path: Path) -> None:
    lines = "Go.\tVa !\nGo.\tAllez !\tCC-BY\n\nHi.\tSalut.\n"
    plain, packed = tmp_path / "a.tsv", tmp_path / "a.tsv.gz"
    plain.write_text(lines, encoding="utf-8")
    packed.write_bytes(gzip.compress(lines.encode()))
    assert (
        translate.read_pairs(plain)
        == translate.read_pairs(packed)
        == [("Go.", "Va !"), ("Go.", "Allez !"), ("Hi.", "Salut.")]
    )
    notes: list[str] = []
    translate.read_pairs(plain, note=notes.append)
    (note,) = notes
    assert "columns after the second are not used; 1 lines have a third one, such as 'CC-BY'" in note
    for text, message in ((b"only one\n", "line 1"), (b"", "no pairs"), (b"\xff\xfe\x00", "UTF-8")):
        plain.write_bytes(text)
        with pytest.raises(ValueError, match=message):
            translate.read_pairs(plain)


def test_no_sentence_is_on_both_sides() -> None:
    pairs = [Pair(f"e{n % 97}", f"f{n % 61}") for n in range(400)]
    training, references = translate.divide(pairs, 10, seed=1)
    assert len(references) == 10
    assert not {p.source for p in training} & set(references)
    assert not {p.target for p in training} & {t for ts in references.values() for t in ts}
    assert all(set(ts) == {p.target for p in pairs if p.source == s} for s, ts in references.items())
    assert translate.divide(pairs, 10, seed=1) == (training, references)
    with pytest.raises(ValueError, match="held_out"):
        translate.divide(pairs, 97, seed=1)


def test_batches_hold_everything_once() -> None:
    draw = random.Random(1)
    ids = [([n + 10] * draw.randint(1, 9), [n + 10] * draw.randint(1, 13)) for n in range(500)]
    found = batches(ids, 60, 2, "a")
    rows = [
        (s[:a].tolist(), t[:b].tolist())
        for batch in found
        for s, a, t, b in zip(*batch, strict=True)  # type: ignore[call-overload]
    ]
    assert sorted(rows) == sorted(ids)
    assert all(batch.target.numel() <= 60 for batch in found)
    real = sum(int(batch.target_lengths.sum()) for batch in found) / sum(batch.target.numel() for batch in found)
    assert real > 0.9
    assert [b.target.tolist() for b in batches(ids, 60, 2, "a")] == [b.target.tolist() for b in found]
    assert [b.target.tolist() for b in batches(ids, 60, 2, "b")] != [b.target.tolist() for b in found]


def test_padding() -> None:
    rows, lengths = padded([[1, 2, 3], [4]], 0)
    assert rows.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [3, 1]


def test_the_vocabulary_gives_back_what_it_took() -> None:
    tokenizer = vocabulary.learn(["Où est l'été ?", "It isn't 1987!"] * 9, 200)
    for text in ("Où est l'été ?", "It isn't 1987!"):
        (ids,) = vocabulary.encode(tokenizer, [text])
        assert tokenizer.decode(ids) == text
        assert tokenizer.id_to_token(ids[-1]) == "</s>"
    assert tokenizer.encode("l’été\u202f?").ids == tokenizer.encode("l'été ?").ids


def test_the_loss() -> None:
    """The loss is that of real tokens alone, by PyTorch, sentence by sentence."""
    torch.manual_seed(0)
    tokenizer = vocabulary.learn([text for pair in toy_pairs() for text in pair], 60)
    model: Any = models.build(TINY.config(tokenizer)).eval()
    pairs = toy_pairs(5)
    sources, targets = (vocabulary.encode(tokenizer, [pair[n] for pair in pairs]) for n in (0, 1))
    (batch,) = batches(list(zip(sources, targets, strict=True)), 10_000, 2, "x")
    total = torch.zeros(())
    for source, target in zip(sources, targets, strict=True):
        before = torch.tensor([[model.config["decoder_start_token_id"], *target[:-1]]])
        logits = model(torch.tensor([source]), before)[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum")
    torch.testing.assert_close(loss_of(model, batch), total / sum(map(len, targets)))


def test_the_loss_of_two_passes() -> None:
    """With dropout, the entropy and the symmetric divergence of the same two passes, by PyTorch; without, none."""
    torch.manual_seed(0)
    tokenizer = vocabulary.learn([text for pair in toy_pairs() for text in pair], 60)
    model: Any = models.build(TINY.config(tokenizer))
    sources, targets = (vocabulary.encode(tokenizer, [pair[n] for pair in toy_pairs(5)]) for n in (0, 1))
    (batch,) = batches(list(zip(sources, targets, strict=True)), 10_000, 2, "x")
    torch.testing.assert_close(loss_of(model.eval(), batch, 0.1, 3.0), loss_of(model, batch, 0.1))
    model.train()
    torch.manual_seed(1)
    logits, wanted = training._predictions(model, Batch(*(torch.cat([x, x]) for x in batch)))
    p, q = logits.log_softmax(-1).chunk(2)
    kl = partial(torch.nn.functional.kl_div, reduction="batchmean", log_target=True)
    expected = torch.nn.functional.cross_entropy(logits, wanted) + 3.0 * 0.5 * (kl(p, q) + kl(q, p))
    torch.manual_seed(1)
    torch.testing.assert_close(loss_of(model, batch, consistency=3.0), expected)
    assert float(kl(p, q).detach()) > 1e-3


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("muon", [False, True])
def test_an_interrupted_training_comes_to_the_same_result(tmp_path: Path, muon: bool) -> None:
    recipe = replace(TINY, merges_dropped=0.3, muon=muon)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    best = translate.train(toy_pairs(), whole, recipe)
    stops = iter((3, 7, 33))
    at = next(stops)

    def watch(now: translate.Progress) -> None:
        nonlocal at
        if now.step == at:
            at = next(stops, -1)
            raise Interrupted

    for _ in range(3):
        with pytest.raises(Interrupted):
            translate.train(toy_pairs(), parts, recipe, watch=watch, save_every=0.0)
    assert translate.train(toy_pairs(), parts, recipe, watch=watch, save_every=0.0) == best
    a, b = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match="holds a training with epochs = 2, not 3"):
        translate.train(toy_pairs(), parts, replace(recipe, epochs=3))
    loaded = translate.load(whole)
    assert loaded("the cat.").tokens[-1] == "</s>" or len(loaded("the cat.").tokens) > 5


@pytest.mark.parametrize(
    ("field", "value"),
    [("dropout", 1.0), ("epochs", 0), ("heads", 5), ("rate", -1.0), ("label_smoothing", 1.5), ("merges_dropped", 1.1)],
)
def test_recipes_that_cannot_work(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})  # type: ignore[arg-type]


def test_choices_suit_the_number_of_pairs() -> None:
    many = [Pair(f"{n} is it.", f"{n} est " + "un nombre " * 20) for n in range(40_000)]
    usual = Recipe()
    assert choices_for(many) == {name: getattr(usual, name) for name in choices_for(many)}
    few = choices_for(many[:2016])
    updates = few["epochs"] * sum(1.4 * len(pair.target.split()) for pair in many[:2016]) / few["tokens"]
    assert updates > 3000
    assert few["warm_up"] < updates / 5
    assert few["held_out"] + few["validated"] < 0.15 * 2016
    assert "2,016 pairs are few" in (advice_on(many[:2016]) or "")
    assert advice_on(many) is None
    translate.divide(many[:3], **{name: choices_for(many[:3])[name] for name in ("held_out",)}, seed=1)


def test_train_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    small = "--vocabulary 60 --width 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --hidden 16 --epochs 1"
    arguments = [
        "train",
        str(file),
        "--out",
        str(tmp_path / "m"),
        *small.split(),
        "--held-out",
        "20",
        "--validated",
        "20",
        "--tokens",
        "300",
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "BLEU" in done.stdout
    assert json.loads((tmp_path / "m" / "config.json").read_text())["d_model"] == 16
    wrong = CliRunner().invoke(main, ["train", str(file), "--out", str(tmp_path / "n"), "--held-out", "9999"])
    assert wrong.exit_code == 1
    assert "held_out = 9999" in wrong.stderr


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in toy_pairs()), encoding="utf-8")
    small = "--vocabulary 60 --width 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --hidden 16 --epochs 1"

    def run(out: str) -> Any:
        return CliRunner().invoke(
            main, ["train", str(file), "--out", str(tmp_path / out), *small.split(), "--tokens", "300"]
        )

    whole = run("whole")
    assert whole.exit_code == 0, whole.output
    assert "400 pairs are few" in whole.stderr
    assert "--held-out" in whole.stderr  # 1,500 would be all
    update, steps = training._update, 0

    def interrupted(*arguments: Any) -> float:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return update(*arguments)

    monkeypatch.setattr(training, "_update", interrupted)
    stopped = run("parts")
    assert stopped.exit_code == 130, stopped.output
    assert steps == 3
    assert f"stopped after update 3, in epoch 1: saved in {tmp_path / 'parts'}" in stopped.stderr
    assert f"To go on: limelight train {file} --out {tmp_path / 'parts'} --vocabulary 60" in stopped.stderr
    again = run("parts")
    assert again.exit_code == 0, again.output
    assert "going on after update 3, in epoch 1" in again.stderr
    a, b = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_processes_share_every_batch(tmp_path: Path) -> None:
    """Without dropout three processes make the steps of one, also for batches of fewer sentences than processes."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in toy_pairs(150)), encoding="utf-8")
    sizes = ["--width", "16", "--heads", "2", "--hidden", "24", "--encoder-layers", "1", "--decoder-layers", "1"]
    command = ["train", str(file), *sizes, "--epochs", "1", "--tokens", "15", "--vocabulary", "60", "--dropout", "0"]
    command += ["--held-out", "20", "--validated", "10", "--rate", "3e-3", "--warm-up", "0", "--muon"]
    together = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "-m", "limelight"]
    runs = [[sys.executable, "-m", "limelight"], together]
    outputs = [
        subprocess.run([*run, *command, "--out", str(tmp_path / str(n))], capture_output=True, text=True, check=True)
        for n, run in enumerate(runs)
    ]
    assert outputs[1].stdout.count("BLEU") == 1
    one, three = (load_file(tmp_path / str(n) / "training.safetensors") for n in range(2))
    assert one.keys() == three.keys()
    assert one["step"] == three["step"] > 20
    a, b = (torch.cat([x.flatten() for name, x in run.items() if name.startswith("model.")]) for run in (one, three))
    assert float((a - b).norm() / a.norm()) < 0.01


def test_the_mean_of_trainings(tmp_path: Path) -> None:
    """The mean of two trainings from one start, computed from their files, and models that have no mean."""
    pairs = toy_pairs()
    translate.train(pairs, tmp_path / "start", TINY)
    for name, dropout in (("a", 0.1), ("b", 0.3)):
        recipe = replace(TINY, epochs=1, dropout=dropout)
        translate.train(pairs, tmp_path / name, recipe, start=tmp_path / "start")
    averaging.main(str(tmp_path / "mean"), [str(tmp_path / "a"), str(tmp_path / "b")])
    a, b, mean = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b", "mean"))
    assert a.keys() == mean.keys()
    for name, x in mean.items():
        torch.testing.assert_close(x.double(), (a[name].double() + b[name].double()) / 2, rtol=1e-3, atol=1e-6)
    assert any((a[name] != b[name]).any() for name in a)
    assert translate.load(tmp_path / "mean")("the cat sees a dog.").text

    models.save(
        models.build(
            {"model_type": "gpt2", "n_embd": 12, "n_layer": 1, "n_head": 3, "vocab_size": 17, "n_positions": 19}
        ),
        tmp_path / "gpt2",
    )
    with pytest.raises(ValueError, match="not a translator"):
        averaging.mean_of([tmp_path / "gpt2"])
    translate.train(pairs, tmp_path / "wide", replace(TINY, epochs=1, hidden=96))
    with pytest.raises(ValueError, match="other layers or sizes"):
        averaging.mean_of([tmp_path / "a", tmp_path / "wide"])
    file = tmp_path / "b" / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    pieces = tokenizer["model"]["vocab"]
    pieces["a"], pieces["c"] = pieces["c"], pieces["a"]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ValueError, match="another vocabulary"):
        averaging.mean_of([tmp_path / "a", tmp_path / "b"])
