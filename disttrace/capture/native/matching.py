"""Which entries of a flight recorder belong to an operation, and what they say of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from disttrace.capture.native.flight_recorder import COMPLETED, QUERIED, Key, Record
from disttrace.recording.operation import Operation

SLACK_NS = 2_000
"""Between two clocks read at the same moment."""
_BEFORE_NS = 1_000_000
"""A hook of torch's may write its entry before ours begins the operation."""

_Placed = tuple[int, int, Record]  # when it was made, its place in the answer, the entry


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


class Entries:
    """The entries of one answer, found by thread, group and time; ``claimed`` are somebody's.

    Made once per answer: to walk all of them for each operation is quadratic, and holds the GIL.
    """

    def __init__(self, records: Iterable[Record], claimed: Iterable[Key]) -> None:
        self._claimed = set(claimed)
        self._lanes: dict[int | None, dict[str, list[_Placed]]] = {}
        self._groups: set[str] = set()
        for place, each in enumerate(records):
            self._groups.add(each.group)
            lane = self._lanes.setdefault(each.thread, {}).setdefault(each.group, [])
            lane.append((each.created, place, each))
        for lanes in self._lanes.values():
            for lane in lanes.values():
                lane.sort(key=_created)

    def claim(self, running: Running) -> Sequence[Key]:
        """The entries of ``running``, the newest of those that were coalesced into one launch.

        Entries of one launch (an uneven all_gather, a batch) have no events except for the last
        one, which is made when coalescing ends.
        """
        found = self._within(running, SLACK_NS)
        # torch's hook made it before our begin: the newest one then, of those nobody else has.
        if not found and running.recorder not in QUERIED:
            early = reversed(self._within(running, _BEFORE_NS))
            found = [each for each in early if each.key not in self._claimed][:1]
        launches = {(each.group_id, each.p2p, each.launch): each.key for each in found}
        self._claimed.update(launches.values())
        return tuple(launches.values())

    def _within(self, running: Running, before: int) -> list[Record]:
        """What may be of ``running``, in the order of the answer."""
        found: dict[int, Record] = {}
        for lane in self._lanes_of(running):
            for since, until in running.windows:
                first = bisect_left(lane, since - before, key=_created)
                for created, place, each in islice(lane, first, None):
                    if created > until + SLACK_NS:
                        break
                    found[place] = each
        return [found[place] for place in sorted(found)]

    def _lanes_of(self, running: Running) -> Iterator[list[_Placed]]:
        """Those of its thread, or of threads that are not told, and of its group if told."""
        for thread in (running.thread, None):
            lanes = self._lanes.get(thread, {})
            if running.group is None or running.group not in self._groups:
                yield from lanes.values()
            elif running.group in lanes:
                yield lanes[running.group]


def _created(placed: _Placed) -> int:
    return placed[0]


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
