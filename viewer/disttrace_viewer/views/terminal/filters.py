"""What the user asked to see: ranks, groups, operations, how many rows, around which time."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from disttrace.journal.format import MOST_MEMBERS
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.numbers import whole

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "": 10**9}
_OFFSET = re.compile(r"([+-]\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)?")


@dataclass(frozen=True, slots=True)
class Filters:
    """Nothing set means everything; ``ranks`` are global ranks."""

    ranks: frozenset[int] | None = None
    groups: tuple[str, ...] = ()
    """Names, descriptions or beginnings of ids; ``default`` is the default group."""
    ops: tuple[str, ...] = ()
    """Names of operations; ``*`` stands for anything."""
    last: int | None = None
    around: str | None = None
    everything: bool = False
    """No folding and no gaps."""

    @property
    def narrow(self) -> bool:
        """Whether rows were asked for by what they are."""
        return bool(self.ranks is not None or self.groups or self.ops)


def parse_ranks(text: str) -> frozenset[int]:
    """``0,3-5`` as a set. Raises ``ViewerError`` for what is none."""
    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip())
        if matched is None:
            raise ViewerError(f"--rank {text!r} is no list of ranks; write --rank 0,3-5")
        low, high = whole(matched[1]), whole(matched[2] or matched[1])
        if low is None or high is None or high >= MOST_MEMBERS:
            raise ViewerError(f"--rank {text[:60]!r}: ranks are numbers below {MOST_MEMBERS:,}")
        found.update(range(low, high + 1))
    return frozenset(found)


def parse_time(text: str, origin_ns: int) -> int:
    """Unix ns of unix seconds, an ISO time (local without zone) or an offset such as ``+12.3s``."""
    matched = _OFFSET.fullmatch(text.strip())
    if matched is not None:
        return origin_ns + round(float(matched[1]) * _UNITS[matched[2] or ""])
    try:
        return round(float(text) * 1e9)
    except ValueError:
        pass
    try:
        # Python 3.10 does not know the Z that other tools print.
        when = datetime.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ViewerError(
            f"--around {text!r} is no time; write an offset (+12.3s), unix seconds or an ISO time"
        ) from None
    whole = int(when.replace(microsecond=0).timestamp())
    return whole * 10**9 + when.microsecond * 1_000
