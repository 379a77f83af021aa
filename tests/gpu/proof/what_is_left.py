"""What one run of a scenario left: facts that its ranks told, journals, stderr, verdicts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a torn last one, a tail of NULs and frames between are normal."""
    content = path.read_bytes().rstrip(b"\0")
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    return [json.loads(one) for one in whole if one.startswith(b"{")]


class Journal:
    """One process's journal, read without disttrace's own reader."""

    def __init__(self, folder: Path, name: str) -> None:
        self.definitions = lines(folder / f"{name}.defs.jsonl")
        self.records = [r for p in sorted(folder.glob(f"{name}.*.ops.jsonl")) for r in lines(p)]
        self.calls = {d["n"]: d for d in self.definitions if d["def"] == "call"}
        identity = json.dumps([d for d in self.definitions if d["def"] == "identity"])
        found = re.search(r'"rank": ?(\d+)', identity)
        self.rank = int(found[1]) if found else -1
        self.notes = [d["text"] for d in self.definitions if d["def"] == "note"]
        self.ends: dict[int, list[dict[str, Any]]] = {}
        self.issued: dict[int, int] = {}
        self.begun: list[dict[str, Any]] = []
        for r in self.records:
            for key in ("e", "c", "l"):
                if key in r:
                    self.ends.setdefault(r[key], []).append(r)
            if "i" in r:
                self.issued[r["i"]] = r["d"]
            if "b" in r and "r" not in r:
                self.begun.append(r)

    def operations(
        self, kinds: tuple[str, ...] = ("collective", "message")
    ) -> list[tuple[int, str]]:
        """Numbers and names of what was begun."""
        called = [(r["b"], self.calls[r["s"]]) for r in self.begun]
        return [(n, call["op"]) for n, call in called if call["kind"] in kinds]

    def open(self) -> list[tuple[int, str]]:
        """What never ended."""
        return [(n, op) for n, op in self.operations() if n not in self.ends]

    def twice(self) -> list[int]:
        """Operations seen complete by the poller after their end was on record (the other order is
        usual)."""
        orders = {
            n: "".join(next(k for k in "ecl" if k in r) for r in ends)
            for n, ends in self.ends.items()
        }
        return [n for n, order in orders.items() if order not in ("e", "c", "l", "ce")]

    def heartbeats(self) -> list[float]:
        """In seconds."""
        return [r["hb"] / 1e9 for r in self.records if "hb" in r]


@dataclass
class Run:
    """``codes`` are None of ranks that were ended from outside."""

    codes: list[int | None]
    facts: list[list[dict[str, Any]]]
    stderr: list[str]
    live: dict[str, Any] | None = None
    dead: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)

    def fact(self, rank: int, key: str) -> Any:
        """The last that the rank told of it."""
        return next((f[key] for f in reversed(self.facts[rank]) if key in f), None)

    def journal(self, rank: int) -> Journal | None:
        """That rank's."""
        return next((j for j in self.journals if j.rank == rank), None)


def facts(folder: Path, world: int) -> list[list[dict[str, Any]]]:
    """What each rank has said by now."""
    texts = ((folder / f"{r}.out").read_text(errors="replace") for r in range(world))
    said = ([t for t in text.splitlines() if t.startswith("KIT {")] for text in texts)
    return [[json.loads(t[4:]) for t in each if t.endswith("}")] for each in said]


def serious(report: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Findings that make a job unhealthy."""
    return [f for f in (report or {}).get("findings", []) if f["severity"] in ("error", "warning")]


def brief(report: dict[str, Any] | None) -> str:
    """Kinds and whom they blame."""
    if report is None:
        return "no report"
    told = [f"{f['kind']}{sorted(f['culprit_ranks'])}" for f in serious(report)]
    return ", ".join(told) or "nothing"
