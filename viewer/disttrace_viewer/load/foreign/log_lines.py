"""What single lines of a job's log say: of NCCL's watchdog, from torch 2.0 on, and of torchrun.

Before each may stand anything. ``[rank7]:`` is the global rank (torch 2.2 and later),
``[default7]:`` torchrun's, of its host; ``[Rank 1]`` inside of a line is that in a group, of which
older versions do not say which.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

KNOWN = re.compile(
    rb"ProcessGroupNCCL|WorkNCCL\(|NCCL work|watchdog|\[rank\d+\]:|Root Cause \(first observed"
)
"""In a file that may hold such lines."""
DEFAULT = ("0", "default_pg")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"\[rank(\d+)\]:")
_LOCAL = re.compile(r"\[default(\d+)\]:")
_TIME = re.compile(r"\[[EWIF](\d{1,2})(\d{2}) (\d{2}):(\d{2}):(\d{2})\.(\d+)")
_INNER = re.compile(
    r"\[PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(]+))?(?: ?\((?P<desc>[^)]{0,200})\))?"
    r" Rank (?P<of>\d+)\]"
    r"|\[Rank (?P<bare>\d+)\]"
)
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w{1,60})(?:, NumelIn=(\d{1,20}))?"
    r"(?:, NumelOut=(\d{1,20}))?.{0,200}?\) ran for (\d+) milliseconds"
)
_SEQ = re.compile(r"(?:at work(?: sequence id)?|(?:at|Timeout at) NCCL work): (\d+)")
_COUNTS = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+),(?: last started [^\[]{0,100}?,)?"
    r" last completed (?:NCCL )?work: (-?\d+)"
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
"""Numbers above were never set: what stood in memory (torch 2.3), or -1 without its sign."""
_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_CAUSE_RANK = re.compile(r"\brank\s{2,}: (\d+)\b")
_CAUSE_CODE = re.compile(r"\bexitcode\s+: (-?\d+)\b")


@dataclass(frozen=True, slots=True)
class Work:
    """An operation that ran into its time-out."""

    seq: int
    op: str
    elements: int | None
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Group:
    """What a line calls its group; ``local``: by a number of that process only."""

    name: str
    desc: str
    local: bool = False

    @property
    def is_default(self) -> bool:
        """Whether all ranks are in it."""
        return (self.name, self.desc) == DEFAULT


@dataclass(frozen=True, slots=True)
class Said:
    """One line of a watchdog. ``rank``: the global one, where the line tells it; ``inner`` that in
    the group; ``at``: the operation that its counts are about. Counts: None where never set.
    """

    rank: int | None
    inner: int
    group: Group | None
    work: Work | None
    at: int | None
    enqueued: int | None
    completed: int | None
    counted: bool
    at_ns: int


def plain(line: str) -> str:
    """A line without colours."""
    return _COLOUR.sub("", line)


def prefix(line: str, pattern: re.Pattern[str] = _RANK) -> tuple[int, str] | None:
    """The rank before a line, and what follows; None where no rank stands there."""
    found = pattern.search(line)
    return None if found is None else (int(found[1]), line[found.end() :])


def local_prefix(line: str) -> tuple[int, str] | None:
    """The same of torchrun's ``[default7]:``, a rank of its host."""
    return prefix(line, _LOCAL)


def watchdog(line: str, year: int) -> Said | None:
    """What a watchdog says; None for any other line."""
    inner = _INNER.search(line)
    if inner is None:
        return None
    work, counts, seq = _WORK.search(line), _COUNTS.search(line), _SEQ.search(line)
    if not (work or counts):
        return None
    own = prefix(line)
    at = int(seq[1]) if seq else None
    enqueued, completed = map(_set, counts.groups()) if counts else (None, None)
    return Said(
        rank=None if own is None else own[0],
        inner=int(inner["of"] or inner["bare"]),
        group=_group(inner),
        work=None if work is None else _work(work),
        at=at if at is not None and at < _LARGEST else None,
        enqueued=enqueued,
        completed=completed,
        counted=counts is not None,
        at_ns=_at(line, year),
    )


class Cause:
    """Reads what torchrun calls the first failure, line by line."""

    def __init__(self) -> None:
        self._open = False
        self._rank: int | None = None

    def take(self, line: str) -> tuple[int, int] | None:
        """Rank and code of a failure, once they have come."""
        if _CAUSE.search(line):
            self._open, self._rank = True, None
        elif self._open and (rank := _CAUSE_RANK.search(line)):
            self._rank = int(rank[1])
        elif self._open and self._rank is not None and (code := _CAUSE_CODE.search(line)):
            self._open = False
            return self._rank, int(code[1])
        return None


def _group(inner: re.Match[str]) -> Group | None:
    if inner["bare"]:
        return None
    if inner["desc"] == DEFAULT[1] or (inner["pg"] == "0" and not inner["guid"]):
        return Group(*DEFAULT)
    if inner["guid"]:
        return Group(inner["guid"], inner["desc"] or "")
    return Group(inner["pg"], inner["desc"] or "", local=True)


def _work(found: re.Match[str]) -> Work:
    elements = int(found[3]) if found[3] else None
    if elements is not None and elements >= _LARGEST:
        elements = None
    op = _OPS.get(found[2], found[2].lower())
    return Work(int(found[1]), op, elements, int(found[5]) * 1_000_000)


def _set(text: str) -> int | None:
    return number if 0 <= (number := int(text)) < _LARGEST else None


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
