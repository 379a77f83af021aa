"""What DDP issues from C++, seen by a group in place of the program's: a relay.

DDP's reducer, and the functions that share parameters and buffers, issue on a group that Python
gives them. Where that is of a class of Python's, C++ calls its methods; a relay's issue the same on
the group that it stands for. A kernel under the dispatcher would see it too, for several times the
cost, and every other operation of the process would pass it (``dispatcher.py``).

C++ holds a relay as it held the group, and Python's half of it has to live as long. A relay has the
group's own backends, which C++ asks what they can do.

DDP's reducer waits for what it issued before the backward pass is over, and a function of C++
before it returns. So completion need not be looked for meanwhile; what has not come to that end
(the pass failed, or is stuck) is looked at when the live thread comes by, a few times a second.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from disttrace import foreign
from disttrace.capture.calls.arguments import CallArguments
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.instrumentation import parameters
from disttrace.capture.instrumentation.process_group import GroupPart
from disttrace.capture.native.kernels import guarded
from disttrace.capture.objects.registry import Registry
from disttrace.capture.objects.works import Works
from disttrace.capture.wrapping import call_definition
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function, after, passed_on
from disttrace.foreign import ours
from disttrace.journal.originals import get_ident
from disttrace.recording.operation import Operation, ThreadState

_get_future = Work.get_future  # imported before it is patched
_OUTSIDE = -1  # no backward pass
_MOST_PASSES = 16  # known at once, before those are looked for that failed


class Awaited:
    """What waits, by the call or the backward pass that it belongs to."""

    def __init__(self, capture: Capture, part: str, over: Callable[[], object]) -> None:
        self._capture = capture
        self._part = part
        self._over = over  # of a backward pass
        self._works: Works = capture.works
        self._recorder = capture.recorder
        self._open: dict[int, tuple[Operation, Any]] = {}  # with its Work, by its number
        self._passes: dict[int, list[int]] = {}  # numbers of operations, by autograd's of the pass
        self._calls: dict[int, list[int]] = {}  # the same, by the thread that is in such a call
        self._leaked: list[Any] = []  # a parent's, in a forked child
        self._pass = torch._C._current_graph_task_id
        self._looked_after = False
        capture.on_fork.append(self._forget)
        capture.engine.on_undo(part, "works of what C++ awaits", self._release)
        capture.poll(part, self._poll, self._release)

    def add(self, operation: Operation, work: Any) -> None:
        """``operation`` was issued, in a backward pass or between ``enter`` and ``leave``."""
        number = self._pass()
        issued = self._calls.get(get_ident())
        if issued is None and number != _OUTSIDE:
            issued = self._passes.get(number)
            if issued is None:
                issued = self._begin_pass(number)
        if issued is None:
            self._works.hold(work, operation)
            return
        self._open[operation.n] = operation, work
        issued.append(operation.n)
        if not self._looked_after:
            self._looked_after = True
            self._capture.wake()  # whoever looks may not have begun to

    def enter(self) -> list[int] | None:
        """The calling thread is about to call what waits for all that it issues; for ``leave``."""
        thread = get_ident()
        outer = self._calls.get(thread)
        self._calls[thread] = []
        return outer

    def leave(self, outer: list[int] | None) -> None:
        thread = get_ident()
        issued = self._calls.pop(thread, [])
        if outer is not None:
            self._calls[thread] = outer
        for operation, work in self._complete(issued):
            self._settle(operation, work, self._recorder.end)

    def _begin_pass(self, number: int) -> list[int]:
        if len(self._passes) >= _MOST_PASSES:
            known = list(self._passes.items())
            self._passes = {p: ns for p, ns in known if any(n in self._open for n in ns)}
        self._passes[number] = issued = list[int]()
        # The reducer waits in a callback that it queues after its last operation. What is queued
        # now would come before that, so it queues what comes after. No code of Python's runs there.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(functools.partial(queue, functools.partial(self._ended, number)))
        return issued

    def _ended(self, number: int) -> None:
        self._capture.guard(self._part, self._pass_is_over, number)

    def _pass_is_over(self, number: int) -> None:
        for operation, _ in self._complete(self._passes.pop(number, ())):
            self._recorder.end(operation)  # what failed would have ended the pass before
        self._over()

    def _complete(self, numbers: Iterable[int]) -> Iterable[tuple[Operation, Any]]:
        """Those that were not looked at before; what was not awaited after all is held."""
        for each in [self._open.pop(n, None) for n in numbers]:
            if each is not None:
                if self._works.is_completed(each[1]) or _future_is_done(each[1]):
                    yield each
                else:
                    self._works.hold(each[1], each[0])

    def _settle(
        self, operation: Operation, work: Any, ended: Callable[[Operation], object]
    ) -> None:
        """It is complete: it ``ended``, unless it failed."""
        error = self._works.error(work)
        if error is None:
            ended(operation)
        else:
            self._recorder.failed(operation, error, on_issue=False)

    def _poll(self) -> int:
        """See which are complete though their pass is not over; no hurry for that."""
        for n, (operation, work) in list(self._open.items()):
            if not self._works.is_completed(work):
                operation.seen = self._recorder.clock()
            elif self._open.pop(n, None) is not None:
                gap = self._works.gap(operation)  # its pass is not over
                self._settle(operation, work, functools.partial(self._recorder.completed, gap=gap))
        return 0

    def _release(self) -> None:
        """At exit, or where tracing ends: what is complete by now is on record as complete."""
        self._capture.guard(self._part, self._poll)
        self._open.clear()
        self._passes.clear()

    def _forget(self) -> None:
        self._leaked = list(self._open.values())  # see Works.forget
        self._open.clear()
        self._passes.clear()
        self._calls.clear()
        self._looked_after = False


def _future_is_done(work: Any) -> bool:
    """Gloo completes the future a moment before the Work."""
    try:
        return bool(_get_future(work).done())
    except ours(RuntimeError):  # the backend has none
        return False


PART = "operations issued by DDP"

_METHODS = ("allreduce", "broadcast", "allgather", "barrier")
"""What C++ calls on a group that it was given; a test runs all that it does with one."""
# As C++ has them: this is imported before anything is patched.
_CONSTRUCT: Function = c10d.ProcessGroup.__init__
_REGISTER: Function = c10d.ProcessGroup._register_backend
_ORIGINALS: dict[str, Function] = {name: getattr(c10d.ProcessGroup, name) for name in _METHODS}
_FUNCTIONS = ("_broadcast_coalesced", "_verify_params_across_processes")
_LOOKED_AT, _CHANGES = 8, 8  # parameters of a model; changes of one in place: two to eight steps


def install(capture: Capture) -> None:
    """Give relays to whatever of C++ takes a group."""
    relays = Relays(capture)
    attribute = capture.engine.attribute
    for owner, name, look in (
        (c10d.Reducer, "__init__", relays.reducer_made),
        (c10d.Reducer, "_update_process_group", relays.given),
        (c10d.Reducer, "prepare_for_backward", relays.models.begun),
        (c10d.Logger, "__init__", relays.logger_made),
    ):
        attribute(PART, owner, name, after(capture, PART, look))
    for name in _FUNCTIONS:
        for module in (dist, c10d):
            if hasattr(module, name):
                wrapper = relays.function(getattr(module, name))
                capture.engine.value(PART, module, name, wrapper)


class Relays:
    """The relays of this process, by what holds them in C++."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.models = Models(capture)
        self._awaited = Awaited(capture, PART, self.models.over)
        self._update = c10d.Reducer._update_process_group
        self._class: Any = _relay_class(capture, self._awaited)
        capture.spoilt = self.spoilt
        self._holders: Registry[Any] = Registry()  # relays by their reducers, and loggers of those
        self._known: Registry[weakref.ref[Any]] = Registry()  # and by the group they stand for

    def reducer_made(self, result: Any, reducer: Any, *args: Any, **kwargs: Any) -> None:
        """``Reducer.__init__`` returned; it communicates only later."""
        groups = [v for v in (*args, *kwargs.values()) if isinstance(v, c10d.ProcessGroup)]
        self.given(None, reducer, groups[0] if groups else None)
        if (relay := self._holders.get(id(reducer))) is not None:
            relay.model = self.models.add(reducer, groups[0], args[1] if len(args) > 1 else ())

    def logger_made(self, result: Any, logger: Any, reducer: Any, *args: Any) -> None:
        """A logger keeps its reducer alive."""
        relay = self._holders.get(id(reducer))
        if relay is not None:
            self._holders.add(logger, relay)

    def given(self, result: Any, reducer: Any, group: Any) -> None:
        shared = self._of(group)
        relay = None if shared is None else self._made(group)
        if relay is None:
            guarded(self._capture, PART, self._capture.show_cxx)
            return
        relay.shared = shared  # which lives as long
        relay.model = self.models.of(reducer)
        self._holders.add(reducer, relay)
        self._update(reducer, relay)

    def spoilt(self, group: Any, is_finite: Callable[[Any], bool]) -> list[str]:
        """Of what is reduced on a relay the parameters whose gradients are not finite."""
        model = group.model if type(group) is self._class else None
        return [] if model is None else model.spoilt(is_finite)

    def function(self, original: Function) -> Function:
        """The wrapper of a function that takes a group and waits for what it issues."""
        capture, guard, awaited = self._capture, self._capture.guard, self._awaited

        def call(process_group: Any, *args: Any, **kwargs: Any) -> Any:
            relay = guard(PART, self._of, process_group)
            if relay is None:
                guarded(capture, PART, capture.show_cxx)
                return original(process_group, *args, **kwargs)
            outer = awaited.enter()
            try:
                return original(relay, *args, **kwargs)
            finally:
                guard(PART, awaited.leave, outer)

        return call

    def _of(self, group: Any) -> Any:
        """The relay of functions for ``group``; None as of ``_made``."""
        known = self._known.get(id(group))
        relay = known() if known is not None else None
        if relay is None and (relay := self._made(group)) is not None:
            self._known.add(group, weakref.ref(relay))
        return relay

    def _made(self, group: Any) -> Any:
        """A relay for ``group``; None for classes of Python, whose methods C++ calls itself."""
        relay = self._class(group) if type(group) is c10d.ProcessGroup else None
        if relay is None or not _shares_backends(relay, group):
            return None
        self._capture.groups.stands_for(relay, group)
        return relay


class Models:
    """DDP's models: of which no gradient was reduced yet, though parameters change in place; and in
    which a bucket waits for gradients that a backward pass did not have: its relay counts calls.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.by_group: dict[int, list[_Model]] = {}
        self._of: Registry[_Model] = Registry()  # by the reducer
        capture.on_fork.append(self.by_group.clear)
        capture.poll(PART, self._look, functools.partial(self._look, at_exit=True))
        capture.engine.on_undo(PART, "models of DDP", self.by_group.clear)

    def of(self, reducer: Any) -> _Model | None:
        return self._of.get(id(reducer))

    def add(
        self, reducer: Any, group: c10d.ProcessGroup, buckets: Sequence[object]
    ) -> _Model | None:
        modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
        capture, frame = self._capture, foreign.caller(sys._getframe(1))  # that of DDP
        owner = parameters.model_of(frame)
        known = [p for _, p in parameters.named(owner()) if type(p) is torch.nn.Parameter]
        if group.size() == 1 or modes or not known:
            return None
        number, stack = capture.groups.of(group).n, capture.sites.stack(frame)
        record = {"group": number, "stack": stack or 0, "bytes": sum(p.nbytes for p in known)}
        counts = [p._version for p in known[:_LOOKED_AT]]
        model = self._of.add(reducer, _Model(record, counts, owner, capture.recorder.now()))
        if not foreign.of_torch(owner(), "__dict__").get("find_unused_parameters"):
            model.usual = len(buckets) if len(known) <= parameters.MOST else 0
        living = (one for one in self.by_group.get(number, ()) if one.owner() is not None)
        self.by_group[number] = [*living, model]
        return model

    def begun(self, result: Any, reducer: Any, *_: Any) -> None:
        """The next backward pass is to reduce; what the one before it began is complete. Another
        model is as far as it came.
        """
        model = self.of(reducer)
        if model is None:
            return
        for other in self.by_group.get(model.record["group"], ()):
            if other is not model and other.begun and other.issued < other.usual and other.tries:
                other.tries -= 1
                self._note_lack(other, other.without_gradient(), settled=1)
        model.begun = True
        if model.issued:
            # Buckets are made anew after the first pass.
            model.usual = model.usual and (model.issued if model.passes else 1)
            model.passes, model.issued = model.passes + 1, 0

    def _all(self) -> Iterator[_Model]:
        return (model for models in list(self.by_group.values()) for model in models)

    def over(self) -> None:
        """A backward pass is over in which buckets were reduced, but for one inside of another. How
        many the second one has is known after it."""
        for model in self._all():
            usual = parameters.MOST if model.usual and model.passes == 1 else model.usual
            if 0 < model.issued < usual and model.tries:
                model.tries -= 1
                self._note_lack(model, model.without_gradient())

    def _look(self, at_exit: bool = False) -> int:
        """Note how often a model changed, when that doubles; and what lacks a gradient where a
        bucket is due and nothing moves."""
        for one in self._all():
            of = () if one.issued or one.passes else parameters.named(one.owner())
            changes = max(map(lambda p, n: p[1]._version - n, of, one.versions), default=0)
            if changes >= max(_CHANGES, 2 * one.noted):
                one.noted = changes
                self._note(one, changes=changes)
            one.looks = 0 if at_exit else one.looks + 1
            if one.issued < one.usual and not one.looks & one.looks - 1:
                before, one.lacking = one.lacking, one.without_gradient()
                self._note_lack(one, one.lacking if at_exit or before == one.lacking else ())
        return 0

    def _note_lack(self, one: _Model, names: Sequence[str], **facts: Any) -> None:
        if names:
            facts |= {"bucket": one.issued, "changes": one.passes + 1, "parameters": names}
            self._note(one, **facts)

    def _note(self, one: _Model, **facts: Any) -> None:
        recorder = self._capture.recorder
        recorder.note("unreduced", over=recorder.now() - one.since, **facts, **one.record)


@dataclass(slots=True)
class _Model:
    """What is looked at of a model of DDP."""

    record: dict[str, int]
    versions: list[int]
    """Of the first parameters, when DDP was made."""
    owner: Callable[[], Any]
    """DDP's module while it lives."""
    since: int
    noted: int = 0
    usual: int = 0
    """Buckets of a pass, as far as that is known; none where parameters may go unused."""
    issued: int = 0  # of them, in the newest pass
    passes: int = 0  # complete ones
    begun: bool = False  # and one of them
    looks: int = 0  # since one was issued: it is looked closely at the 1st, 2nd, 4th, ...
    tries: int = 16
    lacking: Sequence[str] = ()

    def spoilt(self, is_finite: Callable[[Any], bool]) -> list[str]:
        """Names of those whose gradient is not finite."""
        found = [(n, foreign.of_torch(one, "grad")) for n, one in parameters.named(self.owner())]
        return parameters.masked([n for n, one in found if not (one is None or is_finite(one))])

    def without_gradient(self) -> list[str]:
        """Names of those, unless all are."""
        found = list(parameters.named(self.owner()))
        names = [name for name, one in found if foreign.of_torch(one, "grad") is None]
        return parameters.masked(names) if len(names) < len(found) else []


class RelayPart(GroupPart):
    """One method of relays: what issues in C++ never waits in the same call."""

    origin, tells = "c++", True

    def __init__(self, capture: Capture, row: Method, awaited: Awaited) -> None:
        super().__init__(capture, row, PART)
        self._awaited = awaited
        self.asynchronous = None

    def issues(self, owner: Any, read: CallArguments, frame: Any) -> tuple[Any, bool | None]:
        return owner.real, read.asynchronous or None

    def returned(self, thread: ThreadState, operation: Operation, work: Any) -> None:
        if work is None or operation.call.device_ends:
            call_definition.issued(self.capture, operation, work, ())
        else:
            self.capture.recorder.issued(operation)
            self._awaited.add(operation, work)


def _counted(original: Function) -> Function:
    """``passed_on`` for what reduces a bucket, which is one more of its model's."""

    def method(self: Any, *args: Any) -> Any:
        if (model := self.model) is not None:
            model.issued, model.looks = model.issued + 1, 0
        return original(self.real, *args)

    return method


def _relay_class(capture: Capture, awaited: Awaited) -> type:
    """A subclass of ProcessGroup that passes everything on, and records what it passes on."""

    def __init__(self: Any, group: Any) -> None:
        size, name = group.size(), group.name()
        _CONSTRUCT(self, group.rank(), size)
        self.real, self._asked = group, (group.rank(), size, name)

    methods: dict[str, Any] = {
        "model": None,
        "__init__": __init__,
        "getRank": lambda self: self._asked[0],
        "getSize": lambda self: self._asked[1],
        "getBackendName": lambda self: self._asked[2],
    }
    rows = {row.method: row for row in ROWS if row.method in _METHODS}
    passing = {
        name: capture.looking(
            row, (_counted if name == "allreduce" else passed_on)(_ORIGINALS[name])
        )
        for name, row in rows.items()
    }
    made = type("Relay", (c10d.ProcessGroup,), methods)
    for name, original in passing.items():
        part = RelayPart(capture, rows[name], awaited)
        setattr(made, name, part.wrapper(made, original))

    def idle() -> None:
        """Those that C++ holds stay, and record nothing."""
        for name, original in passing.items():
            setattr(made, name, original)

    capture.engine.on_undo(PART, "groups that stand in", idle)
    return made


def _shares_backends(relay: Any, group: Any) -> bool:
    """Give ``relay`` the backends of ``group``; False where it would mix up those of one type."""
    types = c10d.ProcessGroup.BackendType.__members__
    default = types.get(group.name().upper())
    if group.bound_device_id is not None:
        relay.bound_device_id = group.bound_device_id  # what it has, its backends get
    known: dict[Any, Any] = {}
    for device in group._device_types:
        backend = group._get_backend(device)
        try:
            name = backend.name().upper()
        except ours(RuntimeError):  # one of C++ that has none, as torch 2.5's `fake`
            name = "CUSTOM"
        kind = types.get(name, types["CUSTOM"])
        if known.setdefault(kind, backend) is not backend:
            return False
        _REGISTER(relay, device, kind, backend)
    if default is not None and hasattr(relay, "_set_default_backend"):
        relay._set_default_backend(default)
    return bool(known)
