"""What the records of a segment hold of an operation that was begun, and of its process's life."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.load.schema import Record
from disttrace_viewer.trace.values import dataclass, field

MARKS = {
    fmt.ISSUED: "issued", fmt.WAIT: "wait", fmt.COMPLETE: "complete", fmt.LOST: "lost",
    fmt.ASKED: "asked",
}  # fmt: skip
"""By first key what a mark tells: ``d`` is when, in ns after the begin; the first one counts."""


@dataclass(slots=True)
class Signs:
    """Signs of life: the newest of each kind, in ns after ``t0``."""

    last_t: int = 0
    beat: int | None = None
    stands: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By thread: when, and the number of the stack (0: none)."""
    samples: MutableSequence[tuple[int, int]] = field(default_factory=list)
    """Of the main thread, in the order of the file."""
    thinned: bool = False
    """Of samples in a row that have one stack only the first and the last are kept."""
    first: dict[tuple[int, int], int] = field(default_factory=dict)
    """By thread and number of the stack, when it was first seen there."""

    def take(self, kind: str, record: Mapping[str, Any]) -> None:
        """A record whose first key is ``kind``: a heartbeat, a sample of a stack, a head."""
        t: int = record.get("t", 0)
        if kind == fmt.HEARTBEAT:
            t = record[kind]
            self.beat = max(t, self.beat or 0)
        elif kind == fmt.STANDS_AT:
            t, thread = record[kind], record.get("h", 0)
            sample = (t, record.get("k", 0))
            self.first.setdefault((thread, sample[1]), t)
            if thread == 0:
                self._sampled(sample)
            if t >= self.stands.get(thread, sample)[0]:
                self.stands[thread] = sample
        self.last_t = max(self.last_t, t)

    def _sampled(self, sample: tuple[int, int]) -> None:
        kept = self.samples
        if self.thinned and len(kept) > 1 and kept[-2][1] == kept[-1][1] == sample[1]:
            kept.pop()
        kept.append(sample)

    def join(self, later: Signs) -> None:
        self.last_t = max(self.last_t, later.last_t)
        if later.beat is not None:
            self.beat = max(later.beat, self.beat or 0)
        for sample in later.samples:
            self._sampled(sample)
        self.first = {**later.first, **self.first}
        for thread, stand in later.stands.items():
            if stand[0] >= self.stands.get(thread, stand)[0]:
                self.stands[thread] = stand


def write_end(begin: Record, end: Record) -> int:
    """Write down in a begin what its end has of times; how long it took."""
    duration: int = end.get("d", 0)
    begin["end"] = duration
    if "u" in end:
        # A synchronous call waits from its issue on unless its record has another time.
        begin["issued"] = issued = end["u"]
        begin["wait"] = end.get("v", issued)
    elif "v" in end:
        begin["wait"] = end["v"]
    return duration


def write_rest(begin: Record, end: Record) -> None:
    """Write down in a begin what few ends have: number, source, error, refusal, bytes."""
    for name in ("q", "y", "x", "f", "n"):
        if name in end:
            begin[name] = end[name]


def wait_again(begin: Record) -> None:
    """It is waited for once more: its last wait was in vain, and its end was none."""
    for name in ("end", "x"):
        begin.pop(name, None)


def fold(begin: Record, kind: str, record: Record) -> None:
    """Write down in a begin what a record of ``kind`` holds of it: one record after another."""
    if kind == fmt.END:
        write_end(begin, record)
        write_rest(begin, record)
        return
    if kind == fmt.WAIT and "end" in begin:
        wait_again(begin)
    begin.setdefault(MARKS[kind], record["d"])
    if "z" in record:
        begin["z"] = record["z"]


def completed_at(record: Record) -> int | None:
    """When it was seen complete: a wait that ends well has seen that."""
    found: int | None = record.get("complete")
    if found is None and "wait" in record and "x" not in record:
        found = record.get("end")
    return found


def over(record: Record, call: Mapping[str, Any]) -> bool:
    """Whether it has ended; a wait for what a device ends is over when that was seen complete."""
    if "end" in record or "complete" not in record:
        return "end" in record
    return "wait" not in record or fmt.ends_on_device(call.get("backend"), call.get("device"))
