"""The journal of one process as it grows: whether anything was begun lately (``HeartbeatMonitor``),
and how long it was away and how long held (``Follower``).

Of the first only begins of the main thread count, and none of a store that is polled.

Of a process the time between two releases is *away*, what it did by itself, and *inside*, from
where the next operation holds it to that operation's end. All members of a collective that waits
for all are released together. So a rank that came later than another was inside for less by that
much, and no clocks of hosts need to be compared for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.companion.slow_ranks import Block, Blocks, Released
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.fates import fold
from disttrace_viewer.load.schema import Record, json_object
from disttrace_viewer.load.tail import GrowingDefinitions, Tail, newest_segment
from disttrace_viewer.trace.operation import SYNCHRONIZING
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording.names import file_name

MOST_OPEN = 10_000
"""Operations of which the end is awaited; of more the oldest ones are work that is not awaited."""


@dataclass(frozen=True, slots=True)
class _CallKind:
    group: int | None
    place: str
    holds: bool
    of_store: bool
    on_device: bool
    bytes: int


class Holds:
    """Of one journal, from any point of it on."""

    def __init__(self, definitions: Definitions) -> None:
        self.places: dict[str, tuple[str, Frame | None]] = {}
        """Operation and the program's line by what stands for both."""
        self.away_ns = self.held_ns = 0
        """All that it was away, and held by operations, transfers included."""
        self.last_ns = 0
        """Newest time that was seen, on the journal's clock."""
        self._definitions = definitions
        self._calls: dict[int, _CallKind] = {}
        self._open: dict[int, tuple[Record, _CallKind]] = {}
        self._newest = 0
        self._release: int | None = None

    def skipped(self) -> None:
        """What comes next does not follow on what was taken."""
        self._open.clear()
        self._release = None

    def take(self, records: Iterable[dict[str, Any]]) -> Iterator[Released]:
        """The exchanges that these records end. What is none of the format is passed over."""
        for record in records:
            kind = next(iter(record), "")
            number = record.get(kind)
            if type(number) is not int:
                continue
            try:
                if kind == fmt.BEGIN:
                    self._begin(number, record)
                elif (found := self._open.get(number)) is not None:
                    begin, call = found
                    is_over = kind == fmt.END and "r" not in record
                    if not is_over:
                        fold(begin, kind, record)
                        is_over = kind == fmt.COMPLETE and call.on_device
                    if is_over:
                        del self._open[number]
                        held = self._ended(begin | record, call)
                        if held is not None:
                            yield held
            except (KeyError, TypeError):
                continue

    def _begin(self, number: int, record: dict[str, Any]) -> None:
        self.last_ns = max(self.last_ns, record["t"])
        if "r" in record:
            return  # a copy at the head of a segment
        call = self._call(record["s"])
        if call is None or not call.holds or (call.of_store and record.get("h")):
            return  # a thread beside the main one that asks a store holds nobody up
        self._open[number] = record, call
        self._newest = max(self._newest, number)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _ended(self, op: Record, call: _CallKind) -> Released | None:
        """It held from its begin or wait on; of a synchronous one its issue may be a wait too."""
        end = op["t"] + op["d"]
        self.last_ns = max(self.last_ns, end)
        since: int | None = op["t"]
        if type(op.get("z")) is int:
            since = end - op["z"]  # the device's own time: it began when its kernel did
        elif "wait" in op:
            since = op["t"] + op["wait"]
        elif ("issued" in op or call.on_device) and op["b"] != self._newest:
            since = None  # the program went on meanwhile
        away = inside = 0
        if since is not None:
            before, self._release = self._release, max(self._release or 0, end)
            inside = max(0, end - max(since, before or 0))
            if before is None:
                return None  # it is not known how long it was away
            away = max(0, since - before)
            self.away_ns += away
            self.held_ns += inside
        seq = op.get("q")
        if call.group is None or type(seq) is not int or op.get("f"):
            return None
        return Released(call.group, seq, call.place, away, inside, end, call.bytes)

    def _call(self, number: int) -> _CallKind | None:
        found = self._calls.get(number)
        if found is None and (call := self._definitions.get("call", number)) is not None:
            kind, op = call.get("kind"), str(call.get("op"))
            place = self._place(op, call.get("stack")) if op in SYNCHRONIZING else ""
            found = self._calls[number] = _CallKind(
                group=call.get("group") if kind == fmt.COLLECTIVE else None,
                place=place if kind == fmt.COLLECTIVE else "",
                holds=kind in (fmt.COLLECTIVE, fmt.MESSAGE, fmt.STORE),
                of_store=kind == fmt.STORE,
                on_device=fmt.ends_on_device(call.get("backend"), call.get("device")),
                bytes=call.get("bytes") or 0,
            )
        return found

    def _place(self, op: str, stack: int | None) -> str:
        frame = innermost(tuple(Frame(*one) for one in self._definitions.frames(stack)))
        line = "" if frame is None else f"{file_name(frame.file)}:{frame.line}"
        place = hashlib.sha256(f"{op} {line}".encode("utf-8", "replace")).hexdigest()[:12]
        self.places[place] = (op, frame)
        return place


MOST_READ = 16 << 10
"""Bytes of a look: a job that is well may have written megabytes since the last one."""
NEXT_S = 1.0
"""So seldom one looks for the next segment while nothing is new in this one."""
_BEGIN = b'{"%s":' % fmt.BEGIN.encode()
_BESIDE = b'"h":'
"""In the begins of threads beside the main one."""
_CALL = re.compile(rb'"s":(\d{1,18})')


class NewestSegment:
    """Of the journal ``path``, of this user: files stay open."""

    def __init__(self, path: str) -> None:
        self.tail: Tail | None = None
        self._path = path
        self._number = 0
        self._next_at = 0.0

    def skip(self) -> None:
        """Go on behind all that is there now. Raises OSError."""
        self._open(newest_segment(self._path)).skip()

    def advance(self) -> bool:
        """Go on to the next segment; whether records between are missed. Raises OSError."""
        now = time.monotonic()
        if self.tail is None:
            self.skip()
            return True
        if not self.tail.at_end or now < self._next_at:
            return False
        if os.path.exists(fmt.segment_name(self._path, self._number + 1)):
            if self.tail.at_end:  # something may have come between the two looks
                self._open(self._number + 1)
            return False
        self._next_at = now + NEXT_S
        if self.tail.deleted:  # and several after it may be
            self._open(newest_segment(self._path))
            return True
        return False

    def close(self) -> None:
        if self.tail is not None:
            self.tail.close()

    def _open(self, number: int) -> Tail:
        found = Tail(fmt.segment_name(self._path, number), os.geteuid())
        self.close()
        self.tail, self._number = found, number
        return found


class HeartbeatMonitor:
    """The journal ``base`` in ``directory``; ``quiet_since`` is on the clock of its caller."""

    def __init__(self, directory: str, base: str, quiet_since: float) -> None:
        self.quiet_since = quiet_since
        path = os.path.join(directory, base)
        self._segment = NewestSegment(path)
        self._definitions = GrowingDefinitions(path, os.geteuid())
        self._definitions.read()

    @property
    def launcher(self) -> bool:
        """Whether it is torchrun's agent, which asks its store all the time."""
        return self._definitions.is_agent

    def look(self, now: float) -> bool:
        """Whether anything was begun since the last look."""
        try:
            moved = not self.launcher and self._has_begun()
        except OSError:
            return False  # the folder is gone, or nothing is there yet
        if moved:
            self.quiet_since = now
        return moved

    def close(self) -> None:
        self._definitions.close()
        self._segment.close()

    def _has_begun(self) -> bool:
        self._segment.advance()
        lines = [] if self._segment.tail is None else self._segment.tail.recent(MOST_READ)
        if lines:
            self._definitions.read()  # a call is before any of its operations is on record
        return any(map(self._is_begin, reversed(lines)))

    def _is_begin(self, line: bytes) -> bool:
        if not line.startswith(_BEGIN) or _BESIDE in line:
            return False
        number = _CALL.search(line)
        call = None if number is None else self._definitions.get("call", int(number[1]))
        return (call or {}).get("kind") != fmt.STORE


PIECE = 128 << 10
"""Bytes that are taken at once: some thousand records, a few milliseconds."""


class Follower:
    """Of the journal ``base``. Nothing here raises for what is in the files, or not there."""

    def __init__(self, directory: str, base: str, shifts: dict[str, int]) -> None:
        """``shifts``: of all journals of this host together, see ``Blocks``."""
        self.base = base
        self._path = os.path.join(directory, base)
        self.definitions = GrowingDefinitions(self._path)
        self.holds = Holds(self.definitions)
        self._shifts = shifts
        self._segment = NewestSegment(self._path)
        self._groups: dict[int, Blocks | None] = {}

    def skip(self) -> None:
        self._skipped()
        with contextlib.suppress(OSError):
            self._segment.skip()

    def read(self) -> tuple[list[Block], bool]:
        """The blocks that a piece of what is new completes, and whether there is more."""
        with contextlib.suppress(OSError):
            if self._segment.advance():
                self._skipped()
        lines = [] if self._segment.tail is None else self._segment.tail.lines(most=PIECE)
        self.definitions.read()  # a definition is in its file before what refers to it
        found = []
        for held in self.holds.take(records(lines)):
            blocks = self._of(held.group)
            block = None if blocks is None else blocks.add(held)
            if block is not None:
                found.append(block)
        return found, sum(map(len, lines)) > PIECE // 2

    def close(self) -> None:
        self.definitions.close()
        self._segment.close()

    def _skipped(self) -> None:
        self.holds.skipped()
        self._groups.clear()

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
