"""Experiments: every claim has one, verdicts come from the data, and files hold what was found."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from limelight import experiments
from limelight.cli import main
from limelight.experiments import EXPERIMENTS, Finding, Result, report
from limelight.experiments.findings import CORRECTED, DIRECTION, REPRODUCED, exponent, holds, judge, ordered

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
    10: CORRECTED,  # the printed numbers do not sum to 1
    11: REPRODUCED,
    12: DIRECTION,
    13: CORRECTED,  # the scores are symmetric, the weights are not
    14: REPRODUCED,
    21: REPRODUCED,
    22: CORRECTED,  # causal attention changes later outputs only
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
    with pytest.raises(ValueError, match="there are"):
        Finding(1, "", 0, 0, "maybe")


def test_a_wrong_measurement_is_not_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scaling anywhere, the claims about scaling fail."""
    from limelight.experiments import scaling
    from limelight.functional import weights

    def unscaled(*tensors: Any, scale: float) -> Any:
        return weights(*tensors, scale=1.0)

    monkeypatch.setattr(scaling, "weights", unscaled)
    found = {(f.claim, f.what): f.verdict for f in scaling.run(quick=True).findings}
    assert found[9, "entropy, scaled"] == CORRECTED


def test_figures_and_files(results: dict[str, Result], tmp_path: Path) -> None:
    drawn = [(result, experiments.draw(result)) for result in results.values()]
    page = report.write_report(drawn, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") == len(EXPERIMENTS)
    assert "http" not in text
    found = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert [entry["claim"] for entry in found] == list(range(1, 23))
    assert all({"claim", "verdict", "theirs", "measured"} <= entry.keys() for entry in found)
    for name, result in results.items():
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
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
