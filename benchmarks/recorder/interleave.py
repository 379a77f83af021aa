"""The measuring loop: every round passes through every tracer, and through every operation in it.

Two clocks are read. The CPU time of the calling thread is what a tracer costs there; other programs
on the machine do not enter it. The wall time beside it holds waiting as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recorder.journalled import begins
from benchmarks.recorder.tracers import OURS

WARM = 20
"""Calls before the clock is read, at least: definitions are written, caches filled.

Patches of classes make the interpreter specialise its code anew, which takes hundreds of calls;
whoever patches pays for it once, and not in the steady state that is measured here. So series of
calls that cost microseconds take more (``STEADY``).
"""

STEADY = 500

CPU, WALL = "cpu", "wall"


@dataclass(frozen=True, slots=True)
class Case:
    """An operation: ``loop(n)`` does it ``n`` times and calls it in its own frame.

    A call through a lambda would add a frame, for which profilers that trace functions would have
    to pay. Each turn of the loop makes ``operations`` of them.
    """

    name: str
    loop: Callable[[int], None]
    operations: int = 1


@dataclass(frozen=True, slots=True)
class Variant:
    """A tracer with the cases that it is measured on."""

    enter: Callable[[Path], AbstractContextManager[None]]
    cases: Sequence[Case]


def interleaved(
    variants: Mapping[str, Variant],
    *,
    rounds: int,
    calls: int,
    together: Callable[[], object] = lambda: None,
    warm: int = WARM,
    blocks: int = 1,
) -> dict[str, Any]:
    """``{"figures": {case: {clock: {variant: [ns per operation, ...]}}}, "recorded": ...}``.

    ``together`` is called before each clock is read, so that ranks start at one time; of ``blocks``
    of each round the least counts: other programs only add. ``recorded``
    is [operations issued, begins in our journal] by case, from the last round: a figure of a
    tracer that saw nothing would be worth nothing.
    """
    figures: dict[str, Any] = {}
    recorded: dict[str, list[int]] = {}
    names = list(variants)
    for number in range(-1, rounds):  # the first round warms everything up and is not kept
        turn = max(number, 0) % len(names)
        for name in names[turn:] + names[:turn]:
            variant = variants[name]
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                taken = _pass(variant, Path(folder), calls // blocks, together, warm, blocks)
                if name == OURS and number == rounds - 1:
                    recorded = _recorded(variant.cases, Path(folder), calls + warm)
            if number < 0:
                # What is there now stays: the collector need not look through it again and again.
                gc.collect()
                gc.freeze()
            else:
                for case, sample in taken.items():
                    clocks = figures.setdefault(case, {CPU: {}, WALL: {}})
                    for clock, value in sample.items():
                        clocks[clock].setdefault(name, []).append(value)
    return {"figures": figures, "recorded": recorded}


def _pass(
    variant: Variant,
    folder: Path,
    calls: int,
    together: Callable[[], object],
    warm: int,
    blocks: int,
) -> dict[str, dict[str, float]]:
    _return_memory()
    taken = {}
    with variant.enter(folder), _quiet():
        for case in variant.cases:
            case.loop(warm)
            together()
            each = [timed(case, calls) for _ in range(blocks)]
            taken[case.name] = {clock: min(one[clock] for one in each) for clock in each[0]}
    return taken


def timed(case: Case, calls: int) -> dict[str, float]:
    """Nanoseconds per operation, by clock."""
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    case.loop(calls)
    cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    count = calls * case.operations
    return {CPU: cpu / count, WALL: wall / count}


@contextlib.contextmanager
def _quiet() -> Any:
    """The collector runs before the clock is read instead of in a random block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _return_memory() -> None:
    """Give the kernel back what is free, so that every tracer pays for the memory that it fills.

    One that keeps its events in memory would otherwise find the pages of its last round.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # another C library than glibc
        pass


def _recorded(cases: Sequence[Case], folder: Path, calls: int) -> dict[str, list[int]]:
    found = begins(folder)
    return {case.name: [calls * case.operations, found[case.loop.__name__]] for case in cases}
