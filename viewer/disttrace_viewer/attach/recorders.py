"""Flight Recorder's dumps of ranks that run: requested once, of all at the same time.

torch's worker server is found, where the program started one, by what the kernel shows.
``torch.distributed.elastic.control_plane.worker_main`` has it listen at a path, and
``torch.distributed.debug.start_debug_server`` at a port of the kernel's choice. Its threads bear a
name. They are C++ and need no GIL, so they answer for a program that hangs.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from disttrace.journal.proc import ROOT, opened
from disttrace_viewer.attach.processes import Found, environment, path_in, thread_names
from disttrace_viewer.load import files
from disttrace_viewer.load.foreign.dump import MOST_BYTES, Dump, empty, read
from disttrace_viewer.load.foreign.dump_set import in_flight
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.values import dataclass, field, replace

HANDLERS = (
    "dump_nccl_trace_pickle?includestacktraces=false",
    "fr_trace_json",
    "fr_trace_json?backend=nccl2",
)
"""The recorders of NCCL, of gloo (torch 2.13 and later), and of NCCL's new groups (2.15). JSON has
no stacks; with them a first dump costs a process more than a second of a processor.
"""
SERVER_LIMIT_S = 3.0
_LISTENS, _CONNECTED = "0A", "01"
_ANY = "0" * 32
Address = str | tuple[str, int]


class NoAnswer(Exception):  # noqa: N818 - what a process does, no error of ours
    """A worker server that does not answer in time, or with something else."""


def address(pid: int) -> Address | None:
    """Path or port of a process's worker server; None where there is none that is certain."""
    try:
        kinds = (file.partition(":") for file in opened(pid))
        own = {inode.strip("[]") for kind, _, inode in kinds if kind == "socket"}
        paths = list(_paths(pid, own))
        found_at = environment(pid).get("TORCH_WORKER_SERVER_SOCKET")
        if found_at is not None and found_at in paths:
            return path_in(pid, found_at)
        if b"pt_workerserver" not in thread_names(pid):
            return None
        if paths:
            return path_in(pid, paths[0]) if len(paths) == 1 else None
        if os.stat(f"{ROOT}/{pid}/ns/net").st_ino != os.stat(f"{ROOT}/self/ns/net").st_ino:
            return None
        ports = _ports(pid, own)
        return ("::1", ports[0]) if len(ports) == 1 else None
    except OSError:
        return None


def dumps(where: Address, pid: int) -> list[bytes | None]:
    """What each of the handlers of a process says; None of one that its torch does not have. Raises
    NoAnswer: who is not answered once asks no more.
    """
    until = time.monotonic() + SERVER_LIMIT_S
    return [_requested(where, pid, handler, until) for handler in HANDLERS]


def _requested(where: Address, pid: int, handler: str, until: float) -> bytes | None:
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    data = bytearray()
    try:
        with _connected(where, until) as connection:
            if isinstance(where, str):  # of ranks with one path, the last one has it
                size = struct.calcsize("3i")
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                if struct.unpack("3i", peer)[0] != pid:
                    raise NoAnswer("does not listen where it says (another process does)")
            connection.sendall(request.encode() + b"Connection: close\r\n\r\n")
            while len(data) <= MOST_BYTES:
                connection.settimeout(_left(until))
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                data += piece
    except TimeoutError as error:
        raise NoAnswer(f"does not answer within {SERVER_LIMIT_S:.0f} s") from error
    except OSError as error:
        raise NoAnswer(f"does not answer ({error.strerror or type(error).__name__})") from error
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status == [b"404"]:
        return None
    if status != [b"200"] or len(data) > MOST_BYTES:
        raise NoAnswer("answers with something else than a dump")
    return body


def _connected(where: Address, until: float) -> socket.socket:
    family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(until))
        if isinstance(where, str):
            place = os.open(where, os.O_PATH | os.O_CLOEXEC)  # a path may be too long for a socket
            try:
                connection.connect(f"{ROOT}/self/fd/{place}")
            finally:
                os.close(place)
        else:
            connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return connection


def _left(until: float) -> float:
    """Seconds. Raises TimeoutError where there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _paths(pid: int, own: set[str]) -> Iterator[str]:
    """Of the sockets with a path the ones at which a process listens."""
    with open(f"{ROOT}/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(maxsplit=7)
            if len(fields) == 8 and fields[6] in own and int(fields[3], 16) & 0x10000:
                yield fields[7]


def _ports(pid: int, own: set[str]) -> list[int]:
    """Ports at which only this process listens, and to which none is connected (as to a store)."""
    listening, used = set(), set()
    with open(f"{ROOT}/{pid}/net/tcp6", encoding="ascii") as file:
        for line in list(file)[1:]:
            fields = line.split()
            host, _, port = fields[1].rpartition(":")
            if fields[3] == (_LISTENS if fields[9] not in own else _CONNECTED):
                used.add(int(port, 16))
            elif fields[3] == _LISTENS and host == _ANY:
                listening.add(int(port, 16))
    store = whole(environment(pid).get("MASTER_PORT", ""))
    return sorted(listening - used - {store})


@dataclass(frozen=True, slots=True)
class Dumped:
    """The dumps by pid, as of one moment; none unless there is one of each process."""

    dumps: Mapping[int, Dump] = field(default_factory=dict)
    at_ns: int = 0
    trouble: str | None = None


NOTHING = Dumped()


def ask(found: Sequence[Found]) -> Dumped:
    """What the recorders of these processes hold, where they take a request."""
    at_ns = time.time_ns()
    with ThreadPoolExecutor(max_workers=64) as pool:
        answers = dict(zip((o.pid for o in found), pool.map(_ask, found), strict=True))
    if all(one is None for one in answers.values()):
        return Dumped(trouble="none of these ranks has a recorder that can be asked.")
    alone = "so the verdict is by stacks alone, without sequence numbers"
    for pid, answer in answers.items():
        if isinstance(answer, str):
            return Dumped(trouble=f"process {pid} {answer}, {alone}.")
    mute = [pid for pid, answer in answers.items() if answer is None]
    if mute:
        some = f"process{'es' * (len(mute) > 1)} {', '.join(map(str, mute[:8]))}"
        return Dumped(
            trouble=f"other ranks have a worker server of torch, but not {some}, {alone}."
        )
    return _chosen({pid: a for pid, a in answers.items() if isinstance(a, list)}, at_ns, alone)


def _ask(one: Found) -> list[bytes | None] | str | None:
    """What a process's recorders hold, NCCL's first; a clause: no answer; None: none to ask."""
    where = address(one.pid)
    try:
        return None if where is None else dumps(where, one.pid)
    except NoAnswer as error:
        return f"has a worker server of torch, which {error}"


def _chosen(answers: Mapping[int, list[bytes | None]], at_ns: int, alone: str) -> Dumped:
    """The dumps of the recorder that holds what has been in flight for longest: that of NCCL and
    that of gloo have numbers of their own, also in a group that has both. None where nothing is in
    flight: what is waited for is in no recorder.
    """
    problems = Problems()
    best: tuple[int, dict[int, Dump]] | None = None
    for number in range(len(HANDLERS)):
        dumps = {pid: _dump(pid, of[number], at_ns, problems) for pid, of in answers.items()}
        since = min(
            (e.created_ns for d in dumps.values() for e in d.entries if in_flight(d, e)),
            default=None,
        )
        if since is not None and (best is None or since < best[0]):
            best = since, dumps
    lost = next((p.sentence for p in problems.found() if p.kind != "foreign"), None)
    if lost is not None:
        return Dumped(trouble=f"{lost.removesuffix('.')}, {alone}.")
    return Dumped(best[1], at_ns) if best is not None else NOTHING


def _dump(pid: int, data: bytes | None, at_ns: int, problems: Problems) -> Dump:
    """A process's dump as of a moment: what it enqueued later, others may have as well."""
    path = f"the Flight Recorder of process {pid}"
    files.hold(path, data or b"", at_ns)
    dump = read(path, problems) if data else None
    if dump is None:
        return empty(path, at_ns)
    if dump.lost is not None:  # the newest operations may be what is lost
        problems.add(path, "torn", dump.lost)
    return replace(dump, entries=[one for one in dump.entries if one.created_ns <= at_ns])
