"""A folder that many hosts share: each reads what is its own, and one of them all, if it must."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.viewer import shared_folder
from disttrace_viewer.companion import reading
from disttrace_viewer.companion.endpoint import SERVER, PeerReply
from disttrace_viewer.companion.reading import FolderLead, OwnJournals, unreported
from disttrace_viewer.companion.reports import packed, unpacked
from disttrace_viewer.companion.verdict import Judge
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.merged import Merged

HOSTS, RANKS = 3, 2


APART = {"flat": [], "by host": range(HOSTS), "mixed": [1]}


@pytest.fixture(params=[*APART])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A job of three hosts, two tries before it, and journals of other jobs."""
    shared_folder.write(tmp_path, HOSTS, RANKS, tries=2, old=10, apart=APART[request.param])
    return tmp_path


def where(folder: Path, host: int) -> Path:
    own = shared_folder.of_host(folder, host, [host])
    return own if own.exists() else folder


def of_host(folder: Path, host: int) -> Merged:
    own = OwnJournals(str(where(folder, host)), "job", f"host{host}")
    return of_journals(own.files())


def test_a_host_reads_its_own(folder: Path) -> None:
    """Of the try that runs, and neither other jobs nor other hosts."""
    pids = {state.process["pid"] for state in of_host(folder, 0).states.values()}
    assert pids == {os.getpid(), 4_000_001}
    pids = {state.process["pid"] for state in of_host(folder, 2).states.values()}
    assert pids == {4_000_004, 4_000_005}


def test_of_a_try_without_anybody_left_the_newest_is_read(folder: Path) -> None:
    """All have failed, and their launcher is about to begin anew."""
    for path in folder.rglob(f"job-host0-{os.getpid()}-*"):
        path.unlink()
    pids = {state.process["pid"] for state in of_host(folder, 0).states.values()}
    assert pids == {4_000_001}


def test_what_was_told_is_not_read(folder: Path) -> None:
    """By states or by a summary of its host; nor what is a link."""
    own, other = of_host(folder, 0), of_host(folder, 1)
    left = {f"host{host}" for host in (1, 2)}
    found = unreported(str(folder), "job", own, [])
    assert {Path(one.base).name.split("-")[1] for one in found} == left
    told = unpacked([PeerReply("host1", packed(other))], own).marks
    for found in (
        unreported(str(folder), "job", own, told),
        unreported(str(folder), "job", own, [], ["host1"]),
    ):
        assert {Path(one.base).name.split("-")[1] for one in found} == {"host2"}
    for path in folder.rglob("job-host2-4000005-*.defs.jsonl"):
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    found = unreported(str(folder), "job", own, told)
    assert [Path(one.base).name.split("-")[2] for one in found] == ["4000004"]
    if (folder / "job").exists():  # nor what lies where a link leads
        (folder / "job").rename(folder / "elsewhere2")
        (folder / "job").symlink_to(folder / "elsewhere2")
        found = unreported(str(folder), "job", own, [])
        assert all(Path(one.base).parent == folder for one in found)


def judge(folder: Path, answers: list[PeerReply] | None) -> Judge:
    found = Judge(str(where(folder, 0)), "job", "job", 10.0, "host0", root=str(folder))
    peers = found.peers
    peers.join = lambda *_: answers is not None  # type: ignore[method-assign]
    peers.settled = lambda: SERVER  # type: ignore[method-assign]
    peers.request = lambda *_, **__: answers or []  # type: ignore[method-assign]
    return found


def test_one_of_those_that_nobody_answers_reads_all(folder: Path) -> None:
    """It speaks for all; the others say nothing meanwhile, and one of them when it is gone."""
    first, second = judge(folder, None), judge(folder, None)
    told = first.verdict()
    assert told["lines"][0].startswith("stalled: Rank 5 never joined all_reduce #4")
    assert told["lines"][-1] == f"more: disttrace diagnose {folder}"
    assert told["alert"]["directory"] == str(folder)
    assert told["voices"]
    assert not second.verdict()["signature"]
    assert second.verdict()["waiting"]
    first.close()
    assert second.verdict()["lines"][0].startswith("stalled: Rank 5 never joined all_reduce #4")
    second.close()
    assert not list(folder.rglob("*.lead"))


def test_what_nobody_lacks_is_not_looked_for(folder: Path) -> None:
    """All have answered: no lock, and no journal of theirs is opened."""
    answers = [PeerReply(f"{n}", packed(of_host(folder, n))) for n in (1, 2)]
    opened: list[str] = []
    asking = judge(folder, answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderLead, "claim", lambda *_, **__: opened.append("lock"))
        told = asking.verdict()
    assert told["lines"][0].startswith("stalled: Rank 5 never joined all_reduce #4")
    assert opened == []
    asking.close()


def test_who_holds_the_lock_and_gives_no_sign_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its companion is stopped: the others tell what they know, later."""
    holder, other = FolderLead(str(tmp_path), "job"), FolderLead(str(tmp_path), "job")
    assert holder.claim(first=True) is True
    assert other.claim(first=True) is False
    later = time.monotonic() + reading.UNHEARD_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert holder.claim(first=True) is True  # which is a sign
    assert other.claim(first=True) is False
    monkeypatch.setattr(time, "monotonic", lambda: 2 * later)
    assert other.claim(first=True) is True
    holder.release()


def test_a_lock_of_somebody_elses_is_not_taken(tmp_path: Path) -> None:
    """A link in its place may lead to any file of ours; it does not silence us either."""
    (tmp_path / "mine").touch()
    (tmp_path / "job.lead").symlink_to(tmp_path / "mine")
    assert FolderLead(str(tmp_path), "job").claim(first=True) is None
