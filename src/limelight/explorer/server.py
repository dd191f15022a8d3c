"""The local server: the page's files and answers to its questions, for visitors with the token.

The address that is printed carries a random token; the first visit exchanges it for a cookie and strips it from the
address. Hosts other than this machine's names are refused (a foreign page could let its own name resolve to
127.0.0.1), nothing is loaded from anywhere else, and every question checks its arguments. Kernels run in threads,
and questions that pass over a whole matrix have a lane of their own, so that quick ones do not wait for them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limelight.explorer.front import FRONT
from limelight.explorer.questions import Arguments, RefusedError
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.workers import COUNTS, Workers

if TYPE_CHECKING:
    from limelight.explorer.subject import Subject

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_LARGEST = 2**20  # bytes of a request, at most
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def app(
    subject: Subject, token: str, port: int, hosts: tuple[str, ...] = (), workers: Workers | None = None
) -> ASGIApp:
    """Return the application.

    Args:
        subject: what is explored.
        token: the secret that a visitor must bring.
        port: the port that it listens on; it is part of the cookie's name, so that two explorers do not share one.
        hosts: names by which it may be reached, in addition to those of this machine.
        workers: the threads that answer questions; its own unless given.

    """
    service = _Service(subject, workers or Workers())
    routes = [
        Route("/", _file),
        Route("/ask/{name}", service.answer, methods=["POST"]),
        Route("/{path:path}", _file),
    ]
    return _Guard(Starlette(routes=routes), token, f"limelight-{port}", {*_LOCAL, *hosts})


async def _file(request: Request) -> Response:
    """Return one of the page's own files."""
    name = request.path_params.get("path") or "index.html"
    try:
        file = (FRONT / name).resolve()
        there = file.is_relative_to(FRONT.resolve()) and file.suffix in _TYPES and file.is_file()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        return JSONResponse({"error": "there is no such file"}, 404)
    return Response(await anyio.to_thread.run_sync(file.read_bytes), media_type=_TYPES[file.suffix])


class _Service:
    """Answers questions in threads."""

    def __init__(self, subject: Subject, workers: Workers) -> None:
        self.subject, self._workers = subject, workers
        self._limits: dict[str, anyio.CapacityLimiter] = {}

    def _limit(self, lane: str) -> anyio.CapacityLimiter:
        if not self._limits:  # a limiter belongs to a running event loop
            self._limits = {name: anyio.CapacityLimiter(count) for name, count in COUNTS.items()}
        return self._limits[lane]

    async def answer(self, request: Request) -> Response:
        """Answer one question; stop if the visitor has left."""
        question = QUESTIONS.get(request.path_params["name"])
        if question is None:
            return JSONResponse({"error": "there is no such question"}, 404)
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            return JSONResponse({"error": "the content must be application/json"}, 415)
        try:
            body = await _body(request)
            arguments = Arguments(json.loads(body or b"{}"))
            lane = await anyio.to_thread.run_sync(question.lane, self.subject, arguments)
            async with self._limit(lane):
                if await request.is_disconnected():
                    return Response(status_code=499)
                asked = self._workers.submit(lane, lambda: question.ask(self.subject, arguments).packed())
                found = await asyncio.wrap_future(asked)
            return Response(found, media_type="application/octet-stream")
        except _TooLargeError:
            return JSONResponse({"error": f"a request has at most {_LARGEST} bytes"}, 413)
        except ClientDisconnect:
            return Response(status_code=499)
        except asyncio.CancelledError:  # the server ends
            return Response(status_code=503)
        except RefusedError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            return JSONResponse({"error": "the content is no JSON"}, 400)


class _TooLargeError(Exception):
    """A body over the limit."""


async def _body(request: Request) -> bytes:
    if int(request.headers.get("content-length") or 0) > _LARGEST:
        raise _TooLargeError
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > _LARGEST:
            raise _TooLargeError
    return found


class _Guard:
    """Admits visitors with the right host and token, and adds the security headers to every answer."""

    def __init__(self, inner: ASGIApp, token: str, cookie: str, hosts: set[str]) -> None:
        self.inner, self.token, self.cookie, self.hosts = inner, token, cookie, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.inner(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
            await send(message)

        refused = self._refuse(Request(scope))
        await (refused or self.inner)(scope, receive, with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """Return an error, or the redirect that sets the cookie; None if the request may pass."""
        if _hostname(request.headers.get("host", "")) not in self.hosts:
            return JSONResponse({"error": "this host is not served here"}, 421)
        given = request.query_params.get("token")
        if given is not None and request.method == "GET":
            if not self._is_token(given):
                return JSONResponse({"error": "wrong token"}, 403)
            entry = RedirectResponse(request.url.path, 303)
            entry.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
            return entry
        if not self._is_token(request.cookies.get(self.cookie, "")):
            return JSONResponse({"error": "open the address that was printed, with its token"}, 403)
        site = request.headers.get("sec-fetch-site", "same-origin")
        if request.method != "GET" and site not in ("same-origin", "none"):
            return JSONResponse({"error": "requests come from the page itself"}, 403)
        return None

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())


def _hostname(host: str) -> str:
    """Return the host without its port, which differs behind a tunnel."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
