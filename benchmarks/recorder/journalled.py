"""What really stands in a journal: begins by the function that issued them, and sizes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """Who issued an operation: the innermost function of the user, and "python" or "c++"."""

    op: str
    function: str
    language: str


def origins(folder: Path) -> Counter[Origin]:
    """Number of begins by who issued them."""
    strings: dict[int, str] = {}
    stacks: dict[int, int] = {}
    calls: dict[int, Origin] = {}
    for record in _records(folder, "*.defs.jsonl"):
        kind, number = record.get("def"), record.get("n", 0)
        if kind == "string":
            strings[number] = record["v"]
        elif kind == "stack" and record["frames"]:
            stacks[number] = record["frames"][0][2]
        elif kind == "call":
            function = strings.get(stacks.get(record.get("stack") or 0, 0), "")
            calls[number] = Origin(record["op"], function, record.get("origin", ""))
    return Counter(
        calls[record["s"]]
        for record in _records(folder, "*.ops.jsonl")
        if "b" in record and "r" not in record
    )


def begins(folder: Path) -> Counter[str]:
    """Number of begins by the innermost function of the user."""
    found: Counter[str] = Counter()
    for origin, count in origins(folder).items():
        found[origin.function] += count
    return found


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes of segments, and of definitions."""
    return (
        sum(path.stat().st_size for path in folder.glob("*.ops.jsonl")),
        sum(path.stat().st_size for path in folder.glob("*.defs.jsonl")),
    )


def _records(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    yield json.loads(line)
