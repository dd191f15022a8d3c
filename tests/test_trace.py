"""The steps of attention, against the worked example of teaching texts and against PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import limelight as ll
from limelight.cli import main
from limelight.core.examples import TOKENS, worked_example


def test_worked_example_has_the_published_numbers() -> None:
    t = ll.trace(*worked_example(), tokens=TOKENS)
    close = {"atol": 6e-4, "rtol": 0.0}
    torch.testing.assert_close(t.q[0], torch.tensor([-0.10, 2.00]), **close)
    torch.testing.assert_close(t.k[0], torch.tensor([0.90, 1.40]), **close)
    torch.testing.assert_close(t.v[0], torch.tensor([1.0, 3.5]), **close)
    torch.testing.assert_close(t.scores[0], torch.tensor([2.71, 1.355, 2.475]), **close)
    torch.testing.assert_close(t.weights[0], torch.tensor([0.448, 0.172, 0.380]), **close)
    torch.testing.assert_close(t.output[0], torch.tensor([1.275, 2.363]), atol=1e-3, rtol=0.0)  # from rounded weights


def test_text_shows_the_numbers_and_only_the_steps_that_did_something() -> None:
    q, k, v = worked_example()
    text = str(ll.trace(q, k, v, tokens=TOKENS))
    for number in (
        "−0.100",
        "2.000",
        "0.900",
        "1.400",
        "2.710",
        "1.355",
        "2.475",
        "0.448",
        "0.172",
        "0.380",
        "1.275",
    ):
        assert number in text
    assert "dinner" in text
    assert "capped" not in text
    text = str(ll.trace(q, k, v, mask=ll.Causal(), softcap=5.0, bias=ll.ALiBi(1)))
    for step in ("capped", "biased", "masked", "−∞", "query 1", "key 2"):
        assert step in text


def test_every_step_by_hand() -> None:
    q, k, v = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 13)
    t = ll.trace(q, k, v, mask=ll.Causal(), bias=ll.ALiBi(3), softcap=4.0, temperature=0.7, scale=0.3)
    torch.testing.assert_close(t.scores, torch.einsum("bhid,bhjd->bhij", q, k))
    torch.testing.assert_close(t.scaled, t.scores * 0.3)
    torch.testing.assert_close(t.capped, 4 * torch.tanh(t.scaled / 4))
    torch.testing.assert_close(t.biased, t.capped + ll.ALiBi(3).dense(5, 11))
    assert torch.equal(t.masked.isneginf(), ~torch.ones(5, 11).tril(6).bool().expand(2, 3, 5, 11))
    torch.testing.assert_close(t.weights, torch.softmax(t.masked / 0.7, -1))
    torch.testing.assert_close(t.output, t.weights @ v)


def test_wrong_names() -> None:
    with pytest.raises(ValueError, match="2 names for 3 queries and 2 for 3 keys"):
        ll.trace(*worked_example(), tokens=["a", "b"])


def run(*args: str, text: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(args), input=text)
    return result.exit_code, result.output


def test_command_prints_the_worked_example() -> None:
    code, out = run("trace")
    assert code == 0
    assert "0.448   0.172    0.380" in out


def test_command_reads_json(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(
        json.dumps({"q": [[0, 2]], "k": [[1, 1], [0, 1]], "v": [[1, 0], [0, 1]], "tokens": [["it"], ["cat", "mat"]]})
    )
    code, out = run("trace", str(file), "--json")
    assert code == 0
    steps = json.loads(out)
    assert steps["weights"] == [[0.5, 0.5]]
    assert steps["keys"] == ["cat", "mat"]
    x = {"x": [[1, 0], [0, 1]], "W_Q": [[1], [2]], "W_K": [[1], [1]], "W_V": [[3], [4]]}
    code, out = run("trace", "-", "--json", "--causal", text=json.dumps(x))
    assert code == 0
    assert json.loads(out)["output"][0] == [3.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "it lacks x, W_Q, W_K, W_V"),
        ('{"q": [[1]], "k": [[1]], "v": 3}', '"v" has shape ()'),
        ('{"q": [[1], [1, 2]], "k": [[1]], "v": [[1]]}', '"q" is not a matrix of numbers'),
        ('{"q": [[1, 2]], "k": [[1]], "v": [[1]]}', "differ in width: 2 and 1"),
        ('{"x": [[1]], "WQ": [[1]], "W_K": [[1]], "W_V": [[1]]}', '"WQ" is unknown; the nearest is "W_Q"'),
        ('{"q": [[1]], "k": [[1]], "V": [[1]]}', '"V" is unknown; the nearest is "v"'),
        ('{"q": [[1]], "k": [[1]]}', "it lacks v"),
        (
            '{"x": [[1, 2]], "W_Q": [[1]], "W_K": [[1]], "W_V": [[1]]}',
            '"W_Q" has 1 rows and "x" has 2 columns',
        ),
    ],
)
def test_command_explains_bad_files(text: str, says: str) -> None:
    code, out = run("trace", "-", text=text)
    assert code == 2
    assert says in out


def test_command_explains_bad_options() -> None:
    code, out = run("trace", "--temperature", "0")
    assert code == 2
    assert "temperature = 0.0 must be above 0" in out
    assert run("trace", "nowhere.json")[0] == 2


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from limelight.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
