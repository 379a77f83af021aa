"""How each process ended, as far as its journal, its host and the others can tell."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrace.journal.format import HEARTBEAT_NS
from disttrace_viewer.analysis.liveness import Look, Seen, signal_name
from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.trace.model import Failure, Process, Stack

ALIVE, CLEAN, OWN, ECHO, SILENT = "alive", "clean", "own", "echo", "silent"

UNINSTALLED = "uninstalled"
"""An exit record's word for: tracing was taken off, and what came after is not known."""

MISSED_NS = 3 * HEARTBEAT_NS
"""Silent for longer than this while others beat: it does not run any more."""
TOGETHER_NS = HEARTBEAT_NS + 1_000_000_000
"""Last signs that are no further apart may be of one moment."""
AFTER_ECHO_NS = 1_000_000_000
"""An exception that follows an echo within this time passes it on."""

FROM_OUTSIDE = tuple(
    -number
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
)
"""Ends that others bring about: by themselves they say nothing about the program."""

_ECHOES = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(refused|aborted|closed)"
    r"|connection reset|timed? ?out|timeout|failed to recv, got 0 bytes|failed to pass monitored"
    r"|socket error|connectfullmesh|disconnected|remote (end|peer|process)"
    r"|application timeout caused pair closure|abort(ed)? by|communicator was aborted"
    r"|stop_waiting|failed to send|waitforinput|heartbeat monitor",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class End:
    """``how`` is one of the words above; ``t_ns`` the last instant at which it certainly lived."""

    how: str
    t_ns: int
    code: int | None = None
    """Exit code, -N for signal N; null where nobody knows it."""
    failure: Failure | None = None
    asked_at: Stack = ()
    """Where the program itself asked for its end."""
    exit_word: str | None = None
    """How the journal itself puts it: ``normal``, ``exception``, ``exit``, ``os._exit``."""
    known_dead: bool = False
    told_to_end: bool = False
    """Whoever launched it ended it, because of somebody else."""

    @property
    def over(self) -> bool:
        """It does not live any more, or is not known to."""
        return self.how != ALIVE


def is_echo(text: str | None) -> bool:
    """Whether an error says no more than that somebody else went away, or did not come."""
    return text is not None and _ECHOES.search(text) is not None


def ends(
    processes: Sequence[Process],
    last: Mapping[int, Op],
    cut_ns: int,
    look: Look,
) -> tuple[End, ...]:
    """The end of every process; ``last`` is the last that each did itself, teardown aside."""
    return tuple(_end(p, last.get(p.index), cut_ns, look(p)) for p in processes)


def _end(process: Process, last: Op | None, cut_ns: int, seen: Seen) -> End:
    told = process.told
    killed = told is not None and told.event == "killed"
    code = seen.code if told is None else told.code
    dead = seen.alive is False or told is not None
    if process.exit is None:
        if not dead and (seen.alive or cut_ns - process.last_ns <= MISSED_NS):
            return End(ALIVE, cut_ns)
        return _cut_short(process, last, code, dead=dead, killed=killed)
    failure, word = _failure(process), process.exit.how
    known = code if code is not None and code > 0 and not killed else process.exit.code
    if word == "exception" and failure is not None:
        how = ECHO if _passes_on(failure, last) else OWN
        return End(how, failure.t_ns, known, failure, exit_word=word, known_dead=True)
    asked_at = process.exit.stack
    if known not in (None, 0):
        # A program that catches an echo and leaves with a code passes the echo on.
        how = ECHO if last is not None and is_echo(last.error) else OWN
    else:
        how = CLEAN
    return End(how, process.exit.t_ns, known, None, asked_at, word, known_dead=True)


def _cut_short(
    process: Process, last: Op | None, code: int | None, *, dead: bool, killed: bool
) -> End:
    """The end of a process that could not say its last word."""
    failure = _failure(process)
    if failure is not None:
        how = ECHO if _passes_on(failure, last) else OWN
        return End(how, failure.t_ns, code, failure, known_dead=dead)
    if code not in (None, 0) and code not in FROM_OUTSIDE and not killed:
        return End(OWN, process.last_ns, code, known_dead=True)
    return End(SILENT, process.last_ns, code, known_dead=dead, told_to_end=killed)


def _failure(process: Process) -> Failure | None:
    """The exception that ended it: that of its main thread, else the newest of any."""
    main = [f for f in process.failures if f.thread == 0]
    found = main or list(process.failures)
    return found[-1] if found else None


def _passes_on(failure: Failure, last: Op | None) -> bool:
    """Whether an uncaught exception is an echo, or was raised because of one."""
    if is_echo(f"{failure.type}: {failure.text}"):
        return True
    if last is None or last.end_ns is None or not is_echo(last.error):
        return False
    return 0 <= failure.t_ns - last.end_ns <= AFTER_ECHO_NS


def words(end: End) -> str:
    """How it ended, to follow a subject: ``ended with ValueError: ... at``, ``was killed``."""
    if end.failure is not None:
        text = end.failure.text
        shown = text if len(text) <= 120 else text[:117] + "..."
        return (
            f"failed with {end.failure.type}: {shown}"
            if text
            else f"failed with {end.failure.type}"
        )
    if end.code is not None and end.code < 0:
        return f"was ended by {signal_name(end.code)}"
    if end.exit_word == UNINSTALLED:
        return "switched tracing off"
    if end.exit_word == "os._exit":
        return f"left by os._exit({end.code})"
    if end.code:
        return f"ended with exit code {end.code}"
    if end.how == SILENT:
        return "ended without a word (killed, or aborted in C code)"
    return "has ended"
