"""What a reader of foreign evidence is, and what it makes: a process's journal, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from disttrace_viewer.load import files
from disttrace_viewer.load.problems import Problems


@dataclass(frozen=True, slots=True)
class Translated:
    """One process as its evidence tells it: definitions and one segment, as a journal has them."""

    path: str
    """Of the file that it was read from."""
    definitions: bytes
    segment: bytes


class Reader(Protocol):
    """A module that knows one format; nothing else in the viewer does."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file may be of this format, by its first bytes and never by its name alone."""
        ...

    def read(self, paths: Sequence[str], problems: Problems) -> Iterator[Translated]:
        """The processes that these files tell of, each once."""
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
