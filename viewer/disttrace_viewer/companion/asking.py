"""Asks, once at a stall and for two seconds in all, what answers without the program's help.

None waits for the thread that asks, and it starts no child of the program. NCCL's own service (RAS,
from 2.24 on) knows of errors, and which processes it cannot reach: its threads in the processes of
a job ask each other, whatever the program does. The protocol is of lines:
``src/ras/client_support.cc`` of NCCL. Only sockets of this job's own processes are asked.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from disttrace.journal.format import DEVICE, HOST, LINK
from disttrace.journal.proc import ROOT, here, opened
from disttrace_viewer.companion import machine
from disttrace_viewer.companion.machine import MOST_TEXT, HostTrouble, NvidiaSmi

NCCL_RAS = "NCCL RAS"
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


def ask_ras(pids: Collection[int], until: float, address: str | None = None) -> list[HostTrouble]:
    """The report of the service of these processes by then (monotonic)."""
    host, _, port = (address or os.environ.get("NCCL_RAS_ADDR", "")).rpartition(":")
    place = (host.strip("[]") or "localhost", int(port) if port.isdecimal() else PORT)
    if not is_theirs(place[1], pids):
        return []
    try:
        return read_ras(_conversation(place, until), time.time())
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
        reported = b""
        try:
            while len(reported) < _MOST:
                one.settimeout(left_s())
                if not (piece := one.recv(1 << 16)):
                    break
                reported += piece
        except TimeoutError:
            pass  # what has come so far is true as well
    return reported.decode("utf-8", "replace")


def read_ras(status: str, at_s: float) -> list[HostTrouble]:
    """What a status tells. Different counts of operations are no trouble: journals know better."""
    found: dict[int, HostTrouble] = {}
    title = ""
    for line in status.splitlines():
        if head := _TITLE.match(line):
            title = head[1]
        elif title in ("INCOMPLETE", "DEAD") and (one := _PROCESS.search(line)):
            what = f"{'dead' if title == 'DEAD' else 'no data'}: {line.strip()}"[:MOST_TEXT]
            found[int(one[1])] = HostTrouble(NCCL_RAS, HOST, at_s, what, one[2], None, int(one[1]))
        elif title == "ERROR" and (one := _REPORTED.search(line)) and one[2] in _WHERE:
            where, pid = _WHERE[one[2]], int(one[4])
            name = f"GPU {one[3]} on {one[5]}"
            found.setdefault(
                pid, HostTrouble(NCCL_RAS, where, at_s, line.strip()[:MOST_TEXT], name, None, pid)
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


IN_ALL_S = 2.0
AGAIN_S = 600.0
"""What still stands after so long is another stall, for us."""
BEFORE_S = 60.0
"""So long before anybody began to wait it may have come about."""
MOST_TOLD = 8
_INITIAL_PIDS = 0xEFFFFFFC
"""Inode of the kernel's first namespace of pids, in which its log counts."""
_GPU, _GPUS = "/dev/nvidia", "/proc/driver/nvidia/gpus"


class Asking:
    """The questions of one host."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._begun = 0
        self._answers: Sequence[HostTrouble] | None = None

    def begin(
        self, pids: Collection[int], quiet_s: float, begun: int = 0, now: float | None = None
    ) -> None:
        """Ask, unless that was done at this stall, of which the oldest wait has lasted ``quiet_s``.
        ``begun``: collectives of the job so far; a wait in its start-up is another stall."""
        now = time.monotonic() if now is None else now
        if self._asked_at is not None:
            since_s = now - self._asked_at
            if since_s < (quiet_s if begun != self._begun else AGAIN_S):
                return
        self._asked_at, self._begun, self._answers = now, begun, None
        since_s = time.time() - quiet_s - BEFORE_S
        threading.Thread(
            target=self._ask, args=(tuple(pids), since_s, now + IN_ALL_S), daemon=True
        ).start()

    @property
    def pending(self) -> bool:
        """Whether an answer may still come, or has come and was not taken."""
        answers, asked_at = self._answers, self._asked_at
        if answers is not None or asked_at is None:
            return bool(answers)
        return time.monotonic() - asked_at < IN_ALL_S + 0.2

    def take(self) -> Sequence[HostTrouble]:
        """Answers since the last call."""
        if not (answers := self._answers):
            return ()
        self._answers = ()
        return answers

    def _ask(self, pids: Sequence[int], since_s: float, until: float) -> None:
        found: list[HostTrouble] = []
        try:
            devices = uses_devices(pids)
            smi = NvidiaSmi() if devices else None
            reported = machine.ask_kernel(since_s)
            found += concerning(reported, pids, devices=devices, counted=_counts_all())
            if devices:
                found += ask_ras(pids, until)
            found += smi.answers(until) if smi is not None else ()
        finally:
            self._answers = tuple(map(_own, found[:MOST_TOLD]))


def uses_devices(pids: Iterable[int]) -> bool:
    """Whether any of them has a device of NVIDIA's open."""
    return any(target.startswith(_GPU) for pid in pids for target in opened(pid))


def concerning(
    answers: Iterable[HostTrouble], pids: Collection[int], *, devices: bool, counted: bool
) -> list[HostTrouble]:
    """Those that may concern a job of these processes. One that uses no device is held up by none;
    nor is it by what others did on theirs. ``counted``: the kernel's log counts as they do.
    """
    return [
        one
        for one in answers
        if (devices or not _of_devices(one))
        and (one.pid is None or not counted or one.pid in pids)
        and (one.where != HOST or one.pid is None or counted)
        and is_open(one.name, pids)
    ]


def _of_devices(one: HostTrouble) -> bool:
    return one.where == DEVICE or one.code is not None


def is_open(name: str | None, pids: Iterable[int]) -> bool:
    """Whether any of them has this device open; of what is none of NVIDIA's, or not known, yes."""
    try:
        with open(f"{_GPUS}/{(name or '').removesuffix('.0').lower()}.0/information") as file:
            minor = re.search(r"Device Minor:\s*(\d+)", file.read())
    except (OSError, ValueError):
        return True
    node = None if minor is None else f"{_GPU}{minor[1]}"
    return node is None or any(node == target for pid in pids for target in opened(pid))


def _own(answer: HostTrouble) -> HostTrouble:
    """Without a pid that may be of another host, or be counted otherwise than in journals."""
    return answer if answer.pid is None or _is_here(answer) else replace(answer, pid=None)


def _is_here(answer: HostTrouble) -> bool:
    """Whether its process may be of this host, and counted as its own journal has it."""
    if answer.by != NCCL_RAS:
        return _counts_all()
    node = (answer.name or "").rpartition(" ")[2]
    try:
        family = socket.AF_INET6 if ":" in node else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((node, 0))  # which the kernel allows for addresses of this host only
    except (OSError, ValueError):
        return False
    return True


def _counts_all() -> bool:
    """Whether pids here are those of the kernel's log, which knows no namespaces."""
    return here().pid_ns == _INITIAL_PIDS
