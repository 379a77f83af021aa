"""Traces of ``torch.profiler`` (Kineto) as journals: one JSON file of each rank, or its gzip.

NCCL's operations are events ``record_param_comms`` with group, number and size, and kernels with
the same; gloo's name neither group nor number. A profile is a window of what ended: of a hang it
tells nothing.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.records import Records, public_name
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.values import dataclass, field

NAME = "profile"
MOST_BYTES = 512 << 20
_LACKS = ("messages", "older", "position", "reduce_op", "root", "stack", "stalls", "store")
_NAMES = (
    "allreduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base",
    "broadcast", "reduce", "gather", "scatter", "barrier",
)  # fmt: skip
_PUBLIC = {
    **{name: public_name(name) for name in _NAMES},
    **dict.fromkeys(("all_to_all", "all_to_allv"), "all_to_all_single"),
}
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Int": "int32", "Long": "int64", "Byte": "uint8", "Char": "int8", "Bool": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective. Times are unix nanoseconds; ``end_ns``: None where its end was not seen."""

    group: str
    op: str
    seq: int | None
    begin_ns: int
    returned_ns: int
    end_ns: int | None
    took_ns: int | None
    elements: int | None
    dtype: str | None


@dataclass(slots=True)
class _Profile:
    """What one file holds."""

    path: str
    rank: int
    world: int
    host: str
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Description and members by name."""
    calls: list[_Call] = field(default_factory=list)


def recognises(path: str, head: bytes) -> bool:
    """By the keys that Kineto writes first."""
    try:
        head = unpacked(head, len(head))[0]
    except zlib.error:
        return False
    return head.lstrip().startswith(b"{") and b'"schemaVersion"' in head


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per file that tells of which rank it is."""
    found: dict[int, _Profile] = {}
    for path in paths:
        if (one := _profile(path, problems)) is None:
            continue
        if one.rank in found:
            problems.add(path, "older", f"is another profile of rank {one.rank}; left out.")
            continue
        found[one.rank] = one
    counted = [one for _, one in sorted(found.items())]
    for one in counted:
        yield _journal(one, counted)


def _profile(path: str, problems: Problems) -> _Profile | None:
    try:
        data, beyond = files.read(path, MOST_BYTES)
        data, more = unpacked(data, MOST_BYTES)
        value = {} if beyond or more else orjson.loads(data)
        info = value.get("distributedInfo") or {}
        rank = info.get("rank")
    except (OSError, ValueError, AttributeError, zlib.error) as error:
        problems.add(path, "unreadable", f"is no whole profile ({error}); left out.")
        return None
    if beyond or more:
        problems.add(path, "too large", "is too large for a profile; profile fewer steps.")
        return None
    if type(rank) is not int or rank < 0:
        problems.add(path, "nameless", "is a profile that does not tell of which rank it is.")
        return None
    try:
        one = _Profile(path, rank, int(info.get("world_size") or 0), value.get("host_name", ""))
        for group in info.get("pg_config") or ():
            members = tuple(map(int, group.get("ranks") or ()))
            one.groups[str(group["pg_name"])] = (group.get("pg_desc") or "", members)
        base_ns = min(max(0, int(value.get("baseTimeNanoseconds") or 0)), 1 << 62)
        events = value.get("traceEvents") or ()
        one.calls = sorted(_calls(one, events, base_ns), key=lambda call: call.begin_ns)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        problems.add(path, "unreadable", f"has events of no known form ({error!r}); left out.")
        return None
    if one.calls:
        return one
    problems.add(path, "silent", "is a profile without collectives of NCCL; left out.")
    return None


def unpacked(data: bytes, most: int) -> tuple[bytes, int]:
    """Up to ``most`` bytes of what gzip packed, and whether there is more. Raises zlib.error."""
    if not data.startswith(b"\x1f\x8b"):
        return data, 0
    part = zlib.decompressobj(zlib.MAX_WBITS | 16)  # gzip's format
    return part.decompress(data, most), len(part.unconsumed_tail)


def _calls(one: _Profile, events: Iterable[Mapping[str, Any]], base_ns: int) -> Iterator[_Call]:
    kernels: dict[tuple[str, object], tuple[int, int]] = {}
    begun: list[Mapping[str, Any]] = []
    for event in events:
        args = event.get("args") or {}
        if args.get("Collective name") not in _PUBLIC:
            continue
        if event.get("cat") == "kernel" and args.get("Seq") is not None:
            at_ns = _at(event, base_ns)
            kernels[str(args.get("Process Group Name")), args["Seq"]] = (at_ns, _ns(event["dur"]))
        elif event.get("name") == "record_param_comms":
            begun.append(event)
    for event in begun:
        args = event["args"]
        name, seq = str(args.get("Process Group Name")), args.get("Seq")
        if name not in one.groups:
            ranks = re.fullmatch(r"\[([\d, ]*)\]", str(args.get("Process Group Ranks")))
            members = tuple(map(int, ranks[1].split(","))) if ranks and ranks[1] else ()
            one.groups[name] = (str(args.get("Process Group Description") or ""), members)
        at_ns, kernel = _at(event, base_ns), kernels.get((name, seq))
        elements = args.get("In msg nelems")
        yield _Call(
            name, _PUBLIC[args["Collective name"]], seq if type(seq) is int and seq > 0 else None,
            at_ns, at_ns + _ns(event["dur"]), kernel and sum(kernel), kernel and kernel[1],
            elements if type(elements) is int and 0 <= elements < 1 << 60 else None,
            _DTYPES.get(str(args.get("dtype"))),
        )  # fmt: skip


def _journal(one: _Profile, every: Sequence[_Profile]) -> Files:
    """The journal of one rank of ``every``."""
    base_ns = min((c.begin_ns for p in every for c in p.calls[:1]), default=0) - 1_000_000_000
    last_ns = max((c.end_ns or c.returned_ns for c in one.calls), default=base_ns)
    records = Records(
        NAME, one.path, one.rank, world=max([one.world, *(p.rank + 1 for p in every)]),
        base_ns=max(base_ns, 0), lacks=_LACKS, clock=[one.host],
        job=os.path.basename(one.path).partition(".")[0] if len(every) == 1 else NAME,
    )  # fmt: skip
    numbers: dict[str, int] = {}
    for number, (name, (desc, ranks)) in enumerate(sorted(one.groups.items()), 1):
        if ranks and one.rank not in ranks:
            continue
        numbers[name] = number
        records.group(
            number, name, ranks, desc=desc, backends={"cuda": "nccl"},
            default=desc == "default_pg",
        )  # fmt: skip
    for call in one.calls:
        made = records.collective(
            call.op, numbers.get(call.group),
            shapes=None if call.elements is None else [[call.elements]],
            dtypes=None if call.dtype is None else [call.dtype],
            bytes=_bytes(call.elements, call.dtype),
        )  # fmt: skip
        begun = records.begin(made, call.begin_ns, q=call.seq)
        records.after("i", begun, call.returned_ns - call.begin_ns)
        if call.end_ns is None:
            records.after("l", begun, call.returned_ns - call.begin_ns)
        else:
            records.after("c", begun, call.end_ns - call.begin_ns, g=0, z=call.took_ns)
    return records.done(f"{one.path}[rank {one.rank}]", last_ns)


def _bytes(elements: int | None, dtype: str | None) -> int | None:
    if elements is None or dtype is None:
        return None
    bits = re.search(r"\d{1,4}$", dtype)
    return elements * (int(bits[0]) // 8 if bits else 1)


def _at(event: Mapping[str, Any], base_ns: int) -> int:
    return base_ns + _ns(event["ts"])


def _ns(microseconds: float) -> int:
    return min(max(0, round(microseconds * 1000)), 1 << 60)
