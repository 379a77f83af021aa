"""What the program receives of the job's own reports: callbacks of ``on_verdict``, and the last
report, for ``live``.

They are the program's code and may block, so the background thread never waits for them: each
telling has a thread of its own, which begins when the one before it is over. Signals are blocked in
threads of ours, and whatever a callback starts would inherit that: it runs with the mask of the
thread that registered it. After a fork the child has the callbacks, and no such thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from disttrace import errors
from disttrace.capture.wrapping.context import Capture
from disttrace.foreign import ours
from disttrace.identity import integer, launched_rank
from disttrace.journal.format import opened_own
from disttrace.recording import background
from disttrace.recording.operation import Operation

NAME = "disttrace-verdicts"
LEAVE_S = 1.0
"""So long the end of a process waits for its callbacks."""
_PATIENCE_S = 60.0
"""So long a telling waits for the one before it; then it is not delivered here."""
_KEYS: dict[str, Any] = {"certainty": None, "culprit_ranks": [], "finding": None}
"""What some objects lack: that a job goes on is no rank's fault."""

Callback = Callable[[dict[str, Any]], object]


class _Listener:
    """One registration; the same callback may have several."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def receive(self, report: dict[str, Any]) -> None:
        held = signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            self.callback(report)
        except BaseException as error:
            _remove(self)
            _tell_of(self.callback, error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


_listeners: tuple[_Listener, ...] = ()
_newest: tuple[int, background.Thread] | None = None  # with its process: a fork copies no thread
_last: dict[str, Any] | None = None  # the first of what the job reported last
_tracings = 0  # that have ended: what was still to be delivered then is not


def register(callback: Callback) -> Callable[[], None]:
    """Have ``callback`` called; returns what takes that back. Raises TypeError if it cannot be."""
    global _listeners
    if not callable(callback):
        raise TypeError(f"on_verdict takes a callable, not {callback!r}")
    listener = _Listener(callback)
    _listeners = (*_listeners, listener)
    return lambda: _remove(listener)


def _remove(listener: _Listener) -> None:
    global _listeners
    _listeners = tuple(one for one in _listeners if one is not listener)


def copied(report: dict[str, Any]) -> dict[str, Any]:
    """A copy, so that no callback sees what another does to it."""
    found: dict[str, Any] = json.loads(json.dumps(report))
    return found


def tell(objects: object) -> None:
    """Call all listeners with each of ``objects``, soon."""
    global _newest, _last
    if not isinstance(objects, list):
        return
    reports = [{**_KEYS, **one} for one in objects if isinstance(one, dict)]
    _last = reports[0] if reports else _last
    if not _listeners:
        return
    before = _newest[1] if _newest is not None and _newest[0] == os.getpid() else None
    tracing = _tracings

    def deliver() -> None:
        for one in reports if before is None or before.join(_PATIENCE_S) else ():
            for listener in _listeners:
                if tracing == _tracings and listener in _listeners:
                    listener.receive(copied(one))

    thread = background.Thread(deliver, NAME)
    if thread.start():
        _newest = (os.getpid(), thread)


def wait() -> None:
    """The process is about to end: give the callbacks a moment."""
    if _newest is not None and _newest[0] == os.getpid():
        _newest[1].join(LEAVE_S)


def stop() -> None:
    """Tracing is over: no callback is called any more, until it begins anew."""
    global _tracings, _last
    _tracings += 1
    _last = None


def _tell_of(callback: Callback, error: BaseException) -> None:
    try:
        name = getattr(callback, "__qualname__", None) or type(callback).__name__
        what = f"the callback {name} of on_verdict raised {errors.first_line(error)}"
        sentence = errors.plain(f"{what}; it is called no more, and the program goes on")
        errors.tell(f"disttrace: {sentence}\n", sys.__stderr__)
    except BaseException:  # whatever its name is: it cannot be reported
        return


_MOST = 4 << 20
KNOWN_S = 30.0
"""What the companion wrote longer ago is of one that is gone, or was stopped."""


def standing(
    capture: Capture, rank: int | None, of_ranks: dict[str, Any], process: str
) -> dict[str, Any]:
    """``rank``: of a launcher; ``of_ranks``: the companion's knowledge; ``process``: our id."""
    core = capture.recorder.core
    joined = capture.groups.default_rank()
    in_flight = core.in_flight()
    oldest = in_flight[0] if in_flight else None
    return {
        "rank": rank if joined is None else joined,
        "begun": core.begun,
        "in_flight": len(in_flight),
        "oldest_op": None if oldest is None else oldest.call.op,
        "oldest_age_s": None if oldest is None else capture.recorder.since(oldest) / 1e9,
        "oldest_line": None if oldest is None else _line(capture, oldest),
        "waiting_share": of_ranks.get("ranks", {}).get(process, {}).get("waiting_share"),
        "slow": of_ranks.get("slow", []),
        "said": None if _last is None else copied(_last),
    }


def known(path: str) -> dict[str, Any]:
    """What the companion of this host wrote about its ranks; empty where there is nothing."""
    try:
        with opened_own(path, os.O_RDONLY) as fd:
            found = json.loads(os.pread(fd, _MOST, 0))
        return found if time.time() - found["at"] < KNOWN_S else {}
    except ours(OSError, ValueError, KeyError, TypeError):
        return {}  # none, it is written just now, or it is another version's


def launched_as() -> int | None:
    """The rank that a launcher gave this process."""
    rank = integer(os.environ.get("RANK"))
    claimed = launched_rank(os.environ) if rank is None else None
    return rank if claimed is None else claimed["rank"]


def _line(capture: Capture, operation: Operation) -> str | None:
    """Where the program issued it: ``file:line``."""
    frames = capture.recorder.frames(operation.call)
    own = next((frame for frame in frames if capture.sites.is_programs(frame[0])), None)
    frame = own or (frames[0] if frames else None)
    return None if frame is None else f"{frame[0]}:{frame[1]}"
