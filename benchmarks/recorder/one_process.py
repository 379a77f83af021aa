"""Collectives and messages on the ``fake`` backend: no threads, no traffic, so steady figures."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import CPU, STEADY, Case, Variant, interleaved
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE, added, spread
from benchmarks.recorder.tracers import (
    NO_ISSUER,
    OURS,
    PLAIN,
    PROFILER,
    SPAN,
    STACKS,
    VIZTRACER,
    available,
)
from benchmarks.report import Report, Table, Verdict
from benchmarks.viewer import latency

ALONE = (BARE, OURS, PLAIN, PROFILER, STACKS, VIZTRACER, SPAN)
BESIDE_ISSUER = (BARE, OURS, NO_ISSUER, STACKS)
SYNCHRONOUS = ("all_reduce", "broadcast", "barrier", "send", "recv")
ASYNCHRONOUS = "all_reduce, async and wait"
FUNCTIONAL = "functional all_reduce and wait"
SYNCHRONOUS_GOAL, ASYNCHRONOUS_GOAL = 0.5, 0.75
FUNCTIONAL_GOAL_US, BESIDE_GOAL_US = 8.0, 0.1
BLOCK = 25
"""Calls of a block of public calls: of few some find a quiet moment on any machine."""
AT_MOST = {
    "batch_isend_irecv of 2": (9, 6),
    "batch_isend_irecv of 8": (None, 14),
    "all_gather_object": (12, 8),
    "broadcast_object_list": (10, 7),
    "functional.all_reduce and wait": (10, 7),
    "DTensor.redistribute": (10, 7),
}
"""What public calls may add: microseconds, and what a plain all_reduce adds so many times."""


def measure_calls(scale: Scale) -> Report:
    """What each public call adds, in microseconds and in plain all_reduces."""
    blocks = max(scale.calls // BLOCK, 1)
    counts = {"rounds": scale.rounds, "blocks": blocks}
    (found,) = child.measure(__name__, "calls_in_child", counts)
    clocks = {case: of[CPU] for case, of in found["figures"].items()}
    least = {case: min(of[OURS]) / 1e3 - min(of[BARE]) / 1e3 for case, of in clocks.items()}
    multiple = {case: us / (least["all_reduce"] or 1) for case, us in least.items()}
    rows = []
    for case, of in clocks.items():
        by_round = added(of, OURS)
        quartiles = f"{by_round.low / 1e3:.1f} to {by_round.high / 1e3:.1f}"
        bare = f"{min(of[BARE]) / 1e3:.1f}"
        rows.append((case, bare, f"{least[case]:+.1f}", quartiles, f"{multiple[case]:.1f}"))
    verdicts = []
    for case, (most_us, most) in AT_MOST.items():
        figure, met = f"{multiple[case]:.1f}", multiple[case] < most
        verdicts.append(Verdict(f"{case}: at most {most} all_reduces", figure, met))
        if most_us:
            figure, met = f"{least[case]:.1f} us", least[case] < most_us
            verdicts.append(Verdict(f"{case}: at most {most_us} us", figure, met))
    note = "CPU time of the calling thread, traced and untraced in turns in one process: the least "
    note += f"of {scale.rounds * blocks} blocks of {BLOCK} calls; quartiles of {scale.rounds} "
    note += "rounds, of each the least."
    title = f"Public calls, one process (`fake`, torch {version('torch')})"
    columns = ("call", "bare us", "added us", "quartiles", "all_reduces")
    return Report((Table(title, columns, tuple(rows), note),), tuple(verdicts))


def measure(scale: Scale) -> Report:
    """Python-issued operations alone, then with a C++ issuer at work, and what that issues."""
    counts = {"rounds": scale.rounds, "calls": scale.calls}
    (alone,) = child.measure(__name__, "in_child", {**counts, "issuer": False})
    (beside,) = child.measure(__name__, "in_child", {**counts, "issuer": True})
    way = "native hooks" if beside["hooks"] else "the class of functional operators"
    return Report(
        tables=(
            latency.table(
                "Issued from Python, one process (`fake`)",
                alone,
                note="Microseconds per operation: CPU time of the calling thread (wall time). "
                "`bare` is what the operation takes, the others what they add.",
            ),
            latency.table(
                "With a C++ issuer at work, one process (`fake`)",
                beside,
                note=f"The same after a functional collective was called: this torch is seen "
                f"through {way}. The first row is issued from C++; `no issuer` is without it.",
            ),
        ),
        verdicts=(
            *latency.against("Issued from Python", alone, SYNCHRONOUS, STACKS, SYNCHRONOUS_GOAL),
            *latency.against("Issued from Python", alone, SYNCHRONOUS, VIZTRACER, 1.0),
            *latency.against(
                "Issued from Python", alone, (ASYNCHRONOUS,), STACKS, ASYNCHRONOUS_GOAL
            ),
            *_issuer(beside),
        ),
    )


def _issuer(beside: latency.Result) -> Iterator[Verdict]:
    """What functional collectives take, and what they cost those of Python beside them: round by
    round, for between two processes their figures differ by more than that."""
    taken = latency.microseconds(beside["figures"][FUNCTIONAL][CPU], OURS)
    yield Verdict(
        f"A functional collective and its wait: at most {FUNCTIONAL_GOAL_US:g} us",
        f"{taken:.2f} us",
        None if latency.not_recorded(beside) else taken <= FUNCTIONAL_GOAL_US,
    )
    more = {}
    for case, clocks in beside["figures"].items():
        if NO_ISSUER in clocks[CPU]:
            pairs = zip(clocks[CPU][OURS], clocks[CPU][NO_ISSUER], strict=True)
            more[case] = spread([with_it - alone for with_it, alone in pairs]).median / 1000
    worst = max(more, key=lambda case: more[case])
    yield Verdict(
        f"Python's operations beside it: at most {BESIDE_GOAL_US:g} us more than alone",
        f"{more[worst]:+.2f} us (worst: {worst})",
        more[worst] <= BESIDE_GOAL_US,
    )


def _joined() -> Any:
    """A group of two, of which the other does not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return dist.group.WORLD


def calls_in_child(rounds: int, blocks: int) -> dict[str, Any]:
    """In an interpreter of its own: every public call, traced and untraced."""
    from benchmarks.recorder import cases

    group = _joined()
    measured = [*cases.python_issued(group), *cases.composed(group)]
    variants = {name: Variant(enter, measured) for name, enter in available(BARE, OURS).items()}
    calls = blocks * BLOCK
    return interleaved(variants, rounds=rounds, calls=calls, warm=calls, blocks=blocks)


def in_child(rounds: int, calls: int, issuer: bool) -> dict[str, Any]:
    """In an interpreter of its own, with and without an issuer in C++."""
    import torch.distributed as dist

    from benchmarks.recorder import cases

    group = _joined()
    measured: list[Case] = [*cases.python_issued(group), *cases.messages(1)]
    # First: it brings the kernels, each time that tracing begins.
    everything = [*cases.functional(group), *measured] if issuer else measured
    tracers = available(*(BESIDE_ISSUER if issuer else ALONE))
    variants = {
        name: Variant(enter, measured if name == NO_ISSUER else everything)
        for name, enter in tracers.items()
    }
    found = interleaved(variants, rounds=rounds, calls=calls, warm=min(calls, STEADY))
    found["hooks"] = hasattr(dist.ProcessGroup, "register_pre_hook")
    dist.destroy_process_group()
    return found
