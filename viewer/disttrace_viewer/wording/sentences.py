"""Words for the sentences of findings: lists of ranks, spans of time, groups, places, ends."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence, Sized

from disttrace.journal.format import ABORTED, EXEC, STOPPED, UNINSTALLED, UNKNOWN_OP
from disttrace_viewer.analysis.liveness import DISK, signal_name
from disttrace_viewer.analysis.process_ends import SILENT, UNKNOWN, End
from disttrace_viewer.analysis.sample import frame as frame_of
from disttrace_viewer.trace.model import CodeLocation, Group, JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Failure, Frame
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording.names import few, file_name, first_runs, number, roughly

MANY = 8
"""More items than this are counted and not listed."""


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many the first ones."""
    if len(items) < 2 or len(items) > MANY:
        return few(items, MANY)
    return ", ".join(items[:-1]) + " and " + items[-1]


def ranks(numbers: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0, 1``, ``ranks 0-60, 62, 63``: the spelling of every view."""
    found = sorted(set(numbers))
    if not found:
        return "nobody"
    if len(found) == 1:
        return f"rank {found[0]}"
    shown, more = first_runs(found, MANY)
    return f"ranks {', '.join(shown)}" + (f" and {more:,} more" if more else "")


def processes(
    trace: JobTrace,
    indices: Iterable[int],
    absent: Iterable[int] = (),
    *,
    within: int | None = None,
) -> str:
    """By rank, else by role and pid, and ranks without a journal; ``within``: in which group."""
    chosen = (*dict.fromkeys(indices),)
    known = trace.ranks_of(chosen, within)
    words = [ranks([*known, *absent])] if known or absent else []
    others = [trace.processes[i].label for i in chosen if trace.processes[i].rank is None]
    return listed(words + others) or "nobody"


def sides(trace: JobTrace, reported: Iterable[tuple[str, int]], one: str, many: str) -> str:
    """``ranks 0, 1 claim 4 and rank 2 claims 3``: what each process claims, with both verbs."""
    return listed(
        [
            f"{processes(trace, who)} {one if len(who) == 1 else many} {text}"
            for text, who in together(reported).items()
        ]
    )


def subject(trace: JobTrace, indices: Iterable[int], *, within: int | None = None) -> str:
    """Processes, to begin a sentence."""
    return capital(processes(trace, indices, within=within))


def have_been(trace: JobTrace, who: Sequence[int], *, within: int | None = None) -> str:
    """``Rank 2 has been``, ``Ranks 0, 1 have been``."""
    return f"{subject(trace, who, within=within)} {have(who)} been"


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]


def have(who: Sized) -> str:
    """``has`` for one, ``have`` for several."""
    return "has" if len(who) == 1 else "have"


def span(ns: int | float) -> str:
    """``3.2 s``, ``40 ms``, ``2 min 5 s``."""
    seconds = ns / 1e9
    if seconds < 0.0005:
        return f"{ns / 1e3:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def group(value: Group | None, trace: JobTrace | None = None, *, brief: bool = False) -> str:
    """A group as a person knows it; by its name too where others have the same members."""
    if value is None:
        return "a group that is not known"
    if value.default:
        return "default" if brief else "the default group"
    text = f"group [{_few(value.ranks)}]" if value.ranks else f"group {value.name!r}"
    if value.described:
        text = value.described if brief else f"{text} ({value.described})"
    elif trace is not None and trace.groups_of[value.ranks] > 1:
        text += f" named {value.name!r}"
    return text


@functools.lru_cache(maxsize=1 << 12)
def _few(numbers: tuple[int, ...]) -> str:
    """The first runs of numbers; queried again for each wait in a group."""
    shown, more = first_runs(numbers, MANY)
    return ", ".join([*shown, f"{more:,} more"] if more else shown)


def place(frame: Frame | CodeLocation | None) -> str:
    """``train.py:42``, or that it is not known."""
    if frame is None:
        return "an unknown line"
    return f"{file_name(frame.file)}:{frame.line}"


def line(op: Op) -> str:
    """``train.py:42``: the user's line that called."""
    return place(frame_of(op))


def line_of(op: Op, caller: Frame | None) -> str:
    """The same, with the caller's line behind it where that tells it from another call."""
    return line(op) if caller is None else f"{line(op)} <- {place(caller)}"


def aside(frame: Frame | CodeLocation | None) -> str:
    """`` (train.py:42)``, or nothing where no line of the program called (torchrun's agents)."""
    return "" if frame is None else f" ({place(frame)})"


def is_at(frame: Frame | CodeLocation, within: Frame | None = None) -> str:
    """``train.py:42 in load``, and what that line has called: ``(in queue.py:171 get)``."""
    function = "" if frame.function == "<module>" else f" in {frame.function}"
    called = "" if within is None else f" (in {place(within)} {within.function})"
    return f"{file_name(frame.file)}:{frame.line}{function}{called}"


def operation(trace: JobTrace, op: Op, within: str | None = None, *, brief: bool = False) -> str:
    """``all_reduce #3 of the default group``, ``recv from rank 1``, and what it is a part of."""
    call, tail = op.call, inside(within)
    where = trace.group_of(call)
    if call.kind == "message":
        return _message(op, where) + tail
    if call.kind == "collective":
        uncounted = "sequence" in trace.processes[op.process].lacks
        number = "" if op.seq is None or uncounted else f" #{op.seq}"
        return f"{called(op)}{number} of {group(where, trace, brief=brief)}{tail}"
    if op.key is not None:
        key = trace.full_key(call.index, op.key)
        return f"{call.op} of {key if isinstance(key, list) else repr(key)}{tail}"
    return call.op + tail


def call(trace: JobTrace, op: Op) -> str:
    """``all_reduce #3 of the default group (train.py:42)``: an operation, and the user's line."""
    return f"{operation(trace, op)} ({line(op)})"


def called(op: Op) -> str:
    """The name of an operation; other evidence than a journal may not have it."""
    return "a collective" if op.call.op == UNKNOWN_OP else op.call.named


def inside(within: str | None) -> str:
    """`` inside gather_object``, where an operation is a part of that one."""
    return "" if within is None else f" inside {within}"


def _message(op: Op, where: Group | None) -> str:
    peer = op.peer
    word = "to" if op.call.op == "send" else "from"
    tag = f" with tag {op.call.tag}" if op.call.tag else ""
    if peer is None:
        return f"{op.call.op} {word} any rank{tag}"
    known = None if where is None else where.global_rank(peer)
    who = f"rank {known}" if known is not None else f"group rank {peer}"
    return f"{op.call.op} {word} {who}{tag}"


def sizes(op: Op) -> str:
    """What a call passes: ``8 elements of float32``."""
    if op.elements is None:
        return "an unknown size"
    dtypes = sorted(set(op.call.dtypes or ()))
    return number(op.elements, "element") + (f" of {'/'.join(dtypes)}" if dtypes else "")


BY = "SIGSTOP, or a debugger"
"""What stops a process."""
HELD = {
    STOPPED: f"stopped ({BY})",
    DISK: "in uninterruptible sleep (disk, NFS or a driver)",
}
"""The kernel's state of a process that lives and does not run."""
NOWHERE = "not in any collective"


LAUNCHER = "ended by its launcher"
UNSEEN = "SIGKILL, SIGTERM, out of memory, SIGXCPU, SIGALRM, SIGPIPE or the like, or a native crash"
"""What ends a process before Python can tell anything."""

_MOST = 2  # further lines of an exception's text that are shown


def state(end: End) -> str:
    """``running``, ``killed, ended by its launcher``, ``silent for 28 min``."""
    if end.dumped:
        return "at that moment"
    found = end.state
    if found == UNKNOWN and end.silent_ns is not None:
        found = f"silent for {roughly(end.silent_ns)}"
    by_launcher = end.told_to_end and not end.interrupted and end.exit_word != ABORTED
    return f"{found}, {LAUNCHER}" if by_launcher else found


ENDED = "has ended"
"""Of one that ended well, as a word beside that state shows too."""


def ended(end: End, *, many: bool = False, surely: bool = False) -> str:
    """``failed with ...``; ``surely``: another one noticed an end that no record has."""
    if end.exit_word == ABORTED:
        return f"{'were' if many else 'was'} ended by DISTTRACE_ON_STALL=abort"
    if end.interrupted:
        return f"{'were' if many else 'was'} interrupted from outside"
    if end.silent_ns is not None and not surely and end.failure is None and end.code is None:
        return "fell silent"  # the same sentence whenever it is read
    if end.failure is not None:
        return f"failed with {raised(end.failure)}{came_about(end.failure, ' (', ')')}"
    if end.told_to_end and end.failure is None:
        by = f" ({signal_name(end.code)})" if end.code is not None and end.code < 0 else ""
        return f"{'were' if many else 'was'} {LAUNCHER}{by}"
    if end.code is not None and end.code < 0:
        return f"{'were' if many else 'was'} ended by {signal_name(end.code)}"
    if end.exit_word == UNINSTALLED:
        return "switched tracing off"
    if end.exit_word == EXEC:
        return "became another program (exec)"
    if end.exit_word == "os._exit":
        return f"left by os._exit({end.code})"
    if end.code:
        return f"ended with exit code {end.code}"
    if end.how == SILENT:
        return f"ended without an exit record ({UNSEEN})"
    return "have ended" if many else ENDED


def raised(failure: Failure) -> str:
    """``ValueError: bad batch``, and what its further lines number: indices, shapes, ports."""
    numbering = [tidy(line) for line in failure.lines if _NUMBERING.search(line)][-_MOST:]
    text = tidy(failure.text)
    text = "; ".join([text.partition(". ")[0], *numbering]) if numbering else text
    return failure.type + (f": {text}" if text else "")


_NUMBERING = re.compile(r"(?<![=\w])\d")
"""Not the `=1` of a variable that torch advises to set."""


def came_about(failure: Failure, before: str, after: str = "") -> str:
    """``after KeyError: 'lr'`` between two signs; empty without a cause."""
    return f"{before}after {tidy(failure.causes[-1])}{after}" if failure.causes else ""


def pattern(end: End) -> str:
    """What all texts of one exception share; of lost connections, the ranks that were lost."""
    if end.failure is None:
        return ended(end)
    return _NUMBER.sub(lambda found: f"#{found['lost'] or ''}", ended(end))


_NUMBER = re.compile(r"(?<=\]:)\d+(?P<lost> \([^()]*\))|\d+")
_SOURCE = re.compile(r"\[/[^\[\]\s]{0,250}/([\w.]{1,100}:\d{1,9})\] ")
"""Where in its sources a C++ library raised: its file is enough."""
_ADVICE = re.compile(r"\. This is typically caused by a remote worker .*", re.DOTALL)
"""What gloo adds to each of its errors."""


_HASHED = re.compile(r"(: |; )?~[0-9a-f]{16}(: )?")
"""Of another host, which keeps the texts."""


def tidy(text: str) -> str:
    """The text without paths of a library's build, nor a full stop at its end."""
    text = _ADVICE.sub("", _SOURCE.sub(r"[\1] ", text))
    text = _HASHED.sub(lambda found: found[1] if found[1] and found[2] else "", text)
    return text if text.endswith("..") else text.removesuffix(".")


NO_JOURNAL = "of some of these ranks there is no journal"
NOT_WHOLE = "not all journals of these ranks were read in full"
NUMBERED = "stacks do not name their ranks: they are numbered by process id here"
OTHER_TOOLS = "evidence of other tools does not hold every call"
NO_DEFINITIONS = "journals without definitions lie beside these, and one may be of this rank"
NATIVE = "the call was issued from C++, and the awaited rank may have issued one unseen"
POLLED = "the program polls for its completion, and may compute meanwhile"
SOON = "the job was ended soon after the wait began, which may have been about to end"
FELL_SILENT = "the missing process fell silent before the others, and no record shows how it ended"
ON_THE_WAY = "the awaited rank communicates with others or with a store, and may be on its way"
EITHER_SIDE = "either side may have made a call too many or too few"
ADDRESSED = "another rank waits for this one, which may have addressed the wrong rank"
LATE = "the awaited rank came after the others had given up"
LEFT_ON_DEVICE = "it had issued the call, and its device may have been stuck before it ended"
ALL_CAME = "all have come: network, device and library leave the same records"
MAY_END = "it makes progress, and may still come"
ENDED_SILENTLY = "no record and no kernel tells how it ended"
NOTHING_ELSE = "nothing recorded explains it, and who began is not known"
CLOCKS = "clocks of several hosts are compared"
MAJORITY = "that most ranks agree does not show that they are right"
KEPT = "the result may be kept and used where nothing is recorded"
NOT_BY_C10D = "gradients may be exchanged in a way that is not recorded"
LEFTOVER = "it may have found what an earlier run left"
ELSEWHERE = "the program may go on well all the same"
REPLAYED = "it did not happen in this run, only by stricter rules"
START_UP = "whether the missing were started is in no journal"
STORE_KEY = "a store's key may be set by any process, also by one that is not traced"
ANOTHER_RANK = "another rank may have been meant"
AT_THE_TIME = "what was known when it was reported is not known now"
