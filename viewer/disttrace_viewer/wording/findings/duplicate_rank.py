"""Two processes claim one rank: which ones, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences

HINT = (
    "Give each process a RANK of its own; look for a launcher that was started twice, or for a"
    " rank left over from an earlier run."
)


def summary(
    trace: Trace, rank: int, who: Sequence[int], *, at: str | None, unclaimed: Sequence[int]
) -> str:
    """``at``: where they meet; ``unclaimed``: ranks that nobody claims there."""
    rivals = [trace.processes[p] for p in who]
    pids = sentences.listed([f"pid {one.pid} on {one.host}" for one in rivals])
    nobody = f"; nobody claims {sentences.ranks(unclaimed)}" if unclaimed else ""
    return f"{len(who)} processes claim rank {rank} at {at}: {pids}{nobody}."
