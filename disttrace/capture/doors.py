"""The doors through which operations come in, in the order in which they are opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disttrace.capture import (
    agent,
    asked,
    coalescing,
    composed,
    constructors,
    delegate,
    device,
    dispatcher,
    functional,
    hooks,
    methods,
    missing,
    names,
    refused,
    regroup,
    storeops,
    subclasses,
    waits,
)
from disttrace.capture.context import Capture


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
    Door(delegate.PART, delegate.install),
    Door(constructors.PART, constructors.install),
    Door(storeops.PART, storeops.install),
    Door(methods.PART, methods.install),
    Door(refused.PART, refused.install),
    Door(asked.PART, asked.install),
    Door(device.PART, device.install),
    Door(waits.PART, waits.install),
    Door(hooks.PART, _issued_by_cxx),
    Door(functional.PART, functional.install),
    Door(composed.PART, composed.install),
    Door(coalescing.PART, coalescing.install),
    Door(regroup.PART, regroup.install),
    Door(names.PART, names.install),
    Door(subclasses.PART, subclasses.install),
    Door(agent.PART, agent.install),
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
