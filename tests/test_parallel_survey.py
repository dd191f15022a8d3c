"""Surveys of a corpus: the same result for any number of processes, and after any interruption."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from limelight.cli.survey import _progress
from limelight.parallel.survey.documents import Corpus
from limelight.parallel.survey.sketch import QUANTILES, Sketch

LINES = ["The cat sat on the mat.", "", "Where is the cat?", "I see the sea, and the sea sees me."]


def corpus(folder: Path, documents: int) -> Path:
    file = folder / "texts.txt"
    lines = [LINES[i % len(LINES)] or f"Number {i} is here." for i in range(documents)]
    data = "\n".join(lines).encode().split(b"\n")
    data[2] = b"\xff\xfe"  # cannot be read
    file.write_bytes(b"\n".join(data) + b"\n")
    return file


def test_documents_of_every_kind_are_counted_named_and_read(tmp_path: Path) -> None:
    text, records = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_bytes("one\n\ntwo é\n".encode() + b"\xff\n")
    records.write_text('{"body": "three"}\nno json\n{"other": 1}\n{"body": 7}\n{"body": " "}\n')
    found = Corpus([text, records], field="body")
    documents = list(found.read(lambda _: True))
    assert found.count() == len(documents) == 8
    assert [x.text for x in documents if not x.problem] == ["one", "two é", "three"]
    assert [x.name for x in documents if x.problem] == ["a.txt:4", *(f"b.jsonl:{n}" for n in (2, 3, 4, 5))]
    assert [x.number for x in found.read(lambda n: n % 3 == 1)] == [1, 4, 7]
    (whole,) = Corpus([text], whole_files=True).read(lambda _: True)
    assert "utf-8" in whole.problem


def test_parquet_has_one_document_a_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "c.parquet"
    parquet.write_table(pyarrow.table({"body": ["one", None, "two"], "other": [1, 2, 3]}), file)
    corpus = Corpus([file], field="body")
    assert corpus.count() == 3
    assert [(x.name, x.text, bool(x.problem)) for x in corpus.read(lambda _: True)] == [
        ("c.parquet:1", "one", False),
        ("c.parquet:2", "", True),
        ("c.parquet:3", "two", False),
    ]
    with pytest.raises(ValueError, match="no column 'text'; it has body, other"):
        list(Corpus([file]).read(lambda _: True))


def test_progress_is_written_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with _progress(0) as advance:
        for done in range(41, 101):  # 40 were done by an earlier run
            now += 0.5
            advance(done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "60 of 100 documents, 2.0 a second, 0:00:20 left"
    assert lines[-1] == "100 of 100 documents, 2.0 a second, 0:00:00 left"
    assert len(lines) == 3
    with _progress(1) as advance:
        assert advance is None


def test_quantiles_are_within_a_bin_and_sketches_of_parts_add_up() -> None:
    draws = np.random.default_rng(5)
    values = {"first": draws.beta(0.5, 2, 5003), "distance": draws.lognormal(2, 2, 5003)}
    whole, left, right = (Sketch(1, tuple(values)) for _ in range(3))
    for name, x in values.items():
        whole.add(0, name, x)
        left.add(0, name, x[:1999])
        right.add(0, name, x[1999:])
        summary = whole.summary(0, name)
        for q in QUANTILES:
            exact = np.quantile(x, q, method="inverted_cdf")
            bound = 0.001 if name == "first" else max(0.01 * exact, 0.01)
            assert abs(summary[f"q{round(100 * q):02d}"] - exact) <= bound
        assert np.isclose(summary["mean"], x.mean())
        assert np.isclose(summary["spread"], x.std())
    left.merge(right)
    assert np.array_equal(left.histogram, whole.histogram)
    assert np.array_equal(left.count, whole.count)


def command(file: Path, out: Path, processes: int = 1) -> list[str]:
    arguments = ["-m", "limelight", "survey", str(file), "--out", str(out)]
    if processes == 1:
        return [sys.executable, *arguments]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *arguments]


@pytest.mark.slow
def test_torchrun_and_a_survey_that_is_killed_come_to_the_same_result(tmp_path: Path) -> None:
    file = corpus(tmp_path, 41)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    results = []
    for name, processes in (("one", 1), ("two", 2)):
        done = subprocess.run(
            command(file, tmp_path / name, processes), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        results.append((tmp_path / name / "survey.json").read_bytes())
    out = tmp_path / "killed"
    chance = random.Random(7)
    for attempt in range(30):
        process = subprocess.Popen(command(file, out), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            process.communicate(timeout=chance.uniform(0.5, 1.5) * (4 + attempt))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            time.sleep(0.1)
    assert process.returncode == 0
    results.append((out / "survey.json").read_bytes())
    assert results[0] == results[1] == results[2]
    result = json.loads(results[0])
    assert result["documents"] == 40
    assert result["skipped"]["documents"][0]["document"] == "texts.txt:3"
    page = (out / "survey.html").read_text()
    assert "encoder" in page
    assert "texts.txt:3" in page
