"""What a run of a faulty program must bring out, as values, and where its marked lines are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

NOBODY: tuple[int, ...] = ()
NODES = "nodes.py"
"""The launcher that starts several torchrun agents; its options tell how many."""


def marked_lines(program: Path) -> dict[str, int]:
    """The line number of each marker `# <- L1` in a program."""
    found: dict[str, int] = {}
    for number, line in enumerate(program.read_text().splitlines(), start=1):
        match = re.search(r"# <- (\w+)$", line)
        if match:
            found[match[1]] = number
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One finding that must be there."""

    kinds: tuple[str, ...]  # acceptable ones, where the evidence may be read in two ways
    culprits: tuple[tuple[int, ...], ...]  # acceptable sets of culprit ranks
    waiting: tuple[int, ...] | None = None  # exactly these wait; None where that is not sharp
    # For each of these ranks one of these markers must be among the finding's locations.
    lines: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # each must be in summary, hint or consequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: a program, how it is started, how it ends, and what must be said about it."""

    number: int  # of the row in the list of faults; 0 for healthy programs
    program: str  # below examples/, with its arguments
    world: int = 3
    launch: str = ""  # further options of the launcher
    torchrun: bool = False
    # The agent of a plain torchrun serves the workers' own store (static rendezvous); with
    # --standalone there is one store for agents and another for workers.
    standalone: bool = True
    launcher: str = "launch.py"  # below examples/faults/
    # hang: until it is ended from outside; ends: with errors or well; either: differs from run
    # to run; healthy programs end well.
    ends: str = "hang"
    expected: tuple[Expected, ...] = ()
    # Kinds of which there may be findings beside the expected ones, without other culprits.
    tolerated: tuple[str, ...] = ()
    clocks: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # rank: s, ppm
    needs: str | None = None  # "cuda", or "queue_pop": a torch whose stores have queues
    fixed_slice: bool = False
    # A live verdict counts once it stood so long. Where a process stands outside communication is
    # noted at most two seconds after its last call, later where the machine is busy; a verdict
    # taken sooner names the same culprits, but shows the line of their last operation.
    settled_s: float = 5.0

    @property
    def name(self) -> str:
        way = "torchrun --standalone" if self.standalone else "torchrun"
        how = way if self.torchrun else f"{self.world} ranks"
        if self.launcher == NODES:
            how = "nodes"
        return f"{self.program} ({' '.join(part for part in (how, self.launch) if part)})"

    @property
    def path(self) -> Path:
        return EXAMPLES / self.program.split()[0]

    @property
    def arguments(self) -> list[str]:
        return self.program.split()[1:]
