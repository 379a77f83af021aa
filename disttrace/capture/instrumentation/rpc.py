"""Instrumentation of ``torch.distributed.rpc``: remote calls, as operations with a peer.

A call names the worker that it is sent to; what a worker runs for others is an operation of the
thread that runs it (``rpc.run``). Its messages, by TensorPipe, are in C++ and stay unseen.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from disttrace.capture.instrumentation.functions import claim
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Args, Function, Kwargs, compose
from disttrace.journal.format import RPC_RUN
from disttrace.recording.operation import Operation

PART = "remote procedure calls"

_RPC = "torch.distributed.rpc"


class RpcFunction(NamedTuple):
    """A function of ``torch.distributed.rpc``, or of one of its modules, and its operation."""

    module: str | None
    function: str
    op: str


ROWS: tuple[RpcFunction, ...] = (
    RpcFunction(None, "init_rpc", "init_rpc"),
    RpcFunction("api", "rpc_sync", "rpc_sync"),
    RpcFunction("api", "rpc_async", "rpc_async"),
    RpcFunction("api", "remote", "remote"),
    RpcFunction("api", "shutdown", "rpc.shutdown"),
    RpcFunction("api", "_all_gather", "rpc.all_gather"),
    RpcFunction("internal", "_run_function", RPC_RUN),
)


def install(capture: Capture) -> None:
    """Patch it once the program has it: ``torch.distributed`` may import it, and we do not."""
    futures = _Futures(capture)

    def imported(rpc: types.ModuleType) -> None:
        for row in ROWS:
            module = rpc if row.module is None else getattr(rpc, row.module, None)
            function = getattr(module, row.function, None)
            if function is not None:
                make = functools.partial(_wrapper, capture, futures, row)
                capture.engine.function(PART, function, make)
        reference = getattr(rpc, "PyRRef", None)
        if reference is not None:
            to_here = functools.partial(_method, capture, "to_here", _owner)
            capture.engine.attribute(PART, reference, "to_here", to_here)

    capture.when_imported(_RPC, functools.partial(capture.guard, PART, imported))


def _wrapper(
    capture: Capture, futures: _Futures, row: RpcFunction, original: types.FunctionType
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def enter(first: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation | None:
        try:
            bound = signature.bind_partial(first, *args, **kwargs).arguments
        except TypeError:  # torch will raise it
            return None
        if row.op == RPC_RUN:
            bound = {"func": getattr(first, "func", None)}
        if row.op == "init_rpc":
            bound["threads"] = _threads(bound.get("rpc_backend_options"))
            if capture.groups.default_rank() is None:
                claim(capture, bound)
        frame = frame.f_back if frame is not None else None
        return _begin(capture, row.op, _told(bound), frame)

    def left(operation: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        if row.op == "rpc_async" and operation is not None:
            futures.keep(result, _told(signature.bind_partial(*args, **kwargs).arguments))

    return compose(capture, PART, original, enter, left)


def _method(
    capture: Capture, op: str, told: Callable[[Any], dict[str, Any] | None], original: Function
) -> Function:
    def enter(owner: Any, args: Args, kwargs: Kwargs, frame: Any) -> Operation | None:
        given = told(owner)
        return None if given is None else _begin(capture, op, given, frame)

    return compose(capture, PART, original, enter, lambda *_, **__: None)


def _begin(capture: Capture, op: str, given: dict[str, Any], frame: Any) -> Operation | None:
    if capture.recorder.threads.state.inside:
        return None
    keys = {"args": given or None, "async": op == "rpc_async" or None}
    return capture.begin_composed(frame, op, str(given), keys=keys)


def _told(arguments: dict[str, Any]) -> dict[str, Any]:
    """What says something of a call: whom it is sent to, which function, ranks and names."""
    given: dict[str, Any] = {}
    for name in ("name", "rank", "world_size", "timeout", "graceful", "threads"):
        value = arguments.get(name)
        if type(value) in (str, int, float, bool):
            given[name] = value
    if "to" in arguments:
        given["to"] = _worker(arguments["to"])
    function = arguments.get("func")
    if function is not None:
        given["func"] = str(getattr(function, "__qualname__", None) or type(function).__name__)
    return given


def _threads(options: Any) -> Any:
    """How many calls a worker runs at a time; the backend's own number where none was given."""
    if options is None:
        return getattr(sys.modules.get(f"{_RPC}.constants"), "DEFAULT_NUM_WORKER_THREADS", None)
    return getattr(options, "num_worker_threads", None)


def _worker(to: Any) -> str | int | None:
    """A worker is given by its name, its id, or by what tells both."""
    if type(to) in (str, int):
        return to  # type: ignore[no-any-return]
    name = getattr(to, "name", None)
    return name if type(name) is str else None


def _owner(reference: Any) -> dict[str, Any] | None:
    """Whoever holds what is asked for; nothing is asked of one that holds it itself."""
    return None if reference.is_owner() else {"to": str(reference.owner_name())}


class _Futures:
    """The futures of asynchronous calls that somebody holds: waiting for them is an operation."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._held: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}
        self._patched = False

    def keep(self, future: Any, call: dict[str, Any]) -> None:
        """A call returned it. From the first one on their class is patched: many have futures."""
        if not self._patched:
            self._patched = True
            wait = functools.partial(_method, self._capture, "rpc.wait", self._of)
            base = next(t for t in type(future).__mro__ if "wait" in t.__dict__)
            self._capture.engine.attribute(PART, base, "wait", wait)
        place = id(future)

        def gone(_: Any) -> None:
            self._held.pop(place, None)

        self._held[place] = weakref.ref(future, gone), call

    def _of(self, future: Any) -> dict[str, Any] | None:
        held = self._held.get(id(future))
        return None if held is None else {key: held[1].get(key) for key in ("to", "func")}
