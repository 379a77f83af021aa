"""A journal whose writes hold the program up is switched off, with one sentence."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from disttrace.journal import own_file
from disttrace.journal.own_file import SlowWrites, WriteBudget
from disttrace.journal.segment import WrittenSegment
from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = Path(__file__).with_name("slow_disk.py")
SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("disttrace.journal.own_file._clock", clock)
    return clock


def write(clock: Clock, budget: WriteBudget, seconds: float) -> None:
    begun = clock.now
    clock.now += int(seconds * SECOND)
    budget.wrote(begun)


def test_one_long_write_is_the_last(clock: Clock) -> None:
    """The bound is not reached at it, and passed behind it."""
    budget = WriteBudget(2.0)
    write(clock, budget, 2.0)
    with pytest.raises(SlowWrites, match=r"^one write took 2\.1 s$"):
        write(clock, budget, 2.1)


def test_many_slow_ones_are_too_much_together(clock: Clock) -> None:
    """More than half of the time over ten times the bound."""
    budget = WriteBudget(1.0)
    for _ in range(50):
        write(clock, budget, 0.1)
        clock.now += SECOND // 100
    with pytest.raises(SlowWrites, match=r"^writes took 5\.1 of 5\.6 s$"):
        write(clock, budget, 0.1)


def test_slow_writes_now_and_then_are_borne(clock: Clock) -> None:
    """A tenth of the time, for an hour; and quick ones all the time."""
    budget = WriteBudget(1.0)
    for _ in range(3600):
        write(clock, budget, 0.1)
        clock.now += SECOND * 9 // 10
    for _ in range(100_000):
        write(clock, budget, 0.0009)


def test_without_a_bound_nothing_is_too_slow(clock: Clock) -> None:
    """0 is patience without end."""
    write(clock, WriteBudget(0.0), 10_000.0)


def test_a_written_segment_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is in the file though its write is the last."""
    segment = WrittenSegment(str(tmp_path / "s"), limit=1000, budget=WriteBudget(0.05))
    segment.put(b"quick\n")
    real = os.write

    def slow(fd: int, data: bytes) -> int:
        time.sleep(0.1)
        return real(fd, data)

    monkeypatch.setattr(own_file, "write", slow)
    with pytest.raises(SlowWrites):
        segment.put(b"slow\n")
    segment.close()


@pytest.mark.parametrize(("seconds", "why"), [(0.5, "one write took"), (0.15, "writes took")])
def test_a_program_goes_on(tmp_path: Path, seconds: float, why: str) -> None:
    """It is held up for some writes, then no more; the journal says that tracing was taken off."""
    pytest.importorskip("torch")
    outcome = preloaded(PROGRAM, tmp_path, "20", str(seconds), DISTTRACE_SLOW_WRITE="0.3").check()
    keys, took = outcome.stdout.splitlines()[0].split()
    assert keys == "200"
    assert float(took) < 20  # 400 writes would take 60 seconds and more
    (sentence,) = [line for line in outcome.stderr.splitlines() if "disttrace" in line]
    assert "holds the program up" in sentence
    assert why in sentence
    (journal,) = read_journals(tmp_path)
    assert journal.only("exit")["how"] == "uninstalled"
    begun = [r for r in journal.records if "b" in r]
    assert 1 <= len(begun) < 100
