"""What a host and its devices report of themselves, read once at a stall for two seconds.

None of it waits for the thread that asks, and none needs the program's help. The kernel's log is
read by one call of libc that never waits. ``nvidia-smi`` is a child of ours.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from disttrace.journal.format import DEVICE, HOST, LINK
from disttrace.journal.proc import here, opened
from disttrace_viewer.trace.values import dataclass, replace

MOST_TEXT = 300
"""Characters that are kept of a report."""


@dataclass(frozen=True, slots=True)
class HostTrouble:
    """``at_s`` is a unix time; ``where`` is a word of ``disttrace.journal.format``."""

    by: str
    where: str
    at_s: float
    text: str
    name: str | None = None
    code: int | None = None
    pid: int | None = None


_READ_ALL = 3
_MOST = 1 << 20
_LINE = re.compile(r"^<\d+>\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? (.*)$")
_AT = "(?P<name>[0-9a-fA-F:.]{1,40}?)"
_TROUBLES = (
    (DEVICE, rf"NVRM: Xid \(PCI:{_AT}\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?"),
    (DEVICE, rf"NVRM: GPU (?:at PCI:)?{_AT}[:.]* GPU has fallen off the bus"),
    (LINK, rf"SXid \(PCI:{_AT}\): (?P<code>\d+), Fatal"),
    (DEVICE, rf"\b{_AT}: PCIe Bus Error: severity=Uncorrect"),
    (LINK, r"link status definitely down for (?:interface )?(?P<name>[\w.-]+)"),
    (LINK, r"\b(?P<name>[A-Za-z][\w.-]{0,60}):? (?:NIC )?[Ll]ink (?:is )?[Dd]own\b"),
    (LINK, r"\b(?P<name>mlx5_core \S{1,40}): .{0,200}(?:Cable unplugged|Cable error|Bus stuck)"),
    (HOST, r"BUG: \w+ lockup - CPU#\d+ stuck for [^\[]{0,100}\[[^\]]{0,100}:(?P<pid>\d{1,10})\]"),
    (HOST, r"INFO: task .{0,100}?:(?P<pid>\d{1,10}) blocked for more than \d+ seconds"),
    (HOST, r"nfs: server (?P<name>\S{1,250}?),? not responding"),
    (HOST, r"Lustre: .{0,100}?(?<!\S)(?P<name>\S{1,100}): Connection to .{0,100} lost"),
    (HOST, r"hard LOCKUP on|\[Hardware Error\]: .{0,200}(?:Uncorrected|fatal)|EDAC .{0,200} UE "),
)
"""Of what a line tells by the first of these that it has."""
_PATTERNS = [(where, re.compile(pattern)) for where, pattern in _TROUBLES]
BENIGN = frozenset({45, 63, 92, 106, 154})
"""Xids of what ended already, was repaired, or only counts (NVIDIA's catalogue of Xids)."""
OF_LINKS = frozenset({74, *range(144, 151)})
"""Xids of NVLink."""
_VIRTUAL = re.compile(r"(?:veth|docker|virbr|br-|cali|cni|flannel|tap|tun|vnet|lo\b)")


def ask_kernel(since_s: float) -> list[HostTrouble]:
    """What the log of this kernel tells since a unix time."""
    return read_kernel_log(
        kernel_text(), since_s, time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    )


def kernel_text() -> str:
    """The end of the log; nothing where it may not be read."""
    try:
        call: Callable[..., int] = ctypes.CDLL(None).klogctl
    except (AttributeError, OSError):
        return ""
    buffer = ctypes.create_string_buffer(_MOST)
    read_bytes = call(_READ_ALL, buffer, _MOST)
    return buffer.raw[: max(read_bytes, 0)].decode("utf-8", "replace")


def read_kernel_log(log: str, since_s: float, boot_s: float) -> list[HostTrouble]:
    """Trouble in a log whose clock was 0 at ``boot_s``; also what was down and is up again."""
    found: dict[tuple[str, str | None, int | None], HostTrouble] = {}
    for line in log.splitlines():
        stamped = _LINE.match(line)
        if stamped is None:
            continue
        at_s = boot_s + float(stamped[1])
        if at_s < since_s:
            continue
        if (one := _trouble_in(stamped[2], at_s)) is not None:
            found.setdefault((one.where, one.name, one.code), one)
    return list(found.values())


def _trouble_in(line: str, at_s: float) -> HostTrouble | None:
    found = ((where, pattern.search(line)) for where, pattern in _PATTERNS)
    where, match = next(((where, match) for where, match in found if match), ("", None))
    if match is None:
        return None
    name, code, pid = (match.groupdict().get(key) for key in ("name", "code", "pid"))
    number = None if code is None else int(code)
    if number in BENIGN or (where == LINK and _VIRTUAL.match(name or "")):
        return None
    where = LINK if number in OF_LINKS else where
    text = line[:MOST_TEXT]
    return HostTrouble("kernel log", where, at_s, text, name, number, int(pid) if pid else None)


_COMMAND = ("--query-gpu=index,pci.bus_id,pstate", "--format=csv,noheader")
_LOST_DEVICE = re.compile(
    r"GPU is lost|fallen off the bus|GPU requires reset|Unknown Error|ERR!", re.I
)
_NAME = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


class NvidiaSmi:
    """One question. It is a child of the caller, never of a process of the program."""

    def __init__(self, command: str | None = None) -> None:
        """``command``: a path; else what PATH has, where NVIDIA's driver is loaded."""
        self._child: subprocess.Popen[bytes] | None = None
        if command is None and os.path.exists("/proc/driver/nvidia/version"):
            command = shutil.which("nvidia-smi")
        if command is not None:
            with suppress(OSError):
                self._child = subprocess.Popen(
                    [command, *_COMMAND],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def answers(self, until: float) -> list[HostTrouble]:
        """The output up to then (monotonic); one that a driver holds is killed and left behind."""
        child = self._child
        if child is None or child.stdout is None:
            return []
        try:
            output, _ = child.communicate(timeout=max(0.001, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.returncode = -signal.SIGKILL  # nobody waits: the driver may hold it
            child.stdout.close()
            return []
        return read_smi(output[: 64 << 10].decode("utf-8", "replace"), time.time())


def read_smi(output: str, at_s: float) -> list[HostTrouble]:
    """The devices that its output tells of as lost."""
    found: dict[str | None, HostTrouble] = {}
    for line in output.splitlines():
        if _LOST_DEVICE.search(line):
            name = named[0].lower() if (named := _NAME.search(line)) else None
            found.setdefault(
                name, HostTrouble("nvidia-smi", DEVICE, at_s, line.strip()[:MOST_TEXT], name)
            )
    return list(found.values())


IN_ALL_S = 2.0
AGAIN_S = 600.0
"""What still stands after so long is another stall, for us."""
BEFORE_S = 60.0
"""So long before the first wait it may have come about."""
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
        ``begun``: collectives of the job so far."""
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
        if not (answers := self._answers):
            return ()
        self._answers = ()
        return answers

    def _ask(self, pids: Sequence[int], since_s: float, until: float) -> None:
        found: list[HostTrouble] = []
        try:
            devices = any(file.startswith(_GPU) for pid in pids for file in opened(pid))
            smi = NvidiaSmi() if devices else None
            reported = ask_kernel(since_s)
            found += concerning(reported, pids, devices=devices, counted=_counts_all())
            found += smi.answers(until) if smi is not None else ()
        finally:
            # Elsewhere pids are counted otherwise than in journals.
            known = _counts_all()
            self._answers = tuple(
                one if known else replace(one, pid=None) for one in found[:MOST_TOLD]
            )


def concerning(
    answers: Iterable[HostTrouble], pids: Collection[int], *, devices: bool, counted: bool
) -> list[HostTrouble]:
    """Those that may concern a job of these processes: not one that uses no device, nor what others
    did on theirs. ``counted``: the kernel's log counts as they do."""
    return [
        one
        for one in answers
        if (devices or (one.where != DEVICE and one.code is None))
        and (one.pid is None or not counted or one.pid in pids)
        and (one.where != HOST or one.pid is None or counted)
        and is_open(one.name, pids)
    ]


def is_open(name: str | None, pids: Iterable[int]) -> bool:
    """Whether any of them has this device open; of what is none of NVIDIA's, or not known, yes."""
    try:
        with open(f"{_GPUS}/{(name or '').removesuffix('.0').lower()}.0/information") as file:
            minor = re.search(r"Device Minor:\s*(\d+)", file.read())
    except (OSError, ValueError):
        return True
    node = None if minor is None else f"{_GPU}{minor[1]}"
    return node is None or any(node == target for pid in pids for target in opened(pid))


def _counts_all() -> bool:
    """Whether pids here are those of the kernel's log, which knows no namespaces."""
    return here().pid_ns == _INITIAL_PIDS
