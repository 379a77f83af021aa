"""What was issued on a device, noted by the thread that issues it, and seen to by another one.

To bind an operation to its entries takes microseconds. Of the issuing thread's time only a note is
taken: who issued it, and what the clocks said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from disttrace.capture.devices.flight_recorder import unix_offset
from disttrace.journal import compiled
from disttrace.recording.operation import Operation

Note = tuple[Operation, int, int, int, "int | None"]
"""An operation, the thread that issued it, unix time less the clock of begins then and how far that
may be off, and the number that torch's hooks give it."""
Rarely = Callable[[Operation, "tuple[int, int] | None", Any], None]


class PlainInbox:
    """``add`` notes operations of groups that are ``known``, and leaves others to ``rarely``.

    ``known`` holds, by a group's number, where a hook leaves the number of the operation that a
    thread issues, or None; ``wake`` is called for the first note after a ``take``.
    """

    def __init__(self, rarely: Rarely, wake: Callable[[], None]) -> None:
        self._rarely, self._wake = rarely, wake
        self._notes: list[Note] = []
        self.known: dict[int | None, Mapping[int, int] | None] = {}
        self.capturing: Callable[[], bool] | None = None

    def add(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        """``operation`` was issued; as ``Unwatched.add``."""
        number = operation.call.group
        if call is not None or number not in self.known or (self.capturing and self.capturing()):
            self._rarely(operation, call, work)
        elif not operation.ended:
            thread, ids = threading.get_ident(), self.known[number]
            self._notes.append(
                (operation, thread, *unix_offset(), None if ids is None else ids.get(thread))
            )
            if len(self._notes) == 1:
                self._wake()

    def take(self) -> list[Note]:
        """What was noted since the last time."""
        notes, self._notes = self._notes, []
        return notes


def make(rarely: Rarely, wake: Callable[[], None]) -> PlainInbox:
    """The compiled one where there is one."""
    try:
        made: PlainInbox = compiled.load("capture.devices._inbox").Inbox(rarely, wake)
    except ImportError:
        return PlainInbox(rarely, wake)
    return made
