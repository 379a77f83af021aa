"""What the kernel of this host shows of ranks that others wait for: whether these are at work.

Of each the time on processors, bytes and faults of pages between two looks, of the processes that
it started as well; and where more wants to run than there are processors, the time that it waited
for one. That, and which processes are gone or stopped, is written into their journals, where every
reader finds it. Of processes for which none waits nothing is looked at.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from disttrace.journal.format import DEF, SEEN_GONE, STOPPED, definitions_name, opened_own
from disttrace.journal.proc import ROOT, opened, stat
from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.attach.processes import of_threads
from disttrace_viewer.companion.machine import HostTrouble
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass

Threads = Mapping[str, tuple[int, int]]
"""Per thread the nanoseconds that it ran, and that it waited in a run queue."""


def threads(pid: int) -> Threads:
    """What ``/proc/PID/task/*/schedstat`` says; nothing where there is no such file."""
    found = {}
    for name, text in of_threads(pid, "schedstat"):
        with suppress(ValueError):
            ran, waited, _ = map(int, text.split())
            found[name] = ran, waited
    return found


APART_S, OVER_S = 1.0, 5.0
"""Two looks that are compared are at least so far apart, and so far where there were any before."""
RAN, WANTED = 0.01, 0.25
"""Parts of the time for which a thread that computes has run, and has run or waited for a
processor: of many more of them than processors each runs seldom."""
MOST_FAMILY = 512
_TICK_NS = 10**9 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Of one process, counted from its start."""

    counts: Mapping[str | int, int]
    """By name, as the record has it, and bytes received by socket; what is hidden is not there."""
    threads: Threads
    failed: bool = False
    """It has ended badly, and its parent did not ask how."""


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    """By the steady clock."""
    unix_ns: int
    family: Mapping[int, _Taken]


class Activities:
    """Looks at ranks of this host, and reports what they did since a look some seconds before."""

    def __init__(self) -> None:
        self._looks: dict[str, list[_Look]] = {}

    def look(
        self, ranks: Sequence[tuple[Process, int]], ports: Container[int | None]
    ) -> Iterator[tuple[Process, dict[str, object]]]:
        """The ranks of which there is something to write, with the record; ``ranks`` with the time
        since which they communicate no more. Bytes by ``ports`` are a store's, and no work."""
        received = _received(ports) if ranks else {}
        for one, since_ns in ranks:
            now = _Look(time.monotonic(), time.time_ns(), _family(one.pid, received))
            known = [look for look in self._looks.get(one.id, ()) if look.unix_ns >= since_ns]
            apart = [look for look in known if now.at_s - look.at_s >= APART_S]
            if now.family and apart:
                long = [look for look in apart if now.at_s - look.at_s >= OVER_S]
                then = long[-1] if long else apart[0]
                t = time.perf_counter_ns() - one.t0
                found = _between(then.family, now.family, now.at_s - then.at_s, one.pid)
                yield one, {DEF: "activity", "t": t, **found}
                known = known[known.index(then) :]
            if now.family and len(apart) == len(known):
                known.append(now)
            self._looks[one.id] = known

    def lacks(self, ranks: Sequence[tuple[Process, int]]) -> bool:
        """Whether there was no look at one of them since then."""
        return any(
            not any(look.unix_ns >= since_ns for look in self._looks.get(one.id, ()))
            for one, since_ns in ranks
        )


def _between(
    before: Mapping[int, _Taken], after: Mapping[int, _Taken], over_s: float, rank: int | None
) -> dict[str, object]:
    total: Counter[str] = Counter()
    busy = beside = others = failed = hidden = False
    for pid, now in after.items():
        then = before.get(pid, _Taken({}, {}))
        for key, count in now.counts.items():
            more = max(0, count - then.counts.get(key, 0))
            total[key if isinstance(key, str) else "received"] += more
            if key == _CHILDREN or (key == "cpu" and pid != rank):
                total[_OTHERS] += more
        computes = _computes(then.threads, now.threads, over_s)
        if pid == rank:
            busy, beside = bool(computes), bool(computes - {str(pid)})
            hidden = "read" not in now.counts
        else:
            others |= bool(computes)
            failed |= now.failed
    others |= total[_OTHERS] >= WANTED * over_s * 1e9
    cpu_ns = total["cpu"] + total[_CHILDREN]
    record: dict[str, object] = {"over": round(over_s * 1e9), "cpu": cpu_ns}
    record["faults"] = total["faults"]
    record |= {"received": total["received"]} if total["received"] else {}
    record |= {} if hidden else {name: total[name] for name in ("read", "written")}
    did = {"busy": busy, "beside": beside, "others": others, "failed": failed}
    return record | {name: 1 for name, done in did.items() if done}


def _computes(before: Threads, after: Threads, over_s: float) -> set[str]:
    """The threads that do."""
    found = set()
    for thread, (ran, waited) in after.items():
        first = before.get(thread, (0, 0))
        used, wanted = ran - first[0], ran + waited - sum(first)
        if used >= RAN * over_s * 1e9 and wanted >= WANTED * over_s * 1e9:
            found.add(thread)
    return found


def _family(pid: int | None, received: Mapping[int, int]) -> dict[int, _Taken]:
    """A process and all that it started, but for ourselves."""
    found: dict[int, _Taken] = {}
    waiting = [] if pid is None else [pid]
    ours = {os.getpid(), os.getppid()}
    while waiting and len(found) < MOST_FAMILY:
        one = waiting.pop()
        if one in found or one in ours:
            continue
        try:
            found[one] = _taken(one, received)
        except (OSError, ValueError):
            continue  # it has ended, or is hidden
        for _, children in of_threads(one, "children"):  # some kernels have no such file
            waiting += map(int, children.split())
    return found


def _taken(pid: int, received: Mapping[int, int]) -> _Taken:
    seen = stat(pid)
    counts: dict[str | int, int] = {
        "cpu": seen.cpu_ticks * _TICK_NS,
        _CHILDREN: seen.children_ticks * _TICK_NS,
        "faults": seen.faults,
    }
    with (
        suppress(OSError, ValueError, KeyError),
        open(f"{ROOT}/{pid}/io", encoding="ascii") as file,
    ):
        io = dict(line.split(": ") for line in file.read().splitlines())
        counts |= {"read": int(io["rchar"]), "written": int(io["wchar"])}
    for name in opened(pid) if received else ():
        if name.startswith("socket:[") and (socket_number := int(name[8:-1])) in received:
            counts[socket_number] = received[socket_number]
    return _Taken(counts, threads(pid), seen.state == "Z" and bool(seen.status))


_CHILDREN, _OTHERS = "children", "others"
"""Of children that have ended; of all processes but the rank's own."""


_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301  # of <linux/netlink.h> and <linux/sock_diag.h>
_HEAD, _ASK = struct.Struct("=IHHII"), struct.Struct("=BBBBI48x")
_MESSAGE = struct.Struct("=4x2s2s60xI")
"""``inet_diag_msg``: both ports and the inode."""
_INFO, _BYTES = 2, 128
"""``INET_DIAG_INFO``, and where ``tcp_info`` has ``tcpi_bytes_received``."""


def _received(but: Container[int | None]) -> dict[int, int]:
    """Bytes received by each connection of this host, by inode; none where the kernel is silent."""
    found: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as ask:
                ask.settimeout(APART_S)
                body = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << 1)
                ask.send(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _DUMP, 0, 0) + body)
                while _take(ask.recv(1 << 20), but, found):
                    pass
        except (OSError, AttributeError, struct.error):
            continue
    return found


def _take(data: bytes, but: Container[int | None], found: dict[int, int]) -> bool:
    while data:
        length, kind, *_ = _HEAD.unpack_from(data)
        if kind != _BY_FAMILY or length < _HEAD.size + _MESSAGE.size:
            return False
        *ports, inode = _MESSAGE.unpack_from(data, _HEAD.size)
        at = _HEAD.size + _MESSAGE.size
        while at + 4 <= length:
            size, name = struct.unpack_from("=HH", data, at)
            ours = any(int.from_bytes(port, "big") in but for port in ports)
            if name == _INFO and size >= 4 + _BYTES + 8 and not ours:
                found[inode] = struct.unpack_from("=Q", data, at + 4 + _BYTES)[0]
            at += max(4, size + 3 & ~3)
        data = data[length + 3 & ~3 :]
    return True


def note(processes: Sequence[Process], but: Container[str] = frozenset()) -> None:
    """Look at those of this host; each thing worth keeping is in their journals once then. Nothing
    is written of those with the ids ``but``, which only count among the living."""
    seen = [(one, look(one)) for one in processes]
    living = sum(bool(found.alive) and not one.is_agent for one, found in seen)
    for one, found in seen:
        if one.id in but:
            continue
        if found.alive is False and one.reported is None and not _known(one, SEEN_GONE):
            if one.exit is None or (one.exit.code is None and found.code is not None):
                _write(one, SEEN_GONE, found.code, living)
        elif found.is_stopped and not _known(one, STOPPED):
            _write(one, STOPPED, None, living - 1)


def tell(processes: Sequence[Process], answers: Iterable[HostTrouble]) -> None:
    """Write reports on this host into the journal of the process named, else of the lowest rank."""
    own = sorted((p for p in processes if p.pid), key=lambda p: (p.rank is None, p.rank, p.pid))
    for one in answers:
        named = [p for p in own if p.pid == one.pid]
        for process in (named or own)[:1]:
            record = {
                DEF: "trouble",
                "t": time.perf_counter_ns() - process.t0,
                "ago": max(0, round((time.time() - one.at_s) * 1e9)),
                "by": one.by,
                "where": one.where,
                "name": one.name,
                "code": one.code,
                "mine": 1 if named else None,
                "text": one.text,
            }
            append(process, {key: value for key, value in record.items() if value is not None})


def _known(process: Process, state: str) -> bool:
    """Whether it was noted, and the process has given no sign of life since."""
    return any(one.state == state and one.t_ns >= process.last_ns for one in process.sightings)


def _write(process: Process, state: str, code: int | None, others: int) -> None:
    record = {DEF: "seen", "t": time.perf_counter_ns() - process.t0, "state": state}
    if code is not None:
        record["code"] = code
    append(process, {**record, "others": others})


def append(process: Process, record: Mapping[str, Any]) -> None:
    """Add a record to a journal that is there; its process may have been killed within a line."""
    path, line = definitions_name(process.paths[0]), orjson.dumps(record) + b"\n"
    try:
        with opened_own(path, os.O_RDWR | os.O_APPEND) as fd:
            end = os.fstat(fd).st_size
            torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
            os.write(fd, b"\n" + line if torn else line)
    except OSError:
        pass  # deleted meanwhile, or the disk is full: then it is not known later
