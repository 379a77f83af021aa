"""Has journals read and judged in a process of its own, whose memory is gone when it ends."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import Any

from disttrace_viewer.companion.hub.station import Answer

CALLS_S, JUDGE_S = 4.5, 60.0
"""So long that may take; of calls while another host waits for them."""
Tell = Callable[[dict[str, Any]], None]


class Judging:
    """``command`` begins a process that answers lines (``companion/verdict.py``); ``tell`` takes
    what is to be said, and ``known`` are groups (ids) of which it was.
    """

    def __init__(
        self, command: Sequence[str], tell: Tell, known: Callable[[], Collection[str]]
    ) -> None:
        self._command = command
        self._tell = tell
        self._known = known

    def calls(self) -> bytes:
        """The newest calls of this host's processes; empty where they cannot be read in time."""
        try:
            return base64.b64decode(self._asked(b"calls\n", CALLS_S))
        except ValueError:
            return b""

    def judge(self, answers: Sequence[Answer]) -> None:
        """Have told what is wrong, by what others told of their calls and by ours."""
        told = [[one.sender, base64.b64encode(one.data).decode()] for one in answers]
        question = json.dumps([sorted(self._known()), told]).encode()
        try:
            found = json.loads(self._asked(b"diverged %b\n" % question, JUDGE_S))
        except ValueError:
            return
        if isinstance(found, dict) and "diverged" in found:
            self._tell(found)

    def _asked(self, line: bytes, within_s: float) -> bytes:
        try:
            done = subprocess.run(
                self._command,
                input=line,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=within_s,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return b""
        return done.stdout
