"""What became of one rank of a test, and what that makes of the test."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

PASSED, FAILED, SKIPPED, XFAILED = "passed", "failed", "skipped", "xfailed"
LOST = "lost"
"""The rank ended without a word: by a signal, or by ``os._exit``."""
RUNNING = "running"


@dataclass(slots=True)
class Outcome:
    """``text``: the failure as pytest prints it, or the reason of a skip; ``first``: its last line;
    ``at_s``: when it was known, on the clock of this machine; ``echo``: it passes on that others
    went away.
    """

    rank: int
    how: str = RUNNING
    text: str = ""
    first: str = ""
    at_s: float = float("inf")
    echo: bool = False
    code: int | None = None

    @property
    def ended(self) -> str:
        """How a rank ended that left no word."""
        if self.code is not None and self.code < 0:
            try:
                return f"was ended by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"was ended by signal {-self.code}"
        return f"left with exit code {self.code} before the test was over (os._exit?)"


def culprit(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The rank whose failure comes first: one of its own, before any that only passes on that
    others went away.
    """
    bad = [one for one in outcomes if one.how in (FAILED, LOST)]
    return min(bad, key=lambda one: (one.echo and one.how == FAILED, one.at_s), default=None)


def echoes(outcomes: Sequence[Outcome], first: Outcome) -> str:
    """One line about the failures of all other ranks."""
    others = [one for one in outcomes if one.how in (FAILED, LOST) and one is not first]
    if not others:
        return ""
    alike: dict[str, list[int]] = {}
    for one in others:
        alike.setdefault(one.first if one.how == FAILED else one.ended, []).append(one.rank)
    parts = [f"{_ranks(ranks)}: {text}" for text, ranks in alike.items()]
    return f"{'; '.join(parts)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
