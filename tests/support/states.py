"""What tests of states and engines share; workers import their functions from here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.journals import MS, Journal, S
from support.scenes import steps


def hang(folder: Path, size: int = 4, count: int = 3) -> list[Journal]:
    """The last rank stays in its loader; the others are in the next all_reduce."""
    journals = []
    for journal, group in steps(folder, size, count):
        if journal.rank == size - 1:
            journal.stand(2 * S, "loader.py", 9, "load")
        else:
            journal.begin(journal.collective(group), 200 * MS, q=count + 1)
        journal.beat(30)
        journals.append(journal)
    return journals


def done_by_another(mark: str, function: Callable[[Any], Any], task: Any) -> Any:
    """What a function makes of a task; the first one takes its worker down."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return function(task)


def dies(number: int) -> int:
    """A number; 1 takes its worker down."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
