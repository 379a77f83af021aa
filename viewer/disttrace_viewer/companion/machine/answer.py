"""One thing that is in trouble, by the word of a kernel, a driver or a library's own service."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TEXT = 300
"""Characters that are kept of what was said."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``at_s`` is a unix time; ``where`` is a word of ``disttrace.journal.format``."""

    by: str
    where: str
    at_s: float
    text: str
    name: str | None = None
    code: int | None = None
    pid: int | None = None
