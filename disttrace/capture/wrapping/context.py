"""What the parts share: the recorder, the registries, and what to do when a part fails."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Hashable, Mapping
from types import FrameType, ModuleType
from typing import Any, TypeVar

from disttrace import errors, foreign
from disttrace.capture.calls.call_site import CallSites, CallTable
from disttrace.capture.objects.groups import GroupEntry, Groups
from disttrace.capture.objects.stores import Stores
from disttrace.capture.objects.works import Works
from disttrace.journal.format import COMPOSED
from disttrace.patching import Engine
from disttrace.recording.interning import Made
from disttrace.recording.operation import Counter, KeyTexts, Operation, retail
from disttrace.recording.recorder import Recorder

T = TypeVar("T")

_UNDESCRIBED = 1000
"""Calls of a part that raise when they are described, before it is taken for the part's fault."""


class Capture:
    """One per process; every part gets it."""

    def __init__(self, recorder: Recorder, reporter: errors.Reporter, *, stack_depth: int) -> None:
        self.recorder = recorder
        self.reporter = reporter
        self.engine = Engine()
        self.stores = Stores(recorder)
        self.groups = Groups(recorder, self.stores)
        self.sites = CallSites(recorder, depth=stack_depth)
        self.works = Works(recorder)
        self.keys = KeyTexts()
        self.calls = CallTable(self.sites)  # of what is not called all the time
        self.store_trace: frozenset[str] = frozenset()  # backends that get a delegating store
        self.asks_devices = True  # when they have finished what was issued
        self.unseen_s = 4.0  # so long at most is an end on a device not looked for
        self.digest_every = 0  # calls of which one has a digest of its result taken; 0: none
        self.digests: Any = None  # who takes them
        # A method of a row of ``operations``, with a look at what it reduces where that is wanted.
        self.looking: Callable[[Any, Callable[..., Any]], Callable[..., Any]] = lambda _, it: it
        self.broken: set[str] = set()  # parts taken out of service
        self.unordered: set[str] = set()  # parts whose operations no other process counts
        self._undescribed: dict[str, int] = {}  # by part: calls that could not be described
        self.on_stopping: Callable[[], None] = lambda: None  # a launcher stops its workers
        # This process claims a rank, a world size, a role.
        self.on_identity: Callable[[Mapping[str, Any]], None] = lambda keys: None
        # Whether a process launched here has a journal in the folder, by its pid; the second value
        # where that cannot be told.
        self.left_journal: Callable[[int, bool], bool] = lambda pid, unknown: unknown
        # Called by the live thread; each says in how many nanoseconds it wants to look again, or 0:
        # it waits for nothing.
        self.pollers: list[Callable[[], int]] = []
        self.wake: Callable[[], None] = lambda: None  # a poller waits for something from now on
        # What a hook has begun on a thread and C++ has not issued yet, with its results' storages.
        self.issuing: dict[int, tuple[Operation, list[int]]] = {}
        # The number that hooks of torch's give the operation that a thread has issued last.
        self.op_ids: dict[int, int] = {}
        self.show_cxx: Callable[[], None] = lambda: None  # see whatever C++ issues from now on
        # The parameters that an exception of DDP's is about.
        self.parameters_of: Callable[[BaseException], list[str]] = lambda error: []
        # Of what DDP reduces on a group the parameters whose gradients are not finite.
        self.spoilt: Callable[..., list[str]] = lambda *_: []
        # The module of FSDP's for which this thread calls, with its parameters.
        self.module_of: Callable[[], dict[str, Any] | None] = lambda: None
        # Runs a callback once a module is imported: torch is half imported at installation.
        self.when_imported: Callable[[str, Callable[[ModuleType], None]], None] = lambda *_: None
        # What patches torch's classes, and what Python subclasses of theirs override.
        self.instrumenters: list[tuple[tuple[type, ...], Callable[[type], None]]] = []
        self.on_fork: list[Callable[[], None]] = [self.works.forget, self.sites.forget]
        self.newest_raised = 0, ""  # the newest exception that a wrapper has put on record

    def raised(self, error: BaseException) -> None:
        """A wrapper saw ``error``, which is not kept: it holds the program's frames."""
        self.newest_raised = id(error), errors.first_line(error)

    def fail(self, part: str, error: BaseException) -> None:
        """``part`` raised ``error``: say so once and take the part out of service.

        What is not ours (a signal handler's exception, Ctrl-C) is raised again. What an argument of
        the program's raised when it was asked costs one call its record, and the first a note; so
        does the end of the stack, and of memory where operations are in no sequence.
        """
        if not foreign.is_ours(error):
            raise error
        scarce = foreign.is_a(error, RecursionError) or part in self.unordered
        passing = errors.is_of_program(error) or (scarce and errors.is_scarcity(error))
        if passing and self._undescribed.get(part, 0) < _UNDESCRIBED:
            self._undescribed[part] = self._undescribed.get(part, 0) + 1
            if self._undescribed[part] == 1:
                what = f"{errors.first_line(error)} ({_innermost(error)})"
                text = f"a call of {part} cannot be described: {what}"
                foreign.attempt(lambda: self.recorder.note("note", text=text))
            return
        self.engine.undo(part)
        self.broken.add(part)
        where = _innermost(error)
        sentence = (
            f"{part} are no longer traced after {errors.first_line(error)} ({where}); "
            "the program goes on"
        )
        if self.reporter.report(part, sentence):
            self.recorder.note("note", text=sentence)

    def guard(self, part: str, ours: Callable[..., T], /, *args: Any, **kwargs: Any) -> T | None:
        """What ``ours`` returns, or None where it raises. Raises RecursionError without a stack."""
        try:
            return ours(*args, **kwargs)
        except BaseException as error:
            self.failing(part, error)
            return None

    def failing(self, part: str, error: BaseException) -> None:
        """The same as ``fail``, wherever there is enough left to say it."""
        try:
            self.fail(part, error)
        except errors.SCARCE as further:
            if further is error:  # a handler's
                raise

    def begin(
        self,
        frame: FrameType | None,
        op: str,
        key: tuple[Hashable, ...],
        keys: Mapping[str, Any],
        extra: bytes = b"",
        *,
        counter: Counter | None = None,
        synchronous: bool = True,
    ) -> Operation:
        """Begin an operation that is not called all the time, at ``frame``; without ``counter`` it
        is in no sequence. ``key`` tells it from others of ``op`` there; ``keys`` are of its call
        record, ``extra`` further ones of its begin."""

        def define(stack: int | None) -> Made:
            all_keys = {"origin": "python", **keys, "stack": stack}
            return self.recorder.call(op, synchronous=synchronous, counter=counter, **all_keys)

        call, signature = self.calls.find(frame, (op, *key), define)
        return self.recorder.begin(self.recorder.threads.state, call, signature + extra)

    def begin_composed(
        self,
        frame: FrameType | None,
        op: str,
        key: Hashable = None,
        *,
        group: GroupEntry | None = None,
        args: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> Operation:
        """The same for one that has what its thread issues until ``leave``; with ``args`` it is a
        call that returns then."""
        n, backend = (None, None) if group is None else (group.n, group.backend(None))
        told = {} if args is None else {"args": args or None, "async": False}
        made = {"kind": COMPOSED, "group": n, "backend": backend, **told, **keys}
        return self.step_in(self.begin(frame, op, (n, key), made))

    def leave(
        self, part: str, operation: Operation | None, error: BaseException | None = None
    ) -> None:
        """The composed operation is over, if one was begun."""
        if operation is None:
            return
        try:
            self.step_out(operation)
            if error is None:
                self.recorder.end(operation)
            else:
                self.recorder.failed(operation, error, on_issue=False)
        except BaseException as ours:
            self.failing(part, ours)

    def step_in(self, operation: Operation) -> Operation:
        """What its thread issues from now on is part of it."""
        thread = self.recorder.threads.state
        thread.parents.append(operation.n)
        retail(thread)
        return operation

    def step_out(self, operation: Operation) -> None:
        thread = self.recorder.threads.state
        if operation.n in thread.parents:
            del thread.parents[thread.parents.index(operation.n) :]
            retail(thread)

    def instrument(self, *bases: type, by: Callable[[type], None]) -> None:
        """Have torch's ``bases`` patched now, and their Python subclasses as they come."""
        self.instrumenters.append((bases, by))
        for base in bases:
            by(base)

    def poll(self, part: str, poll: Callable[[], int], last: Callable[[], object]) -> None:
        """Have ``poll`` called by the live thread while ``part`` works, and ``last`` at exit."""

        at_exit = functools.partial(self.guard, part, last)

        def stop() -> None:
            atexit.unregister(at_exit)
            if poll in self.pollers:
                self.pollers.remove(poll)

        self.pollers.append(poll)
        atexit.register(at_exit)
        self.engine.on_undo(part, "the poller", stop)


current: Capture | None = None
"""That of this process, while it is traced."""


def _innermost(error: BaseException) -> str:
    traceback = foreign.innermost(error)
    if traceback is None:
        return "no traceback"
    return f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
