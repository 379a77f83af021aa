"""What `disttrace diagnose` says of ranks that were started here, in a process of its own: the
reader's memory and threads are none of this one's, nor of what it forks next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_SLOW = ("straggler", "late_sender")
"""How long ranks take on this machine, which they share, is no fault of theirs."""
_MOST_S = 120.0


def diagnosed(journals: Path, form: str, *options: str) -> bytes:
    """The report in one of its formats; nothing where there is none."""
    command = [sys.executable, "-m", "disttrace", "diagnose", str(journals)]
    try:
        return subprocess.run(
            [*command, "--format", form, *options],
            env={**os.environ, "DISTTRACE": "0", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            timeout=_MOST_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return b""


def has_fault(report: bytes) -> bool:
    """Whether a report as JSON tells of more than notes and slowness. Raises ValueError for what is
    no report.
    """
    try:
        found = json.loads(report)["findings"]
        return any(one["severity"] != "note" and one["kind"] not in _SLOW for one in found)
    except (KeyError, TypeError) as error:
        raise ValueError("no report") from error
