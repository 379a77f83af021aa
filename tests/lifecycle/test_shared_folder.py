"""A folder that many hosts share: each reads what is its own, also where no other answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.viewer import shared_folder
from disttrace_viewer.companion.reading import OwnJournals
from disttrace_viewer.companion.verdict import Judge
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.state import Merged
from support.orders import order

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


def test_a_host_that_none_answers_prints_what_it_knows(folder: Path) -> None:
    """Of ranks of other hosts nothing is known, though their journals lie here as well."""
    judge = Judge(order(where(folder, 0), host="host0", root=str(folder)))
    judge.peers.join = lambda *_: False  # type: ignore[method-assign]
    told = judge.verdict()
    assert told["voices"]
    assert "nothing is known of ranks 2-5: no store of the job leads to them" in told["lines"]
    assert told["lines"][-1].endswith(f"disttrace diagnose {folder}")
    judge.close()
    assert not list(folder.rglob("*.lead"))
