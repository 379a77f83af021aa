"""The calls of a job as values: what a program would have to call to do the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from disttrace_viewer.replay.sequences import COMES, ISSUE, Key

STAYS, STOPS, ENDS, FAILS, KILLED = "stays", "stops", "ends", "fails", "killed"
"""It stands at a line, is stopped (SIGSTOP), ends well, raises, is killed."""
LATER = "later"
"""A function has returned, and what it answers is a future that is not set."""
MONITORED = "monitored_barrier"
"""It waits for all and gives up in its call, which ends as that of a refused one does."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank. Ranks are global; ``group`` is an index into ``Job.groups``: of
    ``new_group`` the group that it made, or 0 where it made none that is used.
    """

    op: str
    key: Key | None
    begin_ns: int
    over: bool
    """It ended well in the recording."""
    group: int = 0
    message: bool = False
    asynchronous: bool = False
    shapes: Sequence[Sequence[int]] = ()
    dtypes: Sequence[str] = ()
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    """Of a message the other end, of a remote call whoever answers it."""
    tag: int = 0
    where: str = ""
    """``train.py:137``."""
    gave_up_ns: int | None = None
    """When it ended in an error, unix ns."""
    lost: bool = False
    """It ended since the other end was gone."""
    late: bool = False
    """It began after another member had given up, or after the end of somebody whose store it
    needed.
    """
    ranks: Sequence[int] | None = None
    """Of ``new_group`` the members it asked for."""
    function: str | None = None
    """Of a remote call the function of the other worker that answers it."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Of remote calls what was given to them, and of ``init_rpc``."""


Steps: TypeAlias = list[tuple[str, Call]]
"""Whether a call is issued or waited for, and which."""


@dataclass(slots=True)
class Rank:
    """What one rank does: by thread whether it issues a call or waits for one, and its end. What
    it runs for remote calls is in ``threads`` too, by the name of the function.
    """

    threads: dict[int | str, Steps] = field(default_factory=dict)
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of its functions ``end`` and ``word``."""
    end: str = ENDS
    word: str = ""
    """Where it stays, or with what it fails."""
    joins: str | None = None
    """What it gives to ``init_process_group`` where not all join in the same way; None: it never
    calls that.
    """
    port: int = 0
    """How far its port is from that of the others."""
    late: bool = False
    """It joined after others had given up."""
    left_ns: int | None = None
    """When it had ended, unix ns."""


def is_remote(call: Call) -> bool:
    """Whether it is of ``torch.distributed.rpc``."""
    return call.key is not None and call.key[0] == "remote"


@dataclass(slots=True)
class Job:
    """Ranks by number, and the members of each group; the first one is the default group."""

    ranks: dict[int, Rank]
    groups: list[tuple[int, ...]]
    joined: bool = True
    """All ranks have joined, each in its place."""
    has_default: bool = True
    """There is a default group; workers of remote calls may do without."""

    @property
    def steps(self) -> Iterator[tuple[int, str, Call]]:
        """Of all threads: the rank, whether it issues a call or waits for it, and which."""
        for number, rank in self.ranks.items():
            for steps in rank.threads.values():
                yield from ((number, what, call) for what, call in steps)

    @property
    def calls(self) -> Iterator[Call]:
        """Each where it is issued and where it is waited for."""
        return (call for _, _, call in self.steps)

    @property
    def some_come_late(self) -> bool:
        """Somebody comes after others have given up."""
        return any(r.late for r in self.ranks.values()) or any(c.late for c in self.calls)

    @property
    def count(self) -> int:
        """Calls of all ranks; that all join is none of them."""
        joining = sum(rank.joins is not None for rank in self.ranks.values())
        issued = sum(what == ISSUE and call.op != COMES for _, what, call in self.steps)
        return issued + (0 if self.joined else joining)
