"""What jobs that were killed left behind, and where processes of a host leave word for each other:
nobody else may write there, or it is not taken.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from disttrace.identity import Identity
from disttrace.journal import proc
from disttrace.journal.segment import filesystem
from disttrace.lifecycle import companion, rendezvous_folder
from disttrace.lifecycle.companion import MemberList
from disttrace.lifecycle.heartbeat import IN_MEMORY, RARELY_NS, Syncing
from disttrace.lifecycle.rendezvous_folder import namespace, own_folder, place
from disttrace_viewer.companion.reading import OwnJournals
from disttrace_viewer.companion.service import SETTLED_S, sweep
from support.journals import Journal
from support.processes import clean_environ, ending, wait_until

_CACHESTAT = 451
PROGRAM_SYNCING = """
import sys, time
import disttrace
import torch.distributed as dist
from disttrace import session
disttrace.install(quiet=True, dir=sys.argv[1])
store = dist.HashStore()
store.set("key", "value")
while session._session._without_gil._told is None:
    time.sleep(0.02)
tasks = [one.part for one in session._session.live._tasks]
print("writing the journal to the disk" in tasks, flush=True)
while True:  # what the background writes after a sync, as a heartbeat, waits for the next
    time.sleep(2.5)
    store.set("key", "value")
"""


def dirty(path: Path) -> int:
    """Pages of a file that are not on the disk. Raises OSError where the kernel cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    told = ctypes.create_string_buffer(40)
    with path.open("rb") as file:
        if libc.syscall(_CACHESTAT, file.fileno(), struct.pack("=QQ", 0, 0), told, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _, unwritten, under_way, *_ = struct.unpack("=5Q", told.raw)
    return int(unwritten + under_way)


def test_who_stands_still_is_on_the_disk(tmp_path: Path) -> None:
    """The kernel would wait for half a minute; in memory there is no disk."""
    (tmp_path / "new").write_bytes(b"x")
    if filesystem(str(tmp_path)) in IN_MEMORY:
        pytest.skip("needs a folder on a disk")
    try:
        assert dirty(tmp_path / "new")
    except OSError:
        pytest.skip("needs Linux 6.5")
    out = tmp_path / "out"
    command = [sys.executable, "-c", PROGRAM_SYNCING, str(out)]
    process = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE)
    with ending(process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        files = [*out.glob("*.jsonl")]
        assert len(files) == 2
        wait_until(lambda: not any(map(dirty, files)), timeout=15)


def test_when_files_are_synced() -> None:
    """Once after a second without progress, else each half minute; again where it was refused."""
    journal = SimpleNamespace(at=(1, 0), answers=True, synced=0)

    def sync(segment: int) -> bool:
        journal.synced += 1
        return bool(journal.answers)

    recorder = SimpleNamespace(progress=lambda: journal.at, descriptor=lambda: 5)
    capture: Any = SimpleNamespace(recorder=recorder)
    native: Any = SimpleNamespace(sync=sync)
    syncing = Syncing(capture, native)
    synced = []
    second = 10**9
    moves = {0: True, 1: True, 2: True, 3: False, 4: False, 5: True, 6: False, 7: False}
    for now, moved in moves.items():
        journal.answers = now != 6
        journal.at = (1, journal.at[1] + moved)
        syncing.look(now * second + RARELY_NS)
        synced.append(journal.synced)
    assert synced == [1, 1, 1, 2, 2, 2, 3, 4]
    journal.at = (2, 0)
    syncing.look(RARELY_NS * 3)
    assert journal.synced == 5


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of ``/tmp``: others may write there, and take away only what is theirs."""
    found = tmp_path / "tmp"
    found.mkdir()
    found.chmod(0o1777)
    monkeypatch.setattr(rendezvous_folder, "PARENT", str(found))
    return found


def test_it_is_private_and_one_for_each_folder(parent: Path, tmp_path: Path) -> None:
    """Made with permissions for nobody else; files of two folders do not meet."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    one, two = place(str(tmp_path / "a")), place(str(tmp_path / "b"))
    assert one == place(str(tmp_path / "link")) != two
    (made,) = parent.iterdir()
    assert one.startswith(f"{made}/")
    assert made.stat().st_mode & 0o777 == 0o700


def open_to_others(path: Path, elsewhere: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def link(path: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(0o700)
    path.symlink_to(elsewhere)


def file(path: Path, elsewhere: Path) -> None:
    path.touch(0o600)


def somebody_elses(path: Path, elsewhere: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    path.mkdir(0o700)
    os.chown(path, 65534, 65534)


def not_sticky(path: Path, elsewhere: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize("plant", [open_to_others, link, file, somebody_elses, not_sticky])
def test_what_others_may_write_is_not_taken(
    parent: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    """The folder of the journals has to do then, as it did before."""
    plant(parent / f"disttrace-{os.geteuid()}", tmp_path / "elsewhere")
    assert own_folder() is None
    assert place(str(tmp_path)) == f"{tmp_path}/"


@pytest.mark.usefixtures("parent")
def test_the_roll_names_a_hosts_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that live and those that ended lately; the folder is listed for none of them."""
    folder = tmp_path / "out"
    folder.mkdir()
    roll = MemberList(str(folder))
    me = Identity({}, job="job")
    roll.enter(me, False)
    now = time.time_ns()
    bases: list[str] = []
    for pid, age_s in ((os.getpid(), 0), (4_190_000, 0), (4_190_001, 86_400)):
        journal = Journal(
            folder, pid, host=me.host, process=me.process if not bases else "", t0=0,
            offset_ns=now, keys=dict(proc.own()),
        )  # fmt: skip
        bases.append(str(journal.base))
        for path in (journal.definitions, *journal.segments):
            os.utime(path, (time.time() - age_s,) * 2)
        if len(bases) > 1:
            with Path(roll.path(me)).open("a") as file:
                file.write(f"{pid} 1@boot {journal.base.name}\n")
    with Path(roll.path(me)).open("a") as file:
        file.write("7 1@boot ../job-host-7-0\n8 1@boot other-host-8-0\nx\n9")
    journal = Journal(folder, 77, host="another")
    assert roll.count(me) == 5
    listed: list[str] = []
    list_of = os.listdir

    def listing(path: str) -> list[str]:
        listed.append(path)
        return list_of(path)

    monkeypatch.setattr(os, "listdir", listing)
    own = OwnJournals(str(folder), "job", "host", roll.path(me))
    assert [one.base for one in own.files()] == bases[:2]
    assert listed == []
    # Of one that runs for long the first segments are gone.
    long_lived = Path(bases[0])
    os.rename(f"{long_lived}.000001.ops.jsonl", f"{long_lived}.000007.ops.jsonl")
    assert [*own.files()[0].segments] == [7]
    assert [*own.files()[0].segments] == [7]
    assert len(listed) == 1
    roll.leave(me, failed=False)  # nobody else lives
    assert not Path(roll.path(me)).exists()


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize(("failed", "others"), [(True, 0), (True, 1), (False, 0)])
def test_a_rank_that_fails_before_others_begin_stays_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool, others: int
) -> None:
    """They will wait for it. Where processes meet is looked up once: they look again and again."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    look_up = Mock(return_value=f"{tmp_path}/")
    monkeypatch.setattr(companion, "place", look_up)
    roll, me = MemberList(str(tmp_path)), Identity({}, job="job")
    for _ in range(1 + others):
        roll.enter(me, False)
    assert len([*roll.first(me)]) == 1 + others
    roll.leave(me, failed=failed)
    assert Path(roll.path(me)).exists() is (failed and not others)
    look_up.assert_called_once_with(str(tmp_path))


def roll(folder: Path, job: str, *lines: str, age_s: float = 2 * SETTLED_S, ns: str = "") -> Path:
    path = folder / f"fe00.1-{job}-vm-{ns or namespace()}.roll"
    path.write_text("".join(f"{line}\n" for line in lines))
    os.chmod(path, 0o600)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def shown(folder: Path, base: str) -> Path:
    path = folder / f"fe00.1-{base}.calls"
    path.write_bytes(bytes(64))
    return path


def test_only_what_nobody_living_wrote_is_taken(tmp_path: Path) -> None:
    """With the pages that it names, and nothing that its lines could lead to elsewhere."""
    me = f"{os.getppid()} {proc.mark(proc.stat(os.getppid()))}"
    outside = tmp_path / "outside.calls"
    outside.touch()
    folder = tmp_path / "place"
    folder.mkdir()
    dead = roll(folder, "dead", "4194000 1 dead-vm-1-a", "4194001 2 ../outside", "no line")
    pages = shown(folder, "dead-vm-1-a")
    kept = [
        roll(folder, "living", "4194000 1 gone-vm-2-a", f"{me} living-vm-3-a"),
        roll(folder, "young", "4194000 1 young-vm-4-a", age_s=1.0),
        roll(folder, "elsewhere", "4194000 1 other-vm-5-a", ns="1"),
        shown(folder, "living-vm-3-a"),
        shown(folder, "young-vm-4-a"),
    ]
    assert sweep(os.fspath(folder)) == 1
    assert not dead.exists()
    assert not pages.exists()
    assert all(path.exists() for path in (*kept, outside))
    assert sweep(os.fspath(tmp_path / "none")) == 0
