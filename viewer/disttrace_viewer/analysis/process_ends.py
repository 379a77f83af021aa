"""How each process ended, as far as its journal, its host and the others show.

A failure is a process's own, or it passes on that communication with others broke (a *cascading*
failure). Its text does not decide: a loader that timed out and an upload whose connection was reset
read like a lost rank. What decides is the process's own communication: an operation of it ended in
that very error, or in one from which the failure was raised, or ended in any such error before and
nothing was exchanged since.

Where the whole job was interrupted from outside (Ctrl-C, a signal to its launcher), what stood
before is the verdict: the one that is interrupted lets go of its connections, so what others lose
after that, and how they end, proves nothing about the program.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence, Set

from disttrace.journal.code_files import is_library
from disttrace.journal.format import ABORTED, HEARTBEAT_NS, STOPPED, UNINSTALLED
from disttrace_viewer.analysis.liveness import DISK, Observation
from disttrace_viewer.trace.model import Group
from disttrace_viewer.trace.operation import (
    GROUPED,
    Op,
    because_of_others,
    is_closed,
    is_connection_error,
)
from disttrace_viewer.trace.process import JOURNAL, Exit, Failure, Process, Stack
from disttrace_viewer.trace.values import dataclass, replace

ALIVE, CLEAN, OWN, CASCADE, SILENT = "alive", "clean", "own", "cascade", "silent"
RUNNING, EXITED, FAILED, KILLED, UNKNOWN = "running", "exited", "failed", "killed", "unknown"
"""With ``stopped`` the states of a process, the same words on every surface."""

NAMELESS = "unknown"
"""The role where a journal does not tell which process wrote it."""

MISSED_NS = 3 * HEARTBEAT_NS
"""Silent for longer than this while others beat: it does not run any more."""
APART_NS = 60_000_000_000
"""Silent for longer than this by the reader's clock: unless a kernel states that it lives, nothing
can tell. Clocks of hosts are apart, but not by as much.
"""
TOGETHER_NS = HEARTBEAT_NS + 1_000_000_000
"""Last signs that are no further apart may be of one moment."""

INTERRUPT = "KeyboardInterrupt"
STOPPED_AGENT = "SignalException"
"""What torchrun's agent raises in its handler of signals."""

FROM_OUTSIDE = tuple(
    -number
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
)
"""Ends that others bring about: by themselves they prove nothing about the program."""

CRASHES = tuple(
    -number
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
)
"""Ends that a process brings about by itself, in native code."""


@dataclass(frozen=True, slots=True)
class Communication:
    """What is known of one process's communication, as far as it bears on how it ended."""

    errors: frozenset[str]
    """In which operations ended because of others, unless something was exchanged after them."""
    rejected: frozenset[str]
    """Errors of calls that torch would not make, and others that are the caller's own."""
    broken_ns: int | None
    """When an operation of a group first ended because of others, with no exchange after it."""
    native: bool
    """C++ code has issued an operation that is in flight, or failed."""
    blocked: bool
    """It is in a collective or a P2P operation."""
    held: bool
    """A thread of it is, and has not come back from it."""


@dataclass(frozen=True, slots=True)
class End:
    """``how`` is one of the words above; ``t_ns`` the last instant at which it certainly lived."""

    how: str
    t_ns: int
    code: int | None = None
    """Exit code, -N for signal N; null where it is not known it."""
    failure: Failure | None = None
    asked_at: Stack = ()
    """Where the program itself requested its end."""
    exit_word: str | None = None
    """How the journal itself puts it: ``normal``, ``exception``, ``exit``, ``os._exit``."""
    known_dead: bool = False
    told_to_end: bool = False
    """The one that launched it ended it, because of another one."""
    lingers: bool = False
    """Its main thread has failed, and another thread keeps the process alive."""
    causes: tuple[str, ...] = ()
    """Errors that it passes on, nearest first."""
    interrupted: bool = False
    """By a KeyboardInterrupt (SIGINT), or while the whole job was ended from outside."""
    held: str | None = None
    """``stopped`` or ``disk``: what the kernel states, or stated last, of one that does not run."""
    silent_ns: int | None = None
    """For how long none has heard of it, where none can tell whether it lives."""
    dumped: bool = False
    """Its evidence is of one moment, and of what came after none tells."""

    @property
    def over(self) -> bool:
        """It does not live any more, or is not known to."""
        return self.how != ALIVE

    @property
    def state(self) -> str:
        """``running``, ``stopped``, ``exited``, ``failed``, ``killed`` or ``unknown``."""
        if self.silent_ns is not None or self.dumped or self.exit_word == UNINSTALLED:
            return UNKNOWN
        if self.how == ALIVE:
            return STOPPED if self.held == STOPPED else RUNNING
        if self.how == CLEAN or (self.exit_word in ("normal", "exit") and not self.code):
            return EXITED
        if self.exit_word is not None and self.code is not None and self.code > 0:
            return FAILED
        if self.how == SILENT or (self.code is not None and self.code < 0):
            return KILLED if self.known_dead else UNKNOWN
        return FAILED

    @property
    def runs(self) -> bool:
        """Whether it is known to live: only then clocks run."""
        return self.state in (RUNNING, STOPPED) or (self.lingers and self.silent_ns is None)


def ends(
    processes: Sequence[Process],
    communication: Mapping[int, Communication],
    cut_ns: int,
    seen: Sequence[Observation],
) -> tuple[End, ...]:
    """The end of every process."""
    # Launchers that have noted a failure: they end the others, and note it when all are gone.
    clearing = {p.id for p in processes if any(one.event == "failed" for one in p.workers)}
    return tuple(
        _end(
            p,
            communication[p.index],
            cut_ns,
            seen[p.index],
            ended=p.reported is None
            and p.parent in clearing
            and seen[p.index].code in FROM_OUTSIDE,
        )
        for p in processes
    )


def _end(
    process: Process, told_of: Communication, cut_ns: int, seen: Observation, *, ended: bool
) -> End:
    """``ended``: its launcher, which has not reported so yet, was about to end it."""
    reported = process.reported
    killed = ended or (reported is not None and reported.event == "killed")
    code = seen.code if reported is None else reported.code
    dead = seen.alive is False or reported is not None
    if process.exit is None:
        moment = process.source != JOURNAL  # it lived then, and none asks how it ended
        if process.role == NAMELESS and not dead and not moment:
            return End(SILENT, process.last_ns)  # no kernel can be queried of it
        if not dead and (moment or seen.alive or cut_ns - process.last_ns <= MISSED_NS):
            return _living(process, told_of, cut_ns, seen)
        found = _cut_short(process, told_of, code, dead=dead, killed=killed)
        return replace(found, held=STOPPED) if seen.is_stopped else found
    failure, word = _failure(process), process.exit.how
    known = code if code is not None and code > 0 and not killed else process.exit.code
    if word == ABORTED:  # by our own hand, since it was stuck
        return End(
            SILENT, process.exit.t_ns, known, exit_word=word, known_dead=True, told_to_end=True
        )  # fmt: skip
    if word == "exception" and (known is None if failure is None else is_interrupt(failure)):
        # The interpreter ends itself by SIGINT, and the one who sent that is outside.
        t_ns = process.exit.t_ns if failure is None else failure.t_ns
        return End(
            SILENT, t_ns, -signal.SIGINT, failure, exit_word=word, known_dead=True,
            told_to_end=killed, interrupted=True,
        )  # fmt: skip
    if word == "exception" and failure is not None:
        return replace(_of_failure(failure, told_of, known), exit_word=word, known_dead=True)
    how, caught = CLEAN, known not in (None, 0) and is_interrupt(process.exit)
    if caught:
        how = SILENT
    elif known not in (None, 0):
        how = _guilt(process.exit.causes, process.exit.stack, process.exit.t_ns, told_of)
    elif word == "os._exit" and told_of.held:
        how = OWN  # another thread ended the process under the one that communicates
    return End(
        how, process.exit.t_ns, known, None, process.exit.stack, word, known_dead=True,
        causes=process.exit.causes, interrupted=caught,
    )  # fmt: skip


def _living(process: Process, told_of: Communication, cut_ns: int, seen: Observation) -> End:
    """A process that lives; its main thread may have failed while another one keeps it alive."""
    failure = failed_in_main(process)
    if failure is not None:
        return replace(_of_failure(failure, told_of, None), lingers=True)
    held = STOPPED if seen.is_stopped else DISK if seen.state == "D" else None
    return End(ALIVE, cut_ns, held=held)


def _of_failure(failure: Failure, told_of: Communication, code: int | None) -> End:
    how = _guilt(failure.chain, failure.stack, failure.t_ns, told_of)
    return End(how, failure.t_ns, code, failure, causes=failure.causes)


def _cut_short(
    process: Process, told_of: Communication, code: int | None, *, dead: bool, killed: bool
) -> End:
    """The end of a process that left no exit record."""
    failure = _failure(process)
    if failure is not None and is_interrupt(failure):
        return End(
            SILENT, failure.t_ns, -signal.SIGINT, failure, known_dead=dead, told_to_end=killed,
            interrupted=True,
        )  # fmt: skip
    if failure is not None:
        return replace(_of_failure(failure, told_of, code), known_dead=dead)
    if code not in (None, 0) and code not in FROM_OUTSIDE and not killed:
        # Backends abort an innocent process over what another one sent, or failed to.
        aborted = code == -signal.SIGABRT and (told_of.blocked or told_of.broken_ns is not None)
        return End(CASCADE if aborted else OWN, process.last_ns, code, known_dead=True)
    return End(SILENT, process.last_ns, code, known_dead=dead, told_to_end=killed)


def without_a_word(
    processes: Sequence[Process],
    found: Sequence[End],
    seen: Sequence[Observation],
    groups: Sequence[Group],
    failed: Mapping[int, Sequence[Op]],
    parted: Set[int],
) -> tuple[End, ...]:
    """The ends, where also those have ended that gave a sign a moment ago, left no last word, and
    whose kernel cannot be asked: all others of the attempt ended, and before that one lost its
    connection to a member of a group. ``parted``: who left its groups by itself."""
    ends = list(found)
    mute = {
        p.index
        for p in processes
        if p.rank is not None and found[p.index].how == ALIVE and seen[p.index].alive is None
        if p.source == JOURNAL  # other tools write no last word
    }
    for attempt in {(processes[i].job, processes[i].attempt) for i in mute}:
        members = {
            p.index for p in processes if p.rank is not None and (p.job, p.attempt) == attempt
        }
        others = members - mute
        first = min(
            (op for i in others for op in failed.get(i, ()) if because_of_others(op)),
            key=lambda op: op.end_ns or 0,
            default=None,
        )
        if first is None or not is_closed(first.error) or first.call.group is None:
            continue
        group, lost_ns = groups[first.call.group], first.end_ns or 0
        if group.missing or any(found[i].how == ALIVE or found[i].t_ns < lost_ns for i in others):
            continue
        for i in {member.process for member in group.members} & mute - parted:
            if processes[i].last_ns <= lost_ns + TOGETHER_NS:
                ends[i] = End(SILENT, processes[i].last_ns)
    return tuple(ends)


def heard_of(
    found: Sequence[End], processes: Sequence[Process], seen: Sequence[Observation], now_ns: int
) -> tuple[End, ...]:
    """The ends; of those of which no kernel tells, with how long they have been silent. ``now_ns``:
    of the reader, whose journals may be days old.
    """
    return tuple(
        replace(end, dumped=True)
        if one.source != JOURNAL
        else replace(end, silent_ns=max(0, now_ns - one.last_ns))
        if _unheard(end, one, by_kernel, now_ns)
        else end
        for end, one, by_kernel in zip(found, processes, seen, strict=True)
    )


def _unheard(end: End, process: Process, seen: Observation, now_ns: int) -> bool:
    if end.how == SILENT:
        return not end.known_dead
    lives = end.how == ALIVE or end.lingers
    return lives and seen.alive is None and now_ns - process.last_ns > APART_NS


_TELLING = 40
"""So many characters at the beginning of an error's text tell it from others."""


def is_interrupt(word: Failure | Exit) -> bool:
    """Whether it is a KeyboardInterrupt, a library's form of one, or the exit it led to."""
    chain = word.causes if isinstance(word, Exit) else word.chain
    return any(text.partition(":")[0] == INTERRUPT for text in chain)


def failed_in_main(process: Process) -> Failure | None:
    """The exception that ended its main thread; what follows is ``sys.excepthook``, ``atexit``."""
    return next((f for f in reversed(process.failures) if f.thread == 0), None)


def _failure(process: Process) -> Failure | None:
    """The exception that ended it: that of its main thread, else the newest of any."""
    return failed_in_main(process) or next(reversed(process.failures), None)


def _guilt(chain: Sequence[str], stack: Stack, t_ns: int, told_of: Communication) -> str:
    """Whether a failure is the process's own, or passes on that communication broke.

    ``chain``: the exception and those that it was raised from, as ``Type: first line``.
    """
    for text in chain:
        if text in told_of.errors or any(quotes(text, error) for error in told_of.errors):
            return CASCADE
        if text in told_of.rejected:
            return OWN
    if told_of.native and _from_native(chain, stack):
        return CASCADE  # C++ code waited, and none saw the error of its operation
    # A program may catch the error, save, and end in its own way.
    if told_of.broken_ns is not None and told_of.broken_ns <= t_ns:
        return CASCADE
    return OWN


def quotes(text: str, error: str) -> bool:
    """Whether an exception's text holds that of an operation's error, as a callback's of a future
    does (of long texts the middle is left out)."""
    begin = error.partition(": ")[2][:_TELLING]
    return 2 * len(begin) >= _TELLING and begin in text


def _from_native(chain: Sequence[str], stack: Stack) -> bool:
    """Whether C++ code of torch raised since others went away, or did not come."""
    if not chain or not stack or not is_connection_error(chain[0]):
        return False
    return is_library(stack[0].file) and "/torch/utils/data/" not in stack[0].file


_GIVEN_UP_NS = 1_500_000_000
"""A handler that raises after so long a wait (an alarm per step) gives up on others."""


def left(op: Op, process: Process) -> Op:
    """An operation as it was when a handler of signals raised in it: its error proves nothing about
    others (a loader's worker was killed, a signal has a handler that calls ``sys.exit``)."""
    if op.error is None or op.end_ns is None or op.refused:
        return op
    if op.call.kind not in (*GROUPED, "store") or op.end_ns - op.since_ns >= _GIVEN_UP_NS:
        return op
    failure = _failure(process)
    raised = failure is not None and op.error == failure.chain[0] and _by_handler(failure.stack)
    if not raised and op.error.partition(":")[0] not in ("SystemExit", INTERRUPT):
        return op
    issued_ns = op.issued_ns or op.begin_ns  # it took part, and does not wait in it
    return replace(
        op, error=None, end_ns=None, complete_ns=None, issued_ns=issued_ns, wait_begin_ns=None
    )


def unseen_error(op: Op, process: Process) -> Op:
    """An operation of C++ with the error that ended its process before it was recorded."""
    native = op.call.origin == "c++" and op.call.kind in GROUPED
    if not native or op.end_ns is not None or op.on_device:
        return op
    failure = _failure(process)
    if failure is None or op.begin_ns > failure.t_ns:
        return op
    if not _from_native(failure.chain, failure.stack):
        return op
    return replace(op, error=failure.chain[0], end_ns=failure.t_ns)


_COMMUNICATES = re.compile(r"/torch/distributed/(?!elastic/)")  # whose ``record`` calls all


def _by_handler(stack: Stack) -> bool:
    """Whether a frame that torch.distributed does not call lies inside of one of its own."""
    inner = next((i for i, one in enumerate(stack) if _COMMUNICATES.search(one.file)), None)
    return any(
        not is_library(one.file) or "/torch/utils/data/" in one.file for one in stack[: inner or 0]
    )


INTERRUPT_SLACK_NS = 1_000_000_000
"""A child may be gone before its parent, interrupted at the same moment, has recorded it."""


def interrupted_ns(processes: Iterable[Process]) -> int | None:
    """When the job was interrupted, in unix nanoseconds; None if it was not, or only one rank was.

    A launcher that was interrupted stands for all that it started, and for the job where no rank
    was started yet. Without one it takes two: a single rank may have been sent a signal, and its
    peers follow from that.
    """
    processes = tuple(processes)
    found = {p.index: at_ns for p in processes if (at_ns := _interrupt_ns(p)) is not None}
    launchers = {p.id for p in processes if p.index in found}
    started = [p for p in processes if p.parent in launchers]
    if len(found) < 2 and not (started or (found and all(p.is_agent for p in processes))):
        return None
    # Those of an attempt before were ended when it failed, and that was none's interrupt.
    newest = {p.parent: p.attempt for p in sorted(started, key=lambda p: p.attempt or 0)}
    last = (p for p in started if p.attempt == newest[p.parent])
    reported = [
        p.reported.t_ns for p in last if p.reported is not None and p.reported.event == "killed"
    ]
    return min([*found.values(), *reported])


def _interrupt_ns(process: Process) -> int | None:
    for failure in process.failures:
        if failure.thread == 0 and (failure.type == STOPPED_AGENT or is_interrupt(failure)):
            return failure.t_ns
    last = process.exit
    if last is None:
        return None
    uncaught = (last.how, last.code) == ("exception", None) and not process.failures
    return last.t_ns if uncaught or is_interrupt(last) else None


def undone(op: Op, at_ns: int) -> Op:
    """An operation as it was when the job was interrupted: what broke since was in flight."""
    before = op.end_ns is None or op.end_ns < at_ns - INTERRUPT_SLACK_NS
    if before or op.error is None or op.refused:
        return op
    return replace(op, error=None, end_ns=None, complete_ns=None)


def as_consequences(
    found: Sequence[End], ended_from: Mapping[int, float], interrupted_ns: int | None
) -> tuple[End, ...]:
    """The ends; those since the job was interrupted are due to that, and failures while being
    ended."""
    ends = list(found)
    for process, end in enumerate(found):
        slack = 0 if end.how == OWN else INTERRUPT_SLACK_NS
        over = end.how != ALIVE and interrupted_ns is not None
        if over and end.t_ns >= (interrupted_ns or 0) - slack:
            ends[process] = replace(end, how=SILENT, told_to_end=True, interrupted=True)
        elif end.how == OWN and end.t_ns >= ended_from.get(process, math.inf):
            ends[process] = replace(end, how=CASCADE)
    return tuple(ends)
