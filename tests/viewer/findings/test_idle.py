"""Who waits for requests is idle: a note, and an error as soon as anything else is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrace.journal.code_files import BUILT_IN
from support.journals import MS, Journal, workers
from support.scenes import S, beat, findings, only, ranks

PYTHON = "/usr/lib/python3.11"
Frames = tuple[tuple[str, int, str], ...]
LINE = ("server.py", 9, "requests")
QUEUE: Frames = ((f"{PYTHON}/threading.py", 327, "wait"), (f"{PYTHON}/queue.py", 171, "get"), LINE)
IDLE: dict[str, Frames] = {
    "a queue": QUEUE,
    "accept": ((f"{PYTHON}/socket.py", 294, "accept"), LINE),
    "an event loop": (
        (f"{PYTHON}/selectors.py", 468, "select"),
        (f"{PYTHON}/asyncio/base_events.py", 1874, "_run_once"),
        LINE,
    ),
    "recv, which is no Python": ((BUILT_IN, 9, "recv"), LINE),
    "a child's pipe": ((f"{PYTHON}/multiprocessing/connection.py", 378, "_recv"), LINE),
}
NOT: dict[str, Frames] = {
    "a lock": (LINE,),
    "a pool": (QUEUE[0], (f"{PYTHON}/concurrent/futures/_base.py", 451, "result"), LINE),
    "a thread's end": ((f"{PYTHON}/threading.py", 1119, "join"), LINE),
    "its own program's end": (
        (f"{PYTHON}/selectors.py", 415, "select"),
        (f"{PYTHON}/subprocess.py", 2115, "_communicate"),
        LINE,
    ),
    "a loader": (*QUEUE[:2], ("/site-packages/torch/utils/data/dataloader.py", 9, "next"), LINE),
}


def served(
    folder: Path,
    stands: Frames,
    *,
    rounds: int = 5,
    now: Frames | None = None,
    op: str = "broadcast",
    missing: Sequence[int] = (),
) -> list[Journal]:
    """Rank 0 stands there for half of each second, and then, or at ``now``, for 20 s."""
    journals = workers(folder, 3)
    for journal in journals:
        group, root = journal.world(), 0 if op == "broadcast" else None
        call = journal.collective(group, op, root=root)
        usual, last = journal.stack(*stands), journal.stack(*(now or stands))
        for n in range(rounds + 1):
            if journal.rank == 0:
                at = usual if n < rounds or now is None else last
                journal.record(at=n * S + 600 * MS, h=0, k=at)
            if n < rounds:
                late = 0 if journal.rank else S - 100 * MS
                journal.run(call, n * S + late + 50 * MS, S - late - 50 * MS, q=n + 1)
            elif journal.rank not in (0, *missing):
                journal.begin(call, n * S + 50 * MS, q=n + 1)
        beat(journal, 26)
    return journals


@pytest.mark.parametrize("stands", IDLE.values(), ids=IDLE)
def test_a_server_without_requests_is_idle(tmp_path: Path, stands: Frames) -> None:
    """As before each of the rounds that it came through."""
    served(tmp_path, stands)
    found = only(findings(tmp_path))
    assert (found.kind, found.severity, found.culprits) == ("waiting_for_input", "note", ())
    assert found.summary.startswith(
        "Rank 0, the source of broadcast #6 of the default group, waits for input at server.py:9 in"
        " requests"
    )
    assert "as in the rounds before: ranks 1, 2 wait for it at train.py:10." in found.summary
    assert ranks(tmp_path, found.waiting) == [1, 2]


@pytest.mark.parametrize("stands", NOT.values(), ids=NOT)
def test_who_waits_for_its_own_is_missing(tmp_path: Path, stands: Frames) -> None:
    """However often it stood there."""
    served(tmp_path, stands)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [0])


@pytest.mark.parametrize(
    "how", ["first round", "new line", "no source", "another one too", "its thread failed"]
)
def test_what_looks_alike_is_broken(tmp_path: Path, how: str) -> None:
    """One thing differs from the idle server."""
    if how == "first round":
        served(tmp_path, QUEUE, rounds=0)
    elif how == "new line":
        served(tmp_path, QUEUE, now=(*QUEUE[:2], ("server.py", 30, "drain")))
    elif how == "no source":
        served(tmp_path, QUEUE, op="all_reduce")
    elif how == "another one too":
        served(tmp_path, QUEUE, missing=[2])
    else:
        fail_thread(served(tmp_path, QUEUE)[0])
    found = only(findings(tmp_path))
    assert found.kind == "missing_participant"
    assert ranks(tmp_path, found.culprits) == [2 if how == "another one too" else 0]


@pytest.mark.parametrize(
    ("stands", "idle"),
    [
        ((IDLE["recv, which is no Python"][0], ("server.py", 30, "close")), True),
        ((*QUEUE[:2], ("server.py", 30, "close")), False),
        ((("server.py", 30, "close"),), False),
    ],
    ids=["a client's connection", "a queue", "a lock"],
)
def test_a_server_that_shuts_down_waits_for_its_clients(
    tmp_path: Path, stands: Frames, *, idle: bool
) -> None:
    """All have left the loop, and the others are in a last barrier."""
    for journal in workers(tmp_path, 3):
        serve(journal, journal.world(), journal.stack(*IDLE["accept"]), 5)
        last = journal.collective(1, "barrier", stack=journal.stack(("server.py", 50, "main")))
        if journal.rank:
            journal.begin(last, 6 * S, q=6)
        else:
            journal.record(at=7 * S, h=0, k=journal.stack(*stands))
        beat(journal, 26)
    found = only(findings(tmp_path))
    assert found.kind == ("waiting_for_input" if idle else "missing_participant")
    assert ("waits for its clients at server.py:30 in close" in found.summary) is idle


def serve(journal: Journal, group: int, stands: int, rounds: int) -> None:
    """Rank 0 waits there for half of each second."""
    call = journal.collective(group, "broadcast", root=0)
    for n in range(rounds):
        late = 0 if journal.rank else 900 * MS
        if not journal.rank:
            journal.record(at=n * S + 600 * MS, h=0, k=stands)
        journal.run(call, n * S + late + 50 * MS, S - late - 50 * MS, q=n + 1)


def fail_thread(journal: Journal) -> None:
    """An exception ended the thread that hands it the requests."""
    thread = journal.numbered("thread", name="client", native=7)
    stack = journal.stack(("server.py", 70, "client"))
    journal.define("failure", t=5 * S, type="OSError", text="gone", stack=stack, h=thread)
