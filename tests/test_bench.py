"""``limelight bench``: its cases agree with SDPA, its limits are plausible, and it says when a machine is not quiet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from limelight.cli import main
from limelight.cli._bench import machine, measuring, report
from limelight.cli._bench.cases import Case, all_cases


def bench(*args: str) -> str:
    threads = torch.get_num_threads()
    try:
        run = CliRunner().invoke(main, ["bench", "--quick", "--no-peers", *args])
    finally:
        torch.set_num_threads(threads)
    assert run.exit_code == 0, run.output
    return run.stdout


def test_json_has_the_machine_and_the_results(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    found = json.loads(bench("--case", "tiny: 12 heads", "--threads", "1", "--json", "--out", str(file)))
    assert json.loads(file.read_text()) == found
    assert found["cpu"] == machine.cpu_name()
    assert set(found["read GB/s"]["1"]) == {str(size) for size in machine.BANDWIDTH_SIZES}
    assert all(speed > 0.1 for speed in found["read GB/s"]["1"].values())
    (result,) = found["results"]
    assert result["threads"] == 1
    assert result["ratio"] == pytest.approx(result["milliseconds"]["SDPA"] / result["milliseconds"]["limelight"])
    assert result["difference from SDPA"] < 1e-5
    assert len(result["ratios of the rounds"]) >= 2


def test_the_table_names_the_cpu_and_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_SIZES", (1 << 18, 1 << 20))
    text = bench("--case", "decode 12/12", "--threads", "1,2")
    assert machine.cpu_name() in text
    assert "256 KB" in text
    assert "1 MB" in text
    assert "2 threads: milliseconds" in text
    assert "SDPA / limelight" in text


@pytest.mark.parametrize(
    ("args", "said"), [(["--threads", "0"], "from 1 to 1024"), (["--case", "x"], "no case contains")]
)
def test_wrong_options(args: list[str], said: str) -> None:
    run = CliRunner().invoke(main, ["bench", *args])
    assert run.exit_code == 2
    assert said in run.output


def test_counts_of_scores_are_those_of_the_masks() -> None:
    checked = 0
    for case in all_cases():
        n = case.sizes[3]
        if case.scores is not None and n <= 2048 and "dropout" not in case.name:
            allowed = case.options().ours["mask"].dense(n)
            assert int(allowed.expand(n, n).sum()) == case.scores, case.name
            checked += 1
    assert checked == 3
    window = next(case for case in all_cases() if case.name.startswith("window 128"))
    n = window.sizes[3]
    assert window.scores == sum(min(i, 128) + 1 + min(n - 1 - i, 128) for i in range(n))


def test_rounds_are_repeated_until_the_ratio_is_steady() -> None:
    seen = iter([1.0, 1.5, 1.2, 1.21, 9.0])
    calls = {"limelight": lambda: None, "SDPA": lambda: None}
    _, ratios = measuring.best_when_steady(calls, 0.0, lambda times: next(seen))
    assert ratios == [1.0, 1.5, 1.2, 1.21]
    never = iter(range(1, 9))
    _, ratios = measuring.best_when_steady(calls, 0.0, lambda times: float(next(never)))
    assert ratios == [1, 2, 3, 4, 5]
    assert not measuring.is_steady(ratios)


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([(10.0, 3.0, 5.0, 0.0), (12.0, 3.5, 8.5, 0.4)])  # elapsed, own, busy, steal
    names = "elapsed", "own", "busy", "steal"
    monkeypatch.setattr(machine, "_cpu_seconds", lambda: dict(zip(names, next(seconds), strict=True)))
    assert machine.Occupancy().others() == pytest.approx((1.5, 0.2))
    quiet = iter([(10.0, 3.0, 5.0, 0.0), (12.0, 4.0, 6.1, 0.0)])
    monkeypatch.setattr(machine, "_cpu_seconds", lambda: dict(zip(names, next(quiet), strict=True)))
    assert machine.busy(0.0) is None
    loud = iter([(10.0, 3.0, 5.0, 0.0), (12.0, 4.0, 8.0, 0.0)])
    monkeypatch.setattr(machine, "_cpu_seconds", lambda: dict(zip(names, next(loud), strict=True)))
    assert "others use 1.0 of" in str(machine.busy(0.0))


def test_a_missed_goal_and_an_unsteady_ratio_are_marked() -> None:
    result = measuring.run(Case("small", (1, 2, 2, 7, 11, 4)), torch.get_num_threads(), 0.0, False)
    result |= {"ratio": 0.5, "goal": 1.25, "steady": False, "share": 0.4, "share to reach": 0.85}
    cells = [column._cells[0] for column in report.results_table([result], result["threads"]).columns]
    assert cells[3] == "~0.50 (1.25) ✗"
    assert cells[4].endswith("(85%) ✗")


def test_a_pair_of_a_sparse_pattern_is_held_against_the_window() -> None:
    rows = {"sparse: window, n=8": (8, 16), "sparse: strided, n=8": (3, 4), "sparse: blocks of 2, n=8": (6, 8)}
    results = [
        {"case": name, "threads": 1, "pairs": pairs, "milliseconds": {"limelight": ms}}
        for name, (ms, pairs) in rows.items()
    ]
    table = report.sparse_table(results, 1)
    assert table is not None
    assert list(table.columns[2]._cells) == ["1.00", "1.50 ✗", "1.50 ✗"]
    assert report.sparse_table(results[1:], 1) is None


def test_sparse_cases_allow_a_twentieth_of_the_pairs() -> None:
    cases = [case for case in all_cases() if case.sparse is not None]
    assert len(cases) == 7
    for case in cases:
        assert case.pairs() / 8192**2 == pytest.approx(0.05, abs=0.004), case.name


def test_machines_side_by_side() -> None:
    files = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("[!m]*.json"))
    machines = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    table = report.machines_table(machines, 1)
    assert [str(column.header) for column in table.columns[1:]] == [f"{m['cpu']} ({m['isa']})" for m in machines]
    assert table.row_count >= 20


def test_some_cases_are_renewed_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    bench("--case", "tiny: 12 heads", "--threads", "1", "--out", str(file))
    first = json.loads(file.read_text())
    first["results"][0]["ratio"] = -1.0
    first["results"].insert(0, {**first["results"][0], "case": "another"})
    file.write_text(json.dumps(first))
    bench("--case", "tiny: 12 heads", "--threads", "1,2", "--out", str(file))
    after = json.loads(file.read_text())
    assert [(r["case"], r["threads"]) for r in after["results"]] == [
        ("another", 1),
        ("tiny: 12 heads, 1 query, 16 keys", 1),
        ("tiny: 12 heads, 1 query, 16 keys", 2),
    ]
    assert [r["ratio"] == -1.0 for r in after["results"]] == [True, False, False]
    assert set(after["peak GF/s"]) == {"1", "2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cpu": "Z80", "results": []}', "has the results of Z80"),
        ("[]", "no results that could be renewed"),
        ('{"cpu": ', "no results that could be renewed"),
    ],
)
def test_results_that_are_not_this_machines_are_not_overwritten(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    run = CliRunner().invoke(main, ["bench", "--case", "tiny: 12 heads", "--out", str(file)])
    assert run.exit_code == 2
    assert said in " ".join(run.output.split())
    assert file.read_text() == text
