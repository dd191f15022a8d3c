"""An explorer that runs in a thread, from Python and from the command line."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from threading import Thread
from typing import Any

from limelight.explorer.subject import Subject
from limelight.lens import Record
from limelight.lens.reading import Reading
from limelight.matrix.base import Weights
from limelight.matrix.grid import Grid


def explore(
    given: Weights | Record | Reading,
    tokens: Any = None,
    *,
    image: Any = None,
    grid: Grid | None = None,
    title: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Explorer:
    """Serve a page on which an attention matrix of any size can be looked at, from a thread of this process.

    Args:
        given: some weights, what ``watch`` recorded, or a reading.
        tokens: names for queries and keys; a pair of lists where they differ; or lists by stack, such as
            ``{"encoder": …, "decoder": …}``, with ``"written"`` for the queries of a cross-attention.
        image: the picture whose patches are queries or keys, for the room Picture: a file, one of Pillow, an array or a
            tensor; or a list of one for each batch element.
        grid: how the patches lie, as ``limelight.lens.grid(model)`` gives it, where the record does not know it.
        title: the name of the model, for the page.
        host: address to listen on; only this machine can reach the page unless another is given.
        port: port to listen on; a free one unless given.

    Returns:
        An object with ``.url``, which opens the page in a browser, and ``.close()``. A notebook shows the page itself.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.randn(2, 300, 8), torch.randn(2, 300, 8), mask=ll.Causal())
    >>> with explore(A) as page:
    ...     page.url.startswith("http://127.0.0.1:")
    True

    """
    return Explorer(Subject.of(given, tokens, title, image, grid), host=host, port=port)


class Explorer:
    """A page that is being served; ``url`` opens it, ``close()`` ends it."""

    def __init__(self, subject: Subject, *, host: str = "127.0.0.1", port: int = 0) -> None:
        uvicorn = need_server()
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise ValueError(f"explore: port = {port!r} must be a whole number up to 65535; 0 is a free one")
        from limelight.explorer.server import app
        from limelight.explorer.workers import Workers

        self.subject, self._workers = subject, Workers()
        self._token = secrets.token_urlsafe(24)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            hint = "; leave the port out for a free one" if port else ""
            raise OSError(f"cannot listen on {host}, port {port}: {error.strerror or error}{hint}") from None
        self.host, self.port = host, int(self._socket.getsockname()[1])
        served = app(subject, self._token, self.port, _names(host), self._workers)
        config = uvicorn.Config(
            served,
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # in older uvicorn; Ctrl-C belongs to the caller
        self._thread = Thread(target=self._serve, name="limelight-explorer", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.01)
        if not self._server.started:
            raise RuntimeError("the server of the explorer did not start")

    def _serve(self) -> None:
        import asyncio

        asyncio.run(self._server.serve(sockets=[self._socket]))

    @property
    def url(self) -> str:
        """The address that opens the page; it contains the token, so everybody who has it can read the page."""
        name = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/?token={self._token}"

    def close(self) -> None:
        """End the server; a second time does nothing."""
        self._server.should_exit = True
        self._thread.join(timeout=30)  # a second, unless the machine is busy
        self._workers.close()
        self._socket.close()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Explorer({self.url!r})" if self._thread.is_alive() else "Explorer(closed)"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Show the page in a notebook: as a widget where anywidget is installed, in a frame elsewhere."""
        try:
            from limelight.explorer.widget import ExplorerWidget
        except ImportError:
            frame = f'<iframe src="{self.url}" width="100%" height="720" style="border:0" title="limelight"></iframe>'
            return {"text/plain": repr(self), "text/html": frame}
        return ExplorerWidget(self.subject)._repr_mimebundle_(**options)


def _names(host: str) -> tuple[str, ...]:
    """Return the names by which a server on this address may be reached, besides localhost."""
    if host in ("0.0.0.0", "::", ""):
        name = socket.gethostname()
        found = {name, name.partition(".")[0], socket.getfqdn()}
        with suppress(OSError):
            found |= {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
        return tuple(f"[{x}]" if ":" in x else x.lower() for x in found)
    return (f"[{host}]" if ":" in host else host.lower(),)


def need_server() -> Any:
    """Return uvicorn, or raise an error that says what to install."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise ImportError(
            "the explorer needs starlette and uvicorn: pip install 'limelight-attention[explore]'"
        ) from None
    return uvicorn
