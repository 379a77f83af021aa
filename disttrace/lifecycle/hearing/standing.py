"""What this process knows of itself now, as plain values: the answer of ``disttrace.live``.

All of it is there already; the lines of the program are looked up when somebody asks.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.identity import integer
from disttrace.journal.format import opened_own
from disttrace.lifecycle.hearing import listeners
from disttrace.recording.operation import Operation
from disttrace.surroundings import launchers

_MOST = 4 << 20
KNOWN_S = 30.0
"""What the companion wrote longer ago is of one that is gone, or was stopped."""


def standing(
    capture: Capture, rank: int | None, of_ranks: dict[str, Any], process: str
) -> dict[str, Any]:
    """``rank``: what a launcher said, where there is no default group yet; ``of_ranks``: what the
    companion of this host knows; ``process``: our id there."""
    core = capture.recorder.core
    joined = capture.groups.default_rank()
    in_flight = core.in_flight()
    oldest = in_flight[0] if in_flight else None
    return {
        "rank": rank if joined is None else joined,
        "begun": core.begun,
        "in_flight": len(in_flight),
        "oldest_op": None if oldest is None else oldest.call.op,
        "oldest_age_s": None if oldest is None else capture.recorder.since(oldest) / 1e9,
        "oldest_line": None if oldest is None else _line(capture, oldest),
        "waiting_share": of_ranks.get("ranks", {}).get(process, {}).get("waiting_share"),
        "slow": of_ranks.get("slow", []),
        "said": listeners.last(),
    }


def known(path: str) -> dict[str, Any]:
    """What the companion says of the ranks of this host in that file; empty where there is none."""
    try:
        with opened_own(path, os.O_RDONLY) as fd:
            found = json.loads(os.pread(fd, _MOST, 0))
        return found if time.time() - found["at"] < KNOWN_S else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # none, it is written just now, or it is another version's


def launched_as() -> int | None:
    """The rank that a launcher gave this process."""
    rank = integer(os.environ.get("RANK"))
    claimed = launchers.rank(os.environ) if rank is None else None
    return rank if claimed is None else claimed["rank"]


def _line(capture: Capture, operation: Operation) -> str | None:
    """Where the program issued it: ``file:line``."""
    frames = capture.recorder.frames(operation.call)
    own = next((frame for frame in frames if capture.sites.is_programs(frame[0])), None)
    frame = own or (frames[0] if frames else None)
    return None if frame is None else f"{frame[0]}:{frame[1]}"
