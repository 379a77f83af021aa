"""A rendezvous in a file of an earlier run: nobody of this one is to blame, nor of that one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, T0, UNIX_NS, Journal
from support.scenes import PEER_GONE, S, all_gone, beat, fail, findings

PATH = "/tmp/meeting"


def run(folder: Path, pid: int, start_s: int, written_ns: int | None) -> list[tuple[Journal, int]]:
    """Two ranks make their store of a file; each with the number of the base store."""
    found = []
    for rank in range(2):
        journal = Journal(folder, pid=pid + rank, rank=rank, world_size=2, t0=T0 + start_s * S)
        where = journal.stack(("train.py", 6, "main"))
        base = journal.numbered(
            "store", type="FileStore", name=f"file://{PATH}", base=None, prefix=[], path=PATH
        )
        init = journal.call("init_process_group", kind="composed", origin="python", stack=where)
        written = None if written_ns is None else written_ns + rank * start_s * S
        args = {"path": PATH, "world_size": 2, **({"written": written} if written else {})}
        make = journal.call(
            "FileStore", kind="constructor", store=base, origin="python", stack=where, args=args
        )
        one = journal.begin(init, MS)
        journal.run(make, 2 * MS, MS, p=one)
        mesh = journal.call(
            "ProcessGroupGloo",
            kind="constructor",
            store=journal.prefix_store(base, "default_pg", "0/"),
            origin="python",
            stack=where,
            args={"rank": rank, "size": 2},
        )
        number = journal.begin(mesh, 4 * MS, p=one)
        found.append((journal, number))
    return found


def broken(journal: Journal, number: int) -> None:
    """It meets nobody at the address in the file."""
    journal.end(number, 50 * MS, x=journal.string(PEER_GONE))
    fail(journal, 60 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])


@pytest.mark.parametrize("earlier", [True, False])
def test_a_file_that_an_earlier_run_has_left(tmp_path: Path, earlier: bool) -> None:
    """Whether its journals are there, of ranks that were killed, or not."""
    if earlier:
        for journal, number in run(tmp_path, 4000, 0, None):
            journal.end(number, MS)
            journal.end(1, 5 * MS)
            beat(journal, 4)
    for journal, number in run(tmp_path, 4100, 8, UNIX_NS + S):
        broken(journal, number)
    found = next(one for one in findings(tmp_path, look=all_gone) if one.severity == "error")
    assert found.culprits == ()
    assert found.summary.endswith(
        "; /tmp/meeting is left over from an earlier run: the file still holds its addresses."
    )
    assert (found.hint or "").startswith("Delete that file")


def test_a_file_that_this_run_has_made(tmp_path: Path) -> None:
    """Rank 0 wrote it, and then rank 1 began."""
    for journal, number in run(tmp_path, 4100, 8, UNIX_NS + 9 * S):
        broken(journal, number)
    found = findings(tmp_path, look=all_gone)
    assert found
    assert not any("left over" in one.summary for one in found)
