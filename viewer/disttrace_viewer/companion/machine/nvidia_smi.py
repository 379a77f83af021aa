"""Devices that the driver has lost, by ``nvidia-smi``, which is ended if it does not answer."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import IO

from disttrace.journal.format import DEVICE
from disttrace_viewer.companion.machine.answer import MOST_TEXT, Answer

BY = "nvidia-smi"
_DRIVER = "/proc/driver/nvidia/version"
_COMMAND = ("--query-gpu=index,pci.bus_id,pstate", "--format=csv,noheader")
_LOST = re.compile(r"GPU is lost|fallen off the bus|GPU requires reset|Unknown Error|ERR!", re.I)
_NAME = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


class NvidiaSmi:
    """One question. It is a child of whoever asks, never of a process of the program."""

    def __init__(self, command: str | None = None) -> None:
        """``command``: a path; else what PATH has, where NVIDIA's driver is loaded."""
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        if command is None and os.path.exists(_DRIVER):
            command = shutil.which("nvidia-smi")
        if command is None:
            return
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read when it has answered
        try:
            self._child = subprocess.Popen(
                [command, *_COMMAND],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._said.close()

    def answers(self, until: float) -> list[Answer]:
        """What it said by then (monotonic); one that a driver holds is killed and left behind."""
        if self._child is None or self._said is None:
            return []
        try:
            self._child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.returncode = -signal.SIGKILL  # nobody waits: the driver may hold it
            self._said.close()
            return []
        with self._said as said:
            said.seek(0)
            return read(said.read(64 << 10).decode("utf-8", "replace"), time.time())


def read(output: str, at_s: float) -> list[Answer]:
    """The devices that its output tells of as lost."""
    found: dict[str | None, Answer] = {}
    for line in output.splitlines():
        if _LOST.search(line):
            name = named[0].lower() if (named := _NAME.search(line)) else None
            found.setdefault(name, Answer(BY, DEVICE, at_s, line.strip()[:MOST_TEXT], name))
    return list(found.values())
