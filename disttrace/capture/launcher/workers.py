"""How the processes that this one launched started and ended, each said once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from disttrace.identity import integer
from disttrace.journal.format import opened_own
from disttrace.recording.recorder import Recorder

_ERROR_LIMIT = 2_000  # characters of an error file's traceback that are kept
_ERROR_FILE = 1 << 20  # bytes of it that are read: a pipe, or an endless one, holds nobody up
_MOST = 100_000

Keys = dict[str, Any]


class Workers:
    """Writes ``worker`` records: started, exited, failed by itself, killed by its launcher."""

    def __init__(self, recorder: Recorder, left_journal: Callable[[int, bool], bool]) -> None:
        """``left_journal``: whether the process with a pid has one in the folder; the second value
        where that cannot be told.
        """
        self._recorder = recorder
        self._left_journal = left_journal
        self._running: set[int] = set()
        self._told: set[int] = set()  # were sent a signal by this process

    def started(self, context: Any) -> None:
        """The processes of an elastic ``PContext`` were started."""
        for local_rank, pid in context.pids().items():
            self._running.add(pid)
            self._told.discard(pid)
            self._note(context, local_rank, pid, "started", {})

    def look(self, context: Any, *, now: bool = False) -> None:
        """Write down who ended; ``now`` asks the system instead of what is known already."""
        for local_rank, pid, code in _codes(context, ask=now):
            if code is not None and pid in self._running:
                self._running.discard(pid)
                keys = _code(code) | (_error(context, local_rank) if code else {})
                if not self._left_journal(pid, True):
                    keys["journal"] = False
                self._note(context, local_rank, pid, self._how(pid, code), keys)

    def told(self, context: Any) -> bool:
        """Those that still run are about to be told to end; whether there are any."""
        running = [pid for _, pid, _ in _codes(context, ask=False) if pid in self._running]
        self._told.update(running)
        return bool(running)

    def tell(self, pid: int) -> None:
        """This process sends a child a signal."""
        if len(self._told) < _MOST:
            self._told.add(pid)

    def child(self, pid: int, code: int) -> None:
        """A child of multiprocessing ended badly.

        Said where there is a journal already, or where the child left one and nobody here ended it:
        of ranks that a process launched by hand, or by torch's spawn, nobody else knows who was
        killed, and which of them only because of that.
        """
        if pid in self._running:
            return
        event = self._how(pid, code)
        if self._recorder.is_open or (event == "failed" and self._left_journal(pid, False)):
            self._told.discard(pid)
            self._recorder.note("worker", pid=pid, event=event, **_code(code))

    def _how(self, pid: int, code: int) -> str:
        if pid in self._told:
            return "killed"
        return "failed" if code else "exited"

    def _note(self, context: Any, local_rank: int, pid: int, event: str, keys: Keys) -> None:
        env = context.envs.get(local_rank, {})
        for key, variable in (("rank", "RANK"), ("attempt", "TORCHELASTIC_RESTART_COUNT")):
            value = integer(str(env.get(variable)))
            if value is not None:
                keys[key] = value
        self._recorder.note("worker", pid=pid, local_rank=local_rank, event=event, **keys)


def _codes(context: Any, *, ask: bool) -> Iterator[tuple[int, int, int | None]]:
    """(local rank, pid, exit code or None) of each process of a ``PContext``."""
    for local_rank, handler in getattr(context, "subprocess_handlers", {}).items():
        process = handler.proc
        yield local_rank, process.pid, process.poll() if ask else process.returncode
    spawned = getattr(context, "_pc", None)
    for local_rank, process in enumerate(spawned.processes if spawned is not None else ()):
        yield local_rank, process.pid, process.exitcode


def _code(code: int) -> dict[str, Any]:
    """A negative exit code is a signal's number."""
    if code >= 0:
        return {"code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": str(-code)}


def _error(context: Any, local_rank: int) -> dict[str, Any]:
    """What the worker wrote into its error file, if it uses elastic's ``record``."""
    try:
        with opened_own(context.error_files[local_rank], os.O_RDONLY) as fd:
            message = json.loads(os.pread(fd, _ERROR_FILE, 0))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if isinstance(message, dict):
        message = message.get("message")
    return {"error": str(message)[:_ERROR_LIMIT]}
