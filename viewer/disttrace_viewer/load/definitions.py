"""One process's definitions file as plain records, newest value of every key winning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from disttrace.journal.format import DEF, DEFINITIONS, FORMAT
from disttrace_viewer.load.problems import Problems, plural
from disttrace_viewer.load.text import Text

Record = dict[str, Any]

NUMBERED = ("string", "stack", "thread", "store", "group", "call")
LISTED = ("clock", "failure", "exit", "note", "dropped", "worker", "rendezvous")


@dataclass(slots=True)
class Definitions:
    """What one file defines; ``numbered[kind][n]`` and ``listed[kind]`` hold the records."""

    path: str
    process: Record = field(default_factory=dict)
    identity: Record = field(default_factory=dict)
    versions: Record = field(default_factory=dict)
    numbered: dict[str, dict[int, Record]] = field(
        default_factory=lambda: {kind: {} for kind in NUMBERED}
    )
    listed: dict[str, list[Record]] = field(default_factory=lambda: {kind: [] for kind in LISTED})
    last_t: int = 0

    def string(self, number: object) -> str | None:
        """A string by its number; None where it is not defined."""
        record = self.numbered["string"].get(number) if isinstance(number, int) else None
        value = None if record is None else record.get("v")
        return value if isinstance(value, str) else None


def parse(text: Text, problems: Problems) -> Definitions:
    """The definitions in a file. Records of unknown kinds are passed over, as the format asks."""
    found = Definitions(text.path)
    bad = first = 0
    for line_number, record in enumerate(_objects(text.data), 1):
        if record is None or not _take(found, record):
            bad, first = bad + 1, first or line_number
    if bad:
        problems.add(
            text.path,
            "noise",
            f"{plural(bad, 'line')} (first: line {first}) not readable as definitions;"
            " the others were used.",
        )
    version = found.process.get("format")
    if isinstance(version, int) and version > FORMAT:
        problems.add(
            text.path,
            "newer format",
            f"is written in format {version}, this disttrace knows {FORMAT}; read as far as it is"
            " understood, update disttrace to be sure.",
        )
    return found


def _objects(data: bytes) -> Iterator[Record | None]:
    for line in data.splitlines():
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            yield None
        else:
            yield value if isinstance(value, dict) else None


def _take(found: Definitions, record: Record) -> bool:
    kind = record.get(DEF)
    if not isinstance(kind, str):
        return False
    if kind not in DEFINITIONS:
        return True
    time = record.get("t")
    if isinstance(time, int):
        found.last_t = max(found.last_t, time)
    if kind in NUMBERED:
        number = record.get("n")
        if not isinstance(number, int):
            return False
        found.numbered[kind].setdefault(number, {}).update(record)
    elif kind in LISTED:
        found.listed[kind].append(record)
    else:
        getattr(found, kind).update({k: v for k, v in record.items() if v is not None})
    return True
