"""What the calls of a process took, by the minute, beside its journal.

A journal gives its oldest segments up at ``DISTTRACE_MAX_MB``; what is written here stays: hours of
operations are a line for each call and minute. A line is::

    {"m": 29497920, "s": 7, "n": 12000, "d": 5100000000, "h": 900000000, "x": 31000000}

the minute (unix), the number of the call in the journal's definitions, how many of them ended then,
the nanoseconds that they took, and held their rank up, all together, and the longest one of them;
``"p": 1`` where not all were seen.
"""

from __future__ import annotations

import os

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.history.minutes import MINUTE_NS
from disttrace_viewer.load.definitions import Definitions

MOST_CALLS = 200
"""Calls that are told of one minute; of more it is not told that they were made."""
MOST_BYTES = 32 << 20
"""Months of what a training loop calls."""


class Minutes:
    """Of one journal. Nothing here raises: where nothing can be written, nothing is."""

    def __init__(self, path: str, definitions: Definitions) -> None:
        """``path`` of the file; ``definitions`` of the journal, as far as they are read."""
        self._path = path
        self._definitions = definitions
        self._minute = 0
        self._partial = False
        self._calls: dict[int, list[int]] = {}
        """By call how many, what they took and held, and the longest."""

    def add(self, call: int, begin: int, end: int, held: int) -> None:
        """One operation is over; times on the journal's clock."""
        zero_ns = self._definitions.process.get("unix_ns")
        minute = ((zero_ns if type(zero_ns) is int else 0) + end) // MINUTE_NS
        if minute > self._minute:
            self.write()
            self._minute = minute
        one = self._calls.get(call)
        if one is None:
            if len(self._calls) >= MOST_CALLS:
                self._partial = True
                return
            one = self._calls[call] = [0, 0, 0, 0]
        one[0] += 1
        one[1] += end - begin
        one[2] += held
        one[3] = max(one[3], end - begin)

    def missed(self) -> None:
        """Some operations were not seen."""
        self._partial = True

    def write(self) -> None:
        """Write down what was added."""
        if not self._calls:
            return
        calls, self._calls = self._calls, {}
        partial, self._partial = self._partial, False
        lines = [
            {"m": self._minute, "s": call, "n": n, "d": took, "h": held, "x": longest}
            | ({"p": 1} if partial else {})
            for call, (n, took, held, longest) in calls.items()
        ]
        try:
            with fmt.opened_own(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) as fd:
                if os.fstat(fd).st_size < MOST_BYTES:
                    os.write(fd, b"".join(orjson.dumps(line) + b"\n" for line in lines))
        except (OSError, TypeError):
            pass  # a full disk, or the folder is gone; times that nobody can have taken
