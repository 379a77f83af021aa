"""Journals as they lie on disk, for tests of the half that writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RawJournal:
    """Records of one process: definitions, and operation records over all segments in order."""

    name: str
    definitions: list[Record]
    records: list[Record]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.definitions if record["def"] == kind]

    def only(self, kind: str) -> Record:
        (record,) = self.of(kind)
        return record

    def calls(self) -> dict[int, Record]:
        return {record["n"]: record for record in self.of("call")}

    def begun(self, *kinds: str) -> list[tuple[Record, Record]]:
        """(begin, call) of each operation of these kinds (default: all), copies left out."""
        calls = self.calls()
        found = ((r, calls[r["s"]]) for r in self.records if "b" in r and "r" not in r)
        return [(record, call) for record, call in found if not kinds or call["kind"] in kinds]

    def called(self, *kinds: str) -> list[Record]:
        return [call for _, call in self.begun(*kinds)]

    def over(self) -> set[int]:
        """Numbers of operations with an end, or seen complete."""
        return {record[key] for record in self.records for key in ("e", "c") if key in record}

    def operations(self) -> list[tuple[str, int | None, bool]]:
        """(operation, sequence number, whether it ended) in order of begin, copies left out."""
        over = self.over()
        return [(call["op"], r.get("q"), r["b"] in over) for r, call in self.begun()]

    def stacks(self) -> dict[int, list[list[int]]]:
        return {record["n"]: record["frames"] for record in self.of("stack")}

    def strings(self) -> dict[int, str]:
        return {record["n"]: record["v"] for record in self.of("string")}

    @property
    def rank(self) -> int:
        return int(max(record["rank"] for record in self.of("identity") if "rank" in record))


def read_journals(folder: Path) -> list[RawJournal]:
    """Every journal in ``folder``, by name; torn lines and tails of NULs are dropped."""
    journals = []
    for path in sorted(folder.glob("*.defs.jsonl")):
        name = path.name.removesuffix(".defs.jsonl")
        records: list[Record] = []
        for segment in sorted(folder.glob(f"{name}.*.ops.jsonl")):
            records += _lines(segment)
        journals.append(RawJournal(name, _lines(path), records))
    return journals


def verdicts(folder: Path) -> list[Record]:
    """What a job has said of itself, as far as it is kept below a folder."""
    return [record for path in folder.rglob("*.verdicts.jsonl") for record in _lines(path)]


def _lines(path: Path) -> list[Record]:
    content = path.read_bytes().rstrip(b"\0")
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [json.loads(line) for line in lines if line[:1] == b"{"]  # not the text of stacks
