"""Segments keep what was put, whatever happens to the process, the disk or the other threads; one
whose writes hold the program up is switched off.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disttrace.journal import originals, own_file
from disttrace.journal.own_file import SlowWrites, WriteBudget
from disttrace.journal.segment import (
    MappedSegment,
    Segment,
    SegmentFull,
    SegmentLost,
    WrittenSegment,
    filesystem,
    mechanism,
)
from support.preloaded import preloaded
from support.raw import read_journals

KINDS = pytest.mark.parametrize("kind", [MappedSegment, WrittenSegment])


def put(segment: Segment, line: bytes) -> None:
    while True:  # other threads may fill the new window first
        try:
            segment.put(line)
            return
        except ValueError:
            segment.extend(len(line))


def fill(segment: Segment) -> None:
    for _ in range(100_000):
        put(segment, b"0123456789abcdef\n")


@KINDS
def test_holds_exactly_what_was_put(kind: Callable[..., Segment], tmp_path: Path) -> None:
    """After close the file is the lines and nothing else."""
    path = tmp_path / "s"
    segment = kind(str(path), limit=10**9)
    lines = [b"x" * n + b"\n" for n in (1, 70_000, 5, 300_000, 2_500_000, 9)]
    for line in lines:
        put(segment, line)
    assert segment.size() == sum(map(len, lines))
    segment.close()
    assert path.read_bytes() == b"".join(lines)


@KINDS
def test_is_full_at_its_limit(kind: Callable[..., Segment], tmp_path: Path) -> None:
    """A line beyond the limit is refused, and the file stays within it."""
    segment = kind(str(tmp_path / "s"), limit=100_000)
    line = b"0123456789abcdef\n"
    for _ in range(100_000 // len(line)):
        put(segment, line)
    with pytest.raises(SegmentFull):
        put(segment, line)
    size = segment.size()
    assert size == 100_000 // len(line) * len(line)
    segment.close()
    assert os.path.getsize(tmp_path / "s") == size


@KINDS
def test_a_full_disk_is_an_oserror(kind: Callable[..., Segment], tmp_path: Path) -> None:
    """The limit of the file's size stands for a full disk: an exception, never a signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    segment = kind(str(tmp_path / "s"), limit=10**9)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            fill(segment)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    segment.close()
    assert (tmp_path / "s").read_bytes().startswith(b"0123456789abcdef\n")


def test_a_line_on_its_way_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody looks whether the file was shortened while a write is under way."""
    segment = WrittenSegment(str(tmp_path / "s"), limit=1000)
    write = os.write

    def look_first(fd: int, data: bytes) -> int:
        segment.check()
        return write(fd, data)

    monkeypatch.setattr(own_file, "write", look_first)
    segment.put(b"one\n")
    segment.put(b"two\n")
    os.truncate(tmp_path / "s", 0)
    with pytest.raises(SegmentLost):
        segment.check()
    segment.close()


def test_many_threads_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them takes the others' traffic for an owner that stands still, which it passes by."""
    segment = WrittenSegment(str(tmp_path / "s"), limit=10**9)
    monkeypatch.setattr(originals, "RLock", None)  # no lock is made beside the segment's own
    until = time.monotonic() + 1.5

    def turns(_: int) -> int:
        done = 0
        while time.monotonic() < until:
            segment.put(b"0123456789abcdef\n")
            done += 1
        return done

    with ThreadPoolExecutor(16) as pool:
        done = sum(pool.map(turns, range(16)))
    segment.close()
    assert (tmp_path / "s").read_bytes() == b"0123456789abcdef\n" * done


def test_mechanism_follows_the_file_system() -> None:
    """/proc is no place whose blocks can be reserved; the longest mount point counts."""
    assert filesystem("/proc/self") == "proc"
    assert mechanism("/proc/self") == ("written", "proc may not honour reserved blocks")


NO_MAPPINGS = """
import resource
import torch.distributed as dist
store = dist.HashStore()
store.set("begins", "")
spare = [bytearray(1000) for _ in range(20_000)]
del spare
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
for n in range(10_000):
    store.set(f"{n % 7}", "x")
print(store.get("3"))
"""


def test_where_the_kernel_has_no_mapping_lines_are_written(tmp_path: Path) -> None:
    """The program hears nothing of it, and its last call is on record."""
    plain = preloaded("-c", NO_MAPPINGS).check()
    traced = preloaded("-c", NO_MAPPINGS, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    assert (plain.stdout, plain.stderr) == (traced.stdout, traced.stderr) == ("b'x'\n", "")
    last = max(tmp_path.glob("*.ops.jsonl")).read_bytes().splitlines()[-2:]
    assert [line[:12] for line in last] == [b'{"b":10003,"', b'{"e":10003,"']


# -- a journal whose writes hold the program up is switched off, with one sentence


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
