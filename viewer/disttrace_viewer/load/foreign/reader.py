"""What a reader of foreign evidence is, and how it gets at a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.problems import Problems


class Reader(Protocol):
    """A module that knows one format; nothing else in the viewer does."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file may be of this format, by its first bytes and never by its name alone."""
        ...

    def read(self, paths: Sequence[str], problems: Problems) -> Iterator[Files]:
        """The processes that these files tell of, each once, as journals in memory."""
        ...


def content(path: str, most: int, problems: Problems) -> bytes | None:
    """Up to ``most`` bytes of a file, and a sentence where there are more; None, and a sentence,
    where it cannot be read.
    """
    try:
        data, beyond = files.read(path, most)
    except OSError as error:
        problems.add(path, "unreadable", f"cannot be read ({error.strerror}); left out.")
        return None
    if beyond:
        problems.add(path, "too large", "is too large; its end was not read.")
    return data
