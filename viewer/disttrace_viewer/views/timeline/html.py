"""The timeline as one HTML file: a lane per process, findings on top; nothing is loaded.

The parts of the page lie in ``page/`` and are put into one document, with the trace packed inside
(see `columns`). Its policy lets nothing run or load but these very scripts and styles, by digest.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator
from importlib import resources

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.timeline.content import document

SCRIPTS = (
    *("data", "words", "lanes", "find", "paint", "bands", "map", "sums", "inspect", "grid"),
    *("tables", "move", "start"),
)
"""The page's program, in the order in which it stands there."""


def lines(trace: Trace, *, source: bool = True) -> Iterator[bytes]:
    """The page in pieces; ``source``: with the text of the program's lines, where it is here."""
    style = _part("page.css")
    script = '"use strict";\n' + "".join(_part(f"{name}.js") for name in SCRIPTS)
    title = ", ".join(job.id for job in trace.jobs) or "disttrace"
    page = _part("page.html")
    for mark, text in {
        "script-digest": _digest(script),
        "style-digest": _digest(style),
        "/*style*/": style,
        "/*script*/": script,
        "<!--title-->": html.escape(title),
    }.items():
        page = page.replace(mark, text)
    before, _, after = page.partition("<!--trace-->")
    yield before.encode()
    yield document(trace, source=source)
    yield after.encode()


def _part(name: str) -> str:
    return resources.files(__package__).joinpath("page").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
