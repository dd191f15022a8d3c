"""The explorer's server: who may ask, which questions it refuses, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

import limelight as ll
from explorer_cases import random_weights
from limelight.explorer import explore
from limelight.explorer.questions import Arguments, RefusedError
from limelight.explorer.server import app
from limelight.explorer.subject import Subject

TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(random_weights(53, 53, mask=ll.Causal()), [f"t{n}" for n in range(53)], "a model")


@pytest.fixture
def client(subject: Subject) -> TestClient:
    return TestClient(app(subject, TOKEN, 8123), base_url="http://127.0.0.1:8123", follow_redirects=False)


@pytest.fixture
def visitor(client: TestClient) -> TestClient:
    client.get(f"/?token={TOKEN}")
    return client


def test_the_token_becomes_a_cookie(client: TestClient) -> None:
    assert client.get("/").status_code == 403
    assert client.post("/ask/about", json={}).status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    assert client.get("/?token=").status_code == 403
    entry = client.get(f"/?token={TOKEN}")
    assert entry.status_code == 303
    assert entry.headers["location"] == "/"
    cookie = entry.headers["set-cookie"]
    assert cookie.startswith(f"limelight-8123={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    page = client.get("/")
    assert page.status_code == 200
    assert TOKEN not in page.text
    for answer in (page, entry, client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8123", 200),
        ("localhost:9", 200),
        ("[::1]:8123", 200),
        ("LOCALHOST", 200),
        ("example.com", 421),
        ("127.0.0.1.example.com:8123", 421),
        ("localhost.example.com", 421),
        ("", 421),
    ],
)
def test_hosts(visitor: TestClient, host: str, status: int) -> None:
    assert visitor.get("/", headers={"host": host, "cookie": f"limelight-8123={TOKEN}"}).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/rooms/../../server.py",
        "/__init__.py",
        "//etc/passwd",
        "/rooms",
        "/%00",
        "/style.css%00.js",
        "/" + "a" * 5000,
    ],
)
def test_paths_that_lead_nowhere(visitor: TestClient, path: str) -> None:
    assert visitor.get(path).status_code in (400, 404)


def test_the_page_and_its_modules_are_there(visitor: TestClient) -> None:
    assert visitor.get("/").headers["content-type"].startswith("text/html")
    names = ["main.js"]
    for name in names:
        answer = visitor.get(f"/{name}")
        assert answer.headers["content-type"].startswith("text/javascript"), name
        for found in re.findall(r'from "([^"]+)"', answer.text):
            path = str((Path("/") / name).parent.joinpath(found).resolve())[1:]
            if path not in names:
                names.append(path)
    assert len(names) > 10


def test_an_answer(visitor: TestClient, subject: Subject) -> None:
    answer = visitor.post("/ask/tiles", json={"call": 0, "head": 2, "batch": 1, "tiles": [[0, 0, 0]]})
    length = int.from_bytes(answer.content[:4], "little")
    head = json.loads(answer.content[4 : 4 + length])
    assert (4 + length) % 8 == 0
    assert head["arrays"] == {"0/0/0": {"type": "float32", "shape": [53, 53]}}
    found = np.frombuffer(answer.content[4 + length :], "<f4").reshape(53, 53)
    truth = subject.matrices[0].call.weights.dense()[1, 2].numpy()
    np.testing.assert_allclose(np.maximum(found, 0), truth, rtol=1e-5)


HEAD = {"call": 0, "head": 0}


@pytest.mark.parametrize(
    ("name", "body", "status", "message"),
    [
        ("nothing", {}, 404, "no such question"),
        ("tiles", [], 400, "must be an object"),
        ("tiles", {}, 400, "call is missing"),
        ("tiles", {"call": 1, "head": 0, "tiles": [[0, 0, 0]]}, 400, "call = 1 must be from 0 to 0"),
        ("tiles", {**HEAD, "tiles": []}, 400, "list of 1 to 16"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 0]] * 17}, 400, "list of 1 to 16"),
        ("tiles", {**HEAD, "tiles": [[0, 1, 0]]}, 400, "tile = 1 must be from 0 to 0"),
        ("tiles", {**HEAD, "tiles": [[1, 0, 0]]}, 400, "tile = 1"),
        ("tiles", {**HEAD, "tiles": [[0, 0]]}, 400, "3 whole numbers"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 1e999]]}, 400, "whole number"),
        ("tiles", {**HEAD, "tiles": [[0, 0, True]]}, 400, "whole number"),
        ("tiles", {**HEAD, "tiles": [[0, 0, 0]], "reduce": "sum"}, 400, "one of mean, max"),
        ("tiles", {**HEAD, "head": -1, "tiles": [[0, 0, 0]]}, 400, "head = -1"),
        ("cell", {**HEAD, "row": 53, "col": 0}, 400, "row = 53"),
        ("cell", {**HEAD, "row": 0, "col": 0, "level": 40}, 400, "level = 40"),
        ("thumbnails", {**HEAD, "count": 10**9}, 400, "count = 1000000000"),
        ("attention", {"sources": [HEAD] * 9, "token": 0}, 400, "list of 1 to 8"),
        ("attention", {"sources": ["x"], "token": 0}, 400, "must be an object"),
        ("attention", {"sources": [HEAD], "token": 53}, 400, "token = 53"),
        ("attention", {"sources": [{**HEAD, "of": "all"}], "token": 0}, 400, "one of head, layer"),
    ],
)
def test_questions_that_are_refused(visitor: TestClient, name: str, body: Any, status: int, message: str) -> None:
    answer = visitor.post(f"/ask/{name}", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_requests_that_are_no_questions(visitor: TestClient) -> None:
    json_type = {"content-type": "application/json"}
    assert visitor.post("/ask/about", content=b"{", headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b"\xff", headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b"[" * 200_000, headers=json_type).status_code == 400
    assert visitor.post("/ask/about", content=b" " * (2**20 + 1), headers=json_type).status_code == 413
    assert visitor.post("/ask/about", content=iter([b" " * 2**19] * 3), headers=json_type).status_code == 413
    assert visitor.post("/ask/about", data={"a": "b"}).status_code == 415
    assert visitor.get("/ask/about").status_code in (404, 405)
    cross = {**json_type, "sec-fetch-site": "cross-site"}
    assert visitor.post("/ask/about", content=b"{}", headers=cross).status_code == 403


def test_explore_serves_until_it_is_closed() -> None:
    with explore(random_weights(17, 17), list("abcdefghijklmnopq")) as page:
        assert page.url in repr(page)
        with httpx.Client(follow_redirects=True, trust_env=False) as visitor:
            assert visitor.get(page.url).status_code == 200
            assert visitor.post(f"http://127.0.0.1:{page.port}/ask/about", json={}).status_code == 200
        with pytest.raises(OSError, match=f"port {page.port}: .*; leave the port out"):
            explore(random_weights(3, 3), port=page.port)
        for port in (65536, "80", True):
            with pytest.raises(ValueError, match=f"port = {port!r} must be a whole number up to 65535"):
                explore(random_weights(3, 3), port=port)  # type: ignore[arg-type]
    assert repr(page) == "Explorer(closed)"
    page.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)


def test_arguments_say_what_is_wrong() -> None:
    with pytest.raises(RefusedError, match="x must be a number"):
        Arguments({"x": "3"}).number("x", 0, 1)
    with pytest.raises(RefusedError, match="x = 3 must be from 0 to 1"):
        Arguments({"x": 3}).number("x", 0, 1)
    with pytest.raises(RefusedError, match="at most 3 characters"):
        Arguments({"x": "four"}).text("x", 3)
