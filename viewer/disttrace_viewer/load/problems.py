"""Collects what is wrong with the input, a sentence per file and kind: nothing is silent."""

from __future__ import annotations

from disttrace_viewer.trace.model import Problem
from disttrace_viewer.trace.plain_text import plain


class Problems:
    """Problems in the order in which they were met; the same sentence is kept once."""

    def __init__(self) -> None:
        self._found: dict[str, Problem] = {}

    def add(self, path: str, kind: str, what: str) -> None:
        """``what`` completes a sentence that begins with the path."""
        sentence = f"{plain(path)}: {what}"
        self._found.setdefault(sentence, Problem(path=path, kind=kind, sentence=sentence))

    def extend(self, others: Problems) -> None:
        """Take over what others found."""
        self._found.update(others._found)

    def about(self, *paths: str) -> bool:
        """Whether anything is wrong with any of these files."""
        return any(p.path in paths for p in self._found.values())

    def found(self) -> tuple[Problem, ...]:
        """All problems so far."""
        return tuple(self._found.values())

    def of(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """The sentences about any of these files."""
        return tuple(p.sentence for p in self._found.values() if p.path in paths)


def plural(count: int, noun: str) -> str:
    """``1 line`` or ``7 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
