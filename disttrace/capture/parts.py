"""The parts of the instrumentation, in the order in which they are installed."""

from __future__ import annotations

from types import ModuleType

from disttrace.capture import adapters, missing
from disttrace.capture.ddp import relays
from disttrace.capture.devices import completion
from disttrace.capture.instrumentation import (
    coalescing,
    completion_queries,
    constructors,
    functions,
    group_methods,
    process_group,
    record_comm,
    rejected_calls,
    store,
    subclasses,
    work,
)
from disttrace.capture.launcher import elastic
from disttrace.capture.native import dispatcher, functional, hooks, store_proxy
from disttrace.capture.values import digests
from disttrace.capture.wrapping.context import Capture


def parts() -> list[ModuleType]:
    """Modules with the ``PART`` that messages name, and the ``install`` that opens it."""
    return [
        store_proxy,
        constructors,
        store,
        process_group,
        rejected_calls,
        completion_queries,
        completion,
        work,
        *((hooks,) if hooks.supported() else (dispatcher, relays)),  # what C++ issues
        functional,
        functions,
        coalescing,
        group_methods,
        record_comm,
        digests,
        subclasses,
        elastic,
        adapters,
    ]


def survey(capture: Capture | None) -> tuple[list[tuple[str, str]], list[str]]:
    """(part, state) of each part in this process, and sentences on what is not captured."""
    states = []
    for part in parts():
        if capture is None:
            state = "available"
        elif part.PART in capture.broken:
            state = "switched off after it failed"
        else:
            count = len(capture.engine.names(part.PART))
            state = f"active, {count} patches" if count else "nothing to patch here"
        states.append((part.PART, state))
    return states, missing.sentences()
