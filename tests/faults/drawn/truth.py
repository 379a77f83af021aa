"""What is true of a run: it follows from the change alone, never from what the rules say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from faults.drawn.program import Program

MISMATCHES = frozenset(
    {"op_mismatch", "shape_mismatch", "dtype_mismatch", "reduce_op_mismatch", "root_mismatch"}
)
ONE_END = frozenset({"unmatched_send", "unmatched_recv"})
MISSED = frozenset({"missing_participant", "deadlock", "store_key_missing"}) | ONE_END
STILL = MISSED | {"no_progress"}
"""Who is stopped may serve the store, or have begun what the others are in."""
OUT_OF_STEP = MISSED | MISMATCHES | {"size_mismatch", "divergence"}
SLOWNESS = frozenset({"straggler", "late_sender"})
FAILED = frozenset({"process_failed"})
UNCREATED = frozenset({"rendezvous_incomplete", "group_mismatch"})
"""Of who does not come to the making of a group."""
FOREVER = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What may be said about a run, and about whom."""

    name: str
    kinds: frozenset[str] = frozenset()
    """One of these must be found; none: nothing may be."""
    guilty: frozenset[int] = frozenset()
    named: bool = False
    """The guilty ones must be named; else they may be."""
    meanwhile: frozenset[str] = frozenset()
    """While it lasts one of these may be said of the guilty to whoever asks: it is longer than what
    is asked to count as a stall. The job itself says nothing.
    """
    hangs: bool = True
    """It may stand still: then it is diagnosed while it does."""
    harmless: bool = False
    """It may also end well, and then nothing needs to be said."""
    mute: bool = False
    """The guilty give no sign of life: where nobody has a connection to them, they look afterwards
    like processes that were killed then.
    """
    incomplete: bool = False
    """A journal is missing: nothing certain is asked for, but no all-clear either."""
    line: str | None = None
    """The line of the program that has to be shown; some line of it has to be at any rate."""
    parameters: frozenset[str] = frozenset()
    """Of these some have to be named in the end, and never another one."""
    unsaid: tuple[str, ...] = ()
    """Words that would send a person elsewhere."""


@dataclass(frozen=True, slots=True)
class Faulty:
    program: Program
    truth: Truth


Mutation = Callable[[random.Random, Program], Faulty]
"""A fault of a program that can have it; else ``mutations.UnfitError``."""
