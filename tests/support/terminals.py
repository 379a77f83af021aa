"""What a program writes where it is at a terminal: a pseudo-terminal, read to its end."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(command: Sequence[str], environ: Mapping[str, str], *, limit_s: float = 120) -> str:
    """What a command writes to a terminal."""
    lead, follow = pty.openpty()
    process = subprocess.Popen(
        command, stdout=follow, stderr=follow,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environ},
    )  # fmt: skip
    os.close(follow)
    found = b""
    try:
        while chunk := os.read(lead, 65536):
            found += chunk
    except OSError:
        pass  # the terminal is closed with its last writer
    finally:
        os.close(lead)
    assert process.wait(limit_s) == 0
    return found.decode()
