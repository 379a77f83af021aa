"""The forms of lines that show why a job hung or ended: of NCCL's watchdog, of torch's checks, of
NCCL itself, of launchers, and ours. One table; what no form fits is counted.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import orjson

from disttrace_viewer.load.foreign.lines import LogLine, unix
from disttrace_viewer.load.foreign.nccl_ras import OPS
from disttrace_viewer.load.foreign.py_spy import ProcessSample
from disttrace_viewer.load.foreign.records import public_name
from disttrace_viewer.trace.plain_text import numbers
from disttrace_viewer.trace.values import dataclass, field, replace

_INNER = re.compile(
    r"\[PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(]+))?(?: ?\((?P<desc>[^)]{0,200})\))?"
    r" Rank (?P<of>\d{1,6})\]"
    r"|\[Rank (?P<bare>\d{1,6})\]"
)
_WORK = re.compile(
    r"Work[A-Z]{3,6}\(SeqNum=(\d{1,15}), OpType=(\w{1,60})(?:, NumelIn=(\d{1,20}))?"
    r"(?:, NumelOut=(\d{1,20}))?.{0,200}?\) ran for (\d{1,12}) milliseconds"
)
_SEQ = re.compile(
    r"(?:at work(?: sequence id)?|(?:at|Timeout at) [A-Z]{3,6} work): (\d{1,18})(?!\d)"
)
_COUNTS = re.compile(
    r"[Ll]ast enqueued (?:[A-Z]{3,6} )?work: (-?\d{1,18}),(?: last started [^\[]{0,100}?,)?"
    r" last completed (?:[A-Z]{3,6} )?work: (-?\d{1,18})(?!\d)"
)
_GATHERING = frozenset(
    ["ALLGATHER", "_ALLGATHER_BASE", "REDUCESCATTER", "_REDUCE_SCATTER_BASE", "GATHER", "SCATTER"]
)
"""Of which one side is as many times as large as the other as the group has members."""
_LARGEST = 1 << 40
"""Numbers above were never set: what stood in memory (torch 2.3), or -1 without its sign."""


@dataclass(frozen=True, slots=True)
class Called:
    """What a rank called, by a check, NCCL or its watchdog; ``waited_ns``: until its time-out."""

    op: str
    seq: int
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    waited_ns: int = 0


class LoggedGroup(NamedTuple):
    """What a line calls its group; ``local``: by a number of that process only."""

    name: str
    desc: str
    local: bool = False


DEFAULT = LoggedGroup("0", "default_pg")
"""That of all ranks."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of a watchdog, or all of a rank about one group. ``inner``: the rank in the group;
    ``at``: the operation that its counts are about. Counts: None where never set.
    """

    rank: int | None
    """The global one, where it is known."""
    named: bool
    """It stands before the line."""
    inner: int
    group: LoggedGroup | None
    work: Called | None
    at: int | None
    enqueued: int | None
    completed: int | None
    counted: bool
    at_ns: int


@dataclass(slots=True)
class LoggedFailure:
    """An exception that was printed; frames innermost first."""

    type: str = ""
    text: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    at_ns: int = 0
    indent: int = 0
    torn: str = ""
    """The begin of a frame's path."""
    of: int | None = None
    """The rank, where a summary tells it."""

    @property
    def sentence(self) -> str:
        """As its last line tells it, or the begin of that."""
        return f"{self.type}: {self.text}"[:1000]


@dataclass(slots=True)
class Ended:
    """The end of a rank as its launcher reports it; ``first``: it calls that the root cause."""

    code: int | None = None
    at_ns: int = 0
    first: bool = False
    rank: int | None = None
    host: str = ""


Speaker = int | str
"""A rank, or what else tells who printed a line."""


@dataclass(slots=True)
class Log:
    """What one or several logs of a job hold."""

    statements: list[Statement] = field(default_factory=list)
    stacks: dict[int, list[tuple[str, int, str]]] = field(default_factory=dict)
    """Of collectives that timed out, as the watchdog of a rank printed them."""
    failures: dict[Speaker, list[LoggedFailure]] = field(default_factory=dict)
    caught: dict[Speaker, list[LoggedFailure]] = field(default_factory=dict)
    """Those after which their process went on."""
    earlier: dict[Speaker, list[LoggedFailure]] = field(default_factory=dict)
    """Those of attempts before the last one."""
    bare: list[LoggedFailure] = field(default_factory=list)
    """Last lines of tracebacks, without the others and without a rank."""
    open: dict[Speaker, LoggedFailure] = field(default_factory=dict)
    """Tracebacks that have begun."""
    ends: dict[int, Ended] = field(default_factory=dict)
    local_ends: dict[int | None, Ended] = field(default_factory=dict)
    entry: Ended | None = None
    """What a summary of torchrun's is at."""
    called: dict[int, Called] = field(default_factory=dict)
    compared: str = "all_gather"
    """Of which shapes are listed."""
    calls: dict[tuple[str, str], deque[Called]] = field(default_factory=dict)
    """By process and communicator, of NCCL's lines."""
    comms: dict[tuple[str, str], tuple[int, int, str]] = field(default_factory=dict)
    """Rank, size and id of communicators."""
    begun: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    """By size and id of communicators the ranks that began to create them."""
    stuck: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)
    dumped: list[ProcessSample] = field(default_factory=list)
    """Stacks that ``faulthandler`` wrote."""
    fatal: bool = False
    """It wrote them since a process crashed."""
    deduplicated: bool = False
    """What several ranks printed stands there once."""
    reports: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """What is reported of others, or of the whole job."""
    job_said: list[dict[str, Any]] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    world: int = 0
    """So many ranks there are at least."""
    whole: int | None = None
    """So many there are, where a line tells that."""
    outside: str = ""
    """The signal that a launcher got itself."""
    peers: set[str] = field(default_factory=set)
    """Hosts to which a connection was lost."""
    last: Speaker = ""
    lines: int = 0
    strange: Counter[str] = field(default_factory=Counter)
    """Lines that speak of trouble and fit no form."""

    def report(self, kind: str, **fields: Any) -> None:
        """Note what a line tells of others, once."""
        found = {"kind": kind, **fields}
        self.reports.setdefault(orjson.dumps(found), found)


def watchdog(log: Log, line: LogLine, _speaker: Speaker, inner: re.Match[str]) -> bool:
    """What NCCL's watchdog tells of an operation, or of counts."""
    work, counts, seq = _WORK.search(line.text), _COUNTS.search(line.text), _SEQ.search(line.text)
    if not (work or counts):
        return False
    at = int(seq[1]) if seq else None
    enqueued, completed = map(_set, counts.groups()) if counts else (None, None)
    rank, group = _who(line, inner)
    log.statements.append(
        Statement(
            rank, line.rank is not None, int(inner["of"] or inner["bare"]), group,
            work and _work(work), at if at is not None and at < _LARGEST else None, enqueued,
            completed, counts is not None, line.at_ns,
        )
    )  # fmt: skip
    log.world = max(log.world, line.times)
    if work is not None and work[3] and work[4]:
        one, other = sorted((int(work[3]), int(work[4])))
        if 0 < one < other < _LARGEST and other % one == 0 and work[2] in _GATHERING:
            log.world = max(log.world, other // one)
    return True


def _who(line: LogLine, inner: re.Match[str]) -> tuple[int | None, LoggedGroup | None]:
    """The global rank, as far as a line of a group tells it, and that group."""
    if inner["bare"]:
        group = None
    elif inner["desc"] == DEFAULT.desc or (inner["pg"] == "0" and not inner["guid"]):
        group = DEFAULT
    else:
        name = inner["guid"] or inner["pg"]
        group = LoggedGroup(name, inner["desc"] or "", local=not inner["guid"])
    if line.rank is None and group in (None, DEFAULT):
        return int(inner["of"] or inner["bare"]), group
    return line.rank, group


def _work(found: re.Match[str]) -> Called:
    elements = int(found[3] or _LARGEST)
    shape = (elements,) if elements < _LARGEST else None
    op = public_name(found[2].lower())
    return Called(op, int(found[1]), shape, waited_ns=int(found[5]) * 1_000_000)


def _set(text: str) -> int | None:
    return number if 0 <= (number := int(text)) < _LARGEST else None


_STUCK = re.compile(
    r"watchdog got stuck for (\d{1,9}) seconds|Heartbeat monitor timed out"
    r"|detected no heartbeat of its watchdog|due to ProcessGroupNCCL watchdog hang"
    r"|Could not acquire GIL within"
)
_PENDING = re.compile(r"workMetaList_\.size\(\) ?= ?(\d{1,12})")


def heartbeat(log: Log, line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """The watchdog itself does not get on: a call of CUDA, or who holds the GIL in one."""
    inner = _INNER.search(line.text)
    if inner is None:
        return False
    rank, _ = _who(line, inner)
    if rank is not None:
        name = inner["desc"] or inner["guid"] or inner["pg"] or ""
        one = log.stuck.setdefault((rank, "" if name == "0" else name), {})
        if found[1]:
            one["seconds"] = int(found[1])
        if (pending := _PENDING.search(line.text)) is not None:
            one["pending"] = int(pending[1])
    return True


_NATIVE = re.compile(
    r"(?:(?:terminated with exception|following async exception): (?!\[Rank)"
    r"|^\s{0,4}what\(\): {1,3}"
    r"|\[c10d\] (?=The client socket has (?:timed out|failed to connect to any))"
    r"|ProcessGroupGloo\.cpp:\d{1,6}\] |NCCL WARN (?=Error while \w{1,20} (?:to )?shared mem)"
    r"|NVRM: (?=(?:GPU .{1,40})?fallen off|GPU .{1,40}off the bus)"
    r"|NVRM: (?=Xid \(\S{1,40}\): (?!13,|31,|43,|45,|63,|92,))"
    r"|NCCL WARN (?=Message truncated ?: received|Mismatched NCCL version|Bootstrap Root ?: mism)"
    r'|^\s{0,8}"message": "(?=[\w.]{1,80}(?:Error|Exception): )'
    r"|^(?=Unexpected bus error encountered in worker)"
    r"|\[c10d\] (?=The server socket has failed to listen)"
    r"|\[name=[^\]]{0,200}\] (?=Operation timed out after \d{1,12} ms))(?P<text>.{1,1000})"
    r"|Cuda failure (?:\d{1,5} )?'(?P<device>out of memory|uncorr[^']{1,99}|an illegal [^']{1,40})'"
)
_MOST_NATIVE = 8


def native_error(log: Log, line: LogLine, speaker: Speaker, found: re.Match[str]) -> bool:
    """An error of torch's C++ code, of a thread or of what ends the process."""
    inner = _INNER.search(line.text)
    text = (found["text"] or "").rpartition("terminated with exception: ")[2]
    text = text or f"CUDA error: {found['device']}"
    if isinstance(speaker, str) and inner is not None:
        rank, _ = _who(line, inner)
        speaker = speaker if rank is None else rank
    named = {"The client": "DistNetworkError", "The server": "DistNetworkError", "Xid": "NVRM",
             "Operation": "DistBackendError", "GPU": "NVRM", "fallen": "NVRM",
             "Error while": "NCCL", "Boot": "NCCL", "M": "NCCL"}  # fmt: skip
    name = next((of for head, of in named.items() if text.startswith(head)), "RuntimeError")
    if '"message": "' in found[0]:  # of an ``error.json``
        name, _, text = text.rstrip(' ",').rpartition(": ")
    speaker = line.by if text[:1] == "M" and name == "NCCL" else speaker  # of two ranks
    several = log.failures.setdefault(speaker, [])
    if len(several) < _MOST_NATIVE:
        several.append(LoggedFailure(name, text, at_ns=line.at_ns))
    return True


_FAILED_STACK = re.compile(
    r"Stack trace of the failed collective|^\s{0,4}#(\d{1,3}) (\S{1,200}) from (\S{1,1000})\s{0,4}$"
)


def failed_stack(log: Log, line: LogLine, speaker: Speaker, found: re.Match[str]) -> bool:
    """``Stack trace of the failed collective``, and its frames below it."""
    if found[1] is None:
        log.last = speaker
        return True
    file, _, number = found[3].rpartition(":")
    rank = line.rank if line.rank is not None else log.last
    if isinstance(rank, int):
        frames = log.stacks.setdefault(rank, [])
        if len(frames) == int(found[1]) and number.isdecimal() and len(number) < 10:
            frames.append((file, int(number), found[2]))
    return True


_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?"
    r"(?:SequenceNumber=(\d{1,20})(?:, ?)?)?(?:OpType=)?(\w{1,60})"
    r"(?:, TensorShape=\[([\d, ]{0,200})\])?(?:[^,]{0,200}, TensorDtypes=(\w{1,40}))?"
)
_NUMBER_AFTER = re.compile(r"The sequence number is: (\d{1,20})")


def fingerprints(log: Log, line: LogLine, _speaker: Speaker, _found: re.Match[str]) -> bool:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL compares: the arguments of two ranks, or of one."""
    after = _NUMBER_AFTER.search(line.text)
    for rank, seq, op, shape, dtype in _FINGERPRINT.findall(line.text):
        number = int(seq or (after[1] if after else 0))
        sizes = tuple(int(n) for n in shape.split(",") if n.strip()) if shape else None
        known = public_name(op.lower())
        if int(rank) not in log.called or log.called[int(rank)].shape is None:
            log.called[int(rank)] = Called(known, number, sizes, dtype or None)
    return True


_COMPARED = re.compile(
    r"^Operation: `accelerate\.[\w.]{1,80}\.(\w{1,40})`"
    r"|^\s{0,8}- Process (\d{1,7}): \[([\d, ]{0,200})\]"
)


def shapes(log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """What accelerate's debug mode compares: the shapes that the ranks brought to an operation."""
    if found[1]:
        log.compared = {"gather": "all_gather", "reduce": "all_reduce"}.get(found[1], found[1])
    else:
        sizes = tuple(int(n) for n in found[3].split(",") if n.strip())
        log.called.setdefault(int(found[2]), Called(log.compared, 0, sizes))
    return True


_CRASHED = re.compile(
    "Fatal Python error: (Segmentation fault|Bus error|Illegal instruction|Floating point exc)?"
)


def crashes(log: Log, line: LogLine, speaker: Speaker, found: re.Match[str]) -> bool:
    """What ``faulthandler`` writes of a signal: an end of its own, unless an error came before."""
    log.fatal = True
    if found[1] and not {speaker} & {*log.failures, *log.open}:
        if isinstance(speaker, int):
            log.ends.setdefault(speaker, Ended(_SIGNALS[found[1]], line.at_ns, first=True))
        else:
            log.failures[speaker] = [LoggedFailure("Fatal Python error", found[1])]
    return True


_REPORTED = (
    ("absent", "monitored_barrier", "pass monitoredBarrier",
     r"Ranks? (?P<ranks>\d{1,7}(?:, \d{1,7})*) failed to pass monitoredBarrier in \d{1,12}"),
    ("reached", "monitored_barrier", "processed ranks: ",
     r"^Successfully processed ranks: (?P<ranks>\d{1,7}(?:, \d{1,7})*)$"),
    ("reached", "monitored_barrier", "reached monitoredBarrier",
     r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier"),
    ("clients", "", "barrier_key:",  # a hash names a group that its members alone create
     (r"barrier_key:(?!\d{1,9}\b|default_pg).{1,99}?world_size=(?P<world>\d{1,7}),"
      r" worker_count=(?P<count>\d{1,7})")),
    ("barrier", "", "worker_count=",
     (r"store based barrier (?:to initialize process group )?(?:on|for) rank: (?P<rank>\d{1,7})"
     r".{0,200}?world_size=(?P<world>\d{1,7}), worker_count=(?P<count>\d{1,7})")),
    ("absent", "init_process_group", "default_pg/",
     r"^(?=.*imeout).*?keys?: /?default_pg/\d{1,4}//(?:cpu|cuda)//\d{1,4}/(?P<ranks>\d{1,7})\b"),
    ("clients", "", "clients joined", r"(?P<count>\d{1,7})/(?P<world>\d{1,7}) clients joined"),
    ("absent", "ncclUniqueId", "ncclUniqueId from",
     (r"^(?=.*imeout).*?\[\d{1,7}\] is setting up NCCL communicator and retr[a-z]{6} ncclUniqueId"
     r" from \[(?P<ranks>\d{1,7})\]")),
    ("absent", "a collective of Horovod", "[missing ranks: ",
     (r"\[missing ranks: (?P<ranks>\d{1,7}(?:, \d{1,7})*)\]")),
    ("absent", "a collective of Horovod", ": [",
     (r"^(?P<ranks>\d{1,7}): \[(?=[\w./-]{0,200}?(?i:allreduce|allgather|broadcast|alltoall)"
      r"[\w/]{0,100}[._][\w./-]{1,200}[],])")),
    ("no_grad", "", "receive grad",
     r"did not receive grad for rank (?P<rank>\d{1,7}): (?P<names>[^\n]{0,200})"),
    ("sizes", "", "ollective mismatch|preamble",
     (r"(?:collective mismatch error,? local size|op\.preamble\.length <= op\.nbytes\.)"
     r" (?P<local>\d{1,20}) (?:remote|vs) (?:size )?"
      r"(?P<remote>\d{1,20})")),
    ("sizes", "", "message truncated",
     r"message truncated ?: receiving (?P<remote>\d{1,20}) bytes instead of (?P<local>\d{1,20})"),
    ("members", "", "MEMBER: ", r"L_RANK: (?P<rank>\d{1,7}), MEMBER: \d{1,7}/(?P<world>\d{1,7})"),
    ("around", "", "Mismatched collective",
     r"Mismatched collective detected.{0,80}? at and around rank (?P<rank>\d{1,7})"),
    ("shared", "", "Duplicate GPU",
     (r"Duplicate GPU detected : rank (?P<ranks>\d{1,7} and rank \d{1,7}) both on CUDA device"
     r" (?P<device>\w{1,20})")),
    ("analyzer", "", "anks joining|groups, m|torchfr|errors found|issing r|flight_rec|ollective s",
     (r"(?i:Not all ranks joining collective|built groups, memberships|torchfrtrace"
     r"|No errors found\b.{0,40}collective|Missing ranks: \{|flight_recorder/components"
     r"|Collective (sequence number|state):)")),
)  # fmt: skip
"""Lines about others, or the whole job: kind and operation of a report, words in it, its fields."""
_TEXTS = frozenset({"names", "device"})


def _report(
    log: Log, line: LogLine, _speaker: Speaker, found: re.Match[str], *, kind: str, op: str
) -> bool:
    """What torch's checks and NCCL's tell of ranks, or of how many have come."""
    fields: dict[str, Any] = {"op": op} if op else {}
    for name, text in found.groupdict().items():
        if name == "ranks":
            fields[name] = [int(n) for n in re.findall("[0-9]+", text)]
            log.world = max(log.world, *(rank + 1 for rank in fields[name]))
        else:
            fields[name] = text.strip() if name in _TEXTS else int(text)
    if op == "monitored_barrier" and line.rank:  # of another group, whose ranks are no global ones
        named: dict[str, Any] = {"rank": line.rank} if "rank" in fields else {"ranks": [line.rank]}
        kind, fields = "reached", {"op": op, **named}
    if kind == "barrier" and log.whole in (None, fields["world"]):
        log.whole = fields["world"]
    log.report(kind, **fields)
    return True


_CALL_OF_NCCL = re.compile(
    r"NCCL INFO (\w{1,40}): opCount ([0-9a-f]{1,16}) sendbuff \S{1,40} recvbuff \S{1,40}"
    r" count (\d{1,20}) datatype (\d{1,4}) op \d{1,4} root -?\d{1,10}"
    r" comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,7})\]"
)
_COMM_OF_NCCL = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) (?:nranks|nRanks) (\d{1,7})\b(?:.{0,200}?commId"
    r" (0x[0-9a-f]{1,16}))?"
)
_OWNER = re.compile(r"(\S{1,200}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] NCCL")
_DTYPES = dict(enumerate((
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
)))  # fmt: skip
_MOST_CALLS = 64
_PEER = re.compile(
    r"(?:Call to (?:recv|send)\w{0,4} (?:from|to)|Connection closed by remote peer|Connect to"
    r"|Got completion from peer) ([\w.:%-]{1,200})<\d{1,6}>"
    r"|pair\.cc:\d{1,6}\] (?:\w{4,5} error|Connection closed by peer|connect) \[([\w.:%-]{1,99})\]:"
    r"|Worker IP address: (\S{1,200}) .{0,200}exit type: SYSTEM_ERROR"
    r"|Remote daemon: \S{1,80} on node (\S{1,200})"
    r"|node with node id: \w{1,80} and address: (\S{1,200}) .{0,200}marked dead"
)


def lost_peer(log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """A host to which NCCL or a launcher lost a connection."""
    log.peers.add(next(filter(None, found.groups())))
    return True


def nccl(log: Log, line: LogLine, _speaker: Speaker, owner: re.Match[str]) -> bool:
    """Calls and communicators as NCCL_DEBUG=INFO with SUBSYS COLL prints them."""
    process = f"{line.by}{owner[1]}:{owner[2]}[{owner[3]}]"
    if (call := _CALL_OF_NCCL.search(line.text)) is not None:
        key = (process, call[5])
        log.comms.setdefault(key, (-1, int(call[6]), ""))
        if (op := OPS.get(call[1])) is not None:
            kept = log.calls.setdefault(key, deque(maxlen=_MOST_CALLS))
            dtype = _DTYPES.get(int(call[4]), f"nccl{call[4]}")
            kept.append(Called(op, int(call[2], 16), (int(call[3]),), dtype))
    elif (comm := _COMM_OF_NCCL.search(line.text)) is not None:
        rank, size, of = log.comms[process, comm[1]] = int(comm[2]), int(comm[3]), comm[4] or ""
        log.world = max(log.world, size)
        if line.text.endswith("Init START") and int(owner[3]) <= rank:  # else of a subgroup
            log.begun.setdefault((size, of), set()).add(rank)
        elif line.text.endswith("Init COMPLETE"):
            log.begun[size, of] = {*range(size)}
    else:
        return False
    return True


_FIELD = re.compile(
    r"^[\s=]{0,24}(?:(time|host|rank|exitcode|traceback|msg|KILLED BY SIGNAL|EXIT CODE|Exit code)"
    r"\s{0,8}:|(?=signal \d{1,2} \()signal) {0,4}(?:(-?\d{1,10})\b(?!-))?(.{0,300})"
)
_TASKS = r"srun: error: .{1,200}: tasks? (?P<ranks>[\d,-]{1,200}): "
_FIRST_ENDS = (
    ("Child process", r"Child process with PID \d{1,10} terminated with code (?P<code>-?\d{1,6})"),
    ("Worker proc", r"Worker proc \w{1,40}-(?P<ranks>\d{1,7}) died unexpectedly"),
    ("crashed with", r"Rank (?P<ranks>\d{1,7}) crashed with exit code (?P<code>-?\d{1,6})"),
    ("MPI_ABORT", r"MPI_ABORT was invoked on rank (?P<ranks>\d{1,7})"),
    ("Process name", (r"Process name: \[(?:\[\d{1,10},\d{1,10}\]|[\w.-]{1,80}@\d{1,10}),"
                      r"(?P<ranks>\d{1,7})\]")),
    ("first noticed", (r"first noticed rank (?P<ranks>\d{1,7})\) terminated with"
                       r" (?P<signal>signal \d{1,2})")),
    ("rocess rank", (r"process rank (?P<ranks>\d{1,7}) with PID .{1,200} exited on"
                     r"(?: (?P<signal>signal \d{1,2})|$)")),
    ("RUNNING AT", r"RANK (?P<ranks>\d{1,7}) PID \d{1,10} RUNNING AT"),
)  # fmt: skip
"""How launchers tell of an end, which end all others then."""
_ENDS = (
    ("(exitcode: ", r"failed \(exitcode: (?P<code>-?\d{1,6})\) local_rank: (?P<local>\d{1,7})"),
    ("srun: ", rf"{_TASKS}Exited with exit code (?P<code>\d{{1,3}})"),
    ("srun: ", (rf"{_TASKS}(?P<signal>Killed|Terminated|Segmentation fault|Aborted|Bus error"
                r"|Out Of Memory)")),
    ("ocess ", (r"[Pp]rocess (?P<ranks>\d{1,7}) terminated with (?:exit code (?P<code>\d{1,3})"
                r"|signal (?P<signal>SIG[A-Z]{2,8})|the following error)")),
    ("Global rank", (r"Global rank (?P<ranks>\d{1,7}) \(PID \d{1,10}\) exited with code"
                     r" (?P<code>-?\d{1,6})")),
    ("[Rank ", r"^\[Rank (?P<ranks>\d{1,7})\]$"),
    ("died from|exited with code",
     (r"\brank (?P<ranks>\d{1,7}) (?:died from (?P<signal>signal \d{1,2})"
      r"|exited with code (?P<code>\d{1,3}))")),
    # These name the command of the last process that was started, whichever ended.
    ("return code", r"exits with return code = (?P<code>-?\d{1,6})"),
    ("exit status", r"returned non-zero exit status (?P<code>\d{1,3})"),
    ("OOM", r"(?P<signal>OOM ?Killed)(?!\"?[:=] ?[Ff]alse)"),
    (": line ", r": line \d{1,7}: {1,8}\d{1,10} (?P<signal>Killed|Segmentation fault|Bus error)"),
    ("killed  |fault  |error  ",
     r"^[\s+-]{0,8}\d{1,10} (?P<signal>killed|segmentation fault|bus error) {2}"),
    ("Killed|fault|Bus error",
     r"^(?P<signal>Killed|Segmentation fault|Bus error)(?: \(core dumped\))?$"),
    ("Caught ", r"Caught (?P<signal>signal (?:4|7|8|9|11)) \("),
    ("Signal: ", r"\] Signal: (?P<signal>Segmentation fault|Bus error|Killed) \("),
    ("Detected ", r"Detected \d{1,9} (?P<signal>oom.kill) event"),
    ("ut of memory: ", r"[Oo]ut of memory: (?P<signal>Killed) process \d"),
    ("died, exit", r"died, exit code: (?P<code>-?\d{1,6})"),
    ("died with <", r"died with <Signals\.(?P<signal>SIG[A-Z]{2,8})"),
)  # fmt: skip
"""How launchers tell of other ends; the one that is without a code tells of what comes next."""
_SIGNALS = {
    "Killed": -9, "Out Of Memory": -9, "OOMKilled": -9, "OOM Killed": -9, "Terminated": -15,
    "Aborted": -6, "Bus error": -7, "Illegal instruction": -4, "Floating point exc": -8,
    "SIGKILL": -9, "SIGSEGV": -11, "SIGABRT": -6, "SIGBUS": -7, "SIGTERM": -15,
    **{f"signal {n}": -n for n in range(1, 32)},
    "Segmentation fault": -11, "segmentation fault": -11, "bus error": -7,
}  # fmt: skip
_OUTSIDE = re.compile(
    r"(?:Received (?=\d{1,2} death )|Process \d{1,10} got signal: )(\d{1,2})\b"
    r"|(?:Main process received |Received Signals\.)(SIG[A-Z]{2,8})\b"
    r"|slurmstepd: .{1,200} CANCELLED AT [\w:-]{1,40}(?: DUE TO ([A-Z ]{1,40}[A-Z]))?"
)
_BY_SLURM = "an end by Slurm"
_OUTER = {"1": "SIGHUP", "2": "SIGINT", "3": "SIGQUIT", "15": "SIGTERM"}


def summary(log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """The begin of an entry of torchrun's summary."""
    log.entry = Ended(first=found[0] == "Root Cause")
    return True


def restarted(log: Log, *_: object) -> bool:
    """What torchrun tells before it starts all ranks anew."""
    log.earlier, log.failures = {**log.earlier, **log.failures}, {}
    return True


def ended_from_outside(log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """A signal that a launcher got itself."""
    number, name, slurm = found.groups()
    cancelled = _BY_SLURM + (f" ({slurm})" if slurm else "")
    log.outside = name or (_OUTER.get(number, f"signal {number}") if number else cancelled)
    return True


def ended(
    log: Log, line: LogLine, _speaker: Speaker, found: re.Match[str], *, first: bool = False
) -> bool:
    """The end of some ranks, of a local one, or of whichever it was."""
    words = found.groupdict()
    number, signal = words.get("code"), words.get("signal")
    code = int(number) if number else _SIGNALS.get(signal, -9) if signal else None
    if code == 0 or (log.outside.startswith(_BY_SLURM) and signal in ("Killed", "Terminated")):
        return True
    ranks, local = words.get("ranks"), words.get("local")
    known = numbers(ranks) if ranks else [] if line.rank is None or not first else [line.rank]
    if not known:
        log.local_ends.setdefault(int(local) if local else None, Ended(code, line.at_ns))
    elif code is None and not first:
        log.last = known[0]
    else:
        first = first and not any(end.first for end in log.ends.values())
        for rank in known:
            one = log.ends.setdefault(rank, Ended(code, line.at_ns, first))
            log.entry = one if one.code is None else log.entry
    return True


def summary_field(log: Log, _line: LogLine, speaker: Speaker, found: re.Match[str]) -> bool:
    """A line of an entry of torchrun's summary."""
    name, number, rest = found.groups()
    entry = log.entry
    if entry is None:
        return False
    if name == "time":
        log.entry = Ended(None, unix(f"{number or ''}{rest}".strip()), entry.first)
    elif name == "host":
        entry.host = f"{number or ''}{rest}".strip()
    elif name == "rank" and number:
        log.ends[int(number)] = log.entry = replace(entry, rank=int(number))
    elif name in (None, "KILLED BY SIGNAL") and number:
        entry.code = -int(number)
    elif name.lower().startswith("exit") and number:
        entry.code = int(number)
    elif name == "traceback" and rest.startswith("Traceback (most recent"):
        indent = found.start(1)
        log.open[speaker] = LoggedFailure(at_ns=entry.at_ns, indent=indent, of=entry.rank)
    return True


_OURS = re.compile(
    r"disttrace: (stalled|diverged|slow|waiting|failed|starting|going on)( \(likely\))?: "
)
_CLOCK = re.compile(r" \((\d\d:\d\d:\d\d)\)")


def announced(log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """What the job itself reported on stderr, by disttrace, as JSON."""
    try:
        one = orjson.loads(found[0])
    except orjson.JSONDecodeError:
        return False
    if not type(one.get("summary")) is type(one.get("kind")) is str:
        return False
    at = one.get("at")
    log.job_said.append({**one, "at": at if type(at) in (int, float) else 0})
    return True


def ours(log: Log, line: LogLine, _speaker: Speaker, found: re.Match[str]) -> bool:
    """The same as text."""
    likely = "likely" if found[2] else "certain"
    summary = line.text[found.end() :].rstrip()
    clock = _CLOCK.fullmatch(summary[-11:])
    summary = summary if clock is None else summary[:-11]
    log.job_said.append(
        {"disttrace": 1, "kind": found[1], "at": 0, "certainty": likely, "summary": summary,
         "clock": clock and clock[1], "culprit_ranks": [], "finding": None}
    )  # fmt: skip
    return True


_CAME = re.compile(r"processes registered|anity [Cc]heck|Epoch:? {0,3}\[?\d")


def came(log: Log, *_: object) -> bool:
    """What Lightning prints after all ranks have come to the creation of groups."""
    log.reports = {key: one for key, one in log.reports.items() if one["kind"] != "members"}
    return False


_CAUSE = re.compile(r"^(?:Last error: |Call to ibv|Bootstrap : |socket|NET/|Net ).*")


def cause(log: Log, _line: LogLine, speaker: Speaker, found: re.Match[str]) -> bool:
    """The cause that NCCL prints below its error."""
    for one in log.failures.get(speaker, [])[:1]:
        one.text += f"; {found[0][:300]}" * one.text.startswith("NCCL error")
    return False


_WORLD = re.compile(
    r"(?:\b[Ww]orld[_ ]size|WORLD_SIZE|Num processes|MEMBER: \d{1,7}/|Starting with)"
    r"['\"]?(?: of)?[\s=:]{0,3}(\d{1,7})\b(?! GPU| node)"
)


_ASKED_BY = re.compile(r"due to a collective timeout from {1,3}rank (\d{1,7})\b")


def world(
    log: Log, _line: LogLine, _speaker: Speaker, found: re.Match[str], *, by_rank: bool = False
) -> bool:
    """How many ranks there are, by the program, or (``by_rank``) a line that a rank sent."""
    log.world = max(log.world, int(found[1]) + by_rank)
    return not by_rank


Form = Callable[[Log, LogLine, Speaker, re.Match[str]], bool]
Forms = tuple[tuple[tuple[str, ...], re.Pattern[str], Form], ...]
FOLLOWING: Forms = (
    ((" from ",), _FAILED_STACK, failed_stack),
    ((" : ", "rank: ", "time: ", "xit", "EXIT", "KILLED", "signal "), _FIELD, summary_field),
)
"""Those of lines that follow one of another form."""
FORMS: Forms = (
    (('{"disttrace":',), re.compile(r'\{"disttrace":.*'), announced),
    (("disttrace: ",), _OURS, ours),
    (("collective timeout",), _ASKED_BY, partial(world, by_rank=True)),
    (("(SeqNum=", "last completed"), _INNER, watchdog),
    (("got stuck for", "onitor timed out", "no heartbeat", "watchdog hang", "acquire GIL"),
     _STUCK, heartbeat),
    (("failed collective",), _FAILED_STACK, failed_stack),
    (("is running ",), _FINGERPRINT, fingerprints),
    (("- Process ", "Operation: "), _COMPARED, shapes),
    (("Fatal Python",), _CRASHED, crashes),
    *(
        ((*cues.split("|"),), re.compile(pattern), partial(_report, kind=kind, op=op))
        for kind, op, cues, pattern in _REPORTED
    ),
    (("Last error:", "ibv_", "Bootstrap :", "socket", "NET/", "Net :"), _CAUSE, cause),
    (("Call to ", "remote peer ", "from peer ", "onnect to ", "Remote daemon", "marked dead",
      "/tcp/pair.cc", "SYSTEM_ERROR"),
     _PEER, lost_peer),
    (("opCount ", "comm 0x"), _OWNER, nccl),
    (("Root Cause", "ailures:"), re.compile("Root Cause|Failures:"), summary),
    (("will restart",), re.compile("will restart worker group"), restarted),
    (("death signal", "got signal", "received SIG", "Received Signals", "CANCELLED"),
     _OUTSIDE, ended_from_outside),
    *(((cue,), re.compile(one), partial(ended, first=True)) for cue, one in _FIRST_ENDS),
    *(((*cues.split("|"),), re.compile(one), ended) for cues, one in _ENDS),
    (("exception: ", "what():", "client socket", "Gloo.cpp", "Cuda failure", "shared mem", "Xid",
      "Bootstrap Root", "off the bus", "bus error", "failed to listen", "Message trunc",
      "NCCL version", "timed out after", '"message": "'),
     _NATIVE, native_error),
    (("processes registered", "anity ", "Epoch"), _CAME, came),
    (("orld size", "orld_size", "WORLD_SIZE", "processes", "MEMBER: ", "Starting with"),
     _WORLD, world),
)  # fmt: skip
"""Words without which a line is not of a form, its form, and what takes it; the first that does
ends it, but a traceback may go on in the same line.
"""
