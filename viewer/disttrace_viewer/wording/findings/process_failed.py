"""A process failed: how, where, and what to read first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from disttrace.journal.format import ABORTED
from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.analysis.process_ends import SILENT, End
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import came_about, ended, raised

NATIVE = (
    "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or a crash in native"
    " code"
)
"""Where nobody knows the signal."""
_CRASH = "Look for a crash in native code"
_OF_SIGNAL = {
    "SIGKILL": "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or"
    " somebody's kill -9",
    "SIGXCPU": "Look for a limit of CPU time: ulimit -t, or a scheduler's",
    "SIGXFSZ": "Look for a limit of the size of files: ulimit -f",
    "SIGALRM": "Look for signal.alarm, or setitimer, without a handler",
    **dict.fromkeys(
        ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2"),
        "Look for who sent it: a scheduler, a supervisor, or a shell",
    ),
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP"), _CRASH),
    "SIGBUS": f"{_CRASH}, or a full /dev/shm (of a data loader's workers)",
}
_DUMPED = "run with PYTHONFAULTHANDLER=1"
"""It writes where the program stood on these signals."""
HELPER = (
    "The other end of this connection is a process of this host that passes tensors, mostly a"
    " worker of the rank's DataLoader, and it has ended: look at its output, for the out-of-memory"
    " killer (dmesg), and whether /dev/shm is full."
)
_HELPERS = re.compile(
    r"[/\\]torch[/\\](multiprocessing[/\\]reductions|utils[/\\]data[/\\]dataloader)\.py$"
)
_GONE = ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError")


def summary(
    trace: Trace,
    who: Sequence[int],
    end: End,
    where: Location | None,
    last: Op | None,
    *,
    surely: bool = True,
    first: bool = False,
) -> str:
    """``end``, ``where`` and ``last`` operation: of the first of them. ``first``: others ran too,
    and none of them had failed by then. ``Rank 1 failed first: ValueError: no data (fail.py:5)``.
    """
    many = len(who) > 1
    on = f"; {'they live' if many else 'it lives'} on, for another thread still runs" * end.lingers
    if end.failure is not None and not end.interrupted and end.exit_word != ABORTED:
        at = "" if where is None else sentences.place(where)
        at += came_about(end.failure, ", " * bool(at))
        return (
            f"{sentences.subject(trace, who)} failed{' first' * first}: {raised(end.failure)}"
            f"{f' ({at})' * bool(at)}{on}."
        )
    how = ended(end, many=many, surely=surely)
    at = before = ""
    if where is not None and (end.failure is not None or end.asked_at):
        at = f" at {sentences.is_at(where)}"
    if last is not None and end.failure is None:
        before = f", after {sentences.operation(trace, last)}"
    return f"{sentences.subject(trace, who)} {how}{at}{before}{on}."


def look_for(code: int | None) -> str:
    """What ends a process by this signal (``-9``), or by one that nobody knows."""
    return _OF_SIGNAL.get(signal_name(code), NATIVE) if code else NATIVE


def hint(end: End, *, others: bool) -> str:
    """What to read first. ``others``: there are ranks that did not fail so."""
    if end.lingers:
        return (
            "Read this exception first. The process does not end, because a thread that is no"
            " daemon still runs: end it, or make it a daemon."
        )
    if end.failure is not None and _lost_a_helper(end.failure):
        return HELPER
    if end.failure is not None:
        rest = "; what the other ranks report follows from it" * others
        return f"Read this exception first{rest}."
    if end.told_to_end:
        return "Find why it was ended while the other ranks were at work."
    if (end.code is not None and end.code < 0) or end.how == SILENT:
        what = look_for(end.code)
        return f"{what} ({_DUMPED})." if "native" in what else f"{what}."
    if not others:
        return "All ranks ended with this code: whoever started them takes it for a failure."
    return "Find who calls exit there; the other ranks were still at work."


def _lost_a_helper(failure: Failure) -> bool:
    """Whether whoever hands tensors to this process, as torch does it, was not there any more."""
    return failure.type in _GONE and any(_HELPERS.search(one.file) for one in failure.stack)
