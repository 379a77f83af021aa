"""What is wrong with the input, a sentence per file and kind, and the error that ends a command."""

from __future__ import annotations

from collections.abc import Collection

from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.process import Problem

LOSSES = frozenset((
    "compressed", "empty", "link", "missing segment", "newer format", "no definitions",
    "no segments", "noise", "too large", "undefined call",
    "unreadable", "wrong values",
))  # fmt: skip
"""Kinds of problems after which something that a process did may be in no record that was read."""


NEWER = "newer format"
CUT_OFF = "cut off"
"""Stands for a kind where it must be written down that a file ends within a line."""


class Problems:
    """Problems in the order in which they were met; the same sentence is kept once."""

    def __init__(self) -> None:
        self._found: dict[str, Problem] = {}
        self._of: dict[str, list[str]] = {}
        self.cut_off: dict[str, None] = {}
        """Files that end within a line with no reserved space behind it. That is no damage to
        tell of, a process may have been killed there; but what came after is not known."""

    def add(self, path: str, kind: str, what: str) -> None:
        """``what`` completes a sentence that begins with the path."""
        self.take(Problem(path=path, kind=kind, sentence=f"{plain(path)}: {what}"))

    def take(self, problem: Problem) -> None:
        if problem.sentence not in self._found:
            self._found[problem.sentence] = problem
            self._of.setdefault(problem.path, []).append(problem.sentence)

    def extend(self, others: Problems) -> None:
        for problem in others.found():
            self.take(problem)
        self.cut_off.update(others.cut_off)

    def found(self) -> tuple[Problem, ...]:
        return tuple(self._found.values())

    def of(self, paths: Collection[str]) -> tuple[str, ...]:
        """The sentences about any of these files."""
        return tuple(s for path in dict.fromkeys(paths) for s in self._of.get(path, ()))

    def losses(self, paths: Collection[str]) -> tuple[str, ...]:
        """The sentences about what of these files is lost."""
        found: list[str] = []
        for path in dict.fromkeys(paths):
            told = [s for s in self._of.get(path, ()) if self._found[s].kind in LOSSES]
            if path in self.cut_off and not told:
                told = [f"{plain(path)}: ends within a line; what came after is not known."]
            found += told
        return tuple(found)


def plural(count: int, noun: str) -> str:
    """``1 line`` or ``7 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class ViewerError(Exception):
    """A sentence for the user."""

    exit_code = 2
    """Nothing could be read."""
