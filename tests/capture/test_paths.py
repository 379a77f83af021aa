"""A program that issues operations through every path yields exactly those, each with an end."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest
import torch.distributed as dist

from disttrace.capture.calls.operations import ROWS
from support.preloaded import preloaded, side_by_side
from support.raw import RawJournal, read_journals

PROGRAMS = Path(__file__).parent / "programs"
WORLD = 2
NAMES = {row.operator: row.op for row in ROWS}


def recorded(journal: RawJournal) -> collections.Counter[tuple[str, str]]:
    """How many collectives and messages, by name and origin."""
    calls = [journal.calls()[record["s"]] for record in begins(journal)]
    kinds = ("collective", "message")
    return collections.Counter((c["op"], c["origin"]) for c in calls if c["kind"] in kinds)


def begins(journal: RawJournal) -> list[dict[str, int]]:
    return [record for record in journal.records if "b" in record and "r" not in record]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, int], RawJournal]]:
    """Per rank: what passed the dispatcher without us, and the journal of a traced run."""
    folder = tmp_path_factory.mktemp("paths")
    counted = [*map(json.loads, side_by_side(PROGRAMS / "paths.py", WORLD, folder, "count"))]
    side_by_side(PROGRAMS / "paths.py", WORLD, folder, "trace")
    journals = sorted(read_journals(folder / "out"), key=_rank)
    assert len(journals) == WORLD
    return list(zip(counted, journals))


def _rank(journal: RawJournal) -> int:
    return int(max(record["rank"] for record in journal.of("identity") if "rank" in record))


def test_just_what_passed_the_dispatcher(traced: list[tuple[dict[str, int], RawJournal]]) -> None:
    """Names and numbers equal those that the program's own kernels counted, plus its barrier."""
    for counted, journal in traced:
        expected: collections.Counter[str] = collections.Counter()
        for operator, number in counted.items():
            expected[NAMES[operator]] += number
        expected["barrier"] += 1  # after the counts were printed
        found: collections.Counter[str] = collections.Counter()
        for (op, _), number in recorded(journal).items():
            found[op] += number
        assert found == expected


def test_origins(traced: list[tuple[dict[str, int], RawJournal]]) -> None:
    """What the program calls itself is Python's; functional collectives and DDP are C++'s."""
    for rank, (_, journal) in enumerate(traced):
        found = recorded(journal)
        # DDP makes three all-reduces, functional collectives three, inference mode among them.
        assert found["all_reduce", "c++"] == 6
        assert found["all_reduce", "python"] == 7
        assert found["all_to_all_single", "python"] == 1
        assert found["monitored_barrier", "python"] == 1
        assert found["send", "python"] == (1 if rank == 0 else 2)
        assert found["recv", "python"] == (2 if rank == 0 else 1)


def test_each_is_over(traced: list[tuple[dict[str, int], RawJournal]]) -> None:
    """Every operation has an end or was seen complete, and none an error."""
    for _, journal in traced:
        over = {r[k] for r in journal.records for k in ("e", "c") if k in r}
        assert [r for r in begins(journal) if r["b"] not in over] == []
        assert [r for r in journal.records if "x" in r] == []
        assert journal.of("note") == []


def test_any_source_tells_its_source(traced: list[tuple[dict[str, int], RawJournal]]) -> None:
    """The receive from anyone is numbered in the stream of the rank it came from."""
    journal = traced[0][1]
    sources = [record for record in journal.records if "y" in record]
    assert [(record["y"], record["q"]) for record in sources] == [(1, 2)]


def test_sequence_numbers_agree(traced: list[tuple[dict[str, int], RawJournal]]) -> None:
    """Per group both ranks count the same collectives, whichever door they came through."""
    streams = []
    for _, journal in traced:
        calls = journal.calls()
        names = {group["n"]: group["name"] for group in journal.of("group") if "name" in group}
        stream: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
        for record in begins(journal):
            call = calls[record["s"]]
            if call["kind"] == "collective":
                stream[names[call["group"]]].append((record["q"], call["op"]))
        streams.append({name: sorted(pairs) for name, pairs in stream.items()})
    assert streams[0] == streams[1]
    for pairs in streams[0].values():
        assert [q for q, _ in pairs] == list(range(1, len(pairs) + 1))


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
