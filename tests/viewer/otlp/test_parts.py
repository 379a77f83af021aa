"""The exporter's small parts: reading what is being written, ids, the lock, bandwidth."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from disttrace.journal import proc
from disttrace_viewer.companion.service import CompanionLog, JournalRegistry
from disttrace_viewer.load import ids
from disttrace_viewer.load.tail import Tail
from disttrace_viewer.otlp.journal import JournalReader
from disttrace_viewer.otlp.sending import Sender
from disttrace_viewer.otlp.target import target
from disttrace_viewer.trace.operation import on_bus


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    """A line is there when its newline is, however it was written or long; also of a segment that
    is dropped while it is being read.
    """
    path = tmp_path / "segment"
    path.write_bytes(b"one\ntw")
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n" + b"x" * 3_000_000 + b"\nshort\n")
    path.unlink()
    assert tail.lines() == [b"two", b"three"]
    assert [len(line) for line in tail.lines()] == [3_000_000, 5]
    tail.close()


def test_reserved_space_is_no_line(tmp_path: Path) -> None:
    """NULs are room for what comes; of a process that is gone such a hole is skipped, with the torn
    line around it, and a torn last line stays unread.
    """
    path = tmp_path / "segment"
    path.write_bytes(b"one\nt\0o\n" + bytes(100))
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    with path.open("r+b") as file:
        file.seek(5)
        file.write(b"w")
    assert tail.lines() == [b"two"]
    tail.close()
    path.write_bytes(b"one\nt\0\0\nthree\nfo")
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    assert tail.lines(final=True) == [b"three"]
    assert tail.lines(final=True) == []
    tail.close()


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", ids.Context("a" * 32, "b" * 16, True)),
        (f"00-{'A' * 32}-{'b' * 16}-02", ids.Context("a" * 32, "b" * 16, False)),
        (f"cc-{'a' * 32}-{'b' * 16}-01-more", ids.Context("a" * 32, "b" * 16, True)),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None), (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None), ("nonsense", None), (None, None),
    ],
)  # fmt: skip
def test_traceparent(header: str | None, found: ids.Context | None) -> None:
    """As W3C Trace Context defines it."""
    assert ids.parse_traceparent(header) == found


def test_group_ids_tell_apart_what_is_apart() -> None:
    """Place, prefix, n-th creation, members and attempt are all part of it; host names are not."""
    group = {"name": "1", "ranks": [0, 1], "nth": 1}
    store = {"prefix": ["default_pg", "1/"]}
    base = {"type": "TCPStore", "host": "localhost", "port": 29500}

    def found(**changes: object) -> str:
        return ids.group_id(
            {**group, **{k: v for k, v in changes.items() if k in group}},
            {"prefix": changes.get("prefix", store["prefix"])},
            {**base, **{k: v for k, v in changes.items() if k in base}}, process="p",
            attempt=0 if changes.get("attempt") is None else 1, like_named=1,
        )  # fmt: skip

    assert found() == found(host="node-7") == found(name="other")
    different = [
        found(), found(port=29501), found(prefix=["default_pg", "2/"]), found(nth=2),
        found(ranks=[2, 3]), found(attempt=1),
    ]  # fmt: skip
    assert len(set(different)) == len(different)


def locked(path: Path) -> int:
    """The registry as the process that starts an exporter opens it; it names one journal."""
    path.with_name("base.defs.jsonl").touch()
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def test_the_registry_goes_with_its_exporter(tmp_path: Path) -> None:
    """When nobody came meanwhile; else it goes on with the one that found the lock taken."""
    path = tmp_path / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    path.write_text("1 2 base\n")
    assert registry.poll() == [proc.Entry(1, "2", "base")]
    assert registry.release()
    assert not path.exists()
    registry = JournalRegistry(str(path), locked(path))
    with path.open("a") as file:
        file.write("1 2 base\n")
    assert not registry.release()
    assert [entry.base for entry in registry.poll()] == ["base"]


def test_a_late_registration_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the unlocking: it takes the lock again, on a new file."""
    path = tmp_path / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    late = os.open(path, os.O_RDWR | os.O_APPEND)
    unlock = fcntl.flock

    def register_first(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            os.write(late, b"1 2 base\n")
        unlock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", register_first)
    assert not registry.release()
    os.close(late)
    assert [entry.base for entry in registry.poll()] == ["base"]
    with pytest.raises(BlockingIOError):
        locked(path)


@pytest.mark.parametrize("kind", ["outside", "parent", "link", "hard link", "pipe", "foreign"])
def test_what_a_stranger_registers_is_neither_read_nor_deleted(tmp_path: Path, kind: str) -> None:
    """A name that leads out of the folder, or to what is not a journal of this user."""
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.mkdir()
    old = victim / "old.defs.jsonl"
    old.write_text('{"def":"process"}\n')
    planted = folder / "x.defs.jsonl"
    base = "x"
    if kind == "outside":
        base = "../victim/old"
    elif kind == "parent":
        base = ".."
    elif kind == "link":
        planted.symlink_to(old)
    elif kind == "hard link":
        planted.hardlink_to(old)
    elif kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.touch()
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(planted, 65534, 65534)
    path = folder / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    with path.open("a") as file:
        file.write(f"999999 1 {base}\n1 2 base\n")
    assert [entry.base for entry in registry.poll()] == ["base"]
    assert registry.refused == [base]
    # Even if it were followed: what is not ours stays.
    reader = JournalReader(str(folder), base, owner=os.geteuid())
    list(reader.poll(final=True))
    assert not reader.definitions.process
    reader.delete()
    assert old.exists()
    assert kind not in ("link", "hard link", "pipe", "foreign") or os.path.lexists(planted)


def test_the_exporters_own_journals_are_deleted(tmp_path: Path) -> None:
    """Definitions and segments of this user, and nothing beside them."""
    names = ["x.defs.jsonl", "x.000001.ops.jsonl", "x.000002.ops.jsonl", "y.defs.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    reader = JournalReader(str(tmp_path), "x", owner=os.geteuid())
    list(reader.poll(final=True))
    reader.close()
    reader.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["y.defs.jsonl"]


def test_the_log_keeps_what_is_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users in the collector's address, and headers, which OpenTelemetry quotes in its warnings."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@collector:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter3,hunter4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=hunter5")
    path = tmp_path / "log"
    log = CompanionLog(os.open(path, os.O_CREAT | os.O_WRONLY))
    log.write(f"the collector at {(target('TRACES') or '')[1]} does not take spans")
    texts = ("bad: authorization=Bearer%20hunter3,hunter4", "401 for Bearer hunter3", "hunter5")

    def quoting() -> Any:
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        for text in texts:
            logging.getLogger("opentelemetry").warning(text)
        return InMemorySpanExporter()

    quoted: list[str] = []
    Sender(quoting, "", quoted.append).finish()
    assert quoted == ["bad: authorization=***,***", "401 for ***", "***"]
    log.write("cannot resolve http://user:hunter2@collector:4317")
    said = path.read_text()
    assert "hunter" not in said
    assert "http://***@collector:4317" in said


def test_what_a_killed_companion_left_is_told_from_what_is_new(tmp_path: Path) -> None:
    """Who had ended by then is of an earlier job; without another companion before, of this one."""
    path = tmp_path / "job.otlp"
    own = f"{os.getpid()} {proc.mark(proc.stat('self'))} base\n"
    for companions, followed in ((1, ["base", "base"]), (2, ["base"])):
        former = "exporter\n" * (companions - 1)
        path.write_text(f"1 2@earlier base\n{former}{own}exporter\n")
        registry = JournalRegistry(str(path), locked(path))
        assert [entry.base for entry in registry.poll()] == followed
        assert registry.inherited == ["base"] * (companions - 1)
        with path.open("a") as file:
            file.write("1 2@earlier base\n")
        assert len(registry.poll()) == 1  # it came and went since
        path.unlink()


def test_a_process_is_its_pid_and_its_start() -> None:
    """A later process with the same pid is another one."""
    stat = proc.stat("self")
    assert proc.Entry(os.getpid(), proc.mark(stat), "base").lives
    assert not proc.Entry(os.getpid(), proc.mark(stat._replace(ticks=stat.ticks + 1)), "base").lives
    assert not proc.Entry(os.getpid(), f"{stat.ticks}@an earlier boot", "base").lives


@pytest.mark.parametrize(
    ("op", "root", "scale", "factor"),
    [
        ("all_reduce", False, 1, 1.5), ("all_gather_into_tensor", False, 4, 0.75),
        ("reduce_scatter_tensor", False, 1, 0.75), ("all_to_all_single", False, 1, 0.75),
        ("broadcast", False, 1, 1.0), ("scatter", True, 1, 0.75), ("scatter", False, 4, 0.75),
    ],
)  # fmt: skip
def test_bandwidth_of_the_bus(op: str, root: bool, scale: int, factor: float) -> None:
    """For four ranks: size and factor by doc/PERFORMANCE.md of nccl-tests."""
    assert on_bus(op, 4, root=root) == (scale, factor)
