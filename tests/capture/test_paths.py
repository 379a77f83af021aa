"""A program that issues operations through every path yields exactly those, each with an end."""

from __future__ import annotations

import collections
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttrace.capture.calls.operations import ROWS
from disttrace.capture.native import functional
from support.preloaded import preloaded, side_by_side
from support.raw import RawJournal, read_journals

PROGRAMS = Path(__file__).parent / "programs"
WORLD = 2
NAMES = {row.operator: row.op for row in ROWS}
ISSUED = ("collective", "message")
Counts = collections.Counter[str]
Ran = list[tuple[dict[str, Any], RawJournal]]


def recorded(journal: RawJournal) -> Counts:
    """How many collectives and messages, by name."""
    return collections.Counter(call["op"] for call in journal.called(*ISSUED))


def passed(by_way: dict[str, dict[str, int]]) -> Counts:
    """The same of what the program's own kernels counted."""
    total: Counts = collections.Counter({"barrier": 1})  # after the counts were printed
    for counts in by_way.values():
        for operator, number in counts.items():
            total[NAMES[operator]] += number
    return total


def errors(journal: RawJournal) -> list[str]:
    failed = {record["e"] for record in journal.records if "x" in record}
    return [call["op"] for record, call in journal.begun() if record["b"] in failed]


def is_whole(journal: RawJournal) -> None:
    """All that was issued is over, and no part of the tracing is switched off."""
    over = journal.over()
    assert [call["op"] for r, call in journal.begun(*ISSUED) if r["b"] not in over] == []
    assert journal.of("note") == []


def ran(program: str, folder: Path) -> Ran:
    """Per rank what it says without us, and the journal of a traced run; both end alike."""
    plain, traced = (
        [*map(json.loads, side_by_side(PROGRAMS / program, WORLD, folder, traced))]
        for traced in "01"
    )
    assert [one["endings"] for one in traced] == [one["endings"] for one in plain]
    journals = sorted(read_journals(folder / "out"), key=lambda journal: journal.rank)
    assert len(journals) == WORLD
    for said, journal in zip(plain, journals):
        assert recorded(journal) == passed(said["counts"])
        is_whole(journal)
    return list(zip(plain, journals))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Names and numbers equal those that the program's own kernels counted."""
    return ran("paths.py", tmp_path_factory.mktemp("paths"))


def test_nothing_fails(traced: Ran) -> None:
    """Each path was gone, and ended well."""
    for said, journal in traced:
        assert {*said["endings"].values()} == {None}
        assert errors(journal) == []


def test_origins(traced: Ran) -> None:
    """What the program calls itself is Python's; functional collectives and DDP are C++'s."""
    for rank, (_, journal) in enumerate(traced):
        called = journal.called(*ISSUED)
        found = collections.Counter((call["op"], call["origin"]) for call in called)
        # DDP makes three all-reduces, functional collectives three, inference mode among them.
        assert found["all_reduce", "c++"] == 6
        assert found["all_reduce", "python"] == 7
        assert found["all_to_all_single", "python"] == 1
        assert found["monitored_barrier", "python"] == 1
        assert found["send", "python"] == (1 if rank == 0 else 2)
        assert found["recv", "python"] == (2 if rank == 0 else 1)


def test_any_source_tells_its_source(traced: Ran) -> None:
    """The receive from anyone is numbered in the stream of the rank it came from."""
    journal = traced[0][1]
    sources = [record for record in journal.records if "y" in record]
    assert [(record["y"], record["q"]) for record in sources] == [(1, 2)]


def test_sequence_numbers_agree(traced: Ran) -> None:
    """Per group both ranks count the same collectives, whichever door they came through."""
    streams = []
    for _, journal in traced:
        names = {group["n"]: group["name"] for group in journal.of("group") if "name" in group}
        stream: dict[str, list[tuple[int, str]]] = collections.defaultdict(list)
        for record, call in journal.begun("collective"):
            stream[names[call["group"]]].append((record["q"], call["op"]))
        streams.append({name: sorted(pairs) for name, pairs in stream.items()})
    assert streams[0] == streams[1]
    for pairs in streams[0].values():
        assert [q for q, _ in pairs] == list(range(1, len(pairs) + 1))


def test_layers(tmp_path: Path) -> None:
    """FSDP1, DTensor and a pipeline: what passed the dispatcher, once each, and without error."""
    for said, journal in ran("layers.py", tmp_path):
        assert all(said["counts"].values())
        assert {*said["endings"].values()} == {None}
        assert errors(journal) == []


def test_groups_made_in_other_ways(tmp_path: Path) -> None:
    """Split, merged, refused, aborted, made again, local: same endings, each operation once."""
    if not hasattr(dist.ProcessGroup, "split_group"):
        pytest.skip("groups of this torch have neither split_group nor merge_remote_group")
    for rank, (said, journal) in enumerate(ran("regrouped.py", tmp_path)):
        refused = rank == 0 and "TypeError" in said["endings"]["shrink"]
        assert errors(journal) == (["shrink_group"] if refused else [])


def test_a_python_backend(tmp_path: Path) -> None:
    """Its methods are recorded once, whether C++ calls them for a hooked group or the program."""
    program = PROGRAMS / "own_backend.py"
    plain = preloaded(program)
    if "No constructor" in plain.stdout or plain.code == -signal.SIGSEGV:
        pytest.skip("this torch has no Python backends, or crashes on them untraced (2.15.0)")
    plain.check()
    traced = preloaded(program, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    assert traced.stdout == plain.stdout
    (journal,) = read_journals(tmp_path)
    counted = json.loads(plain.stdout.splitlines()[-1])
    assert recorded(journal) == counted
    is_whole(journal)
    assert errors(journal) == ["all_reduce", "all_reduce"]
    origins = collections.Counter(call["origin"] for call in journal.called(*ISSUED))
    assert origins == {"c++": 2, "python": sum(counted.values()) - 2}


PROGRAM = PROGRAMS / "delegated.py"


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


# -- what brings the kernels of operations issued by C++ into a process

PYTHON_ONLY = ("nothing", "profiler")
LATE = ("functional", "out_argument", "coalesced", "inference", "taken", "threads")
AUTOGRAD = "_c10d_functional_autograd."


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What the program says of each case, and the folder of its journals."""
    folder = tmp_path_factory.mktemp("late")
    outcome = preloaded(PROGRAMS / "late_kernels.py", str(folder), timeout=120).check()
    return [json.loads(line) for line in outcome.stdout.splitlines()], folder


def test_every_operation_is_recorded(late: tuple[list[dict[str, Any]], Path]) -> None:
    """The first one too: in threads, inference mode, autograd, and from a compiled library."""
    cases, folder = late
    for case in cases:
        (journal,) = read_journals(folder / case["name"])
        # torch issues some single ones as coalesced.
        names = [call["op"].removesuffix("_coalesced") for call in journal.called("collective")]
        found = collections.Counter(names)
        if case["name"] == "reducer":  # what DDP's constructor does differs by version
            assert found["all_gather"] or found["broadcast"]
        else:
            assert found == case["issued"], case["name"]
        assert journal.of("note") == []


def test_kernels_wait_for_a_call(late: tuple[list[dict[str, Any]], Path]) -> None:
    """Python's own calls, functional ones and DDP bring none that others pass; all else does."""
    cases, _ = late
    assert len(cases) == 12
    for case in cases:
        assert case["before"] is False
        other = case["name"] not in (*PYTHON_ONLY, *LATE, "reducer")
        assert case["after"] is (other and not case["hooks"]), case["name"]
        # C++ may wait by itself then.
        waits = case["name"] in ("autograd", "library")
        assert case["functional"] == ["wait_tensor"] * waits, case["name"]
        assert case["left"] == [], case["name"]


def test_calls_of_operators_are_watched(late: tuple[list[dict[str, Any]], Path]) -> None:
    """Those of functional collectives all the time, those of autograd until the first call."""
    cases, _ = late
    for case in cases:
        watched = set(case["watched"])
        for name in ("wait_tensor", "all_reduce"):
            assert {f"_c10d_functional.{name}", f"_c10d_functional.{name}.default"} <= watched
        autograd = {name for name in watched if name.startswith(AUTOGRAD)}
        assert bool(autograd) is (case["name"] != "autograd"), case["name"]


def test_a_type_is_not_asked() -> None:
    """Whether it takes operators itself is read past its metaclass, which may raise."""

    class Asked(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

        def __hash__(cls) -> int:
            raise RuntimeError("hash")

    class Odd(metaclass=Asked):
        pass

    class Taking(metaclass=Asked):
        def __torch_dispatch__(self) -> None:
            pass

    assert functional._runs(Odd()) is True
    assert functional._runs([torch.ones(1), Taking()]) is False
    assert functional._runs(torch.ones(1)) is True
