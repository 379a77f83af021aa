"""The definitions of a journal that grows."""

from __future__ import annotations

import disttrace.journal.format as fmt
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.otlp.follow.tail import Tail


class Defined:
    """Those of the journal ``path``; ``owner`` as of ``Tail``. Nothing here raises."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        self.known = Definitions()
        self._path = fmt.definitions_name(path)
        self._owner = owner
        self._tail: Tail | None = None

    def read(self, *, final: bool = False) -> None:
        """Take what was defined since; ``final``: the process is gone."""
        if self._tail is None:
            try:
                self._tail = Tail(self._path, self._owner)
            except OSError:
                return  # nothing is there yet
        while lines := self._tail.lines(final=final):
            for line in lines:
                if (record := json_object(line)) is not None:
                    self.known.add(record)

    def close(self) -> None:
        """Let go of the file."""
        if self._tail is not None:
            self._tail.close()
