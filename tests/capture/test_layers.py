"""What FSDP1, DTensor, pipelines, odd groups and Python backends issue is recorded exactly once."""

from __future__ import annotations

import collections
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from disttrace.capture.calls.operations import ROWS
from support.preloaded import preloaded, side_by_side
from support.raw import RawJournal, read_journals

PROGRAMS = Path(__file__).parent / "programs"
WORLD = 2
NAMES = {row.operator: row.op for row in ROWS}
ISSUED = ("collective", "message")

Counts = collections.Counter[str]


def journals_by_rank(folder: Path) -> list[RawJournal]:
    journals = read_journals(folder)
    return sorted(journals, key=lambda j: max(r["rank"] for r in j.of("identity") if "rank" in r))


def begins(journal: RawJournal, *kinds: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(begin, call) of each operation of these kinds."""
    calls = journal.calls()
    records = [r for r in journal.records if "b" in r and "r" not in r]
    return [(r, calls[r["s"]]) for r in records if calls[r["s"]]["kind"] in kinds]


def recorded(journal: RawJournal) -> Counts:
    """How many collectives and messages, by name."""
    return collections.Counter(call["op"] for _, call in begins(journal, *ISSUED))


def passed(by_part: dict[str, dict[str, int]]) -> Counts:
    total: Counts = collections.Counter({"barrier": 1})  # after the counts were printed
    for counts in by_part.values():
        for operator, number in counts.items():
            total[NAMES[operator]] += number
    return total


def unfinished(journal: RawJournal) -> list[str]:
    over = {r[key] for r in journal.records for key in ("e", "c") if key in r}
    return [call["op"] for record, call in begins(journal, *ISSUED) if record["b"] not in over]


def errors(journal: RawJournal) -> list[str]:
    failed = {record["e"] for record in journal.records if "x" in record}
    every = begins(journal, *ISSUED, "composed", "constructor", "store")
    return [call["op"] for record, call in every if record["b"] in failed]


def require_splitting() -> None:
    """Skip on a torch whose groups cannot be split or merged (2.5)."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(c10d.ProcessGroup, "split_group"):
        pytest.skip("groups of this torch have neither split_group nor merge_remote_group")


def test_layers(tmp_path: Path) -> None:
    """FSDP1, DTensor and a pipeline: what passed the dispatcher, once each, and without error."""
    counted = [*map(json.loads, side_by_side(PROGRAMS / "layers.py", WORLD, tmp_path, "count"))]
    side_by_side(PROGRAMS / "layers.py", WORLD, tmp_path, "trace")
    journals = journals_by_rank(tmp_path / "out")
    assert len(journals) == WORLD
    for by_layer, journal in zip(counted, journals):
        assert all(by_layer.values())
        assert recorded(journal) == passed(by_layer)
        assert unfinished(journal) == []
        assert errors(journal) == []
        assert journal.of("note") == []


def test_groups_made_in_other_ways(tmp_path: Path) -> None:
    """Split, merged, refused, aborted, made again, local: same endings, each operation once."""
    require_splitting()
    counted, traced = (
        [*map(json.loads, side_by_side(PROGRAMS / "regrouped.py", WORLD, tmp_path, mode))]
        for mode in ("count", "trace")
    )
    journals = journals_by_rank(tmp_path / "out")
    assert len(journals) == WORLD
    for rank, (plain, said, journal) in enumerate(zip(counted, traced, journals)):
        assert said["endings"] == plain["endings"]
        assert recorded(journal) == passed(plain["counts"])
        assert unfinished(journal) == []
        refused = rank == 0 and "TypeError" in plain["endings"]["shrink"]
        assert errors(journal) == (["shrink_group"] if refused else [])
        assert journal.of("note") == []


def test_a_python_backend(tmp_path: Path) -> None:
    """Its methods are recorded once, whether C++ calls them for a hooked group or the program."""
    program = PROGRAMS / "own_backend.py"
    plain = preloaded(program)
    if "No constructor" in plain.stdout or plain.code == -signal.SIGSEGV:
        pytest.skip("this torch has no Python backends, or crashes on them untraced (2.15.0)")
    plain.check()
    traced = preloaded(program, str(tmp_path)).check()
    assert traced.stdout == plain.stdout
    (journal,) = read_journals(tmp_path)
    ran = json.loads(plain.stdout.splitlines()[-1])
    assert recorded(journal) == ran
    assert unfinished(journal) == []
    assert errors(journal) == ["all_reduce", "all_reduce"]
    origins = collections.Counter(call["origin"] for _, call in begins(journal, *ISSUED))
    assert origins == {"c++": 2, "python": sum(ran.values()) - 2}
    assert journal.of("note") == []
