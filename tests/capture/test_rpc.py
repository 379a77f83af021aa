"""A program that uses ``torch.distributed.rpc``, which is not traced, is what it is untraced."""

from __future__ import annotations

from pathlib import Path

from support.preloaded import preloaded
from support.processes import free_port
from support.raw import read_journals

PROGRAM = Path(__file__).parent / "programs" / "remote_calls.py"


def test_remote_calls_are_as_untraced(tmp_path: Path) -> None:
    """Results and exceptions are the same; the store and the groups by which workers find each
    other are recorded as everybody's.
    """
    printed = []
    for where in ("", str(tmp_path)):
        done = preloaded(str(PROGRAM), str(free_port()), where, timeout=120).check()
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert printed[0].splitlines() == ["2 3", "4 False", "5", "ValueError('no 5')", "True"]
    (journal,) = read_journals(tmp_path)
    calls = {r["n"]: r for r in journal.definitions if r.get("def") == "call"}
    made = {calls[record["s"]]["op"] for record in journal.records if "b" in record}
    assert {"TCPStore", "ProcessGroupGloo", "barrier"} <= made
    assert not [op for op in made if "rpc" in op or op in ("remote", "to_here")]
