"""Reads the journal of one process as it grows, a piece at a time, and skips what is too much."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.companion.slow.blocks import Block, Blocks
from disttrace_viewer.companion.slow.holds import Holds
from disttrace_viewer.companion.slow.minutes import Minutes
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.load.tail import Defined, Tail

PIECE = 128 << 10
"""Bytes that are taken at once: some thousand records, a few milliseconds."""


class Follower:
    """Of the journal ``base``. Nothing here raises for what is in the files, or not there."""

    def __init__(self, directory: str, base: str, shifts: dict[str, int]) -> None:
        """``shifts``: of all journals of this host together, see ``Blocks``."""
        self.base = base
        self._path = os.path.join(directory, base)
        self._defined = Defined(self._path)
        self.definitions = self._defined.known
        self._minutes = Minutes(self._path + fmt.MINUTES_SUFFIX, self.definitions)
        self.holds = Holds(self.definitions, self._minutes)
        self._shifts = shifts
        self._segment: Tail | None = None
        self._number = 0
        self._groups: dict[int, Blocks | None] = {}

    def skip(self) -> None:
        """Go on at what is written from now on."""
        self.holds.skipped()
        self._groups.clear()
        self.define()
        dropped = (one.get("segment") or 0 for one in self.definitions.listed["dropped"])
        number = max(1, self._number, max(dropped, default=0) + 1)
        while os.path.exists(fmt.segment_name(self._path, number + 1)):
            number += 1
        self._open(number)
        if self._segment is not None:
            self._segment.skip()

    def read(self) -> tuple[list[Block], bool]:
        """The blocks that a piece of what is new completes, and whether there is more."""
        self._next()
        if self._segment is None:
            return [], False
        lines = self._segment.lines(most=PIECE)
        self.define()  # a definition is in its file before what refers to it
        found = []
        for held in self.holds.take(records(lines)):
            blocks = self._of(held.group)
            block = None if blocks is None else blocks.add(held)
            if block is not None:
                found.append(block)
        return found, sum(map(len, lines)) > PIECE // 2

    def define(self) -> None:
        """Read what was defined since."""
        self._defined.read()

    def close(self) -> None:
        """Let go of the files."""
        self._minutes.write()
        self._defined.close()
        if self._segment is not None:
            self._segment.close()

    def _of(self, number: int) -> Blocks | None:
        if number not in self._groups:
            known = self.definitions
            size = (known.get("group", number) or {}).get("size")
            name, rank, found = known.group_id(number), known.rank, None
            if name is not None and rank is not None and type(size) is int and size > 1:
                world = known.world_size or size
                found = Blocks(name[:16], rank, size, self._shifts, world=world)
            self._groups[number] = found
        return self._groups[number]

    def _next(self) -> None:
        """Take the next segment when this one is read to its end."""
        if self._segment is None:
            self.skip()
        elif self._segment.at_end:
            number = self._number + 1
            if os.path.exists(fmt.segment_name(self._path, number)):
                if self._segment.at_end:  # something may have come between the two looks
                    self._open(number)
            elif self._segment.deleted:  # several after it may be
                self.skip()

    def _open(self, number: int) -> None:
        try:
            found = Tail(fmt.segment_name(self._path, number), os.geteuid())
        except OSError:
            return
        if self._segment is not None:
            self._segment.close()
        self._segment, self._number = found, number


def records(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """What whole lines of a segment hold."""
    try:
        found = orjson.loads(b"[" + b",".join(lines) + b"]")
        yield from (one for one in found if type(one) is dict)
    except orjson.JSONDecodeError:
        for line in lines:
            record = json_object(line)
            if record is not None:
                yield record
