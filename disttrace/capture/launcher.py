"""torchrun's agent: what it does by itself, and how its workers started and ended."""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from disttrace import foreign
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import after, before, compose
from disttrace.identity import AGENT, integer
from disttrace.journal.format import opened_own
from disttrace.recording.operation import Operation
from disttrace.recording.recorder import Recorder

_ERROR_LIMIT = 2_000  # characters of an error file's traceback that are kept
_ERROR_FILE = 1 << 20  # bytes of it that are read: a pipe, or an endless one, holds nothing up
_MOST = 100_000

Keys = dict[str, Any]


class Workers:
    """Writes ``worker`` records: started, exited, failed by itself, killed by its launcher."""

    def __init__(self, recorder: Recorder, left_journal: Callable[[int, bool], bool]) -> None:
        """``left_journal(pid, unknown)``: whether a process has one in the folder."""
        self._recorder = recorder
        self._left_journal = left_journal
        self._running: set[int] = set()
        self._signalled: set[int] = set()  # were sent a signal by this process

    def started(self, context: Any) -> None:
        for local_rank, pid in context.pids().items():
            self._running.add(pid)
            self._signalled.discard(pid)
            self._note(context, local_rank, pid, "started", {})

    def look(self, context: Any, *, now: bool = False) -> None:
        """Write down who ended; ``now`` asks the system instead of what is known already."""
        for local_rank, pid, code in _codes(context, ask=now):
            if code is not None and pid in self._running:
                self._running.discard(pid)
                keys = _code(code) | (_error(context, local_rank) if code else {})
                if not self._left_journal(pid, True):
                    keys["journal"] = False
                self._note(context, local_rank, pid, self._how(pid, code), keys)

    def about_to_end(self, context: Any) -> bool:
        """Those that still run are about to be ended; whether there are any."""
        running = [pid for _, pid, _ in _codes(context, ask=False) if pid in self._running]
        self._signalled.update(running)
        return bool(running)

    def tell(self, pid: int) -> None:
        if len(self._signalled) < _MOST:
            self._signalled.add(pid)

    def child(self, pid: int, code: int) -> None:
        """A child of multiprocessing ended badly. Recorded where there is a journal, or where it
        left one and was not ended here: of ranks launched by hand or by spawn nothing else shows
        that."""
        if pid in self._running:
            return
        event = self._how(pid, code)
        if self._recorder.is_open or (event == "failed" and self._left_journal(pid, False)):
            self._signalled.discard(pid)
            self._recorder.note("worker", pid=pid, event=event, **_code(code))

    def _how(self, pid: int, code: int) -> str:
        if pid in self._signalled:
            return "killed"
        return "failed" if code else "exited"

    def _note(self, context: Any, local_rank: int, pid: int, event: str, keys: Keys) -> None:
        env = context.envs.get(local_rank, {})
        for key, variable in (("rank", "RANK"), ("attempt", "TORCHELASTIC_RESTART_COUNT")):
            value = integer(str(env.get(variable)))
            if value is not None:
                keys[key] = value
        self._recorder.note("worker", pid=pid, local_rank=local_rank, event=event, **keys)


def _codes(context: Any, *, ask: bool) -> Iterator[tuple[int, int, int | None]]:
    """(local rank, pid, exit code or None) of each process of a ``PContext``."""
    for local_rank, handler in getattr(context, "subprocess_handlers", {}).items():
        process = handler.proc
        yield local_rank, process.pid, process.poll() if ask else process.returncode
    spawned = getattr(context, "_pc", None)
    for local_rank, process in enumerate(spawned.processes if spawned is not None else ()):
        yield local_rank, process.pid, process.exitcode


def _code(code: int) -> dict[str, Any]:
    """A negative exit code is a signal's number."""
    if code >= 0:
        return {"code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except foreign.ours(ValueError):
        return {"signal": str(-code)}


def _error(context: Any, local_rank: int) -> dict[str, Any]:
    """What the worker wrote into its error file, if it uses elastic's ``record``."""
    try:
        with opened_own(context.error_files[local_rank], os.O_RDONLY) as fd:
            message = json.loads(os.pread(fd, _ERROR_FILE, 0))["message"]
    except foreign.ours(OSError, ValueError, KeyError, TypeError):
        return {}
    if isinstance(message, dict):
        message = message.get("message")
    return {"error": str(message)[:_ERROR_LIMIT]}


PART = "launchers"

_AGENT = "torch.distributed.elastic.agent.server.api"
_PROCESSES = "torch.distributed.elastic.multiprocessing.api"
_EVENTS = "torch.distributed.elastic.events"

# What is kept of the rendezvous's events, under which key.
_TOLD = {"event": "name", "run": "run_id", "rank": "rank", "node": "hostname"}

Arguments = Callable[..., "dict[str, Any] | None"]


def install(capture: Capture) -> None:
    """Wait for what a launcher imports."""
    workers = Workers(capture.recorder, lambda *known: capture.left_journal(*known))
    capture.engine.on_undo(PART, "imports to come", lambda: None)
    for module, opened in (
        (_AGENT, lambda m: _agent(capture, m.SimpleElasticAgent)),
        (_PROCESSES, lambda m: _processes(capture, workers, m.PContext)),
        (_EVENTS, lambda m: _events(capture, m.construct_and_record_rdzv_event)),
        ("multiprocessing.popen_fork", lambda m: _children(capture, workers, m.Popen)),
        ("multiprocessing.popen_forkserver", lambda m: _children(capture, workers, m.Popen)),
    ):
        # Elastic may have another shape in this torch.
        capture.when_imported(module, functools.partial(capture.guard, PART, opened))


def _agent(capture: Capture, agent: type) -> None:
    def nodes(agent: Any) -> dict[str, Any]:
        return {"nodes": agent._worker_group.group_world_size}

    patch = functools.partial(capture.engine.attribute, PART, agent)
    patch("run", before(capture, PART, lambda *_, **__: capture.on_identity({"role": AGENT})))
    patch("_rendezvous", _operation(capture, "rendezvous", _expected, _found))
    patch("_exit_barrier", _operation(capture, "exit_barrier", nodes))


def _expected(agent: Any, group: Any) -> dict[str, Any]:
    """Who is expected where, before a rendezvous."""
    spec = group.spec
    handler = spec.rdzv_handler
    settings = getattr(handler, "_settings", None)
    given = {
        "backend": foreign.attempt(handler.get_backend),
        "run_id": foreign.attempt(handler.get_run_id),
        "attempt": spec.max_restarts - agent._remaining_restarts,
        "local_world_size": spec.local_world_size,
        "min_nodes": getattr(settings, "min_nodes", getattr(handler, "world_size", None)),
        "max_nodes": getattr(settings, "max_nodes", getattr(handler, "world_size", None)),
        "node_rank": getattr(handler, "rank", None),
        "host": getattr(handler, "master_addr", None),
        "port": getattr(handler, "master_port", None),
    }
    timeout = getattr(getattr(settings, "timeout", None), "join", getattr(handler, "timeout", None))
    if timeout is not None:
        given["timeout"] = timeout.total_seconds()
    return given


def _found(agent: Any, group: Any) -> dict[str, Any]:
    holder = getattr(group.spec.rdzv_handler, "_state_holder", None)
    return {
        "round": getattr(getattr(holder, "state", None), "round", None),
        "node_rank": group.group_rank,
        "nodes": group.group_world_size,
        "master_addr": group.master_addr,
        "master_port": group.master_port,
        "ranks": [worker.global_rank for worker in group.workers],
    }


def _processes(capture: Capture, workers: Workers, context: type) -> None:
    def starting(processes: Any) -> dict[str, Any]:
        return {"entrypoint": str(processes.entrypoint), "processes": processes.nprocs}

    def stopping(processes: Any, death_sig: Any = None, timeout: int = 30) -> dict[str, Any] | None:
        workers.look(processes, now=True)
        if not workers.about_to_end(processes):
            return None
        capture.on_stopping()
        return {"signal": getattr(death_sig, "name", "SIGTERM"), "timeout": timeout}

    def stopped(processes: Any, *args: Any, **kwargs: Any) -> None:
        workers.look(processes, now=True)

    patch = functools.partial(capture.engine.attribute, PART, context)
    patch("start", _operation(capture, "start_workers", starting, workers.started))
    patch("wait", after(capture, PART, lambda _, processes, *__, **___: workers.look(processes)))
    patch("close", _operation(capture, "stop_workers", stopping, stopped))


def _children(capture: Capture, workers: Workers, popen: type) -> None:
    """Plain multiprocessing: a child that ended badly, while this process has a journal."""

    def poll(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            known = getattr(self, "returncode", None) is not None
            code = original(self, *args, **kwargs)
            if code and not known:  # it is called again and again
                capture.guard(PART, workers.child, self.pid, code)
            return code

        return wrapper

    tell = before(capture, PART, lambda process, *_, **__: workers.tell(process.pid))
    capture.engine.attribute(PART, popen, "poll", poll)
    capture.engine.attribute(PART, popen, "_send_signal", tell)


def _events(capture: Capture, record: Any) -> None:
    """The rendezvous's own events, which go to a null handler otherwise."""
    signature = inspect.signature(record)
    newest: tuple[str, str] | None = None

    def recorded(*args: Any, **kwargs: Any) -> None:
        nonlocal newest
        event = signature.bind(*args, **kwargs).arguments
        state = getattr(event.get("node_state"), "value", "")
        if state == "RUNNING" and event.get("name", "").endswith("_keep_alive"):
            return  # these come every few seconds for as long as the job runs
        text = str(event.get("message"))
        if newest == (newest := (state, text)):
            return  # so does what a keep-alive leads to
        keys = {key: event.get(name) for key, name in _TOLD.items()}
        capture.recorder.note("rendezvous", text=text, state=state, **keys)

    capture.engine.function(PART, record, before(capture, PART, recorded))


def _operation(
    capture: Capture, op: str, arguments: Arguments, outcome: Arguments | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method that becomes the composed operation ``op``, with ``arguments(...)`` of it (None: it
    is none); what ``outcome(...)`` gives after the call joins them."""
    calls: dict[int, dict[str, Any]] = {}  # by operation, until its call returns

    def enter(owner: Any, args: Any, kwargs: Any, frame: Any) -> Operation | None:
        given = arguments(owner, *args, **kwargs)
        if given is None:
            return None
        given = _known(given)
        operation = capture.begin_composed(frame, op, str(given), args=given)
        calls[operation.n] = given
        return operation

    def left(operation: Operation | None, result: Any, *args: Any, **kwargs: Any) -> None:
        if operation is None:
            return
        given = calls.pop(operation.n)
        found = _known((outcome and outcome(*args, **kwargs)) or {})
        if found:
            capture.recorder.define("call", n=operation.call.n, args={**given, **found})

    return lambda original: compose(capture, PART, original, enter, left)


def _known(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}
