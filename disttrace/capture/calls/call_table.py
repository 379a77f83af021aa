"""From a call to its definition: one dictionary look-up when it was seen before."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from typing import Any

from disttrace.capture.calls.call_site import CallSites
from disttrace.recording.operation import Call

# Dynamic shapes make new signatures for ever: one place gets this many definitions, later calls
# carry their signature in the begin record; and the table starts anew at its bound.
VARIANTS = 64
_TABLE = 20_000

Made = tuple[Call, bytes]


class Calls:
    """The table of calls of one door.

    A key is a signature followed by a place, in one flat tuple. The place covers the frames that
    the recorded stack shows; where the user's frame lies deeper than usual (inside FSDP, say) the
    table holds the depth that is needed instead of a call, and the call stands under the longer
    key.
    """

    def __init__(self, sites: CallSites, *, frames: int | None = None) -> None:
        """``frames`` are those that a place usually covers; without it, as for public functions."""
        self._sites = sites
        self._frames = frames or sites.frames
        self._table: dict[Hashable, Call | int] = {}
        self._variants: dict[Hashable, int] = {}
        self.get = self._table.get

    def find(
        self,
        frame: types.FrameType,
        signature: tuple[Hashable, ...],
        define: Callable[[int | None], Call],
        overflow: Callable[[int | None], Made] | None = None,
    ) -> Made:
        """The call of ``signature`` made at ``frame``; ``define(stack)`` makes it when it is new.

        ``overflow(stack)`` makes a call without the variable part and the bytes that carry it.
        """
        place = self._sites.deep_key(frame, self._frames)
        key = signature + place
        call = self.get(key)
        if isinstance(call, Call):
            return call, b""
        needed = call if call is not None else self._sites.user_depth(frame)
        if needed > self._frames:
            self._table[key] = needed
            place = self._sites.deep_key(frame, needed)
            key = signature + place
            call = self.get(key)
            if isinstance(call, Call):
                return call, b""
        return self._new(frame, place, key, needed, define, overflow)

    def forget(self) -> None:
        """Start anew: after fork the numbers are the parent's."""
        self._table.clear()
        self._variants.clear()

    def _new(
        self,
        frame: types.FrameType,
        place: Hashable,
        key: Hashable,
        needed: int,
        define: Callable[[int | None], Call],
        overflow: Callable[[int | None], Made] | None,
    ) -> Made:
        if len(self._table) >= _TABLE:
            self.forget()
        stack = self._sites.stack(frame, pin=needed)
        variants = self._variants[place] = self._variants.get(place, 0) + 1
        if variants > VARIANTS and overflow is not None:
            return overflow(stack)
        call = define(stack)
        self._table[key] = call
        return call, b""


def changed(call: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The part of a call's keys that goes into the begin record of an overflowing call."""
    return {name: call[name] for name in names if call.get(name) is not None}
