"""What was issued on a device, and which entries of a flight recorder belong to it.

To bind an operation to its entries takes microseconds. Of the issuing thread's time only a note is
taken, which another thread sees to: which thread issued it, and what the clocks showed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from disttrace.capture.devices.flight_recorder import (
    COMPLETED,
    QUERIED,
    Key,
    Question,
    Record,
    unix_offset,
)
from disttrace.foreign import ours
from disttrace.journal import compiled
from disttrace.journal.originals import get_ident
from disttrace.recording.operation import Operation

Note = tuple[Operation, int, int, int, "int | None"]
"""An operation, the thread that issued it, unix time less the clock of begins then and how far that
may be off, and the number that torch's hooks give it."""
_MANY = 256
_CHUNK = 64
Rarely = Callable[[Operation, "tuple[int, int] | None", Any], None]


class PlainInbox:
    """``add`` notes operations of groups that are ``known``, and leaves others to ``rarely``.

    ``known`` holds, by a group's number, where a hook leaves the number of the operation that a
    thread issues, or None; or what is done with all of the group's, where nothing shows when
    a device ends them. ``wake`` is called for the first of ``notes`` after a ``take``.
    """

    def __init__(self, rarely: Rarely, wake: Callable[[], None]) -> None:
        self._rarely, self._wake = rarely, wake
        self.notes: list[Note] = []
        self.known: dict[int | None, Mapping[int, int] | Callable[[Operation], None] | None] = {}
        self.capturing: Callable[[], bool] | None = None

    def add(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        """``operation`` was issued; as ``Unwatched.add``."""
        number = operation.call.group
        if call is not None or number not in self.known or (self.capturing and self.capturing()):
            self._rarely(operation, call, work)
            return
        thread, ids = get_ident(), self.known[number]
        if callable(ids):
            ids(operation)
        elif not operation.ended:
            self.notes.append(
                (operation, thread, *unix_offset(), None if ids is None else ids.get(thread))
            )
            if len(self.notes) == 1:
                self._wake()

    def take(self) -> list[Note]:
        notes, self.notes = self.notes, []
        return notes


def make(rarely: Rarely, wake: Callable[[], None]) -> PlainInbox:
    """The compiled one where there is one."""
    try:
        made: PlainInbox = compiled.load("capture.devices._inbox").Inbox(rarely, wake)
    except ours(ImportError):
        return PlainInbox(rarely, wake)
    return made


def in_chunks(notes: Sequence[Note]) -> Iterable[tuple[Note, Sequence[Note]]]:
    """Each note that is seen to, and those that are over when it is: where there are many, every
    so manyth of those that one thread put on one stream, which a device executes in order."""
    if len(notes) < _MANY:
        return [(note, ()) for note in notes]
    streams: dict[tuple[int, int], list[Note]] = {}
    counter, thread, stream = None, 0, list(notes[:0])
    for note in notes:
        mine = note[0].call.counter
        if mine is None or mine is not counter or note[1] != thread:
            counter, thread = mine, note[1]
            stream = streams.setdefault((thread, id(note if mine is None else mine)), [])
        stream.append(note)
    chunks = (s[i : i + _CHUNK] for s in streams.values() for i in range(0, len(s), _CHUNK))
    return [(chunk[-1], chunk[:-1]) for chunk in chunks]


SLACK_NS = 2_000
"""Between two clocks read at the same moment."""
_BEFORE_NS = 1_000_000
"""A hook of torch's may write its entry before ours begins the operation."""

_Placed = tuple[int, int, Record]  # when it was made, its place in the answer, the entry
_Lane = tuple[list[int], list[tuple[int, Record]]]  # when each was made; its place, and itself


@dataclass(slots=True, eq=False)
class Running:
    """An operation that was issued and not seen finished.

    ``windows`` are the unix times of the calls in which its entries were made, ``until`` the end of
    the last one on the clock of begins, ``thread`` the one that issued it, ``group`` its group's
    name. ``stream`` is of those that the device executes in order.
    """

    operation: Operation
    recorder: str
    windows: tuple[tuple[int, int], ...]
    until: int
    thread: int
    group: str | None
    stream: tuple[int, bool] | None
    seen: int  # when it was last known to run, on the clock of begins
    number: int | None = None  # what torch's hooks call it, in its group
    behind: Sequence[Note] = ()  # what is over when it is, and was not looked at
    entries: Sequence[Key] = ()
    confirmed: bool = False  # the entries are from an answer that held all
    gone: int = 0  # when it was first absent from those that are not complete; 0: it is not
    misses: int = 0  # answers that held all entries, and none of its own
    doubted: int = 0  # since when it looks complete and may have been aborted; 0: it does not
    stale: bool = False  # its entries were overwritten: nothing more will be heard of it

    def exact(self) -> int | None:
        """The number under which its entry is to be found; None where the time must do."""
        return None if self.group is None else self.number


def question(active: bool, running: Sequence[Running]) -> Question:
    """What to ask of a recorder for these."""
    fresh = (each.exact() for each in running if not each.confirmed)
    numbers = frozenset(number for number in fresh if number is not None)
    times: list[tuple[int, int]] = []
    for since, until in sorted(t for each in running for t in _times(each)):
        if times and since <= times[-1][1]:
            times[-1] = times[-1][0], max(until, times[-1][1])
        else:
            times.append((since, until))
    return Question(active, times, numbers)


def _times(running: Running) -> Iterable[tuple[int, int]]:
    """When its entries were made, as far as that is known: unix ns, from and to."""
    if running.confirmed:
        return ((made, made) for _, made in running.entries)
    if running.exact() is not None:
        return ()
    before = SLACK_NS if running.recorder in QUERIED else _BEFORE_NS
    return ((since - before, until + SLACK_NS) for since, until in running.windows)


class Entries:
    """Entries of one answer by number, or by thread, group and time; ``claimed`` have an owner,
    ``groups`` are named by the recorder. Made once, for a walk per operation is quadratic."""

    def __init__(self, records: Iterable[Record], claimed: Iterable[Key], groups: set[str]) -> None:
        self._claimed, self._groups = set(claimed), groups
        self._lanes: dict[int | None, dict[str, list[_Placed]]] = {}
        self._numbered: dict[tuple[str, int], list[Record]] = {}
        for place, each in enumerate(records):
            self._groups.add(each.group)
            lane = self._lanes.setdefault(each.thread, {}).setdefault(each.group, [])
            lane.append((each.created, place, each))
            if each.op_id is not None:
                self._numbered.setdefault((each.group, each.op_id), []).append(each)
        for lanes in self._lanes.values():
            for lane in lanes.values():
                lane.sort(key=itemgetter(0))
        self._found: dict[tuple[int, str | None], list[_Lane]] = {}

    def claim(self, running: Running) -> Sequence[Key]:
        """The entries of ``running``, the newest of those that were coalesced into one launch.

        Entries of one launch (an uneven all_gather, a batch) have no events except for the last
        one, which is made when coalescing ends, and is no message's even where the others are.
        """
        number = running.exact()
        if number is not None:
            return self._exactly(number, running)
        found = self._within(running, 0) or self._within(running, SLACK_NS, SLACK_NS)
        # torch's hook made it before our begin: the newest one then, of those that no other has.
        if not found and running.recorder not in QUERIED:
            early = reversed(self._within(running, _BEFORE_NS, SLACK_NS))
            found = [each for each in early if each.key not in self._claimed][:1]
        if len(found) == 1:
            only = found[0].key
            self._claimed.add(only)
            return (only,)
        launches = {(each.group_id, each.launch): each.key for each in found}
        self._claimed.update(launches.values())
        return tuple(launches.values())

    def _exactly(self, number: int, running: Running) -> Sequence[Key]:
        """The entry that a hook made under that number: the newest, as a name may be used again."""
        until = running.windows[-1][1] + SLACK_NS
        named = self._numbered.get((running.group or "", number), ())
        made = [each for each in named if each.created <= until]
        return (max(made, key=lambda e: e.created).key,) if made else ()

    def _within(self, running: Running, before: int, after: int = 0) -> list[Record]:
        """What was made in its calls, ``before`` and ``after`` them so long, in order."""
        lanes = self._lanes_of(running)
        found: list[tuple[int, Record]] = []
        for since, until in running.windows:
            for created, placed in lanes:
                first = bisect_left(created, since - before)
                last = bisect_right(created, until + after, first)
                found += placed[first:last]
        if len(found) > 1:  # windows of one operation may overlap by what clocks are off
            found = sorted(dict(found).items(), key=itemgetter(0))
        return [each for _, each in found]

    def _lanes_of(self, running: Running) -> list[_Lane]:
        """Those of its thread, or of unknown threads, and of its group if known."""
        whose = running.thread, running.group
        found = self._found.get(whose)
        if found is None:
            found = self._found[whose] = []
            for thread in (running.thread, None):
                lanes = self._lanes.get(thread, {})
                anywhere = running.group is None or running.group not in self._groups
                for lane in lanes.values() if anywhere else [lanes.get(running.group or "", [])]:
                    found.append(([made for made, _, _ in lane], [(n, e) for _, n, e in lane]))
        return found


def is_complete(running: Running, by_key: Mapping[Key, Record]) -> bool | None:
    """What a full answer shows of an operation; None: its entries are gone, or will not show it."""
    found = [by_key.get(key) for key in running.entries]
    if not found or None in found:
        return None
    if all(each is not None and each.state == COMPLETED for each in found):
        return True
    if running.recorder not in QUERIED and all(each is not None and each.retired for each in found):
        return None  # retired when it was issued: this backend never shows when it is over
    return False
