"""Start of the interpreter: without disttrace, with it but unset, and with DISTTRACE=1."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recorder.child import ROOT
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE, Spread, added, spread
from benchmarks.report import Report, Table, Verdict

UNSET, SET = "installed, unset", "DISTTRACE=1"
DDP = """
import tempfile, torch, torch.distributed as dist
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()
"""
PROGRAMS = {"pass": "pass", "import torch": "import torch.distributed", "a step of DDP": DDP}
_MILLION = 1e6
_UNEVEN = 0.1
"""Of a whole start: quartiles further apart than this tell nothing."""


@dataclass(frozen=True, slots=True)
class Start:
    """An interpreter and the variables that it starts with."""

    python: Path
    variables: Mapping[str, str]


def measure(scale: Scale) -> Report:
    """Two environments that differ only in our start-up file, and one variable."""
    counts = dict(zip(PROGRAMS, (scale.starts, scale.imports, scale.imports), strict=True))
    rows, verdicts = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        starts = environments(Path(folder))
        for title, program in PROGRAMS.items():
            if not counts[title]:
                continue
            taken = interleaved_starts(starts, program, counts[title])
            rows += [(f"{title}, {variant}", *_cells(taken, variant)) for variant in starts]
            difference = added(taken, UNSET)
            verdicts.append(
                Verdict(
                    f"DISTTRACE unset, {title}: nothing measurable",
                    _with_quartiles(difference),
                    _unmeasurable(difference, spread(taken[BARE]).median),
                )
            )
    return Report(
        tables=(
            Table(
                "Start-up",
                ("start", "ms", "added ms (quartiles)"),
                tuple(rows),
                "CPU time of a whole `python -c`, from its start to its end, in milliseconds. "
                "`bare` is an environment of the same packages without disttrace's start-up file; "
                "nothing is measurable where the quartiles of the difference lie on both sides "
                "of 0, and less than a tenth of the whole apart.",
            ),
        ),
        verdicts=tuple(verdicts),
    )


def environments(folder: Path) -> dict[str, Start]:
    """Bare, and with our start-up file, both with the packages of this environment."""
    packages = sysconfig.get_path("purelib")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DISTTRACE", "PYTHON")) and name not in ("RANK", "WORLD_SIZE")
    }
    pythons = {}
    for name in ("without", "with"):
        venv.create(folder / name, with_pip=False, symlinks=True)
        pythons[name] = folder / name / "bin" / "python"
        (site,) = (folder / name / "lib").glob("python*/site-packages")
        # A path file inside a folder that is itself on a path file is not read: only ours is.
        (site / "_packages.pth").write_text(f"{ROOT}\n{packages}\n")
        if name == "with":
            shutil.copy(ROOT / "disttrace" / "startup.pth", site / "disttrace.pth")
    traced = {**clean, "DISTTRACE": "1", "DISTTRACE_DIR": str(folder / "journals")}
    return {
        BARE: Start(pythons["without"], clean),
        UNSET: Start(pythons["with"], clean),
        SET: Start(pythons["with"], traced),
    }


def interleaved_starts(
    starts: Mapping[str, Start], program: str, rounds: int
) -> dict[str, list[float]]:
    """CPU nanoseconds of each start, a value per round; the first round fills caches."""
    taken: dict[str, list[float]] = {name: [] for name in starts}
    names = list(starts)
    for number in range(-1, rounds):
        turn = max(number, 0) % len(names)
        for name in names[turn:] + names[:turn]:
            nanoseconds = cpu_time(starts[name], program)
            if number >= 0:
                taken[name].append(nanoseconds)
    return taken


def cpu_time(start: Start, program: str, *, limit: float = 60.0) -> float:
    """CPU nanoseconds of one interpreter. Raises TimeoutError, OSError when it ends badly."""
    python = os.fspath(start.python)
    child = os.posix_spawn(python, [python, "-c", program], start.variables)
    deadline = time.monotonic() + limit
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.wait4(child, 0)
            raise TimeoutError(f"python -c {program!r} took more than {limit:g} s")
        time.sleep(0.001)
    if status:
        raise OSError(f"python -c {program!r} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e9


def _unmeasurable(difference: Spread, whole: float) -> bool | None:
    """Whether the difference is nothing; None where the starts were too uneven to tell."""
    if difference.high - difference.low > _UNEVEN * whole:
        return None
    return difference.holds_zero


def _cells(taken: Mapping[str, list[float]], name: str) -> tuple[str, str]:
    total = f"{spread(taken[name]).median / _MILLION:,.1f}"
    return total, "" if name == BARE else _with_quartiles(added(taken, name))


def _with_quartiles(found: Spread) -> str:
    low, median, high = (value / _MILLION for value in (found.low, found.median, found.high))
    return f"{median:+.2f} ({low:+.2f} to {high:+.2f})"
