"""Reads the journal of one process as it grows, a piece at a time, and skips what is too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.companion.slow.blocks import Block, Blocks
from disttrace_viewer.companion.slow.holds import Holds
from disttrace_viewer.companion.slow.minutes import Minutes
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.otlp.follow.tail import Tail

PIECE = 128 << 10
"""Bytes that are taken at once: some thousand records, a few milliseconds."""


class Follower:
    """Of the journal ``base``. Nothing here raises for what is in the files, or not there."""

    def __init__(self, directory: str, base: str, shifts: dict[str, int]) -> None:
        """``shifts``: of all journals of this host together, see ``Blocks``."""
        self.base = base
        self.definitions = Definitions()
        self._path = os.path.join(directory, base)
        self._minutes = Minutes(self._path + fmt.MINUTES_SUFFIX, self.definitions)
        self.holds = Holds(self.definitions, self._minutes)
        self._shifts = shifts
        self._defined: Tail | None = None
        self._fd, self._number, self._position = -1, 0, 0
        self._groups: dict[int, Blocks | None] = {}

    def skip(self) -> None:
        """Go on at what is written from now on."""
        self.holds.skipped()
        self._groups.clear()
        self.define()
        number = max(1, self._number)
        dropped = (one.get("segment") or 0 for one in self.definitions.listed["dropped"])
        number = max(number, max(dropped, default=0) + 1)
        while os.path.exists(fmt.segment_name(self._path, number + 1)):
            number += 1
        if self._open(number):
            self._position = self._written()

    def read(self) -> tuple[list[Block], bool]:
        """The blocks that a piece of what is new completes, and whether there is more."""
        self._next()
        if self._fd < 0:
            return [], False
        data = os.pread(self._fd, PIECE, self._position)
        whole = data[: data.rfind(b"\n") + 1]  # behind it are zeros
        hole = whole.find(b"\0")
        if hole >= 0:  # a line that is being written
            whole = whole[: whole.rfind(b"\n", 0, hole) + 1]
        self._position += len(whole)
        self.define()  # a definition is in its file before what refers to it
        found = []
        for held in self.holds.take(records(whole)):
            blocks = self._of(held.group)
            block = None if blocks is None else blocks.add(held)
            if block is not None:
                found.append(block)
        return found, len(data) == PIECE and len(whole) > 0

    def define(self) -> None:
        """Read what was defined since."""
        if self._defined is None:
            try:
                self._defined = Tail(fmt.definitions_name(self._path))
            except OSError:
                return
        while lines := self._defined.lines():
            for line in lines:
                if (record := json_object(line)) is not None:
                    self.definitions.add(record)

    def close(self) -> None:
        """Let go of the files."""
        self._minutes.write()
        if self._defined is not None:
            self._defined.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

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
        if self._fd < 0:
            self.skip()
        elif not os.pread(self._fd, 1, self._position).strip(b"\0"):
            number = self._number + 1
            if os.path.exists(fmt.segment_name(self._path, number)):
                # Something may have come between the two looks.
                if not os.pread(self._fd, 1, self._position).strip(b"\0"):
                    self._open(number)
            elif os.fstat(self._fd).st_nlink == 0:  # dropped, and several after it may be
                self.skip()

    def _open(self, number: int) -> bool:
        try:
            fd = fmt.open_own(fmt.segment_name(self._path, number), os.O_RDONLY)
        except OSError:
            return False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._position = fd, number, 0
        return True

    def _written(self) -> int:
        """Where what is written ends: a mapped segment is longer, and zeros from there on."""
        low, high = 0, os.fstat(self._fd).st_size
        while low < high:
            middle = (low + high) // 2
            if os.pread(self._fd, 1, middle) not in (b"", b"\0"):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0
        # The last line may be half written: go on behind the last whole one.
        start = max(0, low - PIECE)
        return start + os.pread(self._fd, low - start, start).rfind(b"\n") + 1


def records(lines: bytes) -> Iterator[dict[str, Any]]:
    """What whole lines of a segment hold."""
    try:
        found = orjson.loads(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]")
        yield from (one for one in found if type(one) is dict)
    except orjson.JSONDecodeError:
        for line in lines.splitlines():
            record = json_object(line)
            if record is not None:
                yield record
