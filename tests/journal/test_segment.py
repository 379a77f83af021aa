"""Segments keep what was put, whatever happens to the process, the disk or the other threads."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from disttrace.journal import own_file
from disttrace.journal.segment import (
    MappedSegment,
    Segment,
    SegmentFull,
    SegmentLost,
    WrittenSegment,
    filesystem,
    mechanism,
)
from support.processes import python

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
def test_survives_sigkill(kind: Callable[..., Segment], tmp_path: Path) -> None:
    """What was put is in the file although nobody closed it."""
    path = tmp_path / "s"
    program = (
        "import os, signal, sys\n"
        f"from disttrace.journal.segment import {kind.__name__} as S\n"
        "s = S(sys.argv[1], limit=10**6)\n"
        "for n in range(1000): s.put(b'%d\\n' % n)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=root, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes().rstrip(b"\0") == b"".join(b"%d\n" % n for n in range(1000))


@KINDS
def test_threads_lose_no_line(kind: Callable[..., Segment], tmp_path: Path) -> None:
    """Lines of several threads stay whole while windows are exchanged under them."""
    segment = kind(str(tmp_path / "s"), limit=10**9)
    lock = threading.Lock()

    def work(name: bytes) -> None:
        for n in range(20_000):
            line = b"%b-%d\n" % (name, n)
            try:
                segment.put(line)
            except ValueError:
                with lock:
                    put(segment, line)

    threads = [threading.Thread(target=work, args=(b"t%d" % n,)) for n in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    segment.close()
    lines = (tmp_path / "s").read_bytes().split()
    assert sorted(lines) == sorted(b"t%d-%d" % (t, n) for t in range(4) for n in range(20_000))


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
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
for n in range(10_000):
    store.set(f"{n % 7}", "x")
print(store.get("3"))
"""


def test_where_the_kernel_has_no_mapping_lines_are_written(tmp_path: Path) -> None:
    """The program hears nothing of it, and its last call is on record."""
    plain = python("-c", NO_MAPPINGS).check()
    traced = python("-c", NO_MAPPINGS, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    assert (plain.stdout, plain.stderr) == (traced.stdout, traced.stderr) == ("b'x'\n", "")
    last = max(tmp_path.glob("*.ops.jsonl")).read_bytes().splitlines()[-2:]
    assert [line[:12] for line in last] == [b'{"b":10003,"', b'{"e":10003,"']
