"""Of very many hosts those that stand out send states, and the verdict is that on all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.companion import summary
from disttrace_viewer.companion.endpoint import MOST_SUMMARY, PeerReply
from disttrace_viewer.companion.reading import unknown_ranks
from disttrace_viewer.companion.verdict import MOST_HOSTS
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.report import report
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State
from reliability import hosts_in_virtual_time as virtual
from support import by_host
from support.journals import MS, Journal

SAID = ("kind", "severity", "certainty", "summary", "hint", "culprit_ranks")
FEW = 12


def said(found: Verdict) -> dict[str, Any]:
    """What people and programs are told, without for how long it has lasted."""
    case = found.case
    rows = [{k: one[k] for k in SAID} for one in report(case, found.findings)["findings"]]
    rows.sort(key=lambda one: str(one["summary"]))
    return {
        "findings": by_host.timeless(orjson.dumps(rows).decode()),
        "incomplete": found.incomplete,
        "unknown": unknown_ranks(case.evidence.trace),
        "first": places(case, found.findings)[0].who(case.evidence.trace),
    }


def both(hosts: by_host.Hosts) -> tuple[dict[str, Any], dict[str, Any]]:
    """The verdict on all states, and on those of few hosts."""
    few = by_host.judged(hosts, by_host.received(hosts, FEW)[0])
    assert len(few.case.evidence.trace.processes) <= 8 * (FEW + 1)
    return said(by_host.by_all(hosts)), said(few)


long = functools.partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "fault", ["tp", "world", *map(long, ("msg", "mp", "dp_scatter", "dp_gather"))]
)
def test_it_is_the_verdict_on_all(tmp_path: Path, fault: str) -> None:
    """The same words and ranks, whatever group the others wait in."""
    every, few = both(by_host.hosts_of(tmp_path, fault=fault, pp=2, dp=16, tp=8))
    assert few == every


def _other_shape(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        state.numbered["call"][row[1]]["shapes"] = [[7]]


def _other_operation(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        state.numbered["call"][row[1]].update(op="broadcast", root=0)


def _later(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        row[6] = None if row[6] is None else row[6] + 1


FEW_ODD, MANY = (11, 19, 100), range(40, 140)
MORE = (("dp_scatter", FEW_ODD), ("world", FEW_ODD), ("world", MANY), ("mp", MANY))
CHANGES = (_other_shape, _other_operation, _later)


@pytest.mark.parametrize(
    ("fault", "odd", "change"),
    [
        ("world", FEW_ODD, _other_operation), ("dp_scatter", FEW_ODD, _other_shape),
        *(long(*one, change) for one in MORE for change in CHANGES),
    ],
)  # fmt: skip
def test_ranks_that_disagree_are_counted(
    tmp_path: Path, fault: str, odd: range, change: Callable[[State], None]
) -> None:
    """How many members of a group say what decides which of them is odd."""
    hosts = by_host.changed(by_host.hosts_of(tmp_path, fault=fault, pp=2, dp=16, tp=8), odd, change)
    every, few = both(hosts)
    assert few == every


def _starting(folder: Path, rank: int, size: int, *, comes: bool) -> Merged:
    """A rank that waits for others to come, or does something else."""
    journal = Journal(folder / f"{rank}", pid=700 + rank, rank=rank, world_size=size)
    store = journal.prefix_store(journal.tcp_store(29500, server=not rank), "default_pg", "0/")
    if comes:
        init = journal.call("init_process_group", kind="composed", args={"backend": "gloo"})
        args = {"rank": rank, "size": size, "timeout": 1800.0}
        keys = {"store": store, "stack": ("train.py", 10, "main"), "args": args}
        made = journal.call("ProcessGroupGloo", kind="constructor", **keys)
        journal.begin(made, t=2 * MS, p=journal.begin(init, t=MS))
    return of_journals([str(folder / f"{rank}")], window=WINDOW)


@pytest.mark.parametrize("seen", [True, False])
def test_a_start_of_many_waits_for_one(tmp_path: Path, *, seen: bool) -> None:
    """Whether or not the host of the missing rank answers, and whichever hosts send states."""
    hosts = {
        f"h{rank:02}": _starting(tmp_path, rank, 40, comes=rank != 23)
        for rank in range(40)
        if seen or rank != 23
    }
    every, few = (
        said(by_host.by_all(hosts)),
        said(by_host.judged(hosts, by_host.received(hosts, 5)[0])),
    )
    assert few == every
    assert "39 of 40 have arrived (ranks 0-22, 24-39)" in str(every["findings"])


def test_a_summary_is_bounded_whatever_the_ranks(tmp_path: Path) -> None:
    (whole,) = by_host.hosts_of(tmp_path, pp=2, dp=16, tp=8, per_host=256).values()
    data = summary.packed(whole, by_host.alive)
    assert len(data) <= MOST_SUMMARY
    found = summary.read([PeerReply("a", data)]).get("a")
    assert found is not None
    assert found.ranks == frozenset(range(256))


def test_a_host_that_is_not_heard_of_is_missed(tmp_path: Path) -> None:
    """Its ranks are not known, and no others are."""
    hosts = by_host.hosts_of(tmp_path, fault="world", pp=2, dp=16, tp=8)
    lost = [*hosts][20]
    ranks = [s.identity["rank"] for s in hosts.pop(lost).states.values()]
    trace = by_host.judged(hosts, by_host.received(hosts, FEW)[0]).case.evidence.trace
    assert unknown_ranks(trace) == tuple(sorted(ranks))


def test_hosts_that_claim_one_rank_are_both_looked_at(tmp_path: Path) -> None:
    """Whichever of them is a stranger: no summary decides it."""
    hosts = by_host.hosts_of(tmp_path, fault="world", pp=2, dp=16, tp=8)
    names = [*hosts]
    hosts["stranger"] = Merged({f"{one:0>32}": s for one, s in hosts[names[9]].states.items()})
    _, wanted = by_host.received(hosts, FEW)
    assert {"stranger", names[9]} <= {*wanted}


def _one(**fields: object) -> bytes:
    return orjson.dumps({"ranks": [], "trouble": None, "groups": [], "waits": []} | fields)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"[" * 5000, _one(ranks=[{"from": 0, "to": 1 << 40}]),
        _one(ranks=[{"from": 0, "to": (1 << 63) - 1}]), _one(ranks=[[0, 1, 1]]),
        _one(groups=[[[], [{"from": 0, "to": 1 << 40}], None, None]]),
        _one(groups=[[[], [{"from": 0, "to": (1 << 63) - 1}], None, None]]),
    ],
)  # fmt: skip
def test_what_is_no_summary_is_none(data: bytes) -> None:
    assert summary.read([PeerReply("b", data)]) == {}


def test_no_host_says_what_a_group_is_but_what_names_it(tmp_path: Path) -> None:
    """Its name is a hash of its members and its store: with other ranks it is another group."""
    hosts = by_host.hosts_of(tmp_path, fault="tp")
    value = orjson.loads(summary.packed(hosts[max(hosts)], lambda _: by_host.ALIVE))
    sound = summary.read([PeerReply("a", orjson.dumps(value))]).get("a")
    value["groups"][0][1] = [0, 1]
    forged = summary.read([PeerReply("a", orjson.dumps(value))]).get("a")
    assert sound is not None
    assert forged is not None
    assert len({*sound.groups} - {*forged.groups}) == 1


SIZES = (8, 128)


@functools.cache
def stall(hosts: int, case: str) -> virtual.Outcome:
    return virtual.stall(hosts, case, until_s=34.0 if case == "partition" else 24.0)


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["normal", "a tenth stops"])
def test_one_voice_tells_all_within_fifteen_seconds(case: str, hosts: int) -> None:
    """That of the store's host; of hosts that do not answer it says so."""
    found = stall(hosts, case)
    gone = 0 if case == "normal" else max(1, hosts // 10)
    (voice,) = found.voices
    assert (voice.host, voice.alone, voice.known) == (0, False, hosts - gone)
    assert voice.at_s < 15
    most = MOST_HOSTS * virtual.STATES_BYTES + hosts * virtual.SUMMARY_BYTES
    assert voice.bytes <= most, "states of few hosts are read, however many there are"


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["server dies", "server stops"])
def test_without_the_server_each_host_speaks_for_itself(case: str, hosts: int) -> None:
    """Once, within twenty seconds of the wait's begin."""
    found = stall(hosts, case)
    assert sorted(voice.host for voice in found.voices) == [*range(1, hosts)]
    assert all(voice.alone for voice in found.voices)
    assert max(voice.at_s for voice in found.voices) < 20


@pytest.mark.parametrize("hosts", SIZES)
def test_a_network_that_was_parted_is_one_again(hosts: int) -> None:
    """The part of the server speaks once, the others each for itself; then the whole does."""
    found = stall(hosts, "partition")
    served = [(voice.host, voice.known) for voice in found.voices if not voice.alone]
    assert served == [(0, hosts // 2), (0, hosts)]
    assert sum(voice.alone for voice in found.voices) == hosts // 2
