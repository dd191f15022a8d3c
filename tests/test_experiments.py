"""Experiments: every claim has one, verdicts come from the data, and files hold what was found."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from limelight import Window, attention, experiments
from limelight.cli import main
from limelight.experiments import EXPERIMENTS, Finding, Result, cost, report
from limelight.experiments.findings import BESIDE, CORRECTED, DIRECTION, REPRODUCED, exponent, holds, judge, ordered
from limelight.experiments.measuring import longest, peak_bytes
from limelight.experiments.naive import stored_attention

QUICK = ("worked-example", "rows", "scaling", "temperature", "projections", "positions", "mixing", "dropout")


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: experiments.run(name, quick=True) for name in EXPERIMENTS}


def test_every_claim_has_an_experiment(results: dict[str, Result]) -> None:
    assert sorted(claim for _, claims, _ in EXPERIMENTS.values() for claim in claims) == list(range(1, 23))
    for name, (_, claims, _) in EXPERIMENTS.items():
        assert {finding.claim for finding in results[name].findings} == set(claims)
        assert results[name].explanation.strip()
        assert any(results[name].data.values())


EXPECTED = {
    1: REPRODUCED,
    2: REPRODUCED,
    3: REPRODUCED,
    4: REPRODUCED,
    5: REPRODUCED,
    7: REPRODUCED,
    8: REPRODUCED,
    9: REPRODUCED,  # within two spreads of a draw of 20 tokens
    10: CORRECTED,  # the printed numbers do not sum to 1
    11: DIRECTION,  # a typical query gets nothing, a typical key less
    12: DIRECTION,
    13: CORRECTED,  # the scores are symmetric, the weights are not
    14: REPRODUCED,
    16: CORRECTED,  # a layer that learned nothing has these numbers
    20: REPRODUCED,
    21: REPRODUCED,
    22: REPRODUCED,
}


def test_verdicts(results: dict[str, Result]) -> None:
    """Of what does not depend on the machine's speed."""
    found = {entry["claim"]: entry for entry in report.verdicts(results.values())}
    assert list(found) == list(range(1, 23))
    assert {claim: found[claim]["verdict"] for claim in EXPECTED} == EXPECTED


@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_finds_the_same(name: str, results: dict[str, Result]) -> None:
    assert experiments.run(name, quick=True).findings == results[name].findings


def test_another_seed_finds_other_numbers(results: dict[str, Result]) -> None:
    other = experiments.run("scaling", quick=True, seed=5)
    assert other.data["entropy"] != results["scaling"].data["entropy"]
    assert [f.verdict for f in other.findings] == [f.verdict for f in results["scaling"].findings]


def test_rules() -> None:
    assert judge([1.0, 2.0], [1.04, 1.98], 0.05, same_way=True) == REPRODUCED
    assert judge([1.0, 2.0], [1.4, 1.98], 0.05, same_way=True) == DIRECTION
    assert judge([1.0, 2.0], [1.4, 1.98], 0.05, same_way=False) == CORRECTED
    assert judge([1.0], [1.0, 2.0], 0.05, same_way=False) == CORRECTED
    assert holds(True) == REPRODUCED
    assert holds(False) == CORRECTED
    assert ordered([1, 2, 3], rising=True)
    assert not ordered([1, 3, 2], rising=True)
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert holds(False, in_part=True) == DIRECTION
    with pytest.raises(ValueError, match="there are"):
        Finding(1, "", 0, 0, "maybe")
    with pytest.raises(ValueError, match="texts do not say"):
        Finding(1, "", None, 0, REPRODUCED)


def test_what_is_right_is_said(results: dict[str, Result]) -> None:
    wrong = [f for result in results.values() for f in result.findings if f.verdict in (CORRECTED, DIRECTION)]
    assert wrong
    assert all(f.note for f in wrong)


def test_beside_the_claim_is_no_part_of_the_verdict() -> None:
    found = [Finding(22, "a", 1, 1, REPRODUCED), Finding(22, "b", None, 2, BESIDE)]
    (entry,) = report.verdicts([Result("mixing", "", found)])
    assert entry["verdict"] == REPRODUCED
    assert entry["measured"] == 1
    assert [f["what"] for f in entry["findings"]] == ["a", "b"]


def test_a_wrong_measurement_is_not_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scaling anywhere, the claims about scaling fail."""
    from limelight.experiments import scaling
    from limelight.functional import weights

    def unscaled(*tensors: Any, scale: float) -> Any:
        return weights(*tensors, scale=1.0)

    monkeypatch.setattr(scaling, "weights", unscaled)
    found = {(f.claim, f.what): f.verdict for f in scaling.run(quick=True).findings}
    assert found[9, "entropy, scaled, for d = 8, 32, 64, 128, 256, 512"] == CORRECTED


def test_paths_are_counted_in_the_graph() -> None:
    x, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = ((x * 2).exp() * other).exp() + x  # x is one operation away, and five along the other branch
    assert cost._paths(y, x) == (1, 5)
    assert cost._paths(y, other) == (3, 3)


def test_memory_is_of_the_call() -> None:
    """A function that makes n × n numbers needs four times as much for twice the tokens; else twice."""
    square = peak_bytes(stored_attention, (512, 1024, 2048), 1, 16)
    assert 1.7 < exponent((512, 1024, 2048), square) < 2.2
    assert square[-1] >= 2048 * 2048 * 4
    line = peak_bytes(attention, (8192, 16384, 32768), 1, 16, mask=Window(3))
    assert 0.6 < exponent((8192, 16384, 32768), line) < 1.4
    assert longest(stored_attention, (1024, 2048, 4096, 8192), 1, 16, 128 * 2**20) < 8192
    assert longest(attention, (1024, 8192), 1, 16, 128 * 2**20) == 8192


def test_figures_and_files(results: dict[str, Result], tmp_path: Path) -> None:
    page = report.write_report(list(results.values()), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") == text.count("prefers-color-scheme: dark)' srcset") == len(EXPERIMENTS)
    assert "http" not in text
    found = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert [entry["claim"] for entry in found] == list(range(1, 23))
    assert all({"claim", "verdict", "theirs", "measured"} <= entry.keys() for entry in found)
    table = (tmp_path / "verdicts.md").read_text(encoding="utf-8").splitlines()
    assert table[0].startswith("22 claims: ")
    assert [line.split(" | ")[0] for line in table[4:26]] == [f"| {claim}" for claim in range(1, 23)]
    assert len(table[29:]) == sum(len(result.findings) for result in results.values())
    for name, result in results.items():
        for file in (name, f"{name}-dark"):
            assert (tmp_path / f"{file}.png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (tmp_path / f"{file}.svg").read_text(encoding="utf-8")
        assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["title"] == result.title
    with (tmp_path / "scaling-entropy.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["scaled"]) for row in rows] == [row["scaled"] for row in results["scaling"].data["entropy"]]


def test_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(main, ["experiment", *arguments])
        assert done.exit_code == code, done.output
        return done

    assert all(name in run().stdout for name in EXPERIMENTS)
    shown = run("projections", "--quick", "--out", str(tmp_path)).stdout
    assert "corrected" in shown
    assert (tmp_path / "projections.svg").is_file()
    assert "there is no experiment 'scale'; there are worked-example" in run("scale", code=2).stderr
    with pytest.raises(ValueError, match="there is no experiment"):
        experiments.run("scale")
