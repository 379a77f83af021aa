"""What processes, groups and places are called in a report, and which lane each process has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Group, Trace
from disttrace_viewer.trace.process import Process, Stack
from disttrace_viewer.wording.quantities import few, file_name, spans

LANES = 8
"""More lanes than these do not fit beside the text in 80 columns: they fold."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A column of the picture: one rank, or several neighbours where there are many."""

    label: str
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names for one trace; ``letters`` tell jobs apart where there are several."""

    trace: Trace
    letters: Mapping[str, str]
    short: tuple[str, ...]
    """Per process what heads its lane: ``0``, ``B1``, ``agent``, ``1'`` for a child of rank 1."""

    def process(self, index: int) -> str:
        """``rank 0``, ``B rank 1``, ``agent``, ``child of rank 1``."""
        process = self.trace.processes[index]
        letter = self.letters.get(process.job, "")
        lead = f"{letter} " if letter else ""
        if process.rank is not None:
            again = f" (attempt {process.attempt})" if process.attempt else ""
            return f"{lead}rank {process.rank}{again}"
        parent = self.trace.parent_of(process)
        if process.role == "child" and parent is not None and parent.rank is not None:
            return f"{lead}child {process.pid} of rank {parent.rank}"
        return f"{lead}{process.role} {process.pid or process.id[:8]}"

    def processes(self, indices: Iterable[int]) -> str:
        """``ranks 0-3, 7``, ``agent 4711``, ``A ranks 0, 1; B rank 1``."""
        ranks: dict[str, list[int]] = {}
        others: list[str] = []
        for index in indices:
            process = self.trace.processes[index]
            if process.rank is None:
                others.append(self.process(index))
            else:
                ranks.setdefault(self.letters.get(process.job, ""), []).append(process.rank)
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
            alone = sum(self._job(g) == job for g in same) == 1
            letter = self.letters.get(job, "")
            name += f" of {letter}" if letter and alone else f" ({group.id[:4]})"
        return name

    def _job(self, group: Group) -> str | None:
        return self.trace.processes[group.members[0].process].job if group.members else None

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


def names_of(trace: Trace) -> Names:
    """Letters are given to jobs in the order of their start."""
    several = len(trace.jobs) > 1
    letters = {
        job.id: chr(ord("A") + number) if number < 26 else f"J{number}"
        for number, job in enumerate(trace.jobs)
        if several
    }
    short = tuple(_short(trace, p, letters) for p in trace.processes)
    return Names(trace=trace, letters=letters, short=short)


def _short(trace: Trace, process: Process, letters: Mapping[str, str]) -> str:
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
    """Lanes for these processes: by job, agents first, then ranks, then the rest.

    Restarts of a rank share its lane. Where there are more than ``LANES``, neighbours share lanes,
    each headed by the first of them.
    """
    trace = names.trace
    kept: dict[tuple[str, bool, int, str], list[int]] = {}
    for index in wanted:
        process = trace.processes[index]
        key = (
            names.letters.get(process.job, ""),
            not process.is_agent,
            process.rank if process.rank is not None else 1 << 30,
            "" if process.rank is not None else process.id,
        )
        kept.setdefault(key, []).append(index)
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
    described = group.desc if group.desc not in (None, "", "undefined", "default_pg") else None
    if described:
        return f"group {described}"
    if group.name and len(group.name) <= 16:
        return f"group {group.name}"
    if group.name:
        return f"group {group.name[:12]}…"
    return f"{group.type or 'group'} of {group.size or '?'}"


def place(stack: Stack) -> str | None:
    """``train.py:42 step``: the user's line, by the last part of its path, and the function."""
    frame = innermost(stack)
    if frame is None:
        return None
    return f"{file_name(frame.file)}:{frame.line} {frame.function}"
