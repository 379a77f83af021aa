"""Names of attributes: OpenTelemetry's conventions where they exist, else ``disttrace.*``.

``docs/otlp.md`` lists them; a test holds the two together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.fates import completed_at
from disttrace_viewer.otlp.journal import LiveOperation
from disttrace_viewer.trace.plain_text import whole

Value = str | int | float | bool | list[str] | list[int]
Attributes = dict[str, Value]

TYPE = "disttrace.type"
"""What a span stands for: operation, process or end."""
PENDING = "disttrace.pending"
STALLED = "disttrace.stalled"
VERDICT = "disttrace.verdict"

_FROM_CALL = (
    *("op", "kind", "name", "backend", "device", "async"),
    *("dtypes", "reduce_op", "tag", "origin"),
)


def operation(op: LiveOperation) -> Attributes:
    """Everything known of an operation."""
    call, definitions = op.call, op.journal.definitions
    found: Attributes = {
        TYPE: "operation",
        "disttrace.operation.id": f"{definitions.id[:8]}.{op.number}",
        "disttrace.status": op.status,
    }
    for key in _FROM_CALL:
        if call.get(key) is not None:
            found[f"disttrace.{key}"] = call[key]
    for key in ("shapes", "splits", "args"):
        if call.get(key):
            found[f"disttrace.{key}"] = orjson.dumps(call[key]).decode()
    times = {
        "disttrace.issued_ns": op.record.get("issued"),
        "disttrace.wait_begin_ns": op.record.get("wait"),
        "disttrace.completed_ns": completed_at(op.record),
        "disttrace.device_duration_ns": op.record.get("z"),
        "disttrace.bytes": op.bytes,
        "disttrace.seq": op.seq,
    }
    found.update({name: value for name, value in times.items() if value is not None})
    if op.unobserved:
        found["disttrace.completion"] = "unobserved"
    if op.error is not None:
        found["error.type"] = op.error.partition(":")[0]
    found |= _group(definitions, op) | _store(definitions, op) | _code(definitions, op)
    thread = definitions.get("thread", op.record.get("h", 0)) or {}
    found |= _given({"thread.id": thread.get("native"), "thread.name": thread.get("name")})
    return found


def group_label(definitions: Definitions, number: int | None) -> str:
    """How metrics call a group: few values, equal in all members."""
    known = definitions.get("group", number) or {}
    return str(_description(known) or known.get("name") or "")


def process(definitions: Definitions) -> Attributes:
    """The resource of a process."""
    header = definitions.process
    argv = list(header.get("argv") or ())
    found = {
        "host.name": header.get("host"),
        "process.pid": header.get("pid"),
        "process.parent_pid": header.get("ppid"),
        "process.command_args": argv or None,
        "process.executable.path": argv[0] if argv else None,
        "process.working_directory": header.get("cwd"),
        "process.runtime.name": "cpython",
        "process.runtime.version": header.get("python"),
        "service.instance.id": definitions.id,
        "disttrace.job": header.get("job"),
        "disttrace.run": definitions.identity.get("run") or definitions.process.get("run"),
        "disttrace.attempt": definitions.attempt,
        "disttrace.process.id": definitions.id,
        "disttrace.process.role": definitions.role or "main",
        "disttrace.rank": definitions.rank,
        "disttrace.local_rank": definitions.local_rank,
        "disttrace.world_size": definitions.world_size,
    }
    return _given(found)


def service_name(definitions: Definitions) -> str:
    """The program: its script or module, without folder and suffix."""
    argv: list[str] = (definitions.process.get("argv") or [])[1:]
    for position, argument in enumerate(argv):
        if argument == "-m" and position + 1 < len(argv):
            return argv[position + 1]
        if not argument.startswith("-"):
            return os.path.splitext(os.path.basename(argument))[0] or "disttrace"
    return "disttrace"


def _group(definitions: Definitions, op: LiveOperation) -> Attributes:
    number = op.call.get("group")
    if number is None:
        return {}
    known = definitions.get("group", number) or {}
    ranks = known.get("ranks")
    found = _given(
        {
            "disttrace.group.id": definitions.group_id(number),
            "disttrace.group.name": known.get("name"),
            "disttrace.group.description": _description(known),
            "disttrace.group.size": known.get("size"),
            "disttrace.group.rank": known.get("rank"),
            "disttrace.group.ranks": ranks,
        }
    )
    for name, value in (("root", op.call.get("root")), ("peer", op.peer)):
        if value is not None:
            found[f"disttrace.{name}.group_rank"] = value
            if ranks is not None and 0 <= value < len(ranks):
                found[f"disttrace.{name}.rank"] = ranks[value]
    return found


def _store(definitions: Definitions, op: LiveOperation) -> Attributes:
    number = op.call.get("store")
    store = definitions.get("store", number)
    if store is None:
        return {}
    base = definitions.get("store", store.get("base")) or store
    return _given(
        {
            "disttrace.store.url": base.get("name"),
            "disttrace.store.key": definitions.full_key(number, op.record.get("k")),
            "server.address": base.get("host"),
            "server.port": base.get("port"),
        }
    )


def _code(definitions: Definitions, op: LiveOperation) -> Attributes:
    frames = definitions.frames(op.call.get("stack"))
    if not frames:
        return {}
    file, line, function = frames[0]
    return {
        "code.file.path": file,
        "code.line.number": line,
        "code.function.name": function,
        "code.stacktrace": stacktrace(frames),
    }


def stacktrace(frames: Sequence[tuple[str, int, str]]) -> str:
    """Frames as Python prints them, outermost first."""
    return "\n".join(f'  File "{file}", line {n}, in {name}' for file, n, name in reversed(frames))


def _description(known: Mapping[str, Any]) -> str | None:
    """A split's description holds an address, so what is called like one is left out."""
    text = known.get("desc")
    if not text or text == "undefined":
        return None
    return str(text) if whole(str(text).rpartition(":")[2]) is None else None


def _given(found: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in found.items() if value is not None}
