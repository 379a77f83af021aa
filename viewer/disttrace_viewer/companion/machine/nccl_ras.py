"""What NCCL's own service (RAS, from 2.24 on) tells of errors, and of whom it cannot reach.

Its threads in the processes of a job ask each other, whatever the program does. The protocol is of
lines: ``src/ras/client_support.cc`` of NCCL. Only sockets of this job's own processes are asked.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Collection, Iterator

from disttrace.journal.format import DEVICE, HOST, LINK
from disttrace.journal.proc import ROOT, opened
from disttrace_viewer.companion.machine.answer import MOST_TEXT, Answer

BY = "NCCL RAS"
PORT = 28028
_PROTOCOL = b"CLIENT PROTOCOL 2\n"
_MOST = 1 << 20
_LISTEN = "0A"
_PROCESS = re.compile(r"Process (\d+) on node (\S+) managing GPUs? (\S+)")
_REPORTED = re.compile(
    r"Rank (\d+) reported (.{1,100}?) -- GPU (.{1,60}?) managed by process (\d+) on node (\S+)"
)
_TITLE = re.compile(r"^(?:#\d+-\d+ \(\w+\) )?([A-Z]+)$")
_WHERE = {
    "Unhandled CUDA error": DEVICE,
    "System error": LINK,
    "Remote process error": LINK,
}
"""By what a rank reported (``ncclErrorToString`` there); the rest is of the program, or of NCCL."""


def ask(pids: Collection[int], until: float, address: str | None = None) -> list[Answer]:
    """What the service of these processes says by then (monotonic)."""
    host, _, port = (address or os.environ.get("NCCL_RAS_ADDR", "")).rpartition(":")
    place = (host.strip("[]") or "localhost", int(port) if port.isdecimal() else PORT)
    if not is_theirs(place[1], pids):
        return []
    try:
        return read(_conversation(place, until), time.time())
    except (OSError, ValueError):
        return []


def _conversation(place: tuple[str, int], until: float) -> str:
    def left_s() -> float:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    with socket.create_connection(place, timeout=left_s()) as one:

        def line() -> bytes:
            found = b""
            while not found.endswith(b"\n") and len(found) < 1024:
                one.settimeout(left_s())
                if not (piece := one.recv(1024)):
                    break
                found += piece
            return found

        one.sendall(_PROTOCOL)
        if not line().upper().startswith(b"SERVER PROTOCOL "):
            return ""
        one.sendall(b"TIMEOUT 1\n")  # s that it waits for processes that do not answer
        line()
        one.sendall(b"VERBOSE STATUS\n")
        said = b""
        try:
            while len(said) < _MOST:
                one.settimeout(left_s())
                if not (piece := one.recv(1 << 16)):
                    break
                said += piece
        except TimeoutError:
            pass  # what it has said so far is true as well
    return said.decode("utf-8", "replace")


def read(status: str, at_s: float) -> list[Answer]:
    """What a status tells. Different counts of operations are no trouble: journals know better."""
    found: dict[int, Answer] = {}
    title = ""
    for line in status.splitlines():
        if head := _TITLE.match(line):
            title = head[1]
        elif title in ("INCOMPLETE", "DEAD") and (one := _PROCESS.search(line)):
            what = f"{'dead' if title == 'DEAD' else 'no data'}: {line.strip()}"[:MOST_TEXT]
            found[int(one[1])] = Answer(BY, HOST, at_s, what, one[2], None, int(one[1]))
        elif title == "ERROR" and (one := _REPORTED.search(line)) and one[2] in _WHERE:
            where, pid = _WHERE[one[2]], int(one[4])
            name = f"GPU {one[3]} on {one[5]}"
            found.setdefault(
                pid, Answer(BY, where, at_s, line.strip()[:MOST_TEXT], name, None, pid)
            )
    return list(found.values())


def is_theirs(port: int, pids: Collection[int]) -> bool:
    """Whether this port is listened at, and by none but these processes: another job on this host
    has the same one.
    """
    listening = {inode for name in ("tcp", "tcp6") for inode in _listening(name, port)}
    sockets = {f"socket:[{inode}]" for inode in listening}
    return bool(sockets) and sockets <= {file for pid in pids for file in opened(pid)}


def _listening(table: str, port: int) -> Iterator[str]:
    try:
        with open(f"{ROOT}/net/{table}", encoding="ascii") as file:
            for fields in map(str.split, file):
                listens = len(fields) > 9 and fields[3] == _LISTEN
                if listens and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
    except (OSError, ValueError):
        return
