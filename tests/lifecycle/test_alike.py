"""Ranks that stand alike are told as one, and the verdict is that on all of them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.analysis.liveness import Seen
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.told import packed, unpacked
from disttrace_viewer.diagnosis.report import report
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.states.form.alike import FEWEST, likeness
from disttrace_viewer.states.form.state import State, checked, encoded
from disttrace_viewer.states.merged import Merged, merge
from support.alike import ALIVE, alive, answers, as_one, hosts_of, judged, timeless


def said(found: Verdict) -> dict[str, Any]:
    """The whole report, in an order that is no matter of who was told as a whole."""
    case, findings = found.case, found.findings
    told = report(case, findings)
    ranks = {p.id: f"rank {p.rank}" for p in case.evidence.trace.processes}
    text = timeless(orjson.dumps(told["findings"]).decode())
    for one, rank in ranks.items():
        text = text.replace(one, rank)
    findings = orjson.loads(text)
    for finding in findings:
        for name in ("culprits", "waiting", "culprit_ranks", "waiting_ranks", "consequences"):
            finding[name].sort()
        finding["locations"].sort(key=str)
    processes = {(p["rank"], p["host"], p["state"], p["pid"]) for p in told["processes"]}
    return {"findings": findings, "processes": processes}


@pytest.mark.parametrize(
    ("fault", "whole"),
    [
        ("tp", True),
        ("msg", False),
        *(pytest.param(fault, True, marks=pytest.mark.long) for fault in ("msg", "mp", "world")),
        *(pytest.param(fault, False, marks=pytest.mark.long) for fault in ("tp", "dp_scatter")),
    ],
)
def test_the_verdict_is_that_on_all_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, *, whole: bool
) -> None:
    """Whatever the others wait in, by way of none, one or several in between."""
    wall, monotonic = time.time_ns(), time.perf_counter_ns()  # for how long they wait is said, too
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: monotonic)
    hosts = hosts_of(tmp_path, fault=fault)
    local = next(iter(hosts.values()))
    every = said(verdict(merge([*hosts.values()]), look=alive))
    told = answers(hosts, whole=whole)
    for ways in (told, as_one(told, 4), as_one(as_one(told, 2), 2)):
        found = unpacked(ways, local)
        assert len(found.states) < 40 < len(found.ids) == 56
        got = said(judged(hosts, found))
        if whole:
            assert got == every
        else:
            assert [f["summary"] for f in got["findings"]] == [
                f["summary"] for f in every["findings"]
            ]
        assert {*found.senders.values()} == {*hosts} - {next(iter(hosts))}


def stopped(state: State) -> None:
    state.listed = {"failure": [{"t": 1, "type": "ValueError", "text": "x"}]}


def elsewhere(state: State) -> None:
    state.courses = [[group, backend, n, 7, 7] for group, backend, n, _, _ in state.courses]


def done(state: State) -> None:
    state.ops = [[*row[:3], 5, *row[4:]] for row in state.ops]


def agent(state: State) -> None:
    state.identity = {**state.identity, "role": "agent"}


def of_few(state: State) -> None:
    state.identity = {**state.identity, "world_size": FEWEST - 1}


def later(state: State) -> None:
    state.ops[-1][6] = (state.ops[-1][6] or 0) + 1


@pytest.mark.parametrize("change", [stopped, elsewhere, done, agent, of_few, later])
def test_who_differs_is_told_as_a_whole(tmp_path: Path, change: Callable[[State], None]) -> None:
    """In what it did, what its calls were before, or what it is."""
    hosts = hosts_of(tmp_path)
    states = [s for of in hosts.values() for s in of.states.values()]
    keys = [likeness(state) for state in states]
    state = next(s for s, key in zip(states, keys, strict=True) if key and keys.count(key) > 2)
    key = likeness(state)
    changed = checked(orjson.loads(encoded(state)))
    assert likeness(changed) == key  # as it travels
    change(changed)
    assert likeness(changed) != key


def test_who_does_not_live_is_told_as_a_whole(tmp_path: Path) -> None:
    """Or is stopped: whatever its journal says."""
    hosts = hosts_of(tmp_path, per_host=32)
    of = hosts[max(hosts)]

    def seen(kernel: Seen) -> int:
        data = packed(of, lambda _process: kernel)
        return len(orjson.loads(zlib.decompress(data))["states"])

    assert seen(ALIVE) < 20
    assert seen(Seen(alive=False, code=None, state=None)) == 32
    assert seen(Seen(alive=True, code=None, state="T")) == 32


def test_nobody_is_told_away(tmp_path: Path) -> None:
    """A stranger that says that somebody else's rank stands somewhere costs its own word only
    where whoever has the rank has shown that it is of the job.
    """
    hosts = hosts_of(tmp_path)
    local = next(iter(hosts.values()))
    told = as_one(answers(hosts), 8)
    liar = Answer("liar", False, told[0].data)
    found = unpacked([*told, liar], local)
    assert len(found.ids) == 56
    assert "liar" not in {*found.senders.values()}
    assert unpacked([replace(one, known=False) for one in told] + [liar], local).ids == set()


@pytest.mark.parametrize(
    "row",
    [[], ["x"] * 7, ["a" * 32, "h", -1, 3, 3, None, []], ["a" * 32, "h", 1, 3, 3, None, [10**6]]],
)
def test_what_is_no_row_costs_the_answer(tmp_path: Path, row: list[Any]) -> None:
    """And no other one."""
    hosts = hosts_of(tmp_path)
    first, *others = answers(hosts)
    value = orjson.loads(zlib.decompress(as_one([first, *others], 8)[0].data))
    one = next(iter(value["alike"]))
    value["alike"][one].append(row)
    wrong = replace(first, data=zlib.compress(orjson.dumps(value)))
    assert unpacked([wrong], next(iter(hosts.values()))).ids == set()
    assert len(unpacked([wrong, others[0]], next(iter(hosts.values()))).ids) == 8


def test_nobody_tells_what_a_group_is_but_what_names_it(tmp_path: Path) -> None:
    """Its name is a hash of its members and its store: other ranks under it are not believed."""
    hosts = hosts_of(tmp_path, fault="tp")
    local = next(iter(hosts.values()))
    first, *_ = as_one(answers(hosts), 8)

    def known(data: bytes) -> set[str]:
        told = unpacked([replace(first, data=data)], local)
        return {own.key for of in told.likes.values() for like in of for _, own in like.own}

    value = orjson.loads(zlib.decompress(first.data))
    assert known(first.data) == {value["groups"][row[0]] for row in value["own"]} != set()
    for row in value["own"]:
        row[4] = [0, 1]
    assert known(zlib.compress(orjson.dumps(value))) == set()


def with_agents(of: Merged, **changes: Any) -> Merged:
    """The same with the launcher that started them, as its state is while they run."""
    first = next(iter(of.states.values()))
    found = checked(orjson.loads(encoded(first)))
    found.id = "a" * 20 + f"{first.process['pid']:012}"
    found.process = {**found.process, "process": found.id, "role": "agent", "pid": 1, "env": {}}
    found.identity, found.ops, found.courses, found.stands = {}, [], [], []
    found.numbered = {**found.numbered, "group": {}, "call": {}, "store": {}}
    pids = [one.process["pid"] for one in of.states.values()]
    started = [{"t": 1, "pid": pid, "event": "started", "attempt": 1} for pid in pids]
    before = [{"t": 1, "pid": 5, "event": "killed", "attempt": 0}]
    found.listed = {"worker": [*before, *started], "rendezvous": [{"t": 1, "text": "joined"}]}
    for name, value in changes.items():
        if isinstance(value, dict):
            value = {**getattr(found, name), **value}
        setattr(found, name, value)
    children = {one.id: checked(orjson.loads(encoded(one))) for one in of.states.values()}
    for child in children.values():
        child.process = {**child.process, "parent": found.id}
    return Merged({**children, found.id: found})


STRANGER = [{"t": 1, "pid": 77, "event": "started", "attempt": 1}]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, 0),
        ({"listed": {"worker": STRANGER}}, 7),
        ({"listed": {"worker": [{**STRANGER[0], "event": "failed"}]}}, 7),
        ({"listed": {"failure": [{"t": 1, "type": "ValueError", "text": "x"}]}}, 7),
        ({"numbered": {"store": {1: {"type": "TCPStore", "server": True, "prefix": []}}}}, 7),
        ({"ops": [[1, 1, 5]]}, 7),
    ],
)
def test_launchers_of_which_nobody_asks_are_not_told(
    tmp_path: Path, changes: dict[str, Any], told: int
) -> None:
    """One of each host would be as many states as there are hosts."""
    plain = hosts_of(tmp_path)
    hosts = {host: with_agents(of, **changes) for host, of in plain.items()}
    found = unpacked(answers(hosts), next(iter(hosts.values())))
    assert len(found.ids) == 56 + told
    if not told:
        every = judged(plain, unpacked(answers(plain), next(iter(plain.values()))))
        assert said(judged(hosts, found))["findings"] == said(every)["findings"]
