"""What ``ncclras -v`` printed of a job, text or JSON: how many collectives each rank has launched.

One output is a moment of a job that may be getting on. Of several, the newest is judged, and ranks
have waited since the oldest one with the same counts. Text names those ranks by which it tells
who differs (``src/ras/client_support.cc`` of NCCL); from 2.26 on kinds are counted by themselves.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.records import COUNTS_LACK, Records
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.plain_text import whole as number
from disttrace_viewer.trace.values import dataclass, field

NAME = "NCCL RAS"
MOST_BYTES = 64 << 20
MOST_RANKS = 1 << 20
_APART_NS = 1_000_000_000
"""Outputs that are less apart may be copies with the times of copying."""
LACKS = (*COUNTS_LACK, "order")
OPS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather_into_tensor",
    "ReduceScatter": "reduce_scatter_tensor", "AlltoAll": "all_to_all_single",
    **{name: name.lower() for name in ("Broadcast", "Reduce", "Gather", "Scatter")},
}  # fmt: skip
"""NCCL's names of collectives, as those of torch's public functions."""
_PART = re.compile(r"^#\d+-\d+ \((\w+)\) ([A-Z]+)$")
_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_SOME = re.compile(r"(\d{1,10}) ranks have (?:launched up to operation (\d+)|not launched)")
_ONE = re.compile(r"Rank (\d+) has (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(r"Rank (\d+) -- ")
_SILENT = re.compile(r"^  Process (\d{1,10}) on node (\S{1,200}) managing GPU", re.MULTILINE)
"""Of what RAS misses the answer."""
_MISSING = re.compile(r"The missing ranks?: ([\d,]+)")


@dataclass(slots=True)
class _Output:
    """What one output holds of the communicator of all ranks. Times are unix nanoseconds."""

    path: str
    form: str
    at_ns: int
    name: str = ""
    size: int = 0
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)


def recognises(path: str, head: bytes) -> bool:
    """By the title of the first table, or the first keys."""
    if head.lstrip().startswith(b"{"):
        return b'"nccl_version"' in head and b'"communicators"' in head
    return b"Job summary\n===" in head and b"per process" in head


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per rank of the newest output."""
    every = sorted(
        (one for path in paths if (one := _output(path, problems)) is not None),
        key=lambda one: one.at_ns,
    )
    if not every:
        return
    newest = every[-1]
    since_ns = newest.at_ns
    for one in reversed(every):
        if (one.form, one.name, one.counts) != (newest.form, newest.name, newest.counts):
            break
        since_ns = one.at_ns
    for rank in sorted(set(range(newest.size)) - newest.missing):
        yield _journal(newest, rank, since_ns)


def _output(path: str, problems: Problems) -> _Output | None:
    try:
        data, beyond = files.read(path, MOST_BYTES)
        as_json = data.lstrip().startswith(b"{")
        one = _Output(path, "json" if as_json else "text", files.modified_ns(path))
        if beyond:
            data = data[: data.rfind(b"\n")]
        found = _of_json(one, data) if as_json else _of_text(one, data.decode("utf-8", "replace"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problems.add(path, "unreadable", f"is no whole output of ncclras ({error!r}); left out.")
        return None
    if found is None:
        silent = sorted({*_SILENT.findall(data.decode("utf-8", "replace"))})
        text = "shows no difference between the ranks of all GPUs' communicator: no rank is behind."
        if silent:
            listed = ", ".join(f"process {pid} on node {node}" for pid, node in silent[:8])
            text = f"has no data of {listed}, and shows no other difference between ranks."
        problems.add(path, "silent", text)
        return None
    return found


def _of_json(one: _Output, data: bytes) -> _Output | None:
    value = orjson.loads(data)
    stamp = time.strptime(value["timestamp"], "%Y-%m-%d %H:%M:%S")
    one.at_ns = calendar.timegm(stamp) * 1_000_000_000
    whole = max(value["communicators"], key=lambda comm: int(comm["size"]), default=None)
    if whole is None or not 0 < int(whole["size"]) <= MOST_RANKS:
        return None
    one.name, one.size = str(whole["hash"]), int(whole["size"])
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for rank in whole["ranks"]:
        for kind, count in rank["collective_counts"].items():
            counts[str(kind)][_place(rank["rank"], one.size)] = int(count)
    for rank in whole.get("missing_ranks", ()):
        one.missing.add(_place(rank["rank"], one.size))
    one.counts = {kind: of for kind, of in counts.items() if len({*of.values()}) > 1}
    return one if one.counts else None


def _of_text(one: _Output, text: str) -> _Output | None:
    """Of a communicator that has as many ranks as the job has GPUs: its ranks are global ones."""
    row = text.partition("\nCommunicators...")[0].rstrip().rpartition("\n")[2].split()
    gpus = number(row[-1]) if row else None  # the last column of the first table
    parts: dict[str, list[str]] = defaultdict(list)
    current: list[str] = []
    for line in text.replace("\r", "").split("\n"):
        if head := _PART.match(line):
            current = parts[head[1]]
        elif not line.startswith(" "):
            current = current if not line else []
        else:
            current.append(line)
    for name, lines in parts.items():
        missing, counts = _counted(lines)
        answered = max((sum(of.values()) for _, of in counts.values()), default=0)
        size = answered + len(missing)
        if not counts or size != gpus or size > MOST_RANKS:
            continue
        one.name, one.size, one.missing = name, size, missing
        for kind, (named, of) in counts.items():
            rest = of - Counter(named.values())
            if len(rest) > 1:
                raise ValueError("who differs is not told; ask with ncclras -v")
            for count in rest:
                others = set(range(size)) - missing - set(named)
                named.update(dict.fromkeys(others, count))
            one.counts[kind] = {_place(rank, size): count for rank, count in named.items()}
        return one
    return None


def _counted(
    lines: Sequence[str],
) -> tuple[set[int], dict[str, tuple[dict[int, int], Counter[int]]]]:
    """The missing ranks; and by kind the counts of ranks that are named, and of how many of all."""
    missing: set[int] = set()
    counts: dict[str, tuple[dict[int, int], Counter[int]]] = {}
    kind, count = None, None
    for line in lines:
        if title := _KIND.search(line):
            kind, count = title[1], None
            counts[kind] = {}, Counter()
        elif lost := _MISSING.search(line):
            missing.update(map(int, lost[1].split(",")))
        elif kind is None:
            if "have different" in line or "reported" in line or "rror" in line:
                kind = ""  # what follows is of another matter
            elif rank := _RANK.search(line):
                missing.add(int(rank[1]))
        elif kind and (some := _SOME.search(line)):
            count = int(some[2] or 0)
            counts[kind][1][count] += int(some[1])
        elif kind and (single := _ONE.search(line)):
            counts[kind][0][int(single[1])] = int(single[2] or 0)
            counts[kind][1][int(single[2] or 0)] += 1
        elif kind and count is not None and (rank := _RANK.search(line)):
            counts[kind][0][int(rank[1])] = count
    return missing, counts


def _place(value: Any, size: int) -> int:
    if type(value) is not int or not 0 <= value < size:
        raise ValueError(f"no rank of {size}: {value!r}")
    return value


def _journal(output: _Output, rank: int, since_ns: int) -> Files:
    timed = output.at_ns - since_ns >= _APART_NS
    records = Records(
        NAME, output.path, rank, world=output.size, base_ns=since_ns - 3_600_000_000_000,
        lacks=LACKS if timed else (*LACKS, "occasion", "stood", "time"),
    )  # fmt: skip
    records.group(1, output.name, range(output.size), backends={"cuda": "nccl"}, default=True)
    behind = {kind: min(of.values()) for kind, of in output.counts.items()}
    ahead = {
        kind: of[rank] - behind[kind]
        for kind, of in output.counts.items()
        if of.get(rank, 0) > behind[kind]
    }
    common = sum(behind.values())
    if common:
        call = records.collective(UNKNOWN_OP, 1)
        records.enqueued(call, since_ns - 1_000_000_000, common, over=True)
    op = OPS.get(next(iter(ahead), ""), UNKNOWN_OP) if len(ahead) == 1 else UNKNOWN_OP
    for beyond in sorted({1, sum(ahead.values())} if ahead else ()):
        call = records.collective(op, 1)
        records.enqueued(call, since_ns + beyond, common + beyond, over=False)
    return records.done(f"{output.path}[rank {rank}]", output.at_ns)
