"""Bundles the page's modules into one: a saved page cannot import files, and a notebook's widget is one module.

Only these forms are understood, and the modules use no others: ``import { a, b } from "./x.js";`` and
``import * as x from "./x.js";`` on a line of their own, and ``export`` before ``function``, ``class`` and ``const``.
Each module becomes a function that returns what it exports, in the order in which they need each other.
"""

from __future__ import annotations

import posixpath
import re

from limelight.explorer.front import FRONT

_IMPORT = re.compile(r'^import (?:\* as (?P<all>\w+)|\{(?P<some>[^}]*)\}) from "(?P<file>[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def bundle(entry: str) -> str:
    """Return a module and all that it imports as one script; ``bundled`` holds what the module exports.

    >>> text = bundle("colour.js")
    >>> text.count("class Scale"), "import" in text, "export " in text
    (1, False, False)
    """
    order: list[str] = []
    bodies: dict[str, str] = {}
    _collect(entry, order, bodies, ())
    names = {name: f"m{n}_{re.sub(r'[^a-z]', '_', name.removesuffix('.js'))}" for n, name in enumerate(order)}
    parts = [_wrapped(name, bodies[name], names) for name in order]
    return "\n".join([*parts, f"const bundled = {names[entry]};"])


def _collect(name: str, order: list[str], bodies: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"{name} imports itself, by way of {' and '.join(above)}")
    if name in bodies:
        return
    bodies[name] = (FRONT / name).read_text(encoding="utf-8")
    for found in _IMPORT.finditer(bodies[name]):
        _collect(_path(name, found["file"]), order, bodies, (*above, name))
    order.append(name)


def _path(importer: str, file: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), file))


def _wrapped(name: str, body: str, names: dict[str, str]) -> str:
    exported = _EXPORT.findall(body)

    def imported(found: re.Match[str]) -> str:
        module = names[_path(name, found["file"])]
        return f"const {found['all'] or '{' + found['some'] + '}'} = {module};"

    body = _EXPORT.sub("", _IMPORT.sub(imported, body))
    if other := _OTHER.search(body):
        raise ValueError(f"{name}: {other[0]!r} is a form of import or export that cannot be bundled")
    return f"const {names[name]} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
