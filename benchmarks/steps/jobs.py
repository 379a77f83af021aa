"""Jobs of two ranks, one for each variant, that stand ready and take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.recorder.child import ROOT, MeasurementFailed
from benchmarks.recorder.series import BARE
from benchmarks.recorder.tracers import DETAIL, OURS, PROFILER, STACKS, VIZTRACER

AGAIN = "bare again"
NO_RECORDER = "no flight recorder"
_LIMIT = 120.0
"""Seconds that a job may take to answer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a variant sets before its start, and the tracer that its steps run under."""

    variables: Mapping[str, str] = field(default_factory=dict)
    tracer: str = BARE


VARIANTS: Mapping[str, Kind] = {
    BARE: Kind(),
    AGAIN: Kind(),
    OURS: Kind({"DISTTRACE": "1"}),
    PROFILER: Kind(tracer=PROFILER),
    STACKS: Kind(tracer=STACKS),
    VIZTRACER: Kind(tracer=VIZTRACER),
    DETAIL: Kind({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    # It is on by default: so this one shows what it costs by what is saved.
    NO_RECORDER: Kind({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Nanoseconds: CPU of both ranks with all their threads, CPU of their main threads, and wall of
    the slower one.
    """

    cpu: float
    main: float
    wall: float


class Job:
    """Two ranks of a program under a variant."""

    def __init__(self, program: str, variant: str) -> None:
        from support.processes import clean_environ

        kind = VARIANTS[variant]
        self.folder = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        self._errors = Path(self.folder.name) / "stderr"
        self._name = f"{program or 'start'}, {variant}"
        self.ranks: list[subprocess.Popen[str]] = []
        for rank in range(2):
            environ = clean_environ(
                OMP_NUM_THREADS="1",
                PYTHONDONTWRITEBYTECODE="",  # what is installed has its bytecode
                RANK=str(rank),
                WORLD_SIZE="2",
                BENCH_INIT=f"file://{self.folder.name}/meeting",
                TMPDIR=self.folder.name,
                DISTTRACE_DIR=f"{self.folder.name}/journal",
                PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
                **kind.variables,
            )
            command = [sys.executable, "-m", "benchmarks.steps.rank", program, kind.tracer]
            with self._errors.open("ab") as errors:
                process = subprocess.Popen(
                    [*command, self.folder.name],
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            self.ranks.append(process)

    @property
    def journal(self) -> Path:
        """Where its journals are, if it is ours."""
        return Path(self.folder.name) / "journal"

    def turn(self, steps: int) -> Taken:
        """Have both ranks do that many steps. Raises MeasurementFailed."""
        try:
            for rank in self.ranks:
                _pipe(rank.stdin).write(f"{steps}\n")
                _pipe(rank.stdin).flush()
        except BrokenPipeError:
            pass  # the answers will tell
        answers = self.answers()
        cpu, main, wall = zip(*answers, strict=True)
        return Taken(sum(cpu), sum(main), max(wall))

    def answers(self) -> list[Any]:
        """A line of each rank."""
        watchdog = threading.Timer(_LIMIT, self.kill)
        watchdog.start()
        try:
            lines = [_pipe(rank.stdout).readline() for rank in self.ranks]
        finally:
            watchdog.cancel()
        found: list[Any] = [json.loads(line) for line in lines if line]
        if len(found) < len(lines):
            said = self._errors.read_text(errors="replace")[-2000:]
            raise MeasurementFailed(f"{self._name}: {said}")
        return found

    def kill(self) -> None:
        """End what runs."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()

    def close(self) -> None:
        """Have it end by itself, and clean up."""
        watchdog = threading.Timer(_LIMIT, self.kill)
        watchdog.start()
        for rank in self.ranks:
            _pipe(rank.stdin).close()
        for rank in self.ranks:
            rank.wait()
            _pipe(rank.stdout).close()
        watchdog.cancel()
        self.folder.cleanup()


def start_and_exit(variant: str) -> tuple[Taken, Taken]:
    """CPU time of both ranks of a job until its group is there, and from then until their end."""
    job = Job("", variant)
    try:
        begun = sum(cpu for (cpu,) in job.answers())
        for rank in job.ranks:
            _pipe(rank.stdin).close()
        whole = 0.0
        for rank in job.ranks:
            _, status, used = os.wait4(rank.pid, 0)
            rank.returncode = os.waitstatus_to_exitcode(status)
            whole += (used.ru_utime + used.ru_stime) * 1e9
    finally:
        job.kill()
        job.close()
    return Taken(begun, 0, 0), Taken(whole - begun, 0, 0)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # each of them is asked for above
    return pipe
