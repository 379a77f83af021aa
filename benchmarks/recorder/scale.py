"""How much a run measures: everything, enough for a look, or just enough to show that it works."""

from __future__ import annotations

from dataclasses import dataclass

DDP, FSDP = "DDP", "FSDP2"


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of repetitions; a round passes through every tracer once."""

    name: str
    rounds: int
    calls: int  # of one operation in one round, in one process
    gloo_calls: int  # the same between two processes
    starts: int  # of `python -c pass`
    imports: int  # of `python -c "import torch"`; 0 leaves it out
    journal_operations: int
    trainings: tuple[str, ...]  # whose peak memory is taken
    memory_runs: int
    lines: int  # put into a segment, in one round


FULL = Scale(
    name="full",
    rounds=21,
    calls=4000,
    gloo_calls=100,
    starts=60,
    imports=7,
    journal_operations=100_000,
    trainings=(DDP, FSDP),
    memory_runs=2,
    lines=50_000,
)
QUICK = Scale(
    name="quick",
    rounds=7,
    calls=400,
    gloo_calls=60,
    starts=20,
    imports=2,
    journal_operations=20_000,
    trainings=(FSDP,),
    memory_runs=1,
    lines=20_000,
)
TINY = Scale(
    name="tiny",
    rounds=1,
    calls=5,
    gloo_calls=3,
    starts=1,
    imports=0,
    journal_operations=50,
    trainings=(FSDP,),
    memory_runs=1,
    lines=2000,
)
