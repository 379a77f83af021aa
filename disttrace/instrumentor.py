"""OpenTelemetry's way in: ``opentelemetry-instrument torchrun ...``, or in a program.

The exporter process sends the spans, so they outlive this process.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from disttrace.project import OFF, SWITCH


class DisttraceInstrumentor(BaseInstrumentor):
    """Traces this process and its children; takes every setting of ``disttrace.install``."""

    _installed = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: without torch there is just nothing to trace."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        from disttrace.session import install, installed

        if os.environ.get(SWITCH, "").strip().lower() not in OFF:  # as in the exporter process
            settings = {k: v for k, v in kwargs.items() if k not in _OF_OTHERS}
            self._installed = not installed()
            export = None if os.environ.get("DISTTRACE_EXPORT") else "otlp"
            install(**{"export": export, **settings})

    def _uninstrument(self, **kwargs: Any) -> None:
        from disttrace.session import uninstall

        if self._installed:
            uninstall()


_OF_OTHERS = frozenset({
    "tracer_provider", "meter_provider", "logger_provider", "skip_dep_check",
    "raise_exception_on_conflict",
})  # fmt: skip
"""Arguments of ``instrument`` that concern other instrumentations."""
