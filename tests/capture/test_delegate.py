"""Store traffic from C++: gloo's mesh is seen, and neither ports nor errors change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = Path(__file__).with_name("programs") / "delegated.py"


def test_the_mesh_is_seen(tmp_path: Path, port: int) -> None:
    """Ports are free after `del`, the time-out has torch's text, and each key is recorded."""
    plain = preloaded(PROGRAM, str(port)).check()
    traced = preloaded(PROGRAM, str(port), DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    assert traced.stdout == plain.stdout
    assert "disttrace:" not in traced.stderr
    assert "wait timeout after 1000ms, keys: /alone/0/1" in traced.stdout
    (journal,) = read_journals(tmp_path)
    calls = {n: call for n, call in journal.calls().items() if call.get("origin") == "c++"}
    stores = {record["n"]: record for record in journal.of("store")}
    seen = [
        ("/".join([*stores[calls[r["s"]]["store"]]["prefix"], *keys(r)]), calls[r["s"]]["op"])
        for r in journal.records
        if "b" in r and r["s"] in calls
    ]
    assert ("hand/0/0", "store.set") in seen
    assert ("alone/0/1", "store.wait") in seen
    assert ("two/0/1", "store.set") in seen
    assert ("two/0/1", "store.get") in seen


def keys(record: dict[str, object]) -> list[str]:
    """The key of a begin, as a list of one."""
    key = record["k"]
    return [str(key[0])] if isinstance(key, list) else [str(key)]


@pytest.mark.parametrize(
    "variables",
    [{"DISTTRACE_STORE_TRACE": "none"}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}],
    ids=["off", "detail"],
)
def test_the_real_store_stays(tmp_path: Path, port: int, variables: dict[str, str]) -> None:
    """By setting, and where the delegate could not live as long as the backend."""
    chosen = {"DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path), **variables}
    preloaded(PROGRAM, str(port), timeout=60.0, **chosen).check()
    (journal,) = read_journals(tmp_path)
    assert not [call for call in journal.of("call") if call.get("origin") == "c++"]


CLONED = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
app = dist.PrefixStore("app", store)
for one in (app, app.clone(), dist.PrefixStore("deep", store.clone())):
    one.set("key", b"1")
"""


@pytest.mark.skipif(not hasattr(dist.Store, "clone"), reason="stores of this torch have no clone")
def test_a_clone_is_another_connection_to_the_same_place(tmp_path: Path, port: int) -> None:
    """With the original's prefixes, and on the original's base; what stands on it goes over it."""
    (tmp_path / "cloned.py").write_text(CLONED)
    chosen = {"DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path / "out")}
    preloaded(tmp_path / "cloned.py", str(port), timeout=60.0, **chosen).check()
    (journal,) = read_journals(tmp_path / "out")
    stores = {one["n"]: one for one in journal.of("store")}
    used = [stores[call["store"]] for call in journal.of("call") if call["op"] == "store.set"]
    assert [one["base"] for one in used] == [1, 1, 1]
    assert [one["prefix"] for one in used] == [["app"], ["app"], ["deep"]]
    connections = [one.get("connection") for one in used]
    assert connections[0] is None
    assert len({*connections}) == 3
