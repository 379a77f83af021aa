"""Names of the journal's files and records, and which of the files are to be trusted.

The recorder writes these, the viewer and the exporter read them; nothing else is shared. The
records are documented in ``docs/journal.md``, who is trusted with what in ``SECURITY.md``.
Long, for it is one file that the two halves share.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from disttrace.foreign import ours
from disttrace.journal.descriptors import aside, attempt, close_own

FORMAT = 2
"""2: a list of ranks may hold ranges. Readers of 2 read 1, in which it is numbers only."""

DEFS_SUFFIX = ".defs.jsonl"
OPS_SUFFIX = ".ops.jsonl"

# First keys of the records in segments.
BEGIN = "b"
ISSUED = "i"
WAIT = "w"
COMPLETE = "c"
END = "e"
LOST = "l"
ASKED = "o"
SEGMENT = "seg"
HEARTBEAT = "hb"
STANDS_AT = "at"

# Records as the recorder writes them, those of operations by either core. ``%d`` is a number and
# ``%b`` further keys as JSON, each with a comma before it. Times are nanoseconds: of a begin, a
# heartbeat and a sample since the clock's zero, of all others since their begin.
BEGIN_LINE = b'{"b":%d,"t":%d,"s":%d,"q":%d%b%b}\n'
BEGIN_UNCOUNTED_LINE = b'{"b":%d,"t":%d,"s":%d%b%b}\n'
ISSUED_LINE = b'{"i":%d,"d":%d}\n'
WAIT_LINE = b'{"w":%d,"d":%d}\n'
END_LINE = b'{"e":%d,"d":%d%b}\n'
END_SYNCHRONOUS_LINE = b'{"e":%d,"d":%d,"u":%d}\n'
LOST_LINE = b'{"l":%d,"d":%d%b}\n'
COMPLETE_LINE = b'{"c":%d,"d":%d,"g":%d%b}\n'
ASKED_LINE = b'{"o":%d,"d":%d,"k":%b}\n'
HEARTBEAT_LINE = b'{"hb":%d}\n'
STANDS_AT_LINE = b'{"at":%d,"h":%d,"k":%d}\n'

# First key of the records in the definitions file, and some of its values: see DEFINITIONS.
DEF = "def"
DUMPED = "dumped"
"""Stacks that ``faulthandler`` wrote before this are history: the process goes on."""
ANSWERS = "answers"
"""The thread ``asked`` gets ``signal`` with the value ASK and a thread's number, and has that one
write its stack into the descriptor ``fd``; ``native`` is the background thread, which waits for the
GIL while another thread keeps it."""
ASK = 0x61736B21
"""In the upper 32 bits of the value; the recorder's ``_answers.c`` acts on nothing else."""
HELD_NS = 1_500_000_000
"""How long, at least, nothing has run in a process that gets it."""

# Words of ``exit`` records: the process becomes another program, which writes a journal of its own,
# or none; and it has not, for the operating system refused: the word before that is void.
EXEC = "exec"
ABORTED = "aborted"
RESUMED = "resumed"
UNINSTALLED = "uninstalled"
"""Tracing was taken off, and what came after is not known."""

# What another process saw of this one (``seen`` records).
SEEN_GONE = "gone"
STOPPED = "stopped"

# What is in trouble, as a source outside of the program reports (``trouble`` records).
HOST, DEVICE, LINK = "host", "device", "link"

# Kinds of calls.
COLLECTIVE = "collective"
MESSAGE = "message"
REPLAYED = "graph"
"""The backend of replayed CUDA graphs, which are in no order with other calls."""
STORE = "store"
CONSTRUCTOR = "constructor"
COMPOSED = "composed"

# Backends of devices: a call returns before the device has done anything, and P2P operations are
# matched in order only, so the tag does not tell streams apart. From torch 2.15 on NCCL has four
# names: what `nccl` is there (ProcessGroupNCCL2), the same by name, its lazy variant, and what
# `nccl` was before.
ON_DEVICE = frozenset(
    {"nccl", "nccl2", "nccl-lazy", "nccl-legacy", "ncclx", "rccl", "xccl", "hccl", "cncl", "mccl"}
)
# Those whose wait returns when the operation is over, on whatever device the tensors are.
_ON_HOST = frozenset({"gloo", "mpi", "fake", "threaded"})
_HOST_DEVICES = frozenset({"cpu", "meta"})

UNKNOWN_PREFIX = "?"
UNKNOWN_OP = "collective"
"""Of an operation of which other evidence than a journal does not tell what it is."""

HEARTBEAT_NS = 2_000_000_000

EQUAL_SIZES = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_reduce_coalesced", "all_gather_coalesced",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
})  # fmt: skip
"""Collectives into which all members pass as many elements, of one type."""


def _fields(**names: str) -> dict[str, str]:
    """What each field may hold, of names given by that."""
    return {name: held for held, given in names.items() for name in given.split()}


# What a record may hold, for readers: a record with a value of another type or beyond these bounds
# is not of this format and is left out; keys that are not named here are ignored, and null is as
# good as absent. A journal may come from anywhere, so every reader asks here first.
#
#   time     nanoseconds, 0 to 2**60 (36 years)     unix     unix nanoseconds, 0 to 2**62 (2116)
#   number   0 to 2**32 - 1, what others refer to   thread   0 to 2**16 - 1
#   integer  64 bits                                rank     32 bits, signed
#   size     a number of members                    flag     true or false
#   mark     0 or 1                                  pid      1 to 2**31 - 1
#   kind, role, origin    one of CLOSED             word, words   an identifier, and lists of them
#   id, name, text, key   strings, shown up to the length in LONGEST
#   names, texts          lists of strings          keys     a key, or a list of them
#   prefixes              a list of names and nulls map      an object of names
#   ranks, shapes         integers, and lists of them        frames   [[string, line, string], ...]
#   json                  any value                 object   any object
#   call                  an object with fields of a call
#   span                  TRACE-SPAN-FLAGS in hexadecimal
FIELDS: dict[str, dict[str, str]] = {
    "process": _fields(
        number="format pid_ns time_ns ppid",
        id="process parent",
        name="job job_source run host boot_id python disttrace filesystem",
        rank="attempt",
        integer="ticks",
        pid="pid",
        unix="start_ns unix_ns",
        role="role",
        map="env",
        texts="argv",
        text="cwd",
        time="t0 error_ns",
        object="settings",
    ),
    "identity": _fields(
        time="t", rank="rank local_rank attempt", size="world_size", role="role", name="run"
    ),
    "versions": _fields(
        time="t", name="torch", map="backends", texts="not_captured", names="parts"
    ),
    "source": _fields(name="kind", names="lacks", text="lost", json="reports"),
    "clock": _fields(time="t error_ns", unix="unix_ns"),
    "string": _fields(number="n", text="v"),
    "stack": _fields(number="n", frames="frames"),
    "thread": _fields(number="n", name="name", integer="native"),
    "store": _fields(
        number="n base connection",
        name="type host address",
        text="name path",
        prefixes="prefix",
        rank="port",
        flag="server",
        time="timeout",
    ),
    "group": _fields(
        number="n store nth",
        name="name desc type",
        map="backends",
        ranks="ranks",
        rank="rank",
        size="size",
        flag="default partial",
        time="timeout t",
    ),
    "call": _fields(
        number="n group store stack",
        name="op backend device name",
        kind="kind",
        flag="async",
        shapes="shapes",
        words="dtypes",
        integer="bytes tag",
        json="splits",
        word="reduce_op",
        rank="root peer",
        origin="origin",
        object="args",
    ),
    "worker": _fields(
        time="t",
        pid="pid",
        name="event signal",
        rank="local_rank rank attempt code",
        text="error",
        flag="journal",
    ),
    "rendezvous": _fields(time="t", name="event state run node", text="text", rank="rank"),
    "failure": _fields(
        time="t",
        name="type",
        text="text",
        number="stack",
        thread="h",
        texts="causes lines parameters",
    ),
    "handling": _fields(time="t", thread="h", name="type", text="text", number="stack"),
    "exit": _fields(time="t", name="how", integer="code", number="stack", texts="causes"),
    "note": _fields(time="t", text="text"),
    "digest": _fields(time="t", number="group q v stack", name="op name"),
    "nonfinite": _fields(time="t", number="group q stack", name="op", texts="parameters"),
    "unreduced": _fields(
        time="t over",
        number="group stack changes bucket",
        integer="bytes",
        texts="parameters",
        mark="settled",
    ),
    "seen": _fields(time="t", name="state", rank="code", size="others"),
    "trouble": _fields(time="t ago", name="by where name", number="code", mark="mine", text="text"),
    "activity": _fields(
        time="t over cpu", mark="busy beside others failed", integer="read written received faults"
    ),
    "dropped": _fields(time="t", number="segment"),
    BEGIN: _fields(
        number="b s q p", time="t", thread="h", keys="k", integer="n", call="a", mark="r", span="sp"
    ),
    ISSUED: _fields(number="i", time="d"),
    WAIT: _fields(number="w", time="d"),
    COMPLETE: _fields(number="c", time="d g z"),
    END: _fields(number="e q x", time="d u v", integer="n", rank="y", mark="f r"),
    ASKED: _fields(number="o", time="d", name="k"),
    LOST: _fields(number="l", time="d", mark="o"),
    SEGMENT: _fields(number="seg format", id="process", time="t"),
    HEARTBEAT: _fields(time="hb"),
    STANDS_AT: _fields(time="at", thread="h", number="k"),
}
"""Fields of a record and what they may hold, by the record's kind or first key."""

_OF_OPERATIONS = (BEGIN, ISSUED, WAIT, COMPLETE, END, ASKED, LOST)
_OF_SEGMENTS = (SEGMENT, HEARTBEAT, STANDS_AT)
DEFINITIONS = frozenset(FIELDS).difference(_OF_OPERATIONS, _OF_SEGMENTS)
"""Values of ``def``."""

NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("string", "stack", "thread", "store", "group", "call"), ("n",)),
    "digest": ("group", "op", "q", "v"),
    "nonfinite": ("group", "op", "q"),
    "unreduced": ("group", "over", "bytes", "changes"),
    "activity": ("t", "over"),
    "trouble": ("by", "where"),
    **{key: (key, "d") for key in _OF_OPERATIONS},
    BEGIN: ("b", "t"),
    **{key: (key,) for key in _OF_SEGMENTS},
}
"""Fields without which a record is of no use."""

BOUNDS: dict[str, tuple[int, int]] = {
    "time": (0, 1 << 60),
    "unix": (0, 1 << 62),
    "number": (0, (1 << 32) - 1),
    "thread": (0, (1 << 16) - 1),
    "integer": (-(1 << 63), (1 << 63) - 1),
    "rank": (-(1 << 31), (1 << 31) - 1),
    "mark": (0, 1),
    "pid": (1, (1 << 31) - 1),  # 0 and below are groups of processes to kill()
}
"""Smallest and largest of the numbers."""

CLOSED = {
    "kind": frozenset({COLLECTIVE, MESSAGE, STORE, CONSTRUCTOR, COMPOSED}),
    "role": frozenset({"agent", "worker", "child", "main"}),
    "origin": frozenset({"python", "c++"}),
}
"""All values of a type. Operations, dtypes and reductions grow, so have no table."""

MOST_MEMBERS = 1 << 20
"""A group or a world that claims to be larger is taken for one of unknown size."""

LONGEST = {"id": 64, "name": 300, "text": 4_000, "key": 1_000}
"""Characters of a string; what is longer is read shortened."""


ANNOUNCEMENTS_SUFFIX = ".say"
"""Of the file in which the companion of a job asks one of its processes to speak."""

MEMBERS_SUFFIX, CALLS_SUFFIX = ".roll", ".calls"
"""Of the files of this host in which processes list their journals, a line of pid, mark
(``proc.mark``) and name each, and in which each shows what it called last."""
LIVE_SUFFIX = ".live"
"""Of the file in which processes of a host read what is known of its ranks."""
VERDICTS_SUFFIX = ".verdicts.jsonl"
"""Of the file in which a job keeps what it announced itself."""


def ends_on_device(backend: str | None, device: str | None) -> bool:
    """Whether a device ends it, not a wait; so with an unknown backend on a device."""
    if backend is None or backend in _ON_HOST:
        return False
    return backend in ON_DEVICE or (device is not None and device not in _HOST_DEVICES)


def segment_name(base: str, number: int) -> str:
    """Name of segment ``number`` (from 1) of the journal ``base``."""
    return f"{base}.{number:06d}{OPS_SUFFIX}"


def definitions_name(base: str) -> str:
    """Name of the definitions file of the journal ``base``."""
    return base + DEFS_SUFFIX


_FEW_RANKS = 8


def with_ranges(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A definition with ranges in long lists of ranks: each of 8,192 would list 40 kB."""
    ranks, args = record.get("ranks"), record.get("args")
    if isinstance(ranks, (list, tuple)) and len(ranks) > _FEW_RANKS:
        record = {**record, "ranks": ranges_of(ranks)}
    if isinstance(args, dict):
        given = args.get("ranks")
        if isinstance(given, (list, tuple)) and len(given) > _FEW_RANKS:
            record = {**record, "args": {**args, "ranks": ranges_of(given)}}
    return record


def ranges_of(ranks: Sequence[Any]) -> list[Any]:
    """Ranks in order, three or more at one distance as ``{"from", "to", "step"}`` (inclusive);
    others stay."""
    found: list[Any] = []
    start, count = 0, len(ranks)
    while start < count:
        stop = start + 1
        if stop < count and type(ranks[start]) is int and type(ranks[stop]) is int:
            step = ranks[stop] - ranks[start]
            while (
                stop < count and type(ranks[stop]) is int and ranks[stop] - ranks[stop - 1] == step
            ):
                stop += 1
        if stop - start > 2 and step:
            found.append({"from": ranks[start], "to": ranks[stop - 1], "step": step})
        else:
            stop = start + 1
            found.append(ranks[start])
        start = stop
    return found


def ranks_of(value: object) -> tuple[int, ...] | None:
    """The ranks of a list of numbers and ranges, one object for equal lists; else None."""
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list):
        return None
    parts: list[Any] = []
    for item in value:
        part = item
        if type(item) is dict:
            first, last, step = part = (item.get("from"), item.get("to"), item.get("step", 1))
            if not type(first) is type(last) is type(step) is int:
                return None
        elif type(item) is not int:
            return None
        parts.append(part)
    return _expanded(tuple(parts))


@functools.lru_cache(maxsize=1 << 16)
def _expanded(parts: tuple[Any, ...]) -> tuple[int, ...] | None:
    found: list[int] = []
    for part in parts:
        if type(part) is int:
            found.append(part)
            continue
        first, last, step = part
        if not step or len(found) + abs(last - first) // abs(step) >= MOST_MEMBERS:
            return None
        found.extend(range(first, last + (1 if step > 0 else -1), step))
    low, high = BOUNDS["rank"]
    return tuple(found) if not found or low <= min(found) <= max(found) <= high else None


class ForeignFile(OSError):  # noqa: N818 - what it is about
    """A file that is not certainly ours; the text is the reason."""


def open_own(path: str, flags: int, owner: int | None = None) -> int:
    """Open a file of ours whose name can be foretold, in a folder where others may write; it is
    made with the ``flags`` for that. It must be a regular file of ``owner`` (default: this user)
    under one name, else another's may be meant. Raises ForeignFile, or OSError."""
    try:
        fd = aside(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
    except ours(OSError):
        _refuse_foreign(path, os.lstat(path), owner)
        raise
    try:
        _refuse_foreign(path, os.fstat(fd), owner)
    except ForeignFile:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def opened_own(path: str, flags: int, owner: int | None = None) -> Iterator[int]:
    """``open_own`` for a while, where a program runs beside us that may close all descriptors."""
    fd = open_own(path, flags, owner)
    ours = os.fstat(fd)
    try:
        yield fd
    finally:
        close_own(fd, ours)


def is_own(path: str, owner: int | None = None) -> bool:
    """Whether ``path`` is a regular file of ``owner`` (default: this user), and no link to one."""
    try:
        _refuse_foreign(path, os.lstat(path), owner)
    except ours(OSError):
        return False
    return True


def remove_own(path: str, owner: int | None = None) -> None:
    """Take a file of ours away; what is not ours stays, and so does what cannot be removed."""
    if is_own(path, owner):
        attempt(os.unlink, path)


def _refuse_foreign(path: str, found: os.stat_result, owner: int | None) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ForeignFile(f"{path} is a link, which is not followed")
    if not stat.S_ISREG(found.st_mode):
        raise ForeignFile(f"{path} is no regular file")
    if found.st_uid != (os.geteuid() if owner is None else owner):
        raise ForeignFile(f"{path} belongs to another user")
    if found.st_nlink > 1:
        raise ForeignFile(f"{path} has another name elsewhere, so it may be another file of ours")


FAILURE = b'{"%s":"failure"' % DEF.encode()
_END = 64 << 10


def ends_with(path: str, *signs: bytes) -> bool:
    """Whether one of these stands in the end of a file of ours."""
    try:
        with opened_own(path, os.O_RDONLY) as fd:
            end = os.pread(fd, _END, max(0, os.fstat(fd).st_size - _END))
    except ours(OSError):
        return False
    return any(sign in end for sign in signs)


def is_of_job(name: str, job: str) -> bool:
    """Whether this names a journal of ``job``: JOB-HOST-PID-PROCESS, with no more hyphens."""
    return name.startswith(f"{job}-") and name.count("-", len(job) + 1) == 2


def is_plain_name(base: str) -> bool:
    """Whether ``base`` names something in a folder itself, and nothing outside of it."""
    return base.isprintable() and base not in ("", ".", "..") and "/" not in base


def derived_id(length: int, *parts: object) -> str:
    """``length`` bytes of a hash of ``parts`` in hexadecimal, never all zeros: ids of
    OpenTelemetry's traces and spans, which recorder and readers derive alike."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    found = hashlib.blake2b(text, digest_size=length).hexdigest()
    return found if found.strip("0") else found[:-1] + "1"


def job_trace_id(job: str) -> str:
    """The trace of a job that runs under no TRACEPARENT: the same for all attempts and ranks."""
    return derived_id(16, "disttrace", job)


def process_span_id(trace: str, process: str) -> str:
    """The root span of a process in ``trace``."""
    return derived_id(8, trace, "process", process)
