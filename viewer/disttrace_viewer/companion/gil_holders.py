"""Asks threads that keep the interpreter of their process from running for their stacks.

No Python runs in such a process, so none of its stacks are on record. A thread writes its own, in
the C handler of a signal (the recorder's ``gil_free_stacks``), and the program must not notice. So
the signal is sent to another thread, one of the recorder's own that waits for it and sends it on if
no one handles it; and only where the kernel shows, over ``BETWEEN_S``, that

* the background thread waits for the GIL: it wakes again and again to ask for it;
* the thread itself has not slept: had it been in Python it would have had to let the GIL go. It is
  in C, its frames do not move, and no system call is under way that a signal could cut short. Or
  it has slept all the time in a wait for a lock without a time limit, which the kernel resumes;
* the process is the one that wrote the journal (it has it open), and neither the thread nor the
  process blocks, ignores or handles the signal.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import disttrace.journal.format as fmt
from disttrace.journal.proc import Who, find, stat, status
from disttrace_viewer.load.files import is_open, open_regular, size
from disttrace_viewer.trace.values import dataclass

OF_LIMIT, SHORTEST_S = 0.7, 2.5
"""A process that gets the signal has written nothing for so long: of the limit, and at least."""
BETWEEN_S = 0.3
ANSWER_S = 0.5
_WAKES = 10
"""Times that a thread which waits for the GIL wakes meanwhile, at least (CPython: every 5 ms)."""
_LINE = b'{"%s":"%s"' % (fmt.DEF.encode(), fmt.ANSWERS.encode())
_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAITS = (0, 9)  # FUTEX_WAIT and FUTEX_WAIT_BITSET
_COMMAND = 0x7F
RUNS, SLEEPS = "R", "S"
_QUEUE = {"x86_64": 297, "aarch64": 240}  # rt_tgsigqueueinfo
_INFO = struct.Struct("=iii4xiIQ")
_SI_QUEUE = -1


@dataclass(frozen=True, slots=True)
class Silent:
    """A process of this host that has given no sign of life for a while."""

    who: Who
    base: str
    """Path of its journal."""
    last_ns: int
    """When it gave the last one."""


class _Answers(NamedTuple):
    signal: int
    native: int
    asked: int


@dataclass(frozen=True, slots=True)
class _Thread:
    state: str
    sleeps: int
    """How often it has gone to sleep by itself."""
    ticks: int
    masked: int
    """Signals it blocks, and those that the process ignores or handles."""


class GilHolders:
    """Asks each process once per silence that a stack came of."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._send = _sender()

    def ask(self, silent: Iterable[Silent]) -> bool:
        """Whether any process has answered; takes a third of a second where there is one."""
        found = {
            one: answers
            for one in silent
            if self._asked.get(one.base) != one.last_ns and (answers := _answers(one.base))
        }
        if self._send is None or not found:
            return False
        before = {one: _threads(one.who.pid or 0) for one in found}
        time.sleep(BETWEEN_S)
        asked = {}
        for one, answers in found.items():
            pid = one.who.pid or 0
            now = _threads(pid)
            thread = holder(pid, before[one], now, answers.native, answers.signal)
            path = fmt.definitions_name(one.base)
            if thread is None or not is_open(pid, path):
                continue
            length = size(path)
            # Last of all: within microseconds no number of a process is given to another one.
            known = find(one.who)[0] is True
            if known and self._send(pid, answers.asked, answers.signal, thread):
                self._asked[one.base] = one.last_ns
                asked[path] = length
        return _grown(asked)


def holder(
    pid: int, before: dict[int, _Thread], now: dict[int, _Thread], native: int, number: int
) -> int | None:
    """The thread that may get the signal, by two looks at all of them; None: there is none."""
    ours = before.get(native), now.get(native)
    if None in ours or now[native].sleeps - before[native].sleeps < _WAKES:
        return None
    still = {
        tid: thread
        for tid, thread in now.items()
        if tid != native
        and tid in before
        and (before[tid].state, before[tid].sleeps) == (thread.state, thread.sleeps)
        and not thread.masked >> (number - 1) & 1
    }
    runs = [tid for tid, thread in still.items() if thread.state == RUNS]
    if runs:
        return pid if pid in runs else max(runs, key=lambda t: now[t].ticks - before[t].ticks)
    if pid in still and still[pid].state == SLEEPS and _waits_for_a_lock(pid):
        return pid
    return None


def _threads(pid: int) -> dict[int, _Thread]:
    found = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            lines, seen = status(f"{pid}/task/{name}"), stat(f"{pid}/task/{name}")
            blocked, ignored, caught = (int(lines[f"Sig{k}"], 16) for k in ("Blk", "Ign", "Cgt"))
            waits = int(lines["voluntary_ctxt_switches"])
            masked = blocked | ignored | caught
            found[int(name)] = _Thread(seen.state, waits, seen.cpu_ticks, masked)
    except (OSError, KeyError, ValueError):
        return {}  # one has ended meanwhile: so not all of them stand still
    return found


def _waits_for_a_lock(thread: int) -> bool:
    """Whether it is in a futex wait without a time limit, which goes on after a handler."""
    try:
        with open(f"/proc/{thread}/syscall", encoding="ascii") as file:
            number, *arguments = (int(word, 0) for word in file.read().split())
    except (OSError, ValueError):
        return False  # not for us to know, or it runs
    return (
        number == _FUTEX.get(platform.machine())
        and arguments[1] & _COMMAND in _WAITS
        and not arguments[3]
    )


def _answers(base: str) -> _Answers | None:
    """The last record of how a process gets the signal; None: it is not to get it."""
    try:
        with open(open_regular(fmt.definitions_name(base)), "rb") as file:
            data = file.read()
        start = data.rindex(b"\n" + _LINE) + 1
        record = json.loads(data[start : data.index(b"\n", start)])
        found = _Answers(*(record[name] for name in _Answers._fields))
    except (OSError, ValueError, KeyError):
        return None
    return found if found.signal > 0 else None


def _grown(sizes: dict[str, int]) -> bool:
    """Wait until the definitions of one have grown, and a moment for the rest of the text."""
    until = time.monotonic() + ANSWER_S
    while sizes and time.monotonic() < until:
        time.sleep(0.05)
        if all(size(path) > before for path, before in sizes.items()):
            time.sleep(0.05)
            return True
    return bool(sizes)


def _sender() -> Callable[[int, int, int, int], bool] | None:
    """Has a thread of the recorder interrupt another one; None where the kernel is none we know."""
    queue = _QUEUE.get(platform.machine())
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None

    def send(pid: int, asked: int, number: int, thread: int) -> bool:
        try:
            with open(f"/proc/{pid}/task/{asked}/comm", "rb") as file:
                if file.read() != b"disttrace-ask\n":
                    return False
        except OSError:
            return False  # it has ended
        value = fmt.ASK << 32 | thread
        info = _INFO.pack(number, 0, _SI_QUEUE, os.getpid(), os.getuid(), value)
        return bool(call(queue, pid, asked, number, info.ljust(128, b"\0")) == 0)

    return None if queue is None else send
