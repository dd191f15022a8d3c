"""`limelight explore`: its options, its errors, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from limelight.cli.explore import command as explore_command
from limelight.translate import shipped


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The addresses that a browser was sent to, and what the page says of itself; then Ctrl-C is pressed."""
    found = []

    def visit(url: str) -> None:
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            assert client.get(url).status_code == 200
            answer = client.post(str(httpx.URL(url).join("/ask/about")), json={})
        length = int.from_bytes(answer.content[:4], "little")
        found.append((url, json.loads(answer.content[4 : 4 + length])["data"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", visit)
    monkeypatch.setattr("limelight.cli.explore._leave", lambda: None)  # it may end the process, which is the tests' own
    return found


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(explore_command, list(arguments), catch_exceptions=False, **options)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_command_and_its_options(visited: list[Any], tmp_path: Path) -> None:
    port = free_port()
    done = run("I like tea.", "--port", str(port), "--host", "localhost")
    assert done.exit_code == 0
    url, about = visited.pop()
    assert url.startswith(f"http://localhost:{port}/?token=")
    assert url in done.stdout
    assert (about["translates"], about["reads"]) == (True, True)
    assert any("tea" in token for text in about["texts"] for token in text)
    (tmp_path / "text.txt").write_text("She reads a long book.", encoding="utf-8")
    for given in (["--file", str(tmp_path / "text.txt")], ["-"], ["--file", "-"]):
        assert run(*given, "--model", str(shipped()), input="She reads a long book.").exit_code == 0
        _, about = visited.pop()
        assert any("book" in token for text in about["texts"] for token in text)
        assert not about["translates"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "--file", "pyproject.toml"], "not both"),
        (["  "], "the text is empty"),
        (["a", "--port", "70000"], "70000"),
        (["a", "--model", "nowhere"], "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(given: list[str], message: str) -> None:
    done = run(*given)
    assert done.exit_code != 0
    assert message in done.output


@pytest.mark.slow
def test_the_command_ends_with_ctrl_c() -> None:
    as_in_a_terminal = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore it
    )
    command = [
        sys.executable,
        "-c",
        f"{as_in_a_terminal}; from limelight.cli import main; main()",
        "explore",
        "The cat is sleeping.",
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            assert "token=" in address
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)  # a second, unless the machine is busy
            assert process.returncode in (0, 130)
            assert "Traceback" not in errors
        finally:
            process.kill()
