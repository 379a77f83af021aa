"""Instrumentation of Python subclasses of ProcessGroup, Backend, Store and Work.

A subclass's own methods shadow the patched ones, so they are wrapped too: those of the classes that
exist, then when a class is made, and at the latest when the first group of a class appears. C++
takes a method of such a class for an override and calls it; what comes back to a wrapper on the
same thread is the same operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Backend, ProcessGroup, Store, Work

from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.objects.registry import Registry
from disttrace.capture.wrapping.context import Capture
from disttrace.patching import subclasses

PART = "Python subclasses"


def install(capture: Capture) -> None:
    """Adopt every subclass, now and later."""
    seen: Registry[bool] = Registry()

    def instrument(owner: type) -> None:
        if seen.get(id(owner)) or owner.__module__.startswith("disttrace."):
            return
        seen.add(owner, True)
        for patched, patch in capture.instrumenters:
            if issubclass(owner, patched):
                patch(owner)

    def look(group: Any, _: GroupEntry) -> None:
        for owner in type(group).__mro__:
            if owner not in bases and issubclass(owner, bases):
                instrument(owner)

    bases = (ProcessGroup, Backend, Store, Work)
    for base in bases:
        for owner in subclasses(base):
            instrument(owner)
        _hook(capture, base, instrument)
    appeared = functools.partial(capture.guard, PART, look)
    capture.groups.on_new.append(appeared)
    capture.engine.on_undo(PART, "groups' classes", lambda: capture.groups.on_new.remove(appeared))


def _hook(capture: Capture, base: Any, instrument: Callable[[type], None]) -> None:
    """Hear of classes that are made below ``base``, which only inherits what is asked then."""

    def __init_subclass__(cls: type, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        capture.guard(PART, instrument, cls)

    own: Any = classmethod(__init_subclass__)
    base.__init_subclass__ = own

    def undo() -> None:
        if base.__dict__.get("__init_subclass__") is own:
            del base.__init_subclass__

    capture.engine.on_undo(PART, f"{base.__name__}.__init_subclass__", undo)
