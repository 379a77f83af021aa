"""One time line for all processes, and the seam for better clocks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

from disttrace_viewer.merge.clock import realign
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.process import (
    Digest,
    Exit,
    Failure,
    NonFinite,
    Sighting,
    StackSample,
    Trouble,
    Unreduced,
    Worker,
)
from support.journals import MS, T0, UNIX_NS, Journal, workers


def test_the_reading_that_was_taken_fastest_gives_the_offset(tmp_path: Path) -> None:
    """To all processes of a boot; its error is the error of the clock."""
    for pid, shift, error_ns in ((1, 0, 9), (2, 3, 2), (3, 1, 4)):
        journal = Journal(tmp_path, pid=pid, rank=pid - 1, world_size=3,
                          offset_ns=UNIX_NS - T0 + shift, keys={"error_ns": error_ns})  # fmt: skip
        journal.run(journal.collective(journal.world()), MS, MS, q=1)
    trace = load([str(tmp_path)])
    (clock,) = trace.clocks
    assert (clock.offset_ns, clock.error_ns) == (UNIX_NS - T0 + 3, 2)
    assert trace.operations["begin_ns"].to_list() == [UNIX_NS + 3 + MS] * 3


def test_realigning_moves_operations_and_processes_of_one_host(tmp_path: Path) -> None:
    """The other host stays where it is, and the order of begins is made anew."""
    for pid, host in ((1, "a"), (2, "b")):
        journal = Journal(tmp_path, pid=pid, rank=pid - 1, world_size=2, host=host, boot_id=host)
        journal.run(journal.collective(journal.world()), pid * MS, MS, q=1)
        journal.define("exit", t=9 * MS, how="normal", code=0)
    trace = load([str(tmp_path)])
    (theirs,) = (p.clock for p in trace.processes if p.host == "a")
    moved = tuple(
        dataclasses.replace(c, offset_ns=c.offset_ns + (5 * MS if number == theirs else 0))
        for number, c in enumerate(trace.clocks)
    )
    again = realign(trace, moved)
    hosts = [trace.processes[p].host for p in again.operations["process"]]
    assert hosts == ["b", "a"]
    assert again.operations["begin_ns"].to_list() == [UNIX_NS + 2 * MS, UNIX_NS + 6 * MS]
    assert again.operations["end_ns"].to_list() == [UNIX_NS + 3 * MS, UNIX_NS + 7 * MS]
    ends = {p.host: p.exit.t_ns for p in again.processes if p.exit}
    assert ends == {"a": UNIX_NS + 14 * MS, "b": UNIX_NS + 9 * MS}
    assert again.operations.schema == trace.operations.schema


def test_realigning_moves_every_time_that_a_process_has(tmp_path: Path) -> None:
    """What was seen of it, what its launcher knows and what its host told too."""
    (journal,) = workers(tmp_path, 1)
    journal.run(journal.collective(journal.world()), MS, MS, q=1)
    trace = load([str(tmp_path)])
    values = {int: 7, int | None: 7, str: "x", str | None: "x", bool: True}

    def made(kind: type) -> Any:
        hints = get_type_hints(kind)
        return kind(**{name: values.get(hint, ()) for name, hint in hints.items()})

    fields = {
        "exit": made(Exit),
        "reported": made(Worker),
        "latest_samples": {0: made(StackSample)},
        **{name: (made(Failure),) for name in ("failures", "handling")},
        "samples": (made(StackSample),), "workers": (made(Worker),), "sightings": (made(Sighting),),
        "troubles": (made(Trouble),), "digests": (made(Digest),),
        "nonfinite": (made(NonFinite),), "unreduced": (made(Unreduced),),
    }  # fmt: skip
    process = dataclasses.replace(trace.processes[0], heartbeat_ns=7, **fields)
    clock = trace.clocks[0]
    later = dataclasses.replace(clock, offset_ns=clock.offset_ns + 5)
    again = realign(dataclasses.replace(trace, processes=(process,)), (later,)).processes[0]
    was, now = times(process), times(again)
    assert len(was) == len(fields) + 3 + 2  # of samples two
    assert [after - before for before, after in zip(was, now, strict=True)] == [5] * len(was)


def times(value: Any) -> list[int]:
    """All that are in a value, but for lengths of time and what names something."""
    names = getattr(value, "__dataclass_fields__", getattr(value, "_fields", None))
    if names is not None:
        found = []
        for name in names:
            one = getattr(value, name)
            if name.endswith("_ns") and name not in ("pid_ns", "time_ns", "over_ns"):
                found.append(one)
            elif not isinstance(one, str):
                found += times(one)
        return found
    if isinstance(value, dict):
        return [ns for one in value.values() for ns in times(one)]
    return [ns for one in value for ns in times(one)] if isinstance(value, tuple) else []


def test_realigning_can_take_drift_out(tmp_path: Path) -> None:
    """A clock that gains a millisecond per second is set back by what it gained."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    for second in (0, 1, 2):
        journal.run(call, second * 1000 * MS, MS, q=second + 1)
    trace = load([str(tmp_path)])
    (clock,) = trace.clocks
    again = realign(trace, (dataclasses.replace(clock, drift=1e-3, origin_ns=T0),))
    begins = [t - UNIX_NS for t in again.operations["begin_ns"]]
    assert begins == [0, 999 * MS, 1998 * MS]
