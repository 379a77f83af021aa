"""Dumps of ranks that run, which were asked for, and whose stacks were looked at at the same time.

The dumps have numbers, sizes and groups; the stacks say where each rank is, and what it is in that
no recorder keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.dumps.dump import Dump, Entry
from disttrace_viewer.load.foreign.dumps.dump_set import DumpSet, in_flight
from disttrace_viewer.load.foreign.flight_recorder import MESSAGE, RELATIVE, Translating, op_of
from disttrace_viewer.load.foreign.py_spy import (
    MESSAGES,
    Sample,
    call_of,
    local_rank,
    names_in,
    places,
    recorded,
)
from disttrace_viewer.trace.process import ATTACHED

_TOLD = ("position", "messages")
"""What stacks tell that dumps do not: a message matters here while a rank is in it."""


def looked_at(
    dumps: Mapping[int, Dump], samples: Mapping[int, Sample], at_ns: int
) -> Iterator[Files]:
    """The journals of ranks, by dumps as of a moment (unix ns) and the stacks just before it."""
    one = DumpSet(dict(sorted(dumps.items())), {ATTACHED}, asked_ns=at_ns)
    for rank, dump in one.dumps.items():
        yield _LookedAt(one, rank, dump, samples[rank]).done()


class _LookedAt(Translating):
    """A dump and a stack on their way to being a journal."""

    kind = ATTACHED

    def __init__(self, of: DumpSet, rank: int, dump: Dump, sample: Sample) -> None:
        self.sample, self.call = sample, call_of(sample)
        super().__init__(of, rank, dump)
        self.open = [entry for entry in dump.entries if in_flight(dump, entry)]

    def lacks(self) -> Iterator[str]:
        """What neither holds."""
        yield from (word for word in super().lacks() if word not in _TOLD)
        if self.sample.rank is None and local_rank(self.sample) is None:
            yield "rank"

    def stack(self, entry: Entry) -> int | None:
        """Where an operation was called; of the one that the main thread is in, where that is."""
        if self.call is not None and self._is_in(entry):
            return self.records.stack(self.call.frames)
        return super().stack(entry)

    def _is_in(self, entry: Entry) -> bool:
        """Whether the main thread is in an operation: by the functions that it is in, or as in the
        only one for which it can wait where it waits.
        """
        if not self.open or entry is not self.open[-1]:
            return False
        message = MESSAGE.fullmatch(entry.name) if entry.p2p else None
        name = message[1] if message else op_of(entry)
        alone = len(self.open) == 1 and self.call is not None and self.call.op == UNKNOWN_OP
        return alone or name in names_in(self.sample.frames)

    def rest(self) -> None:
        """Where it is, and the call that it is in, if that is in no recorder. Counts are left out:
        those of NCCL's new groups (torch 2.15) are not those of their entries.
        """
        records, call = self.records, self.call
        records.stands(self.cut_ns, records.stack(places(self.sample.frames)))
        if call is None or self.sample.moved or any(map(self._is_in, self.open)):
            return
        if call.op == UNKNOWN_OP and self.open:
            return
        message = call.op in MESSAGES
        of_default = (n for (name, _), n in self.groups.items() if name == self.of.default_name)
        number = recorded(call, records, next(of_default, None) if message else None)
        # A send and a receive that wait for each other wait for the same message.
        counted = message and call.peer is not None
        at_ns = self.cut_ns - self.sample.waited_ns
        records.begin(number, at_ns, q=RELATIVE if counted else None)
