"""Which entries of a flight recorder belong to an operation, and what they say of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from disttrace.capture.native.flight_recorder import COMPLETED, QUERIED, Key, Record
from disttrace.recording.operation import Operation

SLACK_NS = 2_000
"""Between two clocks read at the same moment."""
_BEFORE_NS = 1_000_000
"""A hook of torch's may write its entry before ours begins the operation."""


class State(Enum):
    """What entries say of an operation."""

    COMPLETED = "completed"
    RUNNING = "running"
    UNKNOWN = "unknown"  # they are not there, or will never say more


@dataclass(slots=True, eq=False)
class Running:
    """An operation that was issued and not seen finished.

    ``windows`` are the unix times of the calls in which its entries were made, ``until`` the end of
    the last one on the clock of begins, ``thread`` the one that issued it, ``group`` its group's
    name. ``stream`` is of those that the device executes in order.
    """

    operation: Operation
    recorder: str
    windows: tuple[tuple[int, int], ...]
    until: int
    thread: int
    group: str | None
    stream: tuple[int, bool] | None
    seen: int  # when it was last known to run, on the clock of begins
    entries: Sequence[Key] = ()
    confirmed: bool = False  # the entries are from an answer that held all
    gone: int = 0  # when it was first absent from those that are not complete; 0: it is not
    misses: int = 0  # answers that held all entries, and none of its own
    stale: bool = False  # its entries were overwritten: nothing more will be heard of it


def own(running: Running, records: Collection[Record], *, claimed: Iterable[Key]) -> Sequence[Key]:
    """The entries of ``running``, the newest of those that were coalesced into one launch.

    Entries of one launch (an uneven all_gather, a batch) have no events except for the last one,
    which is made when coalescing ends.
    """
    taken = set(claimed)
    names = {each.group for each in records}
    mine = [
        each
        for each in records
        if (each.thread is None or each.thread == running.thread)
        and (running.group is None or running.group not in names or each.group == running.group)
    ]
    # torch's hook made it before our begin: the newest one then, of those nobody else has.
    found = [each for each in mine if _within(each, running.windows, SLACK_NS)]
    if not found and running.recorder not in QUERIED:
        early = [each for each in mine if _within(each, running.windows, _BEFORE_NS)]
        found = [each for each in early if each.key not in taken][-1:]
    launches = {(each.group_id, each.p2p, each.launch): each.key for each in found}
    return tuple(launches.values())


def _within(record: Record, windows: Sequence[tuple[int, int]], before: int) -> bool:
    return any(since - before <= record.created <= until + SLACK_NS for since, until in windows)


def state(running: Running, by_key: Mapping[Key, Record]) -> State:
    """What an answer that holds all entries says of an operation whose entries are known."""
    found = [by_key.get(key) for key in running.entries]
    if not found or None in found:
        return State.UNKNOWN
    if all(each is not None and each.state == COMPLETED for each in found):
        return State.COMPLETED
    if running.recorder not in QUERIED and all(each is not None and each.retired for each in found):
        return State.UNKNOWN  # retired when it was issued: this backend never says when it is over
    return State.RUNNING
