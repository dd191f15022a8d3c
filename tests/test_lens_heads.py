"""Reports on heads: every number from the dense matrices, row by row, and the labels."""

from __future__ import annotations

import json

import pytest
import torch

import limelight as ll
from families import PADDED, build, inputs
from limelight.lens import relation


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral"])
@pytest.mark.parametrize("padded", PADDED)
def test_heads(name: str, padded: str) -> None:
    """Every number of the report, from the dense matrices, row by row."""
    model, given = build(name), inputs(name, padded)
    given["input_ids"] = given["input_ids"] % 5 + 3  # so that tokens occur again
    with torch.no_grad(), ll.watch(model) as record:
        model(**given)
    with torch.no_grad():
        matrices = model(**given, output_attentions=True).attentions
    ids = given["input_ids"]
    real = given.get("attention_mask", torch.ones_like(ids)).bool()
    tokens = [["." if x == 3 else f"w{x}" for x in row] for row in ids.tolist()]
    report = record.heads(tokens)
    assert len(report) == 12
    for layer, matrix in enumerate(matrices):
        for head in range(6):
            row = report[6 * layer + head]
            assert (row["layer"], row["head"]) == (layer, head)
            expected = _by_hand(matrix[:, head].double(), ids, real, causal=name != "bert")
            for measure, x in expected.items():
                assert row[measure] == pytest.approx(x, abs=1e-4), measure
        flat = (matrix.double() * real[:, None, :, None]).flatten(2)
        cosine = torch.nn.functional.cosine_similarity(flat[:, :, None], flat[:, None], dim=-1)
        mean = ((cosine.sum(-1) - 1) / 5 * real.sum(1)[:, None]).sum(0) / real.sum()
        for head in range(6):
            assert report[6 * layer + head]["similarity"] == pytest.approx(float(mean[head]), abs=1e-4)


def _by_hand(a: torch.Tensor, ids: torch.Tensor, real: torch.Tensor, causal: bool) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for b in range(len(ids)):
        places = real[b].nonzero()[:, 0].tolist()
        for i in places:
            w = a[b, i]
            here = {
                "entropy": float(torch.special.entr(w).sum()),
                "first": float(w[places[0]]),
                "self": float(w[i]),
                "previous": float(w[i - 1]) if i else 0.0,
                "next": float(w[i + 1]) if i + 1 < len(w) else 0.0,
                "near": float(w[max(0, i - 8) : i + 9].sum()),
                "separators": float(w[ids[b] == 3].sum()),
                "distance": float((w * (torch.arange(len(w)) - i).abs()).sum()),
            }
            before = [j for j in places if j < i and ids[b, j] == ids[b, i]]
            after = [j for j in places if j > i and ids[b, j] == ids[b, i]]
            others = before[-8:] + ([] if causal else after[:8])
            if others:
                here["duplicate"] = float(w[others].sum())
            followed = [j + 1 for j in before[-8:] if j + 1 < i]
            if followed:
                here["induction"] = float(w[followed].sum())
            for measure, x in here.items():
                sums.setdefault(measure, []).append(x)
    return {measure: sum(x) / len(x) for measure, x in sums.items()}


def test_heads_of_a_generation() -> None:
    """A prompt and the steps after it are together what the whole text is at once."""
    model, given = build("llama"), inputs("llama", n=13)
    given = {"input_ids": given["input_ids"][:1]}  # those of several might change places, and are not followed
    with ll.watch(model) as steps:
        out = model.generate(**given, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    with torch.no_grad(), ll.watch(model) as whole:
        model(out[:, :-1])
    for a, b in zip(steps.heads(), whole.heads(), strict=True):
        for measure in ("entropy", "first", "previous", "near", "distance", "duplicate", "induction"):
            assert a[measure] == pytest.approx(b[measure], abs=1e-4), measure


def test_the_first_token_after_padding() -> None:
    """A prompt alone, and the same with padding before it, in a generation, with a cache that drops what is old."""
    for name in ("llama", "mistral"):
        model = build(name)
        ids = inputs(name, n=13)["input_ids"][:1]
        options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
        with ll.watch(model) as alone:
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        padded = torch.nn.functional.pad(ids, (4, 0))
        with ll.watch(model) as behind:
            model.generate(input_ids=padded, attention_mask=(padded != 0).long(), **options)
        for a, b in zip(alone.heads(), behind.heads(), strict=True):
            for measure in ("entropy", "first", "self", "previous", "near", "distance"):
                assert a[measure] == pytest.approx(b[measure], abs=1e-4), measure


def test_the_record_of_a_translation_reports_on_its_heads() -> None:
    """It is the same class as that of ``watch``, with the same report."""
    from limelight import translate

    translator = translate.load()
    sentence = translator("The cat is sleeping.").sentences[0]
    record = translator("The cat is sleeping.").record
    assert type(record) is ll.lens.Record
    source, target = sentence._ids
    with torch.no_grad(), ll.watch(translator.model) as watched:
        translator.model(source, target[:, :-1])
    assert type(watched) is type(record)
    report, expected = record.heads(), watched.heads()
    assert len(report) == len(expected) == sum(call.shape[1] for call in watched.log)
    assert [row["label"] for row in report] == [row["label"] for row in expected]
    assert report[0]["entropy"] == pytest.approx(expected[0]["entropy"], abs=1e-5)


def test_heads_says_what_is_wrong() -> None:
    model, given = build("bert"), inputs("bert")
    with torch.no_grad(), ll.watch(model) as record:
        model(**given)
    for tokens, message in (
        ([], "tokens of 1 texts"),
        ([1, 2], "list of strings"),
        (["a", "b"], "tokens of 1 texts for 3"),
        ({"encodr": ["a"]}, "encodr"),
        ([["a"] * 24] * 3, "24 tokens for 23 keys"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            record.heads(tokens)  # type: ignore[arg-type]


def test_labels() -> None:
    """Heads that are made to do one thing are called after it."""
    n = 40
    ids = torch.arange(n) % 20  # the second half repeats the first
    i = torch.arange(n)
    patterns = {
        "previous token": (i - 1).clamp(min=0),
        "next token": (i + 1).clamp(max=n - 1),
        "itself": i,
        "induction": torch.where(i >= 20, i - 19, 0),
        "duplicate token": (i + 20) % n,
        "sink": torch.zeros_like(i),
        "separator": torch.full_like(i, 17),
    }
    matrix = torch.stack([torch.nn.functional.one_hot(at, n).float() for at in patterns.values()])[None]
    near = ((i[:, None] - i).abs() <= 4).float()
    extra = torch.stack([near / near.sum(-1, keepdim=True), torch.full((n, n), 1 / n)])[None]
    record = ll.lens.Record()
    weights = ll.Weights.from_dense(torch.cat([matrix, extra], 1))
    record.add(ll.lens.Call("layers.3.attention", "self", "encoder", "prefill", weights, weights.shape, ids[None]))
    tokens = ["," if x == 17 else "w" for x in range(n)]
    report = record.heads(tokens)
    assert [row["label"] for row in report] == [*patterns, "local", "broad"]
    assert json.loads(report.json())[0]["layer"] == 3
    assert "previous token" in str(report)
    assert "layers.*.attention" in str(report)


def test_relation() -> None:
    matrix = torch.full((1, 2, 6, 6), 0.1)
    matrix[0, 0, 4, 1] = 0.5
    matrix[0, 1, 4, 2:4] = 0.3
    weights = ll.Weights.from_dense(matrix / matrix.sum(-1, keepdim=True))
    record = ll.lens.Record()
    record.add(ll.lens.Call("layers.0.attention", "self", "decoder", "prefill", weights, weights.shape))
    best, other = relation(record, [(4, 1), (4, 1)])
    assert (best["head"], best["accuracy"], best["pairs"]) == (0, 1.0, 2)
    assert best["weight"] == pytest.approx(0.5)
    assert other["accuracy"] == 0.0
    assert relation(record, [(4, [2, 3])])[0]["head"] == 1
    assert relation(record, [(4, [2, 3])])[0]["weight"] == pytest.approx(0.6)
    assert relation(record, [(torch.tensor(4), [3, 2, 2])])[0]["weight"] == pytest.approx(0.6)
    for pairs, message in (
        ([], "at least one pair"),
        ([(6, 1)], "not within the 6 tokens"),
        ([(1, [])], "one token"),
        ([3], "not a pair"),
        ([("it", 1)], "neither the position"),
        ([(1.5, 1)], "neither the position"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            relation(record, pairs)
    with pytest.raises(ValueError, match="no cross-attention"):
        relation(record, [(1, 1)], kind="cross")
