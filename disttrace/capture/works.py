"""From a Work to its operation, without owning the Work (it keeps tensors alive)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from disttrace.recorder import Operation, Recorder


class _Reference(weakref.ref[Any]):
    """A weak reference that knows its operation."""

    __slots__ = ("operation",)

    operation: Operation


class Works:
    """Asynchronous operations by their Work, for as long as somebody holds it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._references: dict[int, _Reference] = {}
        self.get: Callable[[int], _Reference | None] = self._references.get

    def add(self, work: Any, operation: Operation) -> None:
        """``work`` is the handle of ``operation``."""
        operation.work = id(work)
        reference = _Reference(work, self._dropped)
        reference.operation = operation
        self._references[operation.work] = reference

    def over(self, operation: Operation) -> None:
        """The operation's end is on record: nothing more is expected of its Work."""
        reference = self._references.get(operation.work)
        if reference is not None and reference.operation is operation:
            del self._references[operation.work]

    def pending(self) -> list[_Reference]:
        """References of the works whose end was not seen yet."""
        return list(self._references.values())

    def forget(self) -> None:
        """After fork, in the child: what is in flight is the parent's."""
        self._references.clear()

    def _dropped(self, reference: weakref.ref[Any]) -> None:
        """Nobody can wait for it any more. Runs in whatever thread drops the last reference."""
        assert isinstance(reference, _Reference)
        operation = reference.operation
        if self._references.get(operation.work) is reference:
            del self._references[operation.work]
            self._recorder.lost(operation)
