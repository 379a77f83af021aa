"""A duty that begins when the companion has run for a while, and is imported then.

Where a stall had it started, the first seconds are the verdict's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

BEGIN_S, SOON_S = 10.0, 1.0
"""Where a stall had the companion started, and where none had."""


class Duty(Protocol):
    """As of ``companion/service.py``."""

    def follow(self, base: str) -> None: ...
    def inherit(self, base: str) -> None: ...
    def turn(self) -> None: ...
    def ended(self, base: str) -> None: ...
    def finish(self) -> None: ...


class Later:
    """What ``make`` gives, once it is there."""

    def __init__(self, make: Callable[[], Duty], begin_s: float = BEGIN_S) -> None:
        self._make = make
        self._made: Duty | None = None
        self._failed: Exception | None = None
        self._bases: dict[str, None] = {}
        self._due = time.monotonic() + begin_s
        self._thread = threading.Thread(target=self._begin, name="later", daemon=True)

    def follow(self, base: str) -> None:
        """A process registered its journal."""
        self._bases[base] = None
        if self._made is not None:
            self._made.follow(base)

    def inherit(self, base: str) -> None:
        """Who ended before has nothing to do with it."""

    def turn(self) -> None:
        """Make it when it is due, on a thread: to import takes its time."""
        if self._failed is not None:
            raise self._failed
        if self._made is not None:
            self._made.turn()
        elif self._thread.ident is None and time.monotonic() >= self._due:
            self._thread.start()
        elif self._thread.ident is not None and not self._thread.is_alive():
            self._made = self._duty
            for base in self._bases:
                self._made.follow(base)

    def ended(self, base: str) -> None:
        """The process of a journal is gone."""
        self._bases.pop(base, None)
        if self._made is not None:
            self._made.ended(base)

    def finish(self) -> None:
        """The job is over on this host."""
        if self._made is not None:
            self._made.finish()

    def _begin(self) -> None:
        try:
            self._duty = self._make()
        except Exception as error:
            self._failed = error
