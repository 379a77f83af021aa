"""Calls are counted by the minute, for when their segments are gone."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

import disttrace
from disttrace_viewer.analysis.minutes import MINUTE_NS, Older, older
from disttrace_viewer.companion import follower
from disttrace_viewer.companion.follower import Minutes
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.otlp.journal import JournalReader
from support.journals import MS, UNIX_NS, Journal, workers

S = 1000 * MS
FIRST = UNIX_NS // MINUTE_NS
REST_NS = (FIRST + 1) * MINUTE_NS - UNIX_NS
"""Of the minute in which the journals begin, on their clock."""


def definitions() -> Definitions:
    found = Definitions()
    found.add({"def": "process", "process": "p", "unix_ns": UNIX_NS})
    return found


def counted(folder: Path) -> tuple[Minutes, Path]:
    """Of a journal that is there, and the file that it writes."""
    (folder / "x.defs.jsonl").touch()
    return Minutes(str(folder / "x"), definitions()), folder / "x.minutes.jsonl"


def lines(path: Path) -> list[dict[str, int]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_is_of_a_call_and_a_minute(tmp_path: Path) -> None:
    """It is written when the next minute begins, or at the end."""
    one, path = counted(tmp_path)
    one.add(7, 1 * S, 3 * S, held=S)
    one.add(7, 4 * S, 5 * S, held=0)
    one.add(8, 5 * S, 6 * S, held=S)
    assert not path.exists()
    one.missed()
    one.add(7, REST_NS - S, REST_NS + S, held=2 * S)
    assert lines(path) == [
        {"m": FIRST, "s": 7, "n": 2, "d": 3 * S, "h": S, "x": 2 * S, "p": 1},
        {"m": FIRST, "s": 8, "n": 1, "d": S, "h": S, "x": S, "p": 1},
    ]
    one.write()
    one.write()
    assert lines(path)[2:] == [{"m": FIRST + 1, "s": 7, "n": 1, "d": 2 * S, "h": 2 * S, "x": 2 * S}]


def test_what_is_not_seen_before_the_first_call_counts(tmp_path: Path) -> None:
    """A companion begins to read after a while."""
    one, path = counted(tmp_path)
    one.missed()
    one.add(7, S, 2 * S, held=0)
    one.write()
    assert [line["p"] for line in lines(path)] == [1]


def test_it_is_bounded_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls of a minute, and in bytes; where there is no folder nothing is written."""
    monkeypatch.setattr(follower, "MOST_CALLS", 2)
    monkeypatch.setattr(follower, "MOST_BYTES", 100)
    one, path = counted(tmp_path)
    for minute in range(3):
        for call in range(5):
            one.add(call, 0, minute * MINUTE_NS + S, held=0)
    one.write()
    assert [(line["s"], line.get("p")) for line in lines(path)] == [(0, 1), (1, 1)]
    gone = Minutes(str(tmp_path / "none" / "x"), definitions())
    gone.add(1, 0, S, held=0)
    gone.write()
    odd, _ = counted(tmp_path)
    odd.add(1, 0, 1, held=1 << 70)
    odd.write()


def test_nothing_is_left_of_a_journal_that_was_exported(tmp_path: Path) -> None:
    """Its files are removed, this one too, and it is not made again."""
    one, path = counted(tmp_path)
    one.add(7, 0, S, held=0)
    one.write()
    reader = JournalReader(str(tmp_path), "x", owner=os.geteuid())
    reader.delete()
    assert not path.exists()
    one.add(7, 0, MINUTE_NS + S, held=0)
    one.write()
    assert list(tmp_path.iterdir()) == []


def two_ranks(folder: Path, *, dropped: bool = True) -> list[Journal]:
    """Both kept what they did from the third minute on; of the first two there are counts."""
    journals = workers(folder, 2)
    for journal in journals:
        call = journal.collective(journal.world())
        begun = REST_NS + MINUTE_NS + S
        if dropped:
            journal.segment(begun)
            journal.define("dropped", t=begun, segment=1)
            journal.segments[0].unlink()
        journal.run(call, t=begun + S, d=MS, q=9)
        counts = [
            {"m": FIRST, "s": call, "n": 100, "d": 5 * S, "h": 4 * S, "x": S, "p": 1},
            {"m": FIRST + 1, "s": call, "n": 50, "d": 2 * S, "h": 2 * S, "x": 2 * S},
            {"m": FIRST + 2, "s": call, "n": 3, "d": S, "h": S, "x": S},
            {"m": FIRST, "s": "all_reduce", "n": 1},
        ]
        text = b"".join(orjson.dumps(line) + b"\n" for line in counts) + b'{"m": 1, "s'
        Path(f"{journal.base}.minutes.jsonl").write_bytes(text)
    return journals


def test_whole_minutes_before_what_is_kept_are_told(tmp_path: Path) -> None:
    """Of all ranks together; the minute in which the oldest segment begins is left out."""
    two_ranks(tmp_path)
    stats = disttrace.stats(tmp_path)
    (found,) = older(stats._trace.processes)
    assert isinstance(found, Older)
    assert (found.op, found.ranks, found.calls) == ("all_reduce", {0, 1}, 300)
    assert (found.total_ns, found.held_ns, found.max_ns) == (14 * S, 12 * S, 2 * S)
    assert (found.from_ns, found.to_ns) == (FIRST * MINUTE_NS, (FIRST + 2) * MINUTE_NS)
    assert found.partial
    (row,) = stats.to_dict()["older"]
    assert (row["op"], row["ranks"], row["calls"]) == ("all_reduce", 2, 300)
    assert row["group"] == stats.operations["group"][0]
    assert row["line"] == stats.operations["line"][0]
    assert "given up at DISTTRACE_MAX_MB and counted by the minute, of some" in stats.text()
    assert stats.operations["calls"].sum() == 2, "no other table has any of it"


def test_nothing_is_told_of_what_is_still_there(tmp_path: Path) -> None:
    """Where no segment was given up the tables have all of it."""
    two_ranks(tmp_path, dropped=False)
    stats = disttrace.stats(tmp_path)
    assert stats.to_dict()["older"] == []
    assert "by the minute" not in stats.text()
