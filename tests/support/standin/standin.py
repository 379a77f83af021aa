"""A process group that behaves like NCCL, on CPU tensors, over sockets between real processes.

A call enqueues and returns at once; a thread per stream executes, as soon as all members are there
and what was before it on its streams is done. A wait orders streams. Every operation is an entry of
a flight recorder of the real shape, which is asked like torch's own. What reads a tensor on the
host (``item`` and its kin), a barrier, and the destruction of a group wait for the device.

One file of more than usual length: it is compiled as one of torch's (see ``sitecustomize``).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, Work


@dataclass(frozen=True)
class Semantics:
    """How NCCL of a torch behaves, as far as a tracer can tell."""

    implementation: str  # the class of its backend
    backend: str
    sync_returns_work: bool  # else None, since torch 2.8
    tells_threads: bool
    entries: int  # of the recorder, where no variable says otherwise
    dump: str  # the function of torch's that gives entries

    @property
    def hooked(self) -> bool:
        """The recorder is written by a hook: it tells completion itself."""
        return self.dump == "_dump_fr_trace"


SEMANTICS = {
    "2.5": Semantics("ProcessGroupNCCL", "nccl-legacy", True, False, 0, "_dump_nccl_trace"),
    "2.8": Semantics("ProcessGroupNCCL", "nccl-legacy", False, False, 2000, "_dump_nccl_trace"),
    "2.13": Semantics("ProcessGroupNCCL", "nccl-legacy", False, True, 2000, "_dump_nccl_trace"),
    "2.15": Semantics("ProcessGroupNCCL2", "nccl2", True, True, 2000, "_dump_fr_trace"),
}
CHOSEN = SEMANTICS[os.environ.get("STANDIN_TORCH", "2.13")]
CREATION = os.environ.get("STANDIN_CREATION_S")
"""Seconds to make a communicator, in the first call of a group or a pair; None: it takes no call's
time, and waits for nobody."""


# -- the wire ------------------------------------------------------------------------------------


class Wire:
    """Messages between the processes of a job, by key; each has a socket in the job's folder."""

    def __init__(self, rank: int) -> None:
        self._arrived: dict[Any, Any] = {}
        self._condition = threading.Condition()
        self._peers: dict[int, tuple[socket.socket, threading.Lock]] = {}
        self._connecting = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        path = self._path(rank)
        if os.path.exists(path):
            os.unlink(path)  # of a process before a restart
        self._listener.bind(path)
        self._listener.listen(64)
        _start(self._accept)

    def send(self, to: int, key: Any, value: Any) -> None:
        """Give ``value`` to the process of that rank; nothing where it is gone."""
        text = pickle.dumps((key, value))
        try:
            peer, lock = self._peer(to)
            with lock:
                peer.sendall(struct.pack("!Q", len(text)) + text)
        except OSError:
            return

    def receive(self, key: Any) -> Any:
        """Wait for what has that key, for ever."""
        with self._condition:
            self._condition.wait_for(lambda: key in self._arrived)
            return self._arrived.pop(key)

    def _path(self, rank: int) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        job = hashlib.sha1(
            f"{os.environ.get('MASTER_PORT')}-{attempt}".encode(), usedforsecurity=False
        )
        return os.path.join(os.environ["STANDIN"], f"{job.hexdigest()[:8]}-{rank}")

    def _peer(self, rank: int) -> tuple[socket.socket, threading.Lock]:
        with self._connecting:
            known = self._peers.get(rank)
            if known is not None:
                return known
        while True:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(self._path(rank))
                break
            except OSError:
                made.close()
                time.sleep(0.02)
        with self._connecting:
            return self._peers.setdefault(rank, (made, threading.Lock()))

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            _start(self._read, peer)

    def _read(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            while head := stream.read(8):
                key, value = pickle.loads(stream.read(struct.unpack("!Q", head)[0]))
                with self._condition:
                    self._arrived[key] = value
                    self._condition.notify_all()


def _start(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


_wire: Wire | None = None


def _reset() -> None:
    global _wire
    _wire = None
    STREAMS.clear()
    RECORDER.lock = threading.Lock()


# -- the flight recorder -------------------------------------------------------------------------


class FlightRecorder:
    """The entries of the last operations, dumped as torch dumps its own."""

    def __init__(self) -> None:
        sizes = (os.environ.get(f"TORCH_{name}_BUFFER_SIZE") for name in ("FR", "NCCL_TRACE"))
        self._size = int(next(filter(None, sizes), CHOSEN.entries))
        self.lock = threading.Lock()
        self._entries: list[tuple[dict[str, Any], Operation]] = []
        self._next = itertools.count()
        self._timed = os.environ.get("TORCH_NCCL_ENABLE_TIMING") == "1"

    def record(self, group: StandIn, operation: Operation) -> None:
        """``operation`` is about to be enqueued."""
        if self._size <= 0:
            return
        with self.lock:
            entry: dict[str, Any] = {
                "record_id": next(self._next),
                "pg_id": group.number,
                "process_group": (group.label, group.description),
                "collective_seq_id": operation.seq if not operation.p2p else 0,
                "p2p_seq_id": operation.seq if operation.p2p else 0,
                "op_id": operation.seq,
                "profiling_name": f"nccl:{operation.name}",
                "time_created_ns": time.time_ns(),
                "timeout_ms": 1_800_000,
                "is_p2p": operation.p2p,
            }
            if CHOSEN.tells_threads:
                entry["thread_id"] = str(threading.get_ident())
                entry["thread_name"] = threading.current_thread().name
            self._entries.append((entry, operation))
            del self._entries[: -self._size]

    def dump(self, *, active: bool) -> bytes:
        """Pickled, as torch's."""
        told = []
        with self.lock:
            entries = list(self._entries)
        for entry, operation in entries:
            over = operation.done.is_set()
            if over and active:
                continue
            told.append(
                {
                    **entry,
                    "state": "completed" if over else "scheduled",
                    "retired": over,
                    "time_discovered_completed_ns": operation.over_ns if over else None,
                }
            )
            if over and self._timed and operation.began:
                told[-1]["duration_ms"] = (operation.over - operation.began) / 1e6
        return pickle.dumps({"version": "2.10", "entries": told})


# -- streams -------------------------------------------------------------------------------------


class Operation:
    """What a stream executes: ``run`` returns when all members have done it."""

    def __init__(self, name: str, seq: int, *, p2p: bool, run: Callable[[], None]) -> None:
        self.name, self.seq, self.p2p, self.run = name, seq, p2p, run
        self.done = threading.Event()
        self.before: threading.Event | None = None
        self.began = self.over = self.over_ns = 0


class Streams:
    """A thread per stream, and what the program's own stream has to wait for."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is enqueued."""
        self._queues: dict[Any, queue.SimpleQueue[Operation]] = {}
        self._lock = threading.Lock()
        self._all: list[Operation] = []
        self.tail: threading.Event | None = None

    def enqueue(self, stream: Any, operation: Operation) -> None:
        """Execute it after what is on ``stream``, and after what the program's own waits for."""
        with self._lock:
            operation.before = self.tail
            self._all = [each for each in self._all if not each.done.is_set()]
            self._all.append(operation)
            known = self._queues.get(stream)
            if known is None:
                known = self._queues[stream] = queue.SimpleQueue()
                _start(self._execute, known)
            known.put(operation)

    def order(self, operation: Operation) -> None:
        """What the program enqueues from now on comes after ``operation``."""
        before = operation.before
        if before is not None and self.tail is not before and self.tail is not None:
            joined, former = threading.Event(), self.tail

            def join() -> None:
                former.wait()
                operation.done.wait()
                joined.set()

            _start(join)
            self.tail = joined
        else:
            self.tail = operation.done

    def synchronize(self) -> None:
        """What the host does when it reads a tensor."""
        if self.tail is not None:
            self.tail.wait()

    def drain(self, number: int | None = None) -> None:
        """What the destruction of a group does."""
        for each in list(self._all):
            each.done.wait()

    def _execute(self, waiting: queue.SimpleQueue[Operation]) -> None:
        while True:
            operation = waiting.get()
            if operation.before is not None:
                operation.before.wait()
            operation.began = time.perf_counter_ns()
            operation.run()
            operation.over, operation.over_ns = time.perf_counter_ns(), time.time_ns()
            operation.done.set()


RECORDER, STREAMS = FlightRecorder(), Streams()
os.register_at_fork(after_in_child=_reset)


# -- groups --------------------------------------------------------------------------------------


class StandInWork(Work):
    """Its wait orders streams; it is complete when the operation is."""

    def __init__(self, operation: Operation, tensors: Any) -> None:
        super().__init__()
        self._operation, self._tensors = operation, tensors

    def wait(self, timeout: Any = None) -> bool:
        STREAMS.order(self._operation)
        if _read_by_cxx(sys._getframe(1)):
            self._operation.done.wait()
        return True

    def is_completed(self) -> bool:
        return self._operation.done.is_set()

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()

        def tell() -> None:
            self._operation.done.wait()
            future.set_result(self._tensors)

        _start(tell)
        return future

    def result(self) -> Any:
        return self._tensors


def _read_by_cxx(frame: Any) -> bool:
    """Whether C++ waits, of which DDP reads the result on the host: torch called it, and not by
    the functions of ``torch.distributed`` that wait for a synchronous call.
    """
    while frame is not None and "disttrace" in frame.f_code.co_filename:
        frame = frame.f_back
    home = os.path.dirname(torch.__file__)
    file = frame.f_code.co_filename if frame is not None else ""
    return file.startswith(home) and not file.endswith("distributed_c10d.py")


REDUCE = {
    "SUM": lambda a, b: a + b,
    "AVG": lambda a, b: a + b,
    "PRODUCT": lambda a, b: a * b,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
}
_number = itertools.count()
_nth: dict[str, int] = {}


class StandIn(ProcessGroup):
    """See the module; named after the class of torch's that it stands for."""

    def __init__(self, store: Any, rank: int, size: int, ranks: list[int], name: str) -> None:
        super().__init__(rank, size)
        global _wire
        self._rank, self._size = rank, size
        self.members = ranks or list(range(size))
        self.number = next(_number)
        self.label, self.description = name, "default_pg" if not ranks else "undefined"
        nth = _nth[name] = _nth.get(name, 0) + 1
        self._key = (name, nth, tuple(self.members))
        self._collective, self._p2p = itertools.count(1), itertools.count(1)
        self._with: dict[Any, Any] = {}
        self._connected: set[Any] = set()
        self._batch: list[Operation] | None = None  # what is coalesced
        self._launch = 0  # its number
        if _wire is None:
            _wire = Wire(self.members[rank])

    # What torch asks of a group.
    def getBackendName(self) -> str:  # noqa: N802
        return CHOSEN.backend

    def getSize(self) -> int:  # noqa: N802
        return self._size

    @property
    def group_name(self) -> str:
        return self.label

    @property
    def pg_name(self) -> str:
        return self.label

    def shutdown(self) -> None:
        STREAMS.drain()

    # Collectives.
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("all_reduce", tensors, opts, None)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("reduce", tensors, opts, opts.rootRank)

    def _reduce(self, name: str, tensors: Any, opts: Any, root: int | None) -> Any:
        given_op = getattr(opts, "reduceOp", c10d.ReduceOp.SUM)
        how = next(each for each in REDUCE if given_op == getattr(c10d.ReduceOp, each))

        def write(all_given: list[Any]) -> None:
            if root is not None and root != self._rank:
                return
            for index, tensor in enumerate(tensors):
                total = all_given[0][index]
                for given in all_given[1:]:
                    total = REDUCE[how](total, given[index])
                tensor.copy_(total / self._size if how == "AVG" else total)

        return self._issue(name, tensors, write, opts, same=[t.numel() for t in tensors])

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("allreduce_coalesced", tensors, opts, None)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        root = opts.rootRank

        def write(all_given: list[Any]) -> None:
            for tensor, given in zip(tensors, all_given[root], strict=True):
                tensor.copy_(given)

        return self._issue(
            "broadcast", tensors, write, opts, same=[root, *(t.numel() for t in tensors)]
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            for output, given in zip(outputs[0], all_given, strict=True):
                output.copy_(given[0])

        sizes = [output.numel() for output in outputs[0]]
        return self._issue("all_gather", inputs, write, opts, same=sizes)

    def _allgather_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            output.copy_(torch.cat([each[0].flatten() for each in all_given]).view_as(output))

        return self._issue("_all_gather_base", [given], write, opts, same=given.numel())

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            total = sum(each[0].flatten() for each in all_given)
            output.copy_(total.chunk(self._size)[self._rank].view_as(output))

        return self._issue("_reduce_scatter_base", [given], write, opts, same=given.numel())

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            outputs[0].copy_(sum(each[self._rank] for each in all_given))

        sizes = [each.numel() for each in inputs[0]]
        return self._issue("reduce_scatter", inputs[0], write, opts, same=sizes)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            if self._rank == opts.rootRank:
                for output, given in zip(outputs[0], all_given, strict=True):
                    output.copy_(given[0])

        return self._issue("gather", inputs, write, opts, same=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            outputs[0].copy_(all_given[opts.rootRank][self._rank])

        mine = inputs[0] if inputs else []
        return self._issue("scatter", mine, write, opts, same=opts.rootRank)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: list[Any]) -> None:
            for output, given in zip(outputs, all_given, strict=True):
                output.copy_(given[self._rank])

        return self._issue("all_to_all", inputs, write, opts)

    def alltoall_base(
        self, output: Any, given: Any, out_splits: Any, in_splits: Any, opts: Any = None
    ) -> Any:
        def write(all_given: list[Any]) -> None:
            output.copy_(torch.cat([each[self._rank] for each in all_given]))

        parts = given.split(list(in_splits)) if in_splits else given.chunk(self._size)
        return self._issue("all_to_all", list(parts), write, opts)

    # The names that torch calls from 2.13 on: by its own it would take None for a Work.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Any:
        """An all-reduce of one element; a synchronous one blocks the host."""
        work = self._issue("barrier", [torch.zeros(1)], lambda _: None, opts, same=[1])
        if not getattr(opts, "asyncOp", False) and self._last is not None:
            self._last.done.wait()
        return work

    # P2P operations.
    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        given = [each.detach().clone() for each in tensors]
        key = self._message(self._rank, peer)

        def run() -> None:
            assert _wire is not None
            _wire.send(self.members[peer], (*key, "data"), given)
            _wire.receive((*key, "taken"))

        return self._enqueue(f"send {self._rank}->{peer}", ("to", peer), run, tensors, p2p=True)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        key = self._message(peer, self._rank)

        def run() -> None:
            assert _wire is not None
            given = _wire.receive((*key, "data"))
            for tensor, each in zip(tensors, given, strict=True):
                if tensor.numel() != each.numel():
                    threading.Event().wait()  # as a kernel that waits for more
                tensor.copy_(each)
            _wire.send(self.members[peer], (*key, "taken"), True)

        return self._enqueue(f"recv {self._rank}<-{peer}", ("from", peer), run, tensors, p2p=True)

    def _message(self, sender: int, receiver: int) -> tuple[Any, ...]:
        counter = self._with.setdefault((sender, receiver), itertools.count())
        return (self._key, "p2p", sender, receiver, next(counter))

    def begin_batch(self) -> None:
        """What is issued until ``end_batch`` is one launch."""
        self._batch, self._launch = [], next(self._p2p)
        self._connect("collective")

    def _coalesced(self, name: str, p2p: bool, run: Callable[[], None], tensors: Any) -> Any:
        """A part of a launch: an entry without events, which on 2.15 is complete at once."""
        assert self._batch is not None
        part = Operation(name, self._launch, p2p=p2p, run=run)
        self._batch.append(part)
        if CHOSEN.hooked:
            part.over_ns = time.time_ns()
            part.done.set()
        RECORDER.record(self, part)
        return StandInWork(part, tensors) if CHOSEN.hooked else None

    def end_batch(self) -> Any:
        """Launch it: all parts run at one time. On 2.15 nothing but its Work tells of it."""
        parts, self._batch = self._batch or [], None

        def run() -> None:
            threads = [threading.Thread(target=part.run, daemon=True) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        self._last = whole = Operation("coalesced", self._launch, p2p=True, run=run)
        if not CHOSEN.hooked:
            RECORDER.record(self, whole)
        STREAMS.enqueue((self.number, "collective"), whole)
        return StandInWork(whole, [])

    def _connect(self, stream: Any) -> None:
        """Make the communicator that is used for the first time, with all of its members."""
        others = [r for r in range(self._size) if r != self._rank]
        if stream != "collective":
            others = [stream[1]]
            stream = min(self._rank, stream[1]), max(self._rank, stream[1])
        if CREATION is None or stream in self._connected:
            return
        self._connected.add(stream)
        assert _wire is not None
        for rank in others:
            _wire.send(self.members[rank], (self._key, "unique id", stream, self._rank), True)
        for rank in others:
            _wire.receive((self._key, "unique id", stream, rank))
        time.sleep(float(CREATION))

    # How they are executed.
    def _issue(
        self,
        name: str,
        given: Any,
        write: Callable[[list[Any]], None],
        opts: Any,
        *,
        same: Any = None,
    ) -> Any:
        sent = [each.detach().clone() for each in given]
        seq = next(self._collective)
        key = (self._key, "collective", seq)

        def run() -> None:
            assert _wire is not None
            for rank, member in enumerate(self.members):
                if rank != self._rank:
                    _wire.send(member, (*key, self._rank), (name, same, sent))
            told = [
                (name, same, sent) if rank == self._rank else _wire.receive((*key, rank))
                for rank in range(self._size)
            ]
            if any(each[:2] != told[0][:2] for each in told):
                threading.Event().wait()  # kernels that wait for what the others do not send
            write([each[2] for each in told])

        asynchronous = bool(getattr(opts, "asyncOp", True))
        return self._enqueue(name, "collective", run, given, seq=seq, asynchronous=asynchronous)

    def _enqueue(
        self,
        name: str,
        stream: Any,
        run: Callable[[], None],
        tensors: Any,
        *,
        seq: int = 0,
        p2p: bool = False,
        asynchronous: bool = True,
    ) -> Any:
        if self._batch is not None:
            return self._coalesced(name, p2p, run, tensors)
        seq = seq or next(self._p2p)
        self._connect(stream)
        self._last = operation = Operation(name, seq, p2p=p2p, run=run)
        RECORDER.record(self, operation)
        STREAMS.enqueue((self.number, stream), operation)
        if not asynchronous and not CHOSEN.sync_returns_work:
            STREAMS.order(operation)
            return None
        return StandInWork(operation, tensors)


# -- putting it in the place of gloo -------------------------------------------------------------


def install(module: Any) -> None:
    """``module`` is torch.distributed.distributed_c10d, just imported."""
    backend, plain = module.Backend, module.Backend.__new__
    StandIn.__name__ = CHOSEN.implementation
    plugin = backend._BackendPlugin(_create, True)
    backend._plugins[CHOSEN.backend.upper()] = plugin
    setattr(backend, CHOSEN.backend.upper(), CHOSEN.backend)
    if CHOSEN.backend not in backend.backend_list:
        backend.backend_list.append(CHOSEN.backend)
    backend.backend_capability[CHOSEN.backend] = ["cpu"]
    backend.backend_type_map[CHOSEN.backend] = ProcessGroup.BackendType.CUSTOM

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        """As torch's, where the backend coalesces."""
        module._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or module._get_default_group()
        device = p2p_op_list[0].tensor.device
        with module._coalescing_manager(group, device, async_ops=True) as manager:
            for each in p2p_op_list:
                key = "group_dst" if each.op is module.isend else "group_src"
                each.op(each.tensor, group=each.group, tag=each.tag, **{key: each.group_peer})
        return manager.works

    module.batch_isend_irecv = batch_isend_irecv
    ProcessGroup._start_coalescing = lambda group, device: group.begin_batch()
    ProcessGroup._end_coalescing = lambda group, device: group.end_batch()

    def __new__(cls: Any, name: str) -> Any:
        return plain(cls, CHOSEN.backend if name == "gloo" else name)

    backend.__new__ = __new__
    setattr(c10d, CHOSEN.dump, _dump)
    for name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__repr__"):
        setattr(torch.Tensor, name, _synchronizing(getattr(torch.Tensor, name)))


def _create(options: Any, _: Any) -> StandIn:
    return StandIn(
        options.store,
        options.group_rank,
        options.group_size,
        list(options.global_ranks_in_group),
        str(options.group_id),
    )


def _dump(
    includeCollectives: bool = True,  # noqa: N803
    includeStackTraces: bool = True,  # noqa: N803
    onlyActive: bool = False,  # noqa: N803
    backend: str = "gloo",
) -> bytes:
    """As torch's: ``backend`` names the recorder."""
    if CHOSEN.hooked and backend != CHOSEN.backend:
        return pickle.dumps({"version": "2.10", "entries": []})
    return RECORDER.dump(active=onlyActive)


def _synchronizing(method: Callable[..., Any]) -> Callable[..., Any]:
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().daemon is False:
            STREAMS.synchronize()
        return method(tensor, *args, **kwargs)

    return read
