"""What OpenTelemetry's exporters say about a delivery, in short."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from disttrace_viewer.otlp.send.backends import without_secrets

LOGS_THREAD = "disttrace-logs"
"""From which log records are sent: what exporters say there is not about spans."""


class Errors(logging.Handler):
    """What OpenTelemetry's exporters say about a delivery."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName == LOGS_THREAD:
            return  # a collector of spans need not take logs
        self._tell(without_secrets(_short(record.getMessage())))


def _short(message: str) -> str:
    """gRPC's status and details out of a long sentence; else its first line."""
    code = re.search(r"StatusCode\.(\w+)", message)
    details = re.search(r"[Ee]rror details: (.*)", message)
    if code is None:
        return message.splitlines()[0][:200]
    return f"{code[1]}: {details[1][:160]}" if details is not None else code[1]
