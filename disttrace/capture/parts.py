"""The doors through which operations come in, in the order in which they are opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disttrace.capture import missing
from disttrace.capture.instrumentation import (
    asked,
    coalescing,
    constructors,
    functions,
    group_methods,
    names,
    process_group,
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
    functional_waits,
    hooks,
    store_proxy,
)
from disttrace.capture.wrapping.context import Capture


@dataclass(frozen=True, slots=True)
class Door:
    """One part of the capture: its name in messages, and what opens it."""

    part: str
    install: Callable[[Capture], None]


def _issued_by_cxx(capture: Capture) -> None:
    """Native hooks where this torch has them, else dispatcher kernels."""
    if hooks.supported():
        hooks.install(capture)
    else:
        dispatcher.install(capture)


DOORS: tuple[Door, ...] = (
    Door(store_proxy.PART, store_proxy.install),
    Door(constructors.PART, constructors.install),
    Door(store.PART, store.install),
    Door(process_group.PART, process_group.install),
    Door(rejected_calls.PART, rejected_calls.install),
    Door(asked.PART, asked.install),
    Door(device_completion.PART, device_completion.install),
    Door(work.PART, work.install),
    Door(hooks.PART, _issued_by_cxx),
    Door(functional_waits.PART, functional_waits.install),
    Door(functions.PART, functions.install),
    Door(coalescing.PART, coalescing.install),
    Door(group_methods.PART, group_methods.install),
    Door(names.PART, names.install),
    Door(subclasses.PART, subclasses.install),
    Door(elastic.PART, elastic.install),
)


def survey(capture: Capture | None) -> tuple[list[tuple[str, str]], list[str]]:
    """(part, state) of each door in this process, and sentences on what is not captured."""
    import torch.distributed as dist

    if not dist.is_available():
        return [], ["this torch was built without torch.distributed: there is nothing to trace"]
    states = []
    for door in DOORS:
        if capture is None:
            state = "available"
        elif door.part in capture.broken:
            state = "switched off after it failed"
        else:
            count = len(capture.engine.names(door.part))
            state = f"active, {count} patches" if count else "nothing to patch here"
        states.append((door.part, state))
    return states, missing.sentences()


def devices() -> list[tuple[str, str, str]]:
    """(backend, how the completion of its operations is seen, what to set for it or "")."""
    return list(flight_recorder.statements())
