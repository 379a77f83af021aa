"""Two looks at the stacks of all ranks, a second apart: who has moved since waits for nobody."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from disttrace_viewer.attach.permission import py_spy
from disttrace_viewer.attach.processes import Found, switches
from disttrace_viewer.load.foreign.py_spy import Frame, Sample, main_thread

APART_S = 1.0
LIMIT_S = 10
MOVED = 3
"""A thread that waits in one call does not wake up as often in a second."""


@dataclass(frozen=True, slots=True)
class Look:
    """One process at one moment; ``trouble`` where py-spy could not look."""

    frames: tuple[Frame, ...] = ()
    switches: int = 0
    trouble: str | None = None


def sample(found: Sequence[Found]) -> tuple[list[Sample], dict[int, str]]:
    """The ranks that could be looked at, and why not the others."""
    first = _looks(found)
    start = time.monotonic()
    time.sleep(APART_S)
    second = _looks(found)
    waited_ns = int((time.monotonic() - start) * 1e9)
    now = time.time_ns()
    samples, troubles = [], {}
    for one in found:
        before, after = first[one.pid], second[one.pid]
        trouble = before.trouble or after.trouble
        if trouble is not None:
            troubles[one.pid] = trouble
            continue
        samples.append(
            Sample(
                f"process {one.pid}",
                one.pid,
                after.frames,
                one.rank,
                _moved(before, after),
                now,
                waited_ns,
            )
        )
    return samples, troubles


def _moved(before: Look, after: Look) -> bool:
    """Whether it is in another call, or in the same one of another step."""
    if after.switches - before.switches > MOVED:
        return True
    place = (
        [(f["file"], f["name"]) for f in before.frames],
        [(f["file"], f["name"]) for f in after.frames],
    )
    outer = slice(1, None)
    lines = [f["line"] for f in before.frames[outer]], [f["line"] for f in after.frames[outer]]
    return place[0] != place[1] or lines[0] != lines[1]


def _looks(found: Sequence[Found]) -> Mapping[int, Look]:
    with ThreadPoolExecutor(max_workers=max(4, os.cpu_count() or 1)) as pool:
        return dict(
            zip((o.pid for o in found), pool.map(_look, (o.pid for o in found)), strict=True)
        )


def _look(pid: int) -> Look:
    """The main thread of a process; once more, stopping it for a moment, where it moves too fast
    to be read while it runs.
    """
    trouble = "py-spy is not installed"
    for options in (["--nonblocking"], []):
        command = [py_spy() or "py-spy", "dump", "--json", "--locals", *options, "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
            if done.returncode == 0:
                return Look(main_thread(done.stdout)[1], switches(pid))
            trouble = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"])[0]
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            trouble = f"{type(error).__name__}: {error}"
    return Look(trouble=trouble)
