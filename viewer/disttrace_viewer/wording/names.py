"""What processes, groups, places and operations are called in a report, and lanes of processes."""

from __future__ import annotations

import datetime
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disttrace.journal.code_files import in_package
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.trace.model import Call, Group, JobTrace
from disttrace_viewer.trace.process import Process, Stack
from disttrace_viewer.trace.values import dataclass, together

LANES = 8
"""More lanes than these do not fit beside the text in 80 columns: they fold."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A column of the picture: one rank, or several neighbours where there are many."""

    label: str
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names for one trace; ``letters`` separate jobs where there are several."""

    trace: JobTrace
    letters: Mapping[str, str]
    short: tuple[str, ...]
    """Per process what heads its lane: ``0``, ``B1``, ``agent``, ``1'`` for a child of rank 1."""

    def process(self, index: int) -> str:
        """``rank 0``, ``B rank 1``, ``agent``, ``child of rank 1``."""
        process = self.trace.processes[index]
        text, parent = process.label, self.trace.parent_of(process)
        if process.rank is not None:
            text += f" (attempt {process.attempt})" if process.attempt else ""
        elif process.role == "child" and parent is not None and parent.rank is not None:
            text += f" of rank {parent.rank}"
        letter = self.letters.get(process.job, "")
        return f"{letter} {text}" if letter else text

    def processes(self, indices: Iterable[int]) -> str:
        """``ranks 0-3, 7``, ``agent 4711``, ``A ranks 0, 1; B rank 1``."""
        chosen = [self.trace.processes[index] for index in indices]
        others = [self.process(one.index) for one in chosen if one.rank is None]
        ranks = together(
            (self.letters.get(one.job, ""), one.rank) for one in chosen if one.rank is not None
        )
        found = [
            f"{letter} {_ranks(members)}" if letter else _ranks(members)
            for letter, members in sorted(ranks.items())
        ]
        return "; ".join([*found, *([few(others, 4)] if others else [])])

    def group(self, index: int) -> str:
        """``default group``, ``group 1``, ``group mesh_dp``, ``ProcessGroupGloo of 2``."""
        group = self.trace.groups[index]
        same = [g for g in self.trace.groups if _group_name(g) == _group_name(group)]
        name = _group_name(group)
        if len(same) > 1 and group.members:
            job = self.trace.processes[group.members[0].process].job
            homes = [self.trace.processes[g.members[0].process].job for g in same if g.members]
            alone = homes.count(job) == 1
            letter = self.letters.get(job, "")
            name += f" of {letter}" if letter and alone else f" ({group.id[:4]})"
        return name

    def member(self, group: int, group_rank: int | None) -> str:
        """A member of a group, also one of which no process was seen."""
        if group_rank is None:
            return "?"
        found = self.trace.groups[group]
        known = found.global_rank(group_rank)
        for member in found.members:
            if member.rank == group_rank:
                if known is not None and member.process in self.trace.reported_by:
                    break  # or one that was reported to wait with it
                return self.process(member.process)
        return f"rank {known}" if known is not None else f"group rank {group_rank}"

    def what(self, call: Call, row: Mapping[str, Any]) -> str:
        """What tells a step from others of its name: a key, an address, arguments."""
        key = self.trace.full_key(row["call"], row["key"])
        if key is not None:
            # Run ids take half a line otherwise.
            return _UUID.sub(r"\1…", key if isinstance(key, str) else few(key, 3))
        if call.kind == "constructor":
            return self._constructed(call)
        if call.op == "init_process_group":
            return str(call.args.get("init_method") or "env://")
        if call.op == "rendezvous":
            return str(call.args.get("url") or "")
        ranks = call.args.get("ranks")
        if call.kind == "composed" and isinstance(ranks, list):
            return f"of ranks {spans(ranks)}" if len(ranks) <= 64 else f"of {len(ranks)} ranks"
        return call.name or ""

    def _constructed(self, call: Call) -> str:
        store = self.trace.stores[call.store] if call.store is not None else None
        if store is None:
            return ""
        if call.op.startswith("ProcessGroup"):
            rank, count = call.args.get("rank"), call.args.get("size")
            return "" if rank is None else f"as {rank} of {count}"
        base = self.trace.stores[store.base] if store.base is not None else store
        if base.server:
            return f"listens on {base.host or '*'}:{base.port}"
        place = self.trace.place_by_id.get(store.place)
        if base.type == "TCPStore":
            return f"connects to {base.host}:{base.port}"
        return place.name if place is not None else ""


def names_of(trace: JobTrace) -> Names:
    """Letters are given to jobs in the order of their start."""
    several = len(trace.jobs) > 1
    letters = {
        job.id: chr(ord("A") + number) if number < 26 else f"J{number}"
        for number, job in enumerate(trace.jobs)
        if several
    }
    short = tuple(_short(trace, p, letters) for p in trace.processes)
    return Names(trace=trace, letters=letters, short=short)


def _short(trace: JobTrace, process: Process, letters: Mapping[str, str]) -> str:
    letter = letters.get(process.job, "")
    if process.rank is not None:
        return f"{letter}{process.rank}"
    if process.is_agent:
        return f"{letter}ag"
    parent = trace.parent_of(process)
    if process.role == "child" and parent is not None and parent.rank is not None:
        return f"{letter}{parent.rank}'"
    return f"{letter}{process.role[:2]}"


def lanes_of(names: Names, wanted: Iterable[int]) -> tuple[Lane, ...]:
    """By job, agents first, then ranks; restarts share a lane, and so do neighbours of many."""

    def place(process: Process) -> tuple[str, bool, int, str]:
        """In the order of lanes, and equal for those of one."""
        whose = (1 << 30, process.id) if process.rank is None else (process.rank, "")
        return (names.letters.get(process.job, ""), not process.is_agent, *whose)

    kept = together((place(names.trace.processes[index]), index) for index in wanted)
    single = [tuple(kept[key]) for key in sorted(kept)]
    share = -(-len(single) // LANES) if single else 1
    buckets = [single[i : i + share] for i in range(0, len(single), share)]
    return tuple(
        Lane(names.short[bucket[0][0]], tuple(i for lane in bucket for i in lane))
        for bucket in buckets
    )


def _ranks(members: list[int]) -> str:
    return f"{'rank' if len(set(members)) == 1 else 'ranks'} {spans(members)}"


def _group_name(group: Group) -> str:
    if group.default:
        return "default group"
    if group.described:
        return f"group {group.described}"
    if group.name and len(group.name) <= 16:
        return f"group {group.name}"
    if group.name:
        return f"group {group.name[:6]}…{group.name[-9:]}"
    return f"{group.type or 'group'} of {group.size or '?'}"


def place(stack: Stack) -> str | None:
    """``train.py:42 step``: the user's line, by the last part of its path, and the function."""
    frame = innermost(stack)
    if frame is None:
        return None
    return f"{file_name(frame.file)}:{frame.line} {frame.function}"


_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


ERROR = 110
"""Letters of an error's text that are shown; all of it is in the export and in ``diagnose``."""
_SOURCE = re.compile(r"\[/[^\[\]]{0,250}\] ")


def brief(error: str) -> str:
    """The first line of an error, without the source line of the C++ library, not too long."""
    line = _SOURCE.sub("", error.split("\n")[0]).strip()
    first = line.find(". ")
    if 30 < first < ERROR:
        line = line[:first]
    return line if len(line) <= ERROR else line[: ERROR - 1] + "…"


_LISTED = 4  # parameters, before they are counted
_SECOND = 1_000_000_000
_BYTES = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def duration(ns: int) -> str:
    """``850 ns``, ``12 us``, ``1.23 ms``, ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns < 1_000:
        return f"{ns} ns"
    for unit, size in (("µs", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = ns / size
        if value < 999.5 and (unit != "s" or value < 100):
            return f"{_three_digits(value)} {unit}"
    seconds = round(ns / _SECOND)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds // 60 % 60:02d} min"


def roughly(ns: int) -> str:
    """``45 s``, ``28 min``, ``3 h``, ``7 days``: of what is too long for more to count."""
    seconds = ns // _SECOND
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def offset(ns: int) -> str:
    """Seconds from the start of the job with microseconds: ``+2.872495``."""
    return f"{ns / _SECOND:+.6f}"


def size(count: int) -> str:
    """``16 B``, ``4.10 kB``, ``25.2 MB``."""
    for unit, large in _BYTES:
        if count >= large:
            return f"{_three_digits(count / large)} {unit}"
    return f"{count} B"


def number(count: int, noun: str, many: str | None = None) -> str:
    """``1 worker``, ``4 workers``, ``12,000 operations``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def clock_time(ns: int) -> str:
    """Local time of day with its date: ``2026-03-01 14:02:11``."""
    return datetime.datetime.fromtimestamp(ns // _SECOND).isoformat(sep=" ")


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7; ``0, 1`` for two neighbours."""
    return ", ".join(word for word, _ in _counted_runs(sorted(set(numbers))))


def first_runs(numbers: Sequence[int], most: int) -> tuple[list[str], int]:
    """The first runs of numbers in their order, and how many numbers are in none of them."""
    shown = _counted_runs(numbers)[:most]
    return [word for word, _ in shown], len(numbers) - sum(count for _, count in shown)


def _counted_runs(numbers: Iterable[int]) -> list[tuple[str, int]]:
    """Numbers in their order, each run of three or more as one (``0-3``), and its length."""
    words: list[tuple[str, int]] = []
    for _, places in itertools.groupby(enumerate(numbers), lambda place: place[1] - place[0]):
        run = [number for _, number in places]
        long = len(run) > 2
        words += [(f"{run[0]}-{run[-1]}", len(run))] if long else [(str(n), 1) for n in run]
    return words


def few(items: Sequence[str], limit: int = 8, between: str = ", ") -> str:
    """All items, or the first ones and how many there are more."""
    if len(items) <= limit:
        return between.join(items)
    return f"{between.join(items[:limit])} and {len(items) - limit:,} more"


def parameters(names: Sequence[str]) -> str:
    """``head.bias, head.weight``; of many ``12 parameters of layers.7 (layers.7.up.bias, ...)``."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    below = ".".join(one[0] for one in itertools.takewhile(lambda one: len({*one}) == 1, parts))
    of = f" of {below}" if below else ""
    return f"{len(names):,} parameters{of} ({few(names, _LISTED)})"


def unusual(named: Mapping[int, Sequence[str]]) -> dict[int, tuple[list[str], list[str]]]:
    """What those whose names are not the usual ones, of the most, lack of these, and have
    beyond."""
    ways = Counter(map(tuple, sorted(named.values(), key=len, reverse=True)))
    (usual, _), *_ = ways.most_common()
    return {
        key: ([n for n in usual if n not in {*own}], [n for n in own if n not in {*usual}])
        for key, own in named.items()
        if {*own} != {*usual}
    }


def tensors(dtypes: Sequence[str] | None, shapes: Sequence[Sequence[int]] | None) -> str:
    """``float32[1024]``, ``float32[4] x 3``, ``3 tensors``; empty where nothing is known."""
    if not shapes:
        return ""
    kinds = list(dtypes or ())
    each = [
        f"{kinds[i] if i < len(kinds) else kinds[0] if kinds else ''}"
        f"[{','.join(str(n) for n in shape)}]"
        for i, shape in enumerate(shapes)
    ]
    if len(set(each)) == 1:
        return each[0] if len(each) == 1 else f"{each[0]} x {len(each)}"
    return f"{len(each)} tensors"


def file_name(path: str) -> str:
    """``train.py``; ``lightning/.../ddp.py`` of a package; with what follows it (``:42``)."""
    package = in_package(path)
    if package is None:
        return os.path.basename(path)
    first, *between, last = package.split("/") if "/" in package else ("", package)
    return "/".join(filter(None, (first, "..." if between else "", last)))
