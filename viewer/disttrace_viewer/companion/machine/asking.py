"""Asks, once at a stall and for two seconds in all, who answers without the program's help.

Nobody waits for the thread that asks, and it starts no child of the program.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from disttrace.journal.format import DEVICE, HOST
from disttrace.journal.proc import here, opened
from disttrace_viewer.companion.machine import kernel_log, nccl_ras
from disttrace_viewer.companion.machine.answer import Answer
from disttrace_viewer.companion.machine.nvidia_smi import NvidiaSmi

IN_ALL_S = 2.0
AGAIN_S = 600.0
"""Whoever still stands after so long is another stall, for us."""
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
        self._answers: Sequence[Answer] | None = None

    def begin(
        self, pids: Collection[int], quiet_s: float, begun: int = 0, now: float | None = None
    ) -> None:
        """Ask, unless that was done at this stall; somebody has waited for ``quiet_s``. ``begun``:
        collectives of the job so far. A wait in its start-up is not the stall that comes later.
        """
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
        """Whether somebody may still answer, or has and was not heard."""
        answers, asked_at = self._answers, self._asked_at
        if answers is not None or asked_at is None:
            return bool(answers)
        return time.monotonic() - asked_at < IN_ALL_S + 0.2

    def take(self) -> Sequence[Answer]:
        """What was answered since this was asked the last time."""
        if not (answers := self._answers):
            return ()
        self._answers = ()
        return answers

    def _ask(self, pids: Sequence[int], since_s: float, until: float) -> None:
        found: list[Answer] = []
        try:
            devices = uses_devices(pids)
            smi = NvidiaSmi() if devices else None
            said = kernel_log.ask(since_s)
            found += concerning(said, pids, devices=devices, counted=_counts_all())
            if devices:
                found += nccl_ras.ask(pids, until)
            found += smi.answers(until) if smi is not None else ()
        finally:
            self._answers = tuple(map(_own, found[:MOST_TOLD]))


def uses_devices(pids: Iterable[int]) -> bool:
    """Whether any of them has a device of NVIDIA's open."""
    return any(target.startswith(_GPU) for pid in pids for target in opened(pid))


def concerning(
    answers: Iterable[Answer], pids: Collection[int], *, devices: bool, counted: bool
) -> list[Answer]:
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


def _of_devices(one: Answer) -> bool:
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


def _own(answer: Answer) -> Answer:
    """Without a pid that may be of another host, or be counted otherwise than in journals."""
    return answer if answer.pid is None or _is_here(answer) else replace(answer, pid=None)


def _is_here(answer: Answer) -> bool:
    """Whether its process may be of this host, and counted as its own journal has it."""
    if answer.by != nccl_ras.BY:
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
