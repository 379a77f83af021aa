"""What counts as getting on: any operation but those of a store, which a poller begins for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrace_viewer.companion.pulse import MOST_READ, Pulse
from support.journals import MS, Journal


def test_questions_to_a_store_are_no_progress(tmp_path: Path) -> None:
    """Also of a call that is defined later; nor is what a thread beside the main one does."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    group = journal.world()
    seen = Pulse(str(tmp_path), journal.base.name, 0.0)
    journal.run(journal.collective(group), t=100 * MS, d=MS, q=1)
    stood = seen.position()
    assert stood is not None
    for op in ("check", "wait"):
        call = journal.call(f"store.{op}", kind="store", store=1)
        for number in range(50):
            journal.run(call, t=(200 + number) * MS, d=MS, k="go")
        assert seen.position() == stood
    journal.run(journal.collective(group), t=900 * MS, d=MS, q=2, h=1)
    assert seen.position() == stood
    journal.segment()
    journal.run(journal.collective(group), t=950 * MS, d=MS, q=3)
    found = seen.position()
    assert found is not None
    assert found[0] == 2


def test_polling_alone_stands_nowhere(tmp_path: Path) -> None:
    """However much of it there is, a look is bounded."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    journal.world()
    seen = Pulse(str(tmp_path), journal.base.name, 0.0)
    call = journal.call("store.check", kind="store", store=1)
    journal.run(call, t=100 * MS, d=MS, k="go")
    assert seen.position() is None


def test_dropped_segments_are_passed_over(tmp_path: Path) -> None:
    """Of a long job only the newest ones are kept."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    call = journal.collective(journal.world())
    for _ in range(3):
        journal.segment().unlink()
    journal.segment()
    journal.run(call, t=100 * MS, d=MS, q=1)
    seen = Pulse(str(tmp_path), journal.base.name, 0.0)
    Path(f"{journal.base}.000001.ops.jsonl").unlink()
    found = seen.position()
    assert found is not None
    assert found[0] == 5
    for path in journal.segments:
        path.unlink(missing_ok=True)
    for _ in range(3):
        journal.segment().unlink()
    journal.segment()
    journal.run(call, t=100 * MS, d=MS, q=1)
    found = seen.position()
    assert found is not None
    assert found[0] == 9


def test_a_look_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was written: no file is opened anew, and kilobytes are read."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    call = journal.collective(journal.world())
    journal.run(call, t=MS, d=MS, q=1)
    seen = Pulse(str(tmp_path), journal.base.name, 0.0)
    before = seen.position()
    with journal.segments[-1].open("ab") as file:  # as a mapped one, which is longer
        file.write(b'{"e":1,"d":2}\n' * 100_000)
        begun = file.tell()
        file.write(b'{"b":9,"s":%d,"t":5,"q":2}\n' % call + bytes(1 << 16))
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "open", None)
    assert seen.position() == (1, begun) != before
    assert sum(read) < 3 * MOST_READ
    assert seen.position() == (1, begun)
    seen.close()
