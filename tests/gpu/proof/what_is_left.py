"""What one run of a scenario left: facts that its ranks told, journals, stderr, verdicts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.raw import RawJournal


class Journal:
    """One process's journal, read without disttrace's own reader."""

    def __init__(self, raw: RawJournal) -> None:
        self.raw = raw
        ranks = [d["rank"] for d in raw.of("identity") if "rank" in d]
        self.rank: int = ranks[0] if ranks else -1
        self.notes = [d["text"] for d in raw.of("note")]
        self.ends: dict[int, list[dict[str, Any]]] = {}
        self.issued = {r["i"]: r["d"] for r in raw.records if "i" in r}
        for r in raw.records:
            for key in ("e", "c", "l"):
                if key in r:
                    self.ends.setdefault(r[key], []).append(r)

    def operations(self) -> list[tuple[int, str]]:
        return [(r["b"], call["op"]) for r, call in self.raw.begun("collective", "message")]

    def open(self) -> list[tuple[int, str]]:
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
        return [r["hb"] / 1e9 for r in self.raw.records if "hb" in r]


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
        return next((f[key] for f in reversed(self.facts[rank]) if key in f), None)

    def journal(self, rank: int) -> Journal | None:
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
    if report is None:
        return "no report"
    told = [f"{f['kind']}{sorted(f['culprit_ranks'])}" for f in serious(report)]
    return ", ".join(told) or "nothing"
