"""Collectives and messages on the ``fake`` backend: no threads, no traffic, so steady figures."""

from __future__ import annotations

from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import Case, Variant, interleaved
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE
from benchmarks.recorder.tracers import OURS, PLAIN, PROFILER, SPAN, STACKS, VIZTRACER, available
from benchmarks.report import Report
from benchmarks.viewer import latency

ALONE = (BARE, OURS, PLAIN, PROFILER, STACKS, VIZTRACER, SPAN)
BESIDE_ISSUER = (BARE, OURS, STACKS)
GOALS = (0.75, 0.5)
KERNEL_GOAL, HOOKS_GOAL = 3.0, 1.5
_FUNCTIONAL = "functional all_reduce and wait"


def measure(scale: Scale) -> Report:
    """Python-issued operations alone, then with a C++ issuer at work, and what that issues."""
    counts = {"rounds": scale.rounds, "calls": scale.calls}
    (alone,) = child.measure(__name__, "in_child", {**counts, "issuer": False})
    (beside,) = child.measure(__name__, "in_child", {**counts, "issuer": True})
    cases = list(alone["figures"])
    way = "native hooks" if beside["hooks"] else "the dispatcher kernel"
    limit = HOOKS_GOAL if beside["hooks"] else KERNEL_GOAL
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
                f"through {way}. The first row is issued from C++.",
            ),
        ),
        verdicts=(
            *latency.against_profiler("Issued from Python", alone, cases, GOALS),
            *latency.against_profiler(f"Issued from C++, {way}", beside, [_FUNCTIONAL], (limit,)),
        ),
    )


def in_child(rounds: int, calls: int, issuer: bool) -> dict[str, Any]:
    """In an interpreter of its own: a group of two, of which the other does not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from benchmarks.recorder import cases

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    group = dist.group.WORLD
    measured: list[Case] = [*cases.python_issued(group), *cases.messages(1)]
    if issuer:  # first: it brings the kernel, each time that tracing begins
        measured = [*cases.functional(group), *measured]
    tracers = available(*(BESIDE_ISSUER if issuer else ALONE))
    variants = {name: Variant(enter, measured) for name, enter in tracers.items()}
    found = interleaved(variants, rounds=rounds, calls=calls)
    found["hooks"] = hasattr(dist.ProcessGroup, "register_pre_hook")
    dist.destroy_process_group()
    return found
