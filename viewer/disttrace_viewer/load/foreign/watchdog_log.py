"""Lines of a job's log: what NCCL's watchdog says of each rank, and exceptions, as journals.

A log is of all ranks or of one; before each line may stand anything, and of what is not known here
nothing is taken. ``[rank7]:`` is the global rank, ``[Rank 1]`` inside of a line that of the group.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from disttrace_viewer.load import files
from disttrace_viewer.load.foreign.reader import Translated
from disttrace_viewer.load.foreign.records import Records, identity
from disttrace_viewer.load.problems import Problems

NAME = "log"
MOST_BYTES = 64 << 20
LACKS = (
    *("arguments", "ends", "messages", "older", "position", "reduce_op", "root", "stack"),
    "store",
)
_NAMES = (".log", ".out", ".err", ".txt")
_KNOWN = re.compile(rb"ProcessGroupNCCL|WorkNCCL\(|NCCL work|watchdog|\[rank\d+\]:")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"\[rank(\d+)\]:|\[default(\d+)\]:")
_TIME = re.compile(r"\[[EWIF](\d{1,2})(\d{2}) (\d{2}):(\d{2}):(\d{2})\.(\d+)")
_INNER = re.compile(
    r"\[PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(]+))?(?: ?\((?P<desc>[^)]*)\))?"
    r" Rank (?P<of>\d+)\]"
    r"|\[Rank (?P<bare>\d+)\]"
)
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?(?:, NumelOut=(\d+))?.*?\)"
    r" ran for (\d+) milliseconds"
)
_SEQ = re.compile(r"(?:at work(?: sequence id)?|NCCL work): (\d+)")
_COUNTS = re.compile(r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (-?\d+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ERROR = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\w*)(?:: (.*))?$")
_ECHO = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|closed by peer|timed? ?out"
    r"|reset by peer|broken pipe|NCCL|watchdog|SignalException",
    re.IGNORECASE,
)
_OPS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
}
_LARGEST = 1 << 40
"""Counts above were never set, and are what stood in memory (torch 2.3)."""


@dataclass(slots=True)
class Told:
    """What a log says of one rank in one group."""

    op: str | None = None
    seq: int | None = None
    elements: int | None = None
    waited_ns: int = 0
    at_ns: int = 0
    enqueued: int | None = None
    completed: int | None = None


@dataclass(slots=True)
class Failure:
    """An exception that a rank printed."""

    type: str = ""
    text: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Log:
    """What one or several logs of a job say."""

    told: dict[int, dict[tuple[str, str], Told]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    open: dict[int, Failure] = field(default_factory=dict)
    """Tracebacks that have begun."""
    ranks: set[int] = field(default_factory=set)
    at_ns: int = 0


class WatchdogLog:
    """Reads logs of jobs on NCCL, and tracebacks of any."""

    name = NAME

    def recognises(self, path: str, head: bytes) -> bool:
        """By a line that is known; it may stand at the end of a long file of text."""
        if not path.lower().endswith(_NAMES) or b"\0" in head:
            return False
        try:
            return _KNOWN.search(files.read(path, MOST_BYTES)[0]) is not None
        except OSError:
            return False

    def read(self, paths: Sequence[str], problems: Problems) -> Iterator[Translated]:
        """One process per rank of which the logs say something."""
        log = Log()
        for path in paths:
            try:
                data, beyond = files.read(path, MOST_BYTES)
            except OSError as error:
                problems.add(path, "unreadable", f"cannot be read ({error.strerror}); left out.")
                continue
            if beyond:
                problems.add(path, "too large", "is too large; its end was not read.")
            year = time.gmtime(files.modified_ns(path) // 1_000_000_000).tm_year
            for line in data.decode("utf-8", "replace").replace("\r", "\n").split("\n"):
                take(log, line, year)
        known = sorted({*log.told, *log.failures})
        if paths and not known:
            problems.add(paths[0], "silent", "has no line of a watchdog, and no exception.")
        for rank in known:
            yield _journal(log, rank, paths[0], max({*log.ranks, *known}) + 1)


def take(log: Log, line: str, year: int = 2000) -> None:
    """One line; what is not known is passed over."""
    line = _COLOUR.sub("", line)
    prefix = _RANK.search(line)
    inner = _INNER.search(line)
    own = int(prefix[1] or prefix[2]) if prefix else None
    if own is not None:
        log.ranks.add(own)
        _traceback(log, own, line[prefix.end() :] if prefix else line)
    if inner is None:
        return
    desc = inner["desc"] or ("default_pg" if inner["pg"] in (None, "0") else "")
    group = ("0" if desc == "default_pg" else inner["guid"] or inner["pg"] or "0", desc)
    rank = own if own is not None else int(inner["of"] or inner["bare"])
    if own is None and group[0] != "0":
        return  # the rank of a subgroup is nobody's name
    work, counts, seq = _WORK.search(line), _COUNTS.search(line), _SEQ.search(line)
    if not (work or counts):
        return
    at_ns = _at(line, year)
    told = log.told.setdefault(rank, {}).setdefault(group, Told())
    told.at_ns = max(told.at_ns, at_ns)
    log.at_ns = max(log.at_ns, at_ns)
    if work and told.seq is None:
        told.seq, told.op = int(work[1]), _OPS.get(work[2], work[2].lower())
        told.elements = int(work[3]) if work[3] else None
        told.waited_ns = int(work[5]) * 1_000_000
    elif seq and told.seq is None and int(seq[1]) < _LARGEST:
        told.seq = int(seq[1])
    if counts:
        told.enqueued, told.completed = (
            n if 0 <= (n := int(text)) < _LARGEST else None for text in counts.groups()
        )


def _at(line: str, year: int) -> int:
    found = _TIME.search(line)
    if found is None:
        return 0
    month, day, hour, minute, second = (int(found[n]) for n in range(1, 6))
    try:
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return 0
    return int(at) * 1_000_000_000 + int(found[6][:3].ljust(3, "0")) * 1_000_000


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
        del log.open[rank]
        current.type, current.text = error[1].rpartition(".")[2], (error[2] or "")[:1000]
        if not _ECHO.search(f"{error[1]}: {current.text}"):
            log.failures.setdefault(rank, current)


def _journal(log: Log, rank: int, path: str, world: int) -> Translated:
    now = log.at_ns or files.modified_ns(path) or time.time_ns()
    longest = max((t.waited_ns for of in log.told.values() for t in of.values()), default=0)
    base = now - longest - 3_600_000_000_000
    process = identity(NAME, path, rank)
    records = Records(
        process,
        job=path.rpartition("/")[2] or NAME,
        clock=identity(NAME, path),
        base_ns=base,
        source={"kind": NAME, "lacks": sorted(LACKS), "cut_ns": now},
    )
    records.define("identity", t=0, rank=rank, world_size=world, role="worker")
    groups = sorted({("0", "default_pg"), *log.told.get(rank, {})})
    for number, (name, desc) in enumerate(groups, 1):
        default = name == "0"
        seen = [r for r in sorted(log.told) if (name, desc) in log.told[r]]
        members = list(range(world)) if default else seen
        records.define(
            "group",
            n=number,
            name=name,
            desc=desc or None,
            backends={"cuda": "nccl"},
            ranks=members,
            rank=members.index(rank),
            default=default or None,
            partial=None if default else True,
        )
        told = log.told.get(rank, {}).get((name, desc))
        if told is not None:
            # Who waits for nobody had enqueued its last before the others began to wait.
            _operation(records, number, told, told.at_ns or now, now - longest - 1_000_000_000)
    failure = log.failures.get(rank)
    if failure is not None:
        at = records.t(now)
        stack = records.stack(failure.frames)
        records.define("failure", t=at, type=failure.type, text=failure.text, stack=stack, h=0)
        records.define("exit", t=at, how="exception", code=1)
    records.lived(now)
    return Translated(f"{path}[rank {rank}]", *records.files(), rank)


def _operation(records: Records, group: int, told: Told, at_ns: int, before_ns: int) -> None:
    """What the rank was in; only counts where it did not time out itself."""
    stuck = told.seq if told.waited_ns or told.op else None
    enqueued = told.enqueued
    if stuck is None and enqueued is None:
        return
    waits = stuck is not None or (enqueued or 0) > (told.completed or 0)
    number = stuck if stuck is not None else enqueued
    fields = {"kind": "collective", "group": group, "backend": "nccl", "device": "cuda"}
    shapes = [[told.elements]] if told.elements is not None else None
    call = records.call(op=told.op or "?", shapes=shapes, **fields)
    if number:
        begun = records.begin(call, at_ns - told.waited_ns if waits else before_ns, q=number)
        records.after("i", begun, 0)
        if not waits:
            records.after("c", begun, 0)
    if stuck is not None and enqueued is not None and enqueued > stuck:
        later = records.begin(
            records.call(op="?", **fields), at_ns - told.waited_ns + 1, q=enqueued
        )
        records.after("i", later, 0)
