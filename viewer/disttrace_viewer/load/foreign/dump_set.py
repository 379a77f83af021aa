"""The dumps of one job: which files belong together, who is in which group, when they were made.

The rank of a dump stands in its file's name only, and the time at which it was made nowhere: a
file's own time is believed where it fits what is in the dumps, for files are copied. Even then it
tells only whether anything still moved: no wait is longer than what the dumps themselves hold.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from disttrace_viewer.load.foreign.dump import Dump, DumpEntry, rank_in
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.plain_text import plain, whole
from disttrace_viewer.trace.values import dataclass, field, replace, together

DEFAULT = "default_pg"
COPY_NS = 5_000_000
"""A copy of a dump takes less."""
ROUNDED_NS = 2_000_000_000
"""Some file systems and archives keep times of whole seconds, or of every other one."""
STOOD_NS = 10_000_000_000
"""Nothing moves any more where no rank has begun anything for so long."""
LATE_NS = 600_000_000_000
"""A monitor dumps that long after the longest time-out at most, unless the file was copied."""


@dataclass
class DumpSet:
    """Dumps of one job by global rank."""

    dumps: dict[int, Dump]
    folders: set[str] = field(default_factory=set)
    asked_ns: int | None = None
    """When they were requested; None of files that were found."""

    @property
    def newest_ns(self) -> int:
        """When the newest of all operations began."""
        return max((dump.newest_ns for dump in self.dumps.values()), default=0)

    @property
    def base_ns(self) -> int:
        """A second before the oldest of all operations."""
        begun = [d.entries[0].created_ns for d in self.dumps.values() if d.entries]
        return min(begun or [d.modified_ns for d in self.dumps.values()]) - 1_000_000_000

    @property
    def patience_ns(self) -> int:
        """The longest time-out of what is in flight."""
        limits = (e.timeout_ms for d in self.dumps.values() for e in d.entries if in_flight(d, e))
        return max(limits, default=0) * 1_000_000

    @cached_property
    def quiet_ns(self) -> int | None:
        """For how long no rank had begun anything when the first dump was made; None where the
        files' times cannot tell: they do not fit what is in them, or are those of a copy.
        """
        held = [dump for dump in self.dumps.values() if dump.entries]
        late_ns = self.patience_ns + LATE_NS
        fit = all(0 <= d.modified_ns - d.newest_ns <= late_ns for d in held)
        if not held or not fit or self._copied:
            return None
        return max(0, min(d.modified_ns for d in held) - self.newest_ns)

    @property
    def _copied(self) -> bool:
        """Whether the files were written one right after the other, in an order of their folder.
        Ranks write theirs at one time as well, but in an order of chance. Times that are all equal
        are of an archive, or of a copy.
        """
        times = {dump.path: dump.modified_ns for dump in self.dumps.values()}
        rounded = all(ns % 1_000_000_000 == 0 for ns in times.values())
        limit = COPY_NS * len(times) + ROUNDED_NS * rounded
        if len(times) < 2 or max(times.values()) - min(times.values()) > limit:
            return False
        listed = []
        for folder in sorted({os.path.dirname(path) for path in times}):
            with suppress(OSError):
                listed += [os.path.join(folder, name) for name in os.listdir(folder or ".")]
        orders = (sorted(times), [path for path in listed if path in times])
        found = [[times[path] for path in order] for order in orders]
        return any(one in (sorted(one), sorted(one, reverse=True)) for one in found if one)

    @cached_property
    def world(self) -> int:
        """Number of ranks, as far as any dump tells."""
        listed = [max(r, default=-1) + 1 for d in self.dumps.values() for r in d.ranks.values()]
        return max([*listed, max(self.dumps) + 1])

    @cached_property
    def default_name(self) -> str | None:
        """torch's name of the default group."""
        for dump in self.dumps.values():
            for entry in dump.entries:
                if entry.desc == DEFAULT:
                    return entry.group
            for name, desc in dump.descs.items():
                if desc == DEFAULT:
                    return name
        return "0" if any("" in d.ranks or "0" in d.status for d in self.dumps.values()) else None

    @cached_property
    def members(self) -> Mapping[tuple[str, str], tuple[tuple[int, ...], bool]]:
        """Global ranks of each group, by name and description, and whether these are all of them;
        else they are those that were seen in it.
        """
        seen: dict[tuple[str, str], set[int]] = {}
        for rank, dump in self.dumps.items():
            used = dict.fromkeys((entry.group, entry.desc) for entry in dump.entries)
            named = {"", *(name for name, _ in used)}
            listed = [(name, dump.descs[name]) for name in dump.ranks if name not in named]
            for key in (*used, *listed):
                seen.setdefault(key, set()).add(rank)
        found: dict[tuple[str, str], tuple[tuple[int, ...], bool]] = {}
        for (name, desc), ranks in seen.items():
            told = {d.ranks[name] for d in self.dumps.values() if name and d.ranks.get(name)}
            members = next((one for one in told if ranks <= set(one)), ())
            if name == self.default_name or desc == DEFAULT:
                found[name, desc] = (members or tuple(range(self.world)), True)
            elif members and len(told) == 1:
                found[name, desc] = (members, True)
            else:
                found[name, desc] = (tuple(sorted({*ranks, *self._beside(name, ranks)})), False)
        default = self.default_name
        if default is not None and all(name != default for name, _ in found):
            found[default, DEFAULT] = (tuple(range(self.world)), True)
        return found

    def _beside(self, name: str, seen: set[int]) -> Iterable[int]:
        """Who waits in another group, where a group of which no dump lists the members, or that
        other one, was seen by one rank alone: it has more members, and none is anywhere else.
        """
        others = {group: ranks for group, ranks in self._waiting.items() if group != name}
        if sum(map(len, self._waiting.values())) < self.world:
            return ()
        if name not in self._waiting or not all(map(seen.isdisjoint, others.values())):
            return ()
        alone = len(seen) == 1 or any(len(ranks) == 1 for ranks in others.values())
        return {r for ranks in others.values() for r in ranks} if alone else ()

    @cached_property
    def _waiting(self) -> Mapping[str, set[int]]:
        """Ranks by the group of the oldest collective that each has in flight."""
        found: dict[str, set[int]] = {}
        for rank, dump in self.dumps.items():
            flights = (e.group for e in dump.entries if not e.p2p and in_flight(dump, e))
            for group in itertools.islice(flights, 1):
                found.setdefault(group, set()).add(rank)
        return found

    @cached_property
    def starts(self) -> Mapping[str, int]:
        """By name of group, where rings have lost what is older: the number from which all know."""
        found: dict[str, int] = {}
        for dump in self.dumps.values():
            if dump.wrapped:
                first = {e.group: e.seq for e in reversed(dump.entries) if not e.p2p}
                for name, seq in first.items():
                    found[name] = max(found.get(name, 0), seq)
        return found


def in_flight(dump: Dump, entry: DumpEntry) -> bool:
    """Whether an operation was not over when the dump was made.

    The recorder of NCCL sees completion; what its watchdog gave up is ``retired`` and still in
    flight. Where completion is not recorded (gloo), ``retired`` is the only end there is.
    """
    if dump.ends_recorded:
        return entry.state != "completed"
    return not entry.retired


def sets_of(found: Sequence[Dump], problems: Problems) -> list[DumpSet]:
    """The dumps by job, which folders, ranks and times tell; of each rank the newest one."""
    folders = together((os.path.dirname(dump.path), dump) for dump in found)
    sets: list[DumpSet] = []
    for folder, dumps in folders.items():
        by_rank = _by_rank(dumps, problems)
        if not by_rank:
            continue
        one = _newest_incident(DumpSet(by_rank, {folder}), problems)
        for other in sets:
            if _together(one, other):
                other.dumps.update(one.dumps)
                other.folders |= one.folders
                break
        else:
            sets.append(one)
    return [DumpSet(dict(sorted(one.dumps.items())), one.folders) for one in sets]


def _by_rank(dumps: Iterable[Dump], problems: Problems) -> dict[int, Dump]:
    found: dict[int, Dump] = {}
    for dump in sorted(dumps, key=lambda d: (d.newest_ns, d.stacks, d.path)):
        rank = rank_in(dump.path)
        rank = _rank_of_messages(dump) if rank is None else rank
        if rank is None:
            problems.add(
                dump.path,
                "nameless",
                "is a Flight Recorder dump, but neither its name nor its content tells of which"
                " rank; name it ..._RANK, as torch does.",
            )
            continue
        if rank in found:
            problems.add(
                found[rank].path,
                "older",
                f"is another dump of rank {rank}; {plain(os.path.basename(dump.path))}, which is"
                " newer or tells more, was read instead.",
            )
        found[rank] = dump
    return found


def _rank_of_messages(dump: Dump) -> int | None:
    """The group rank in the name of a message, where the default group's tells it."""
    for entry in dump.entries:
        side, _, ends = entry.name.partition(" ")
        if entry.p2p and side in ("send", "recv") and entry.desc == DEFAULT:
            own = ends.partition("->")[0].partition("<-")[0]
            return whole(own)
    return None


def _newest_incident(one: DumpSet, problems: Problems) -> DumpSet:
    """Without the dumps that an earlier incident left in the same folder."""
    limit = max(one.patience_ns, LATE_NS)
    newest = one.newest_ns
    old = {r for r, d in one.dumps.items() if d.newest_ns and newest - d.newest_ns > limit}
    # A rank that waits for longer than its time-out is of this incident all the same.
    old = {r for r in old if not _shares(one.dumps[r], one.dumps, old)}
    for rank in sorted(old):
        problems.add(
            one.dumps[rank].path,
            "older",
            "is of an earlier incident than the newest dumps beside it, by the times of its"
            " operations; left out.",
        )
    return replace(one, dumps={r: d for r, d in one.dumps.items() if r not in old})


def _shares(dump: Dump, dumps: Mapping[int, Dump], old: set[int]) -> bool:
    """Whether its newest collective is one that a newer dump knows from the same time."""
    if not dump.entries:
        return False
    last = dump.entries[-1]
    return any(
        (entry.group, entry.seq, entry.p2p) == (last.group, last.seq, last.p2p)
        and abs(entry.created_ns - last.created_ns) < LATE_NS
        for rank, other in dumps.items()
        if rank not in old
        for entry in other.entries
    )


def _together(one: DumpSet, two: DumpSet) -> bool:
    """Whether two folders hold ranks of one job, as those of several nodes do."""
    apart = abs(one.newest_ns - two.newest_ns)
    limit = max(one.patience_ns, two.patience_ns, LATE_NS)
    return one.dumps.keys().isdisjoint(two.dumps) and apart <= limit
