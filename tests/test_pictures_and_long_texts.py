"""Experiments that train on pictures and long texts: drawings, captions, digits, sparse patterns and caches."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from limelight import Causal, KVCache, Window, WindowCache, experiments, weights
from limelight.experiments import captions, digits, long_patterns, resting
from limelight.experiments.drawings import (
    COLOURS,
    END,
    GRID,
    NOT_SCORED,
    PATCH,
    SHAPES,
    START,
    WORDS,
    Drawings,
    draw_pictures,
    never_together,
    spelled,
)
from limelight.experiments.findings import MISSING, REPRODUCED


def test_pictures_show_what_their_captions_say() -> None:
    """Each object has its colour, where its patches are, and stands above or left of the other."""
    drawn = draw_pictures(41, held_out=False, seed=3)
    for picture, caption, patches in zip(drawn.pictures, drawn.captions, drawn.patches, strict=True):
        words = spelled(caption).split()
        centres = []
        for colour, mine in zip((words[1], words[-2]), patches, strict=True):
            pixels = (picture - torch.tensor(COLOURS[colour])[:, None, None]).abs().amax(0) < 0.25
            where = pixels & mine.view(GRID, GRID).repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
            assert where.sum() >= 15
            centres.append(where.nonzero().float().mean(0))
        (y1, x1), (y2, x2) = centres
        assert (y2 - y1 > abs(x2 - x1)) == (words[3] == "above")
        assert (x2 - x1 > abs(y2 - y1)) == (words[3] == "left")


def test_shapes_differ() -> None:
    """A square fills more of the square around it than a circle, a triangle less, and a cross the least."""
    drawn = draw_pictures(300, held_out=False, seed=4)
    areas: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    for picture, caption in zip(drawn.pictures, drawn.captions, strict=True):
        words = spelled(caption).split()
        if words[1] != words[-2]:
            colour = torch.tensor(COLOURS[words[1]])[:, None, None]
            areas[words[2]].append(float(((picture - colour).abs().amax(0) < 0.15).sum()))
    means = {shape: sum(x) / len(x) for shape, x in areas.items()}
    assert means["square"] > means["circle"] > means["triangle"] > means["cross"]


def test_held_out_pairs_are_never_drawn_for_training() -> None:
    number = {word: n for n, word in enumerate(WORDS)}
    first_colour, first_shape = number["red"], number["circle"]

    def objects(drawn: Drawings) -> torch.Tensor:
        words = [spelled(caption).split() for caption in drawn.captions]
        pairs = [[(w[1], w[2]), (w[-2], w[-1])] for w in words]
        return torch.tensor(
            [[4 * (number[c] - first_colour) + number[s] - first_shape for c, s in pair] for pair in pairs]
        )

    seen, new = (objects(draw_pictures(1000, held_out=x, seed=5)) for x in (False, True))
    assert never_together(new).all()
    assert not never_together(seen).any()
    assert not {tuple(sorted(x)) for x in seen.tolist()} & {tuple(sorted(x)) for x in new.tolist()}
    assert torch.equal(never_together(new), never_together(new.flip(1)))
    # every object, and every two shapes or colours, are in the training
    assert len({x for pair in seen.tolist() for x in pair}) == 16
    assert len({(a % 4, b % 4) for a, b in seen.tolist()}) == len({(a // 4, b // 4) for a, b in seen.tolist()}) == 16


def test_captions_are_written_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = captions.captioner()
    drawn = draw_pictures(5, held_out=True, seed=6)
    answers = drawn.captions

    def decode(ids: torch.Tensor, context: torch.Tensor, last: bool) -> torch.Tensor:
        return torch.nn.functional.one_hot(answers[:, ids.shape[1]].clamp(min=0), len(WORDS))[:, None].float()

    monkeypatch.setattr(model, "decode", decode)
    assert torch.equal(captions.write(model, drawn.pictures), answers)
    assert captions.exact(model, drawn) == 1.0
    answers = answers.clone()
    answers[0, 2] = WORDS.index("red") + (answers[0, 2] == WORDS.index("red"))
    assert captions.exact(model, drawn) == pytest.approx(0.8)
    assert spelled(torch.tensor([WORDS.index(START), 2, WORDS.index(END), NOT_SCORED])) == "a"


def test_mass_is_taken_from_the_rows_of_shapes() -> None:
    """Weights that lie on the first object in every row of a caption: the second shape's row has none on its own."""
    drawn = draw_pictures(7, held_out=False, seed=8)
    first = drawn.patches[:, 0].float()
    A = (first / first.sum(-1, keepdim=True))[None, :, None, None].expand(2, -1, 3, 9, -1)
    masses = captions.mass_on_objects(A, drawn)
    overlap = (first * drawn.patches[:, 1]).sum(-1) / first.sum(-1)
    torch.testing.assert_close(masses, ((1 + overlap.mean()) / 2).expand(2, 3))
    for caption, rows in zip(drawn.captions, captions.shape_rows(drawn), strict=True):
        assert all(WORDS[int(caption[1 + row])] in SHAPES for row in rows)


def test_hidden_patches_do_not_reach_the_answer() -> None:
    """With all patches hidden in every layer the answer is the same for every picture; with none it is the model's."""
    torch.manual_seed(0)
    model, pictures = digits.Reader().eval(), torch.rand(6, 1, 8, 8)
    test = digits.Digits(pictures, torch.zeros(6, dtype=torch.long))
    with torch.no_grad():
        plain = model(pictures)
        every = torch.ones(6, digits.PATCHES, dtype=torch.bool)
        with digits.edit(model, dict.fromkeys(range(digits.LAYERS), digits.Knockout(digits.hide(every)))):
            blind = model(pictures)
    torch.testing.assert_close(blind, blind[:1].expand_as(blind))
    assert (plain - plain[:1]).abs().max() > 1e-3
    right = float((plain.argmax(-1) == 0).float().mean())
    assert digits.share_right(model, test, ~every) == pytest.approx(right)


def test_the_strongest_patches() -> None:
    heat = torch.tensor([[0.1, 0.5, 0.2, 0.3], [0.9, 0.0, 0.1, 0.8]])
    assert digits.strongest(heat, 2).tolist() == [[False, True, False, True], [True, False, False, True]]
    heat = digits.seen_patches(digits.Reader().eval(), torch.rand(3, 1, 8, 8))
    assert heat.shape == (3, 16)
    assert ((heat > 0) & (heat < 1)).all()


def test_missing_digits_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        digits.handwritten()
    result = digits.run(quick=True)
    assert [f.verdict for f in result.findings] == [MISSING]
    experiments.draw(result)


def test_kept_mass_against_the_dense_matrix() -> None:
    n = 601
    A = weights(torch.randn(1, 3, n, 8), torch.randn(1, 3, n, 8), mask=Causal())
    dense = A.dense()
    rows = {row["pattern"]: row for row in long_patterns.kept([A], n)}
    for name, mask in long_patterns.patterns(n).items():
        allowed = mask.dense(n) & Causal().dense(n)
        share = (dense * allowed).sum(-1).mean((0, 2))
        assert rows[name]["kept"] == pytest.approx(float(share.mean()), rel=1e-4)
        assert rows[name]["least"] == pytest.approx(float(share.min()), rel=1e-4)
    heavy = dense.sum(-2).topk(long_patterns.BUDGET).values.sum(-1) / n
    assert rows["heavy hitters"]["kept"] == pytest.approx(float(heavy.mean()), rel=1e-4)


def test_patterns_have_the_same_number_of_keys() -> None:
    n = 8192
    for name, mask in long_patterns.patterns(n).items():
        keys = int((mask.dense(n)[-1]).sum())
        assert abs(keys - long_patterns.BUDGET) <= 0.15 * long_patterns.BUDGET, name


def test_a_stream_is_read_as_without_a_cache() -> None:
    torch.manual_seed(0)
    model = long_patterns.decoder(257, 32, 2, 2, positions=lambda: long_patterns.ALiBi(2)).eval()
    ids = long_patterns.pieces(torch.arange(200), 3, 77, torch.Generator().manual_seed(0))
    assert (ids[:, 0] == long_patterns.START).all()
    with torch.no_grad():
        logits = model(ids[:, :-1])
        narrow = model(ids[:, :-1], mask=Window(12, 0))
    for cache, wanted in ((KVCache(), logits), (WindowCache(13, 0), narrow)):
        found = long_patterns.loss_in_stream(model, ids, cache)
        loss = torch.nn.functional.cross_entropy(wanted.mT, ids[:, 1:], reduction="none").mean(0)
        torch.testing.assert_close(found, loss, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_digits_are_read_and_patches_matter() -> None:
    result = experiments.run("digits")
    assert result.findings[0].measured >= 0.97
    assert [f.verdict for f in result.findings[:3]] == [REPRODUCED] * 3


@pytest.mark.slow
def test_captions_of_pairs_that_were_never_seen() -> None:
    result = experiments.run("captions")
    written, looked = result.findings[:2]
    assert written.measured >= 0.95
    assert looked.measured >= 5
    assert [f.verdict for f in result.findings[:3]] == [REPRODUCED] * 3


def test_the_language_that_needs_attention_after_the_trigger_alone() -> None:
    g = torch.Generator().manual_seed(3)
    table = resting.followers(g)
    ids = resting.texts(7, 301, table, g)
    assert ids.shape == (7, 302)
    assert (ids[:, 0] == resting.FIRST).all()
    before, here, after = ids[:, 1:-2], ids[:, 2:-1], ids[:, 3:]
    trigger = here == resting.TRIGGER
    assert 0.05 < trigger.float().mean() < 0.2
    assert (after == before)[trigger].all()
    assert (table[here] == after[..., None]).any(-1)[~trigger].all()
