"""Traces of ``torch.profiler`` (Kineto) as journals: one JSON file of each rank, or its gzip.

NCCL's operations are events ``record_param_comms`` with group, number and size, and kernels with
the same. gloo's are calls without a group, and what its threads did: of these only jobs with one
group are read, and they have numbers only where all ranks made the same calls. A profile is a
window of what ended: of a hang it tells nothing.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.records import Records, public_name
from disttrace_viewer.load.problems import Problems, plural
from disttrace_viewer.trace.values import dataclass, field

NAME = "profile"
MOST_BYTES = 512 << 20
_LACKS = ("messages", "older", "position", "reduce_op", "root", "stack", "stalls", "store")
_PARAMETERS = "record_param_comms"
_BOTH = (
    "allreduce", "allgather", "_allgather_base", "reduce_scatter", "broadcast", "reduce",
    "gather", "scatter",
)  # fmt: skip
_NCCL = {
    **{name: public_name(name) for name in (*_BOTH, "_reduce_scatter_base", "barrier")},
    **dict.fromkeys(("all_to_all", "all_to_allv"), "all_to_all_single"),
}
_GLOO = {f"{name}_": public_name(name) for name in (*_BOTH, "alltoall_base")}
_GLOO["barrier"] = "barrier"
_OF_THREADS = {"all_gather_into_tensor": "all_gather", "all_to_all_single": "all_to_all"}
"""What gloo's threads call otherwise."""
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Int": "int32", "Long": "int64", "Byte": "uint8", "Char": "int8", "Bool": "bool",
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "int": "int32", "long int": "int64", "unsigned char": "uint8", "bool": "bool",
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
    elements: int | None = None
    dtype: str | None = None


@dataclass(slots=True)
class _Profile:
    """What one file tells."""

    path: str
    rank: int
    world: int
    host: str
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Description and members by name."""
    calls: list[_Call] = field(default_factory=list)
    on_device: bool = False


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
    alike = len({tuple((c.op, c.elements) for c in one.calls) for one in counted}) == 1
    for one in counted:
        yield _journal(one, counted, numbered=one.on_device or alike)


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
        one.calls = sorted(_of_nccl(one, events, base_ns), key=lambda call: call.begin_ns)
        one.on_device = bool(one.calls)
        if not one.calls:
            one.calls = _of_gloo(one, events, base_ns, problems)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        problems.add(path, "unreadable", f"has events of no known form ({error!r}); left out.")
        return None
    if one.calls:
        return one
    if not any(problem.path == path for problem in problems.found()):
        problems.add(path, "silent", "is a profile without collectives; left out.")
    return None


def unpacked(data: bytes, most: int) -> tuple[bytes, int]:
    """Up to ``most`` bytes of what gzip packed, and whether there is more. Raises zlib.error."""
    if not data.startswith(b"\x1f\x8b"):
        return data, 0
    part = zlib.decompressobj(zlib.MAX_WBITS | 16)  # gzip's format
    return part.decompress(data, most), len(part.unconsumed_tail)


def _of_nccl(one: _Profile, events: Iterable[Mapping[str, Any]], base_ns: int) -> Iterator[_Call]:
    kernels: dict[tuple[str, object], tuple[int, int]] = {}
    begun: list[Mapping[str, Any]] = []
    for event in events:
        args = event.get("args") or {}
        if args.get("Collective name") not in _NCCL:
            continue
        if event.get("cat") == "kernel" and args.get("Seq") is not None:
            at_ns = _at(event, base_ns)
            kernels[str(args.get("Process Group Name")), args["Seq"]] = (at_ns, _ns(event["dur"]))
        elif event.get("name") == _PARAMETERS:
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
            name, _NCCL[args["Collective name"]], seq if type(seq) is int and seq > 0 else None,
            at_ns, at_ns + _ns(event["dur"]), kernel and sum(kernel), kernel and kernel[1],
            elements if type(elements) is int and 0 <= elements < 1 << 60 else None,
            _DTYPES.get(str(args.get("dtype"))),
        )  # fmt: skip


def _of_gloo(
    one: _Profile, events: Iterable[Mapping[str, Any]], base_ns: int, problems: Problems
) -> list[_Call]:
    """The k-th call of a kind is the k-th that a thread of gloo did, where there is one group."""
    calls: list[tuple[Mapping[str, Any], str, str]] = []
    done: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        kind, _, name = str(event.get("name")).partition("::")
        if kind == "c10d" and name in _GLOO and event.get("cat") == "cpu_op":
            calls.append((event, op := _GLOO[name], _OF_THREADS.get(op, op)))
        elif kind.startswith("gloo:") and event.get("cat") == "user_annotation":
            done[kind.removeprefix("gloo:")].append(event)
    if not calls:
        return []
    used = [name for name, (_, ranks) in one.groups.items() if not ranks or one.rank in ranks]
    if len(used) > 1:
        text = (
            f"is a profile of gloo in {plural(len(used), 'group')}: its calls name none; left out."
        )
        problems.add(one.path, "unnamed groups", text)
        return []
    calls.sort(key=lambda call: call[0]["ts"])
    for of_kind in done.values():
        of_kind.sort(key=lambda event: event["ts"])
    counted = {kind: sum(call[2] == kind for call in calls) for kind in done}
    whole = {kind for kind, number in counted.items() if number == len(done[kind])}
    rest = {kind: iter(done[kind]) for kind in whole}
    name = used[0] if used else "0"
    one.groups.setdefault(name, ("default_pg", tuple(range(one.world))))
    found = []
    for seq, (event, op, kind) in enumerate(calls, 1):
        end = next(rest[kind], None) if kind in rest else None
        at_ns, sizes = _at(event, base_ns), _sizes(event if end is None else end)
        end_ns = None if end is None else _at(end, base_ns) + _ns(end["dur"])
        returned_ns = at_ns + _ns(event["dur"])
        found.append(_Call(name, op, seq, at_ns, returned_ns, end_ns, None, *sizes))
    return found


def _journal(one: _Profile, every: Sequence[_Profile], *, numbered: bool) -> Files:
    """The journal of one rank of ``every``; ``numbered``: equal numbers are one operation."""
    base_ns = min((c.begin_ns for p in every for c in p.calls[:1]), default=0) - 1_000_000_000
    last_ns = max((c.end_ns or c.returned_ns for c in one.calls), default=base_ns)
    records = Records(
        NAME, one.path, one.rank, world=max([one.world, *(p.rank + 1 for p in every)]),
        base_ns=max(base_ns, 0), lacks=_LACKS, clock=[one.host], cut_ns=max(last_ns, 0),
        job=os.path.basename(one.path).partition(".")[0] if len(every) == 1 else NAME,
    )  # fmt: skip
    backend = ("nccl", "cuda") if one.on_device else ("gloo", "cpu")
    numbers: dict[str, int] = {}
    for number, (name, (desc, ranks)) in enumerate(sorted(one.groups.items()), 1):
        if ranks and one.rank not in ranks:
            continue
        numbers[name] = number
        records.group(
            number, name, ranks, desc=desc, backends={backend[1]: backend[0]},
            default=desc == "default_pg",
        )  # fmt: skip
    for call in one.calls:
        made = records.call(
            op=call.op, kind="collective", group=numbers.get(call.group), backend=backend[0],
            device=backend[1], shapes=None if call.elements is None else [[call.elements]],
            dtypes=None if call.dtype is None else [call.dtype],
            bytes=_bytes(call.elements, call.dtype),
        )  # fmt: skip
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


def _sizes(event: Mapping[str, Any]) -> tuple[int | None, str | None]:
    args = event.get("args") or {}
    dims, types = args.get("Input Dims") or [], args.get("Input type") or []
    if not dims or not isinstance(dims[0], list):
        return None, None
    shape = dims[0][0] if dims[0] and isinstance(dims[0][0], list) else dims[0]
    total = math.prod(map(int, shape))
    if not 0 <= total < 1 << 50:  # no tensor
        return None, None
    return total, _DTYPES.get(str(types[0])) if types else None


def _bytes(elements: int | None, dtype: str | None) -> int | None:
    if elements is None or dtype is None:
        return None
    bits = re.search(r"\d{1,4}$", dtype)
    return elements * (int(bits[0]) // 8 if bits else 1)


def _at(event: Mapping[str, Any], base_ns: int) -> int:
    return base_ns + _ns(event["ts"])


def _ns(microseconds: float) -> int:
    return min(max(0, round(microseconds * 1000)), 1 << 60)
