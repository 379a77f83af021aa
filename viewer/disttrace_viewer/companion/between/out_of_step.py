"""Which hosts call other things than the rest, as far as excerpts tell: a suspicion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace.recording.shown import Compared
from disttrace_viewer.companion.between.excerpt import Excerpt

MOST_KNOWN = 100_000
"""Streams of hosts; the memory of all is lost beyond, and so is what was a habit."""


class OutOfStep:
    """What is known of each stream of each host beside the first host that has it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Compared] = {}

    def hear(self, told: Mapping[str, Sequence[Excerpt]]) -> list[str]:
        """The hosts whose calls are to be judged together, in the order of ``told``."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        first: dict[int, tuple[str, Excerpt]] = {}
        suspects: set[str] = set()
        for host, excerpts in told.items():
            for theirs in excerpts:
                ahead, ours = first.setdefault(theirs.name, (host, theirs))
                if ahead != host and self._differ((ahead, host, theirs.name), ours, theirs):
                    suspects |= {ahead, host}
        return [host for host in told if host in suspects]

    def _differ(self, key: tuple[str, str, int], ours: Excerpt, theirs: Excerpt) -> bool:
        known, newest = self._known.get(key), (ours.newest, theirs.newest)
        if known is None or newest[0] < known.newest[0] or newest[1] < known.newest[1]:
            known = self._known[key] = Compared()  # the ranks of another try
        if newest == known.newest and not known.asked:
            return False
        known.newest = newest
        return known.suspicious(ours, theirs)
