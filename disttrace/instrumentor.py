"""OpenTelemetry's way in: ``opentelemetry-instrument torchrun ...``, or in a program.

Spans go where the program's own go. A provider that the program made itself gets them through its
processors; without one, or with the one that ``opentelemetry-instrument`` made from the
environment, the exporter process sends them, and they outlive this process.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from disttrace import project
from disttrace.config import resolve
from disttrace.project import SWITCH, is_on

_AUTO = "telemetry.auto.version"
_FEED = "disttrace_viewer.otlp.sdk"


class DisttraceInstrumentor(BaseInstrumentor):
    """Traces ``torch.distributed`` in this process and in the processes it starts.

    ``instrument()`` takes ``tracer_provider``, ``meter_provider`` and every setting of
    ``disttrace.install``.
    """

    _feed: Any = None
    _installed = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: without torch there is just nothing to trace."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        from disttrace.lifecycle import spans
        from disttrace.session import identity, install, installed

        if _is_off():
            return
        given = kwargs.pop("tracer_provider", None)
        meters = kwargs.pop("meter_provider", None)
        settings = {k: v for k, v in kwargs.items() if k not in _OF_OTHERS}
        provider = given if given is not None else _own_provider()
        self._installed = not installed()
        if provider is None:
            install(**{"export": _exports("otlp"), **settings})
            return
        spans.wanted = True
        install(**{"export": _exports("json"), **settings})
        found = identity()
        if found is not None:
            config, _ = resolve(settings, os.environ, project.read())
            make = importlib.import_module(_FEED).Feed
            where = (found.folder(config.dir), found.base_name())
            self._feed = make(provider, meters, *where, pending_s=config.pending)

    def _uninstrument(self, **kwargs: Any) -> None:
        from disttrace.lifecycle import spans
        from disttrace.session import uninstall

        spans.wanted = False
        feed, self._feed = self._feed, None
        if self._installed:
            uninstall()
        if feed is not None:
            feed.stop()


# Arguments of instrument() that concern other instrumentations.
_OF_OTHERS = frozenset({"logger_provider", "skip_dep_check", "raise_exception_on_conflict"})


def _is_off() -> bool:
    """Whether DISTTRACE is off, as in the exporter process itself; unset it is not."""
    switch = os.environ.get(SWITCH, "").strip()
    try:
        return bool(switch) and not is_on(switch)
    except ValueError:
        return False


def _exports(wanted: str) -> str | None:
    """``wanted``, unless the environment chose."""
    return None if os.environ.get("DISTTRACE_EXPORT") else wanted


def _own_provider() -> Any:
    """The provider that the program itself made; None without one."""
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    resource = getattr(provider, "resource", None)
    if resource is None or getattr(provider, "_active_span_processor", None) is None:
        return None  # the API's stand-in
    return None if _AUTO in resource.attributes else provider
