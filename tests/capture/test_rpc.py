"""Calls of ``torch.distributed.rpc`` are operations with a peer, and give what they gave before."""

from __future__ import annotations

from pathlib import Path

from support.preloaded import preloaded
from support.processes import free_port
from support.raw import read_journals

PROGRAM = Path(__file__).parent / "programs" / "remote_calls.py"


def test_remote_calls_are_recorded_and_undone(tmp_path: Path) -> None:
    """Results, exceptions and what is put back are as without tracing."""
    done = preloaded(str(PROGRAM), str(tmp_path), str(free_port()), timeout=120).check()
    assert done.stdout.splitlines() == ["2 3", "4 False", "5", "ValueError('no 5')", "True", "True"]
    (journal,) = read_journals(tmp_path)
    calls = {r["n"]: r for r in journal.definitions if r.get("def") == "call"}
    made = [
        (call["op"], (call.get("args") or {}).get("to"), (call.get("args") or {}).get("func"))
        for record in journal.records
        if "b" in record and (call := calls[record["s"]])["kind"] == "composed"
    ]
    assert {"init_rpc", "rpc.shutdown", "rpc.all_gather"} <= {op for op, _, _ in made}
    assert [one for one in made if one[0] == "rpc_sync"] == [
        ("rpc_sync", "worker0", "add"),
        ("rpc_sync", 0, "add"),
        ("rpc_sync", "worker0", "fail"),
    ]
    assert ("rpc_async", "worker0", "add") in made
    assert ("rpc.wait", "worker0", "add") in made
    (joined,) = (call for call in calls.values() if call["op"] == "init_rpc")
    assert joined["args"]["threads"] == 16
    (claimed,) = (r for r in journal.definitions if r.get("def") == "identity")
    assert (claimed["role"], claimed["rank"], claimed["world_size"]) == ("worker", 0, 1)
    assert ("remote", "worker0", "add") in made
    assert [f for op, _, f in made if op == "rpc.run" and f in ("add", "fail")] == [
        *["add"] * 4,
        "fail",
    ]
