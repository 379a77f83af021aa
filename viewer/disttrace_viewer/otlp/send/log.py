"""What the exporter tells people: in a file, since the program's own output is not ours to keep."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable

from disttrace_viewer.otlp.send.backends import without_secrets


class Log:
    """Sentences for people, each once, in a file that is removed where it stayed empty."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Append a sentence; a full disk is no reason to stop."""
        sentence = without_secrets(sentence)
        if sentence not in self._said:
            self._said.add(sentence)
            try:
                os.write(self._fd, f"{sentence}\n".encode("utf-8", "replace"))
            except OSError:
                pass


class Errors(logging.Handler):
    """What OpenTelemetry's exporters say about a delivery."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(without_secrets(_short(record.getMessage())))


def _short(message: str) -> str:
    """gRPC's status and details out of a long sentence; else its first line."""
    code = re.search(r"StatusCode\.(\w+)", message)
    details = re.search(r"[Ee]rror details: (.*)", message)
    if code is None:
        return message.splitlines()[0][:200]
    return f"{code[1]}: {details[1][:160]}" if details is not None else code[1]
