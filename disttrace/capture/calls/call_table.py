"""From a call to its definition: one dictionary look-up when it was seen before."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable

from disttrace.capture.calls.call_site import CallSites
from disttrace.recording.interning import Made
from disttrace.recording.operation import CallRecord

_TABLE = 20_000  # a table starts anew at this bound: what is in the journal already is found there


class CallTable:
    """A table of calls by signature and place (see ``CallSites``)."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._native = sites.find_call
        self._table: dict[Hashable, CallRecord] = {}
        self.get = self._table.get
        sites.on_forget.append(self._table.clear)

    def find(
        self,
        frame: types.FrameType | None,
        signature: tuple[Hashable, ...],
        define: Callable[[int | None], Made],
    ) -> Made:
        """The call of ``signature`` made at ``frame``, and what its begin record adds to it.

        ``define(stack)`` makes it when it is new.
        """
        native = self._native if frame is not None else None
        call = native(None, None, signature, frame) if native is not None else None
        if call is not None:
            return call, b""
        key = signature, self._sites.place(frame)
        call = self._table.get(key)
        if call is not None:
            return call, b""
        call, extra = define(self._sites.stack(frame))
        if native is None or not call.whole or not native(None, None, signature, frame, call):
            self.add(key, call)  # C has no room for such a key
        return call, extra

    def add(self, key: Hashable, call: CallRecord) -> None:
        """Remember ``call`` under ``key``, unless its begin records must add to it."""
        if call.whole:
            if len(self._table) >= _TABLE:
                self._table.clear()
            self._table[key] = call
