"""Jobs of many ranks by host, and the verdict by what their companions send."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.viewer.jobs import Shape, make
from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.companion import summary
from disttrace_viewer.companion.endpoint import PeerReply
from disttrace_viewer.companion.reports import Received, packed
from disttrace_viewer.companion.verdict import HERE, Judge
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State, merge

ALIVE = Observation(alive=True, code=None, state="S")
Hosts = dict[str, Merged]


def hosts_of(folder: Path, **changes: Any) -> Hosts:
    """The states of a job of 64 ranks on 8 hosts, by host: tensor, pipeline and data parallel."""
    make(folder, replace(Shape(2, 4, 8, 3, fault="tp", hosts_apart=False), **changes))
    found: dict[str, dict[str, State]] = {}
    for one, state in of_journals([str(folder)], window=WINDOW).states.items():
        found.setdefault(state.process["host"], {})[one] = state
    return {host: Merged(states) for host, states in sorted(found.items())}


def alive(_process: object) -> Observation:
    """What kernels say of all."""
    return ALIVE


def received(hosts: Hosts, most: int) -> tuple[Received, list[str]]:
    """What the first host gets of the others, states of ``most`` of them; and of which."""
    (_, local), *others = hosts.items()
    summaries = [PeerReply(host, summary.packed(of, alive)) for host, of in others]
    known = summary.read([PeerReply(HERE, summary.packed(local, alive)), *summaries])
    wanted = [one for one in summary.chosen(known, (), most + 1) if one != HERE][:most]
    answers = [PeerReply(host, packed(of, alive)) for host, of in others if host in wanted]
    rest = [one for one in summaries if one.sender not in wanted]
    return Judge._unpacked((answers, rest), local), wanted


def judged(hosts: Hosts, got: Received) -> Verdict:
    """The verdict of the first host with what it got."""
    local = next(iter(hosts.values()))
    look = lambda process: ALIVE if process.id in local.states else got.look(process)  # noqa: E731
    return verdict(merge([local, got.merged]), look=look)


def by_all(hosts: Hosts) -> Verdict:
    """The verdict on the states of all."""
    return verdict(merge([*hosts.values()]), look=alive)


def changed(hosts: Hosts, ranks: Collection[int], change: Callable[[State], None]) -> Hosts:
    """The same with the states of some ranks changed."""

    def one(state: State) -> State:
        found = deepcopy(state)
        if found.identity["rank"] in ranks:
            change(found)
        return found

    return {host: Merged({s.id: one(s) for s in of.states.values()}) for host, of in hosts.items()}


def timeless(text: str) -> str:
    """Without for how long things have lasted: the clock goes on from one verdict to the next."""
    return re.sub(r"\d+ (min|h) \d+ (s|min)|[\d.]+ s\b", "some time", text)
