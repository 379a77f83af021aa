"""What profilers tell of the operations of one rank, as its journal.

It is a window of what ended: of a hang it tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.records import Records, identity

LACKS = ("messages", "older", "position", "reduce_op", "root", "stack", "stalls", "store")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. Times are unix nanoseconds; ``end_ns``: None where nobody saw it end."""

    group: str
    op: str
    seq: int | None
    begin_ns: int
    returned_ns: int
    end_ns: int | None
    took_ns: int | None
    bytes: int | None
    elements: int | None = None
    dtype: str | None = None


@dataclass(slots=True)
class Profile:
    """What one file tells."""

    path: str
    rank: int
    world: int
    host: str
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Description and members by name."""
    calls: list[Call] = field(default_factory=list)
    on_device: bool = False


def journal(one: Profile, every: Sequence[Profile], kind: str, *, numbered: bool) -> Files:
    """The journal of one rank; ``every``: of all that are read together. ``kind``: as sentences say
    it. ``numbered``: whether operations of one number are one.
    """
    base_ns = min((c.begin_ns for p in every for c in p.calls[:1]), default=0) - 1_000_000_000
    last_ns = max((c.end_ns or c.returned_ns for c in one.calls), default=base_ns)
    records = Records(
        identity(kind, one.path, one.rank),
        rank=one.rank,
        world=max([one.world, *(p.rank + 1 for p in every)]),
        job=one.path.rpartition("/")[2].partition(".")[0] if len(every) == 1 else kind,
        clock=identity(kind, one.host),
        base_ns=max(base_ns, 0),
        source={"kind": kind, "lacks": sorted(LACKS), "cut_ns": max(last_ns, 0)},
    )
    backend = ("nccl", "cuda") if one.on_device else ("gloo", "cpu")
    numbers: dict[str, int] = {}
    for number, (name, (desc, ranks)) in enumerate(sorted(one.groups.items()), 1):
        if ranks and one.rank not in ranks:
            continue
        numbers[name] = number
        records.group(
            number,
            name,
            ranks,
            desc=desc,
            backends={backend[1]: backend[0]},
            default=desc == "default_pg",
        )
    for call in one.calls:
        made = records.call(
            op=call.op,
            kind="collective",
            group=numbers.get(call.group),
            backend=backend[0],
            device=backend[1],
            shapes=None if call.elements is None else [[call.elements]],
            dtypes=None if call.dtype is None else [call.dtype],
            bytes=call.bytes,
        )
        begun = records.begin(made, call.begin_ns, q=call.seq if numbered else None)
        if one.on_device:
            records.after("i", begun, call.returned_ns - call.begin_ns)
        if call.end_ns is None:
            records.after("l", begun, call.returned_ns - call.begin_ns)
        elif one.on_device:
            records.after("c", begun, call.end_ns - call.begin_ns, g=0, z=call.took_ns)
        else:
            records.after("e", begun, call.end_ns - call.begin_ns)
    return records.done(f"{one.path}[rank {one.rank}]", last_ns)
