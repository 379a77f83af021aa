"""Looks at the stacks of all ranks, a second apart: who has moved since waits for nobody.

Where not all stay in their calls there is a third look, two seconds later, and the last two count:
a job that gets on has come to its next call by then, and who had just come stays.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from disttrace_viewer.attach.permission import py_spy
from disttrace_viewer.attach.processes import Found, busy_s, switches
from disttrace_viewer.load.foreign.py_spy import Frame, Sample, is_in_call, main_thread

APART_S = 1.0
LATER_S = 2.0
LIMIT_S = 10
IDLE = 0.2
"""Of the time between two looks: who takes less of a processor waits."""


@dataclass(frozen=True, slots=True)
class Look:
    """One process at one moment; ``trouble`` where py-spy could not look."""

    at_s: float = 0.0
    frames: tuple[Frame, ...] = ()
    switches: int = 0
    busy_s: float = 0.0
    trouble: str | None = None


def sample(found: Sequence[Found]) -> tuple[list[Sample], dict[int, str]]:
    """The ranks that could be looked at, and why not the others."""
    looks = [_looks(found)]
    for apart_s in (APART_S, LATER_S):
        time.sleep(apart_s)
        looks.append(_looks(found))
        before, after = looks[-2:]
        inside = [one for one in found if is_in_call(after[one.pid].frames)]
        moved = any(_went_on(before[one.pid], after[one.pid]) for one in inside)
        if not inside or (len(inside) == len(found) and not moved):
            break
    now = time.time_ns()
    samples, troubles = [], {}
    for one in found:
        seen = [taken[one.pid] for taken in looks]
        trouble = next((look.trouble for look in seen if look.trouble is not None), None)
        if trouble is not None:
            troubles[one.pid] = trouble
            continue
        first, last = seen[-2:]
        samples.append(
            Sample(
                f"process {one.pid}",
                one.pid,
                last.frames,
                one.rank,
                # Who is in no call all the time does not come, whatever it computes.
                moved=_went_on(first, last) and any(is_in_call(look.frames) for look in seen),
                idle=last.busy_s - first.busy_s < IDLE * (last.at_s - first.at_s),
                at_ns=now,
                waited_ns=int((last.at_s - first.at_s) * 1e9),
            )
        )
    return samples, troubles


def _went_on(before: Look, after: Look) -> bool:
    """Whether it is in another call, or in the same one of another step."""
    if after.switches != before.switches:  # who waits in one call does not wake up in between
        return True
    return _place(before) != _place(after)


def _place(look: Look) -> tuple[list[tuple[str, str]], list[int]]:
    """The functions that it is in, and the lines from which they were called."""
    functions = [(one["file"], one["name"]) for one in look.frames]
    return functions, [one["line"] for one in look.frames[1:]]


def _looks(found: Sequence[Found]) -> Mapping[int, Look]:
    pids = [one.pid for one in found]
    with ThreadPoolExecutor(max_workers=max(4, os.cpu_count() or 1)) as pool:
        return dict(zip(pids, pool.map(_look, pids), strict=True))


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
                frames = main_thread(done.stdout)[1]
                return Look(time.monotonic(), frames, switches(pid), busy_s(pid))
            trouble = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"])[0]
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            trouble = f"{type(error).__name__}: {error}"
    return Look(trouble=trouble)
