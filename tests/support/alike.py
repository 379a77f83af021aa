"""Jobs of many ranks by host, and what their companions tell each other of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.viewer.jobs import Shape, make
from disttrace_viewer.analysis.liveness import Seen
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.told import Told, packed, together
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.form.state import State
from disttrace_viewer.states.merged import Merged, merge
from disttrace_viewer.states.reduce import WINDOW

ALIVE = Seen(alive=True, code=None, state="S")
Hosts = dict[str, Merged]


def hosts_of(folder: Path, **changes: Any) -> Hosts:
    """The states of a job of 64 ranks on 8 hosts, by host: tensor, pipeline and data parallel."""
    make(folder, replace(Shape(2, 4, 8, 3, fault="tp", hosts_apart=False), **changes))
    found: dict[str, dict[str, State]] = {}
    for one, state in of_journals([str(folder)], window=WINDOW).states.items():
        found.setdefault(state.process["host"], {})[one] = state
    return {host: Merged(states) for host, states in sorted(found.items())}


def alive(_process: object) -> Seen:
    """What kernels say of all."""
    return ALIVE


def answers(hosts: Hosts, *, known: bool = True, whole: bool = True) -> list[Answer]:
    """What all hosts but the first tell."""
    told = [*hosts.items()][1:]
    return [Answer(host, known, packed(of, alive, whole=whole)) for host, of in told]


def as_one(told: list[Answer], size: int) -> list[Answer]:
    """So many of them each as one."""
    return [
        Answer(f"by {told[at].sender}", True, together(told[at : at + size]))
        for at in range(0, len(told), size)
    ]


def judged(hosts: Hosts, told: Told) -> Verdict:
    """The verdict of the first host with what it was told."""
    local = next(iter(hosts.values()))
    look = lambda process: ALIVE if process.id in local.states else told.look(process)  # noqa: E731
    return verdict(merge([local, told.merged]), look=look)


def timeless(text: str) -> str:
    """Without for how long things have lasted: the clock goes on from one verdict to the next."""
    return re.sub(r"\d+ (min|h) \d+ (s|min)|[\d.]+ s\b", "some time", text)
