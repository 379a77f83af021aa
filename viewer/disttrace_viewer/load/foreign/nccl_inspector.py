"""What NCCL's profiler plugin *Inspector* writes (in ``NCCL_INSPECTOR_DUMP_DIR``): a line of JSON
for each collective that ended.

It names communicators by a hash, ranks by their place in one, and counts each kind of collective by
itself. With ``NCCL_INSPECTOR_DUMP_VERBOSE`` there are times; without, a kernel is taken to have
ended with the last of its others, for it lasts until all have come (``plugins/profiler/inspector``
in NCCL). Messages are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.profiles import Call, Profile, journal
from disttrace_viewer.load.foreign.reader import content
from disttrace_viewer.load.foreign.records import OF_NCCL
from disttrace_viewer.load.problems import Problems

NAME = "NCCL Inspector"
MOST_BYTES = 512 << 20
Key = tuple[str, str, int]
"""Communicator, collective, and its number among those."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """One collective of one rank; ``end_us``: when it was written, where no event has its time."""

    took_us: int
    end_us: int
    timed: bool
    bytes: int


@dataclass(slots=True)
class _Process:
    """What one process wrote, in one file or several."""

    path: str
    host: str
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By communicator its rank there, and how many there are."""
    ended: dict[Key, _Ended] = field(default_factory=dict)


def recognises(path: str, head: bytes) -> bool:
    """By the first keys of a line."""
    return head.lstrip().startswith(b"{") and b'"inspector_output_format_version"' in head


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per rank of the communicator that has all of them."""
    processes: dict[tuple[str, int], _Process] = {}
    for path in paths:
        _take(processes, path, problems)
    found = [one for one in processes.values() if one.ended]
    world = _world(found)
    if found and world is None:
        text = "names ranks of no communicator of all processes: whose they are is unknown."
        problems.add(found[0].path, "nameless", text)
        return
    profiles = _profiles(found, world) if world is not None else []
    for one in profiles:
        yield journal(one, profiles, NAME, numbered=True)


def _take(processes: dict[tuple[str, int], _Process], path: str, problems: Problems) -> None:
    damaged = 0
    for line in (content(path, MOST_BYTES, problems) or b"").splitlines():
        try:
            _line(processes, path, orjson.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += bool(line.strip())
    if damaged:
        problems.add(path, "damaged", f"has {damaged} damaged lines; left out.")


def _line(processes: dict[tuple[str, int], _Process], path: str, value: Mapping[str, Any]) -> None:
    head, about, did = value["header"], value["metadata"], value.get("coll_perf")
    if did is None or did["coll"] not in OF_NCCL:
        return
    comm, rank, size = str(head["id"]), int(head["rank"]), int(head["n_ranks"])
    host, pid = str(about["hostname"]), int(about["pid"])
    one = processes.setdefault((host, pid), _Process(path, host))
    place = one.places.setdefault(comm, (rank, size))
    if place != (rank, size) or not 0 <= rank < size < 1 << 24:
        raise ValueError(rank)  # of a process with several devices only one is read
    channels = did.get("event_trace_ts", {}).get("kernel_events") or [{}]
    stopped = max(int(each.get("kernel_stop_ts") or 0) for each in channels)
    one.ended[comm, did["coll"], int(did["coll_sn"])] = _Ended(
        max(0, int(did["coll_exec_time_us"])),
        stopped or int(about["dump_timestamp_us"]),
        stopped > 0,
        max(0, int(did["coll_msg_size_bytes"])),
    )


def _world(processes: Sequence[_Process]) -> str | None:
    """The communicator in which a rank is a global one: it has every process, and the most."""
    shared = set.intersection(*(set(one.places) for one in processes)) if processes else set()
    most = max((size for one in processes for _, size in one.places.values()), default=0)
    whole = sorted(comm for comm in shared if processes[0].places[comm][1] == most)
    return whole[0] if whole else None


def _profiles(processes: Sequence[_Process], world: str) -> list[Profile]:
    ranks = {id(one): one.places[world][0] for one in processes}
    members: dict[str, dict[int, int]] = defaultdict(dict)
    ends: dict[Key, int] = {}
    for one in processes:
        for comm, (place, _) in one.places.items():
            members[comm][place] = ranks[id(one)]
        for key, ended in one.ended.items():
            ends[key] = min(ends.get(key, ended.end_us), ended.end_us)
    numbers: dict[Key, int] = {}
    counted: dict[str, int] = defaultdict(int)
    for key in sorted(ends, key=lambda key: (key[0], ends[key], key[1:])):
        counted[key[0]] += 1
        numbers[key] = counted[key[0]]
    found = []
    for one in processes:
        profile = Profile(one.path, ranks[id(one)], one.places[world][1], one.host, on_device=True)
        for comm, (_, size) in one.places.items():
            known = members[comm]
            whole = tuple(known[place] for place in range(size)) if len(known) == size else ()
            profile.groups[comm] = ("default_pg" if comm == world else "", whole)
        for key, ended in one.ended.items():
            end_us = ended.end_us if ended.timed else ends[key]
            begin_ns = (end_us - ended.took_us) * 1000
            profile.calls.append(
                Call(
                    group=key[0],
                    op=OF_NCCL[key[1]],
                    seq=numbers[key],
                    begin_ns=begin_ns,
                    returned_ns=begin_ns,
                    end_ns=end_us * 1000,
                    took_ns=ended.took_us * 1000,
                    bytes=ended.bytes,
                )
            )
        profile.calls.sort(key=lambda call: call.begin_ns)
        found.append(profile)
    return sorted(found, key=lambda one: one.rank)
