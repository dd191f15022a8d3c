"""The explorer as a notebook's widget: questions and answers are the widget's own messages, and no server is needed."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from typing import Any

try:
    import anywidget
except ImportError:
    raise ImportError(
        "the explorer in a notebook needs anywidget: pip install 'limelight-attention[notebook]'"
    ) from None

from limelight.explorer.bundle import bundle
from limelight.explorer.front import FRONT
from limelight.explorer.questions import Arguments, RefusedError
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.subject import Subject
from limelight.explorer.workers import Workers


class ExplorerWidget(anywidget.AnyWidget):
    """The page in a cell of a notebook (Jupyter, VS Code, marimo, Colab)."""

    _esm = bundle("widget.js") + "\nexport default { render: bundled.render };\n"
    _css = (FRONT / "style.css").read_text(encoding="utf-8")

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._workers = Workers()
        self._asked: dict[Any, Future[None]] = {}
        self.on_msg(self._on_message)

    def _on_message(self, _: Any, message: Any, buffers: Any) -> None:
        """Take a question, or drop one that has not been begun."""
        if not isinstance(message, dict):
            return
        if "drop" in message:
            if (asked := self._asked.pop(message["drop"], None)) is not None:
                asked.cancel()
            return
        number = message.get("id")
        try:
            question = QUESTIONS.get(str(message.get("name")))
            if question is None:
                raise RefusedError("there is no such question")
            arguments = Arguments(message.get("given", {}))
            lane = question.lane(self._subject, arguments)
        except RefusedError as error:
            self.send({"id": number, "error": str(error)})
            return

        def answer() -> None:
            try:
                found = question.ask(self._subject, arguments)
                if message.get("as") == "text":  # for notebook hosts that lose binary buffers
                    text = [base64.b64encode(x).decode() for x in found.buffers()]
                    self.send({"id": number, "head": found.head(), "text": text})
                else:
                    self.send({"id": number, "head": found.head()}, buffers=found.buffers())
            except RefusedError as error:
                self.send({"id": number, "error": str(error)})
            except Exception as error:  # tell the page, which would wait for ever
                self.send({"id": number, "error": f"{type(error).__name__}: {error}"})
                raise
            finally:
                self._asked.pop(number, None)

        self._asked[number] = self._workers.submit(lane, answer)

    def close(self) -> None:
        """End the threads with the widget."""
        self._workers.close()
        super().close()
