"""The parts of the instrumentation, in the order in which they are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disttrace.capture import missing
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
from disttrace.capture.native import (
    device_completion,
    dispatcher,
    flight_recorder,
    functional,
    hooks,
    store_proxy,
)
from disttrace.capture.wrapping.context import Capture


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the capture: its name in messages, and what opens it."""

    name: str
    install: Callable[[Capture], None]


def _issued_by_cxx(capture: Capture) -> None:
    """Native hooks where this torch has them, else dispatcher kernels."""
    if hooks.supported():
        hooks.install(capture)
    else:
        dispatcher.install(capture)


PARTS: tuple[Part, ...] = (
    Part(store_proxy.PART, store_proxy.install),
    Part(constructors.PART, constructors.install),
    Part(store.PART, store.install),
    Part(process_group.PART, process_group.install),
    Part(rejected_calls.PART, rejected_calls.install),
    Part(completion_queries.PART, completion_queries.install),
    Part(device_completion.PART, device_completion.install),
    Part(work.PART, work.install),
    Part(hooks.PART, _issued_by_cxx),
    Part(functional.PART, functional.install),
    Part(functions.PART, functions.install),
    Part(coalescing.PART, coalescing.install),
    Part(group_methods.PART, group_methods.install),
    Part(record_comm.PART, record_comm.install),
    Part(subclasses.PART, subclasses.install),
    Part(elastic.PART, elastic.install),
)


def survey(capture: Capture | None) -> tuple[list[tuple[str, str]], list[str]]:
    """(part, state) of each part in this process, and sentences on what is not captured."""
    states = []
    for part in PARTS:
        if capture is None:
            state = "available"
        elif part.name in capture.broken:
            state = "switched off after it failed"
        else:
            count = len(capture.engine.names(part.name))
            state = f"active, {count} patches" if count else "nothing to patch here"
        states.append((part.name, state))
    return states, missing.sentences()


def devices() -> list[tuple[str, str, str]]:
    """(backend, how the completion of its operations is seen, what to set for it or "")."""
    return list(flight_recorder.statements())
