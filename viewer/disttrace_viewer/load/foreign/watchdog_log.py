"""Lines of a job's log: what NCCL's watchdog says of each rank, and exceptions, as journals.

A log is of all ranks or of one; of what is not known here nothing is taken.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign import log_lines
from disttrace_viewer.load.foreign.log_lines import DEFAULT, KNOWN, Cause, Group, Said, Work
from disttrace_viewer.load.foreign.records import COUNTS_LACK, Records, identity
from disttrace_viewer.load.problems import Problems

NAME = "log"
MOST_BYTES = 64 << 20
_NAMES = (".log", ".out", ".err", ".txt")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ERROR = re.compile(r"\A(\w[\w.]*)(?:: (.*))?$")
_CLASS = re.compile("Error|Exception|Interrupt|Exit")
_ECHO = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|closed by peer|timed? ?out"
    r"|reset by peer|broken pipe|NCCL|watchdog|SignalException",
    re.IGNORECASE,
)
_OWN_ENDS = frozenset({-4, -7, -8, -9, -11})
"""Signals that end a process by itself: torchrun sends SIGTERM, a watchdog aborts."""


@dataclass(slots=True)
class Failure:
    """An exception that a rank printed."""

    type: str = ""
    text: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Log:
    """What one or several logs of a job say."""

    said: list[Said] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    killed: dict[int, int] = field(default_factory=dict)
    """Ranks that torchrun calls the first to have failed, by a signal."""
    open: dict[int, Failure] = field(default_factory=dict)
    """Tracebacks that have begun."""
    ranks: set[int] = field(default_factory=set)
    told: Ranks = field(default_factory=dict)
    uncounted: frozenset[Key] = frozenset()

    @property
    def at_ns(self) -> int:
        """The newest time of any line; 0 without one."""
        return max((said.at_ns for said in self.said), default=0)


def recognises(path: str, head: bytes) -> bool:
    """By a line that is known; it may stand at the end of a long file of text."""
    if not path.lower().endswith(_NAMES) or b"\0" in head:
        return False
    try:
        return KNOWN.search(files.read(path, MOST_BYTES)[0]) is not None
    except OSError:
        return False


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per rank of which the logs say something."""
    log = Log()
    for path in paths:
        if (data := _content(path, MOST_BYTES, problems)) is None:
            continue
        year = time.gmtime(files.modified_ns(path) // 1_000_000_000).tm_year
        _take(log, data.decode("utf-8", "replace").replace("\r", "\n").split("\n"), year)
    log.told, log.uncounted = told(log.said)
    known = sorted({*log.told, *log.failures, *log.killed})
    if paths and not known:
        problems.add(paths[0], "silent", "has no line of a watchdog, and no exception.")
    for rank in known:
        yield _journal(log, rank, paths[0], max({*log.ranks, *known}) + 1)


def _take(log: Log, lines: Sequence[str], year: int) -> None:
    """The lines of one file; what is not known is passed over."""
    cause = Cause()
    # Ranks of hosts are global ones where there is only one host.
    hosts = [one[0] for line in lines if (one := log_lines.local_prefix(line))]
    named = [one[0] for line in lines if (one := log_lines.prefix(line))]
    one_host = max(named, default=-1) <= max(hosts, default=-1)
    for raw in lines:
        line = log_lines.plain(raw)
        own = log_lines.prefix(line) or (log_lines.local_prefix(line) if one_host else None)
        if own is not None:
            log.ranks.add(own[0])
            _traceback(log, *own)
        if (said := log_lines.watchdog(line, year)) is not None:
            log.said.append(said)
        elif (failed := cause.take(line)) is not None and failed[1] in _OWN_ENDS:
            log.killed.setdefault(*failed)


def _traceback(log: Log, rank: int, text: str) -> None:
    """The first exception of a rank that does not pass on that others went away."""
    if "Traceback (most recent call last)" in text:
        log.open[rank] = Failure()
        return
    current = log.open.get(rank)
    if current is None:
        return
    if frame := _FRAME.search(text):
        current.frames.insert(0, (frame[1], int(frame[2]), frame[3]))
    elif (error := _ERROR.match(text.strip())) and not text.startswith("    "):
        name = error[1].rpartition(".")[2]
        if _CLASS.search(name) is None:
            return
        del log.open[rank]
        current.type, current.text = name, (error[2] or "")[:1000]
        if not _ECHO.search(f"{error[1]}: {current.text}"):
            log.failures.setdefault(rank, current)


def _journal(log: Log, rank: int, path: str, world: int) -> Files:
    now = log.at_ns or files.modified_ns(path) or time.time_ns()
    every = [one for groups in log.told.values() for one in groups.values()]
    longest = max((one.work.waited_ns for one in every if one.work), default=0)
    records = Records(
        identity(NAME, path, rank),
        rank=rank,
        world=world,
        job=path.rpartition("/")[2] or NAME,
        clock=identity(NAME, path),
        base_ns=now - longest - 3_600_000_000_000,
        source={"kind": NAME, "lacks": sorted(COUNTS_LACK), "cut_ns": now},
    )
    own = log.told.get(rank, {})
    for number, key in enumerate(sorted({DEFAULT, *own}), 1):
        default = key == DEFAULT
        members = [r for r in sorted(log.told) if key in log.told[r]]
        records.group(
            number,
            key[0],
            range(world) if default else members,
            desc=key[1],
            backends={"cuda": "nccl"},
            default=default,
            partial=not default or key in log.uncounted,
        )
        if (one := own.get(key)) is not None:
            # Who waits for nobody had enqueued its last before the others began to wait.
            times = (one.at_ns or now, now - longest - 1_000_000_000)
            _operation(records, number, one, *times, counted=key not in log.uncounted)
    last = now
    failure = log.failures.get(rank)
    if failure is not None:
        stack = records.stack(failure.frames)
        at = records.t(now)
        records.define("failure", t=at, type=failure.type, text=failure.text, stack=stack, h=0)
        records.define("exit", t=at, how="exception", code=1)
    elif (code := log.killed.get(rank)) is not None and not own:
        # The first to fail, so while the others still waited: they gave up after it.
        last = now - longest
        records.define("seen", t=records.t(last), state="gone", code=code, others=world - 1)
    return records.done(f"{path}[rank {rank}]", last)


def _operation(
    records: Records, group: int, one: Told, at_ns: int, before_ns: int, *, counted: bool
) -> None:
    """What the rank was in; only counts where it did not time out itself."""
    work, enqueued = one.work, one.enqueued
    stuck = work.seq if work is not None else None
    if stuck is None and (enqueued is None or not counted):
        return
    waits = work is not None or (enqueued or 0) > (one.completed or 0)
    number = stuck if stuck is not None else enqueued
    fields = {"kind": "collective", "group": group, "backend": "nccl", "device": "cuda"}
    shapes = [[work.elements]] if work is not None and work.elements is not None else None
    call = records.call(op=work.op if work else UNKNOWN_OP, shapes=shapes, **fields)
    waited_ns = work.waited_ns if work else 0
    if number:
        begin_ns = at_ns - waited_ns if waits else before_ns
        records.enqueued(call, begin_ns, number if counted else None, over=not waits)
    if counted and stuck is not None and enqueued is not None and enqueued > stuck:
        later = records.call(op=UNKNOWN_OP, **fields)
        records.enqueued(later, at_ns - waited_ns + 1, enqueued, over=False)


UNORDERED = frozenset({"send", "recv", "coalesced", "unknown"})
"""Whose numbers differ by rank, or are counted together with others'."""
Key = tuple[str, str]
"""Name and description."""


@dataclass(slots=True)
class Told:
    """What a log says of one rank in one group."""

    work: Work | None = None
    at_ns: int = 0
    enqueued: int | None = None
    completed: int | None = None


Ranks = Mapping[int, Mapping[Key, Told]]


def told(lines: Sequence[Said]) -> tuple[Ranks, frozenset[Key]]:
    """Per rank and group what is said, and the groups in which nobody is compared by number.

    A line that tells an operation often names no group, and the one after it does. What stays
    without a group is compared with nothing: numbers of two groups have nothing to do with each
    other.
    """
    found: dict[int, dict[Key, Told]] = {}
    strange = _ambiguous(lines)
    plain = all(said.group is None or said.group.is_default for said in lines)
    known = {
        (_rank(said), seq): _key(said.group)
        for said in lines
        if said.group is not None and not (said.group.local and strange)
        for seq in (said.at, said.work and said.work.seq)
        if seq is not None
    }
    bare = [said for said in lines if said.work and said.group is None]
    apart = not plain or not _agree(bare)
    for said in lines:
        rank = _rank(said)
        if rank is None:
            continue  # the rank of a subgroup is nobody's name
        if said.group is not None and not (said.group.local and strange):
            key = _key(said.group)
        elif said.work is None:
            continue
        elif (named := known.get((rank, said.work.seq))) is not None:
            key = named
        else:
            key = _alone(said.work) if apart or said.group is not None else DEFAULT
        _note(found.setdefault(rank, {}).setdefault(key, Told()), said)
    return found, frozenset(_uncounted(found))


def _rank(said: Said) -> int | None:
    if said.rank is not None:
        return said.rank
    return said.inner if said.group is None or said.group.is_default else None


def _key(group: Group) -> Key:
    return group.name, group.desc


def _alone(work: Work) -> Key:
    """For an operation of nobody knows which group: those with its name and number may share it."""
    return f"?{work.seq}:{work.op}", "a group that the log does not name"


def _ambiguous(lines: Iterable[Said]) -> bool:
    """Whether numbers of groups that count in one process only may mean several groups: they mean
    one where everybody's rank in it is its global one.
    """
    return any(
        said.group is not None and said.group.local and said.rank not in (None, said.inner)
        for said in lines
    )


def _agree(bare: Sequence[Said]) -> bool:
    """Whether lines without a group may all be of one: one number, and of nobody two operations.
    Where these are of group ranks (before torch 2.2), one operation.
    """
    if len({said.work.seq for said in bare if said.work}) > 1:
        return False
    ops = {(_rank(said), said.work.op) for said in bare if said.work}
    named = all(said.rank is not None for said in bare)
    return len(ops) == len({rank for rank, _ in ops}) and (named or len({op for _, op in ops}) < 2)


def _note(one: Told, said: Said) -> None:
    one.at_ns = max(one.at_ns, said.at_ns)
    if said.work is not None and one.work is None:
        one.work = said.work
    if said.counted:
        one.enqueued, one.completed = said.enqueued, said.completed


def _uncounted(found: Ranks) -> Iterable[Key]:
    """Groups with messages, which are numbered by themselves, while one counter tells of both."""
    for groups in found.values():
        for key, one in groups.items():
            mixed = (one.completed or 0) > (one.enqueued or 0) and one.enqueued is not None
            if mixed or (one.work is not None and one.work.op in UNORDERED):
                yield key


def _content(path: str, most: int, problems: Problems) -> bytes | None:
    """Up to ``most`` bytes of a file, and a sentence where there are more; None, and a sentence,
    where it cannot be read.
    """
    try:
        data, beyond = files.read(path, most)
    except OSError as error:
        problems.add(path, "unreadable", f"cannot be read ({error.strerror}); left out.")
        return None
    if beyond:
        problems.add(path, "too large", "is too large; its end was not read.")
    return data
