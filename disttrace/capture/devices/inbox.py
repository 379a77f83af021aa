"""What was issued on a device, noted by the thread that issues it, and seen to by another one.

To bind an operation to its entries takes microseconds. Of the issuing thread's time only a note is
taken: who issued it, and what the clocks said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from disttrace.capture.devices.flight_recorder import unix_offset
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
    thread issues, or None; or what is done with all of the group's, where nobody can be asked when
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
        """What was noted since the last time."""
        notes, self.notes = self.notes, []
        return notes


def make(rarely: Rarely, wake: Callable[[], None]) -> PlainInbox:
    """The compiled one where there is one."""
    try:
        made: PlainInbox = compiled.load("capture.devices._inbox").Inbox(rarely, wake)
    except ImportError:
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
