"""Launchers of which nobody asks anything: theirs is an answer for each host, the ranks' is one.

What a launcher knows matters where a worker is not known by itself or has ended, where launchers
have not met, or where it serves a store. Else it is one more process that lives, and of 10,000
hosts 10,000 states that nothing is read from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from disttrace_viewer.analysis.liveness import Seen
from disttrace_viewer.states.form.alike import FEWEST, pending
from disttrace_viewer.states.form.state import State
from disttrace_viewer.trace.process import AGENT
from disttrace_viewer.wording.findings.unseen_workers import STARTED

_SAID = frozenset(("clock", "rendezvous", "worker"))


def without_quiet(states: Collection[State], seen: Mapping[str, Seen]) -> list[State]:
    """The states without those of launchers that live and whose workers are all among them."""
    workers = {
        (one.process.get("parent"), one.process.get("pid"))
        for one in states
        if (kernel := seen.get(one.id)) is not None and kernel.alive
    }
    worlds = (one.identity.get("world_size") or 0 for one in states)
    if max(worlds, default=0) < FEWEST:
        return [*states]
    return [one for one in states if not _is_quiet(one, seen.get(one.id), workers)]


def _is_quiet(
    state: State, kernel: Seen | None, workers: Collection[tuple[str | None, int | None]]
) -> bool:
    if state.role != AGENT:
        return False
    if kernel is None or not kernel.alive or kernel.is_stopped or pending(state):
        return False
    if state.unsettled or state.problems or state.source:
        return False
    if not {kind for kind, found in state.listed.items() if found} <= _SAID:
        return False
    if any(store.get("server") for store in state.numbered["store"].values()):
        return False
    said = state.listed.get("worker", ())
    newest = max((one.get("attempt") or 0 for one in said), default=0)
    now = [one for one in said if (one.get("attempt") or 0) == newest]  # what was before is over
    return bool(now) and all(
        one.get("event") == STARTED and (state.id, one.get("pid")) in workers for one in now
    )
