"""torch's worker server, where the program started one: found by what the kernel tells, and asked.

``torch.distributed.elastic.control_plane.worker_main`` has it listen at a path, and
``torch.distributed.debug.start_debug_server`` at a port of the kernel's choice. Its threads bear a
name. They are C++ and need no GIL, so they answer for a program that hangs.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

from disttrace.journal.proc import ROOT, opened
from disttrace_viewer.attach.processes import environment, path_in, thread_names
from disttrace_viewer.load.foreign.dumps.dump import MOST_BYTES
from disttrace_viewer.trace.plain_text import whole

VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
HANDLERS = (
    "dump_nccl_trace_pickle?includestacktraces=false",
    "fr_trace_json",
    "fr_trace_json?backend=nccl2",
)
"""The recorders of NCCL, of gloo (torch 2.13 and later), and of NCCL's new groups (2.15). JSON has
no stacks; with them a first dump costs a process more than a second of a processor.
"""
LIMIT_S = 3.0
_THREAD = b"pt_workerserver"
_LISTENS, _CONNECTED = "0A", "01"
_ANY = "0" * 32
_FOUND = b"200"
_ABSENT = b"404"
Address = str | tuple[str, int]


class NoAnswer(Exception):  # noqa: N818 - what a process does, no error of ours
    """A worker server that does not answer in time, or with something else."""


def address(pid: int) -> Address | None:
    """Where a process's worker server listens: a path or a port; None where there is none, or where
    nobody can tell which of its ports it is.
    """
    try:
        own = _sockets(pid)
        paths = list(_paths(pid, own))
        told = environment(pid).get(VARIABLE)
        if told is not None and told in paths:
            return path_in(pid, told)
        if _THREAD not in thread_names(pid):
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
    until = time.monotonic() + LIMIT_S
    return [_asked(where, pid, handler, until) for handler in HANDLERS]


def _asked(where: Address, pid: int, handler: str, until: float) -> bytes | None:
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    said = bytearray()
    try:
        with _connected(where, until) as connection:
            if isinstance(where, str) and _listener(connection) != pid:
                raise NoAnswer("does not listen where it says (another process does)")
            connection.sendall(request.encode() + b"Connection: close\r\n\r\n")
            while len(said) <= MOST_BYTES:
                connection.settimeout(_left(until))
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                said += piece
    except TimeoutError as error:
        raise NoAnswer(f"does not answer within {LIMIT_S:.0f} s") from error
    except OSError as error:
        raise NoAnswer(f"does not answer ({error.strerror or type(error).__name__})") from error
    head, _, body = bytes(said).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status == [_ABSENT]:
        return None
    if status != [_FOUND] or len(said) > MOST_BYTES:
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


def _listener(connection: socket.socket) -> int:
    """The process at the other end: of ranks that were told one path, the last one has it."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", told)[0]
    return pid


def _left(until: float) -> float:
    """Seconds. Raises TimeoutError where there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    files = (file.partition(":") for file in opened(pid))
    return {inode.strip("[]") for kind, _, inode in files if kind == "socket"}


def _paths(pid: int, own: set[str]) -> Iterator[str]:
    """Of the sockets with a path the ones at which a process listens."""
    with open(f"{ROOT}/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(maxsplit=7)
            if len(fields) == 8 and fields[6] in own and int(fields[3], 16) & 0x10000:
                yield fields[7]


def _ports(pid: int, own: set[str]) -> list[int]:
    """Ports of all addresses at which a process listens, and nobody else does; and nobody is
    connected, for a store has its clients.
    """
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
