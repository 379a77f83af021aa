"""What torch's flight recorders answer: which one a backend writes to, and what its entries mean.

NCCL of torch up to 2.14 (``nccl-legacy`` on 2.15) writes to a recorder of its own, which queries
the events of operations when it is queried. From 2.15 on `nccl` is ProcessGroupNCCL2, for which a
hook of torch's writes to a recorder named after the backend: to query that one touches no device.

The Python bindings keep the GIL for the whole dump: with 2,000 entries some twenty milliseconds
quiet, a tenth of a second on a busy machine. So torch's dump is called in C++, without it
(``_dump.cpp``). The functions are found by their mangled names, which state their arguments; where
a name is missing (another torch, another compiler), or nothing was compiled, the binding has to do.
"""

from __future__ import annotations

import ctypes
import functools
import io
import json
import os
import pickle
import platform
import struct
import sys
import time
import types
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple, TypeVar

from disttrace import foreign
from disttrace.capture.objects.groups import backend_for
from disttrace.identity import ClockAnchor
from disttrace.journal import compiled
from disttrace.journal.originals import sleep

_STRING = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

# onlyActive -> JSON; raises RuntimeError for what C++ throws
Json = Callable[[bool], bytes]


def nccl_json() -> Json | None:
    """The native recorder of NCCL: ``dump(active)`` gives JSON. None where it is not found."""
    # The tag means that the result is a std::string of the layout that we are compiled for.
    symbol = "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb"
    # Where the devices' half of torch is; the one of ROCm bears another name.
    found = (_json(library, symbol, None) for library in ("libtorch_cuda.so", "libtorch_hip.so"))
    return next((each for each in found if each is not None), None)


def named_json(backend: str | None) -> Json | None:
    """The recorder of torch's hook for ``backend``; None: the only one before 2.15, gloo's."""
    arguments = "B5cxx11Ebb" if backend is None else f"Ebb{_STRING}"
    return _json("libtorch_cpu.so", f"_ZN4c10d18dump_fr_trace_json{arguments}", backend)


def _json(library: str, symbol: str, backend: str | None) -> Json | None:
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return None  # it was tried nowhere else
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), "lib", library)
    try:
        ask = compiled.load("capture.devices._dump").ask
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        address = ctypes.cast(loaded[symbol], ctypes.c_void_p).value
    except foreign.ours(ImportError, OSError, AttributeError):
        # not built, not loaded, no such function
        return None
    return lambda active: ask(address, active, backend)


_E = TypeVar("_E")
Key = tuple[int, int]

BUFFER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_BUFFER_FIRST = "TORCH_FR_BUFFER_SIZE"  # where it is set, it wins; torch 2.5 does not know it

COMPLETED = "completed"

# Implementations, by what their group's backend is, and the recorder they write to. A hook's
# recorder notes itself when an operation is complete; a native one queries events.
NATIVE = "nccl"
_RECORDERS: Mapping[str | None, str] = {
    "ProcessGroupNCCL": NATIVE,
    "ProcessGroupNCCL2": "nccl2",
    "ProcessGroupNCCLLazy": "nccl-lazy",
    "ProcessGroupXCCL": "xccl",
}
_DUMPS = {NATIVE: "_dump_nccl_trace", "xccl": "_dump_xccl_trace"}
QUERIED = frozenset(_DUMPS)
"""Recorders that query a device when they are queried."""

_OPENING = b'{"collective_seq_id":'
_FIRST, _SEPARATOR = b'"entries":[' + _OPENING, b"}," + _OPENING
_CREATED, _OP_ID = b'"time_created_ns":', b'"op_id":'
_STEP = 256  # entries between two moments at which other threads may go on


class Record(NamedTuple):
    """One entry. Times are unix nanoseconds; ``thread`` is that of ``threading.get_ident``."""

    number: int
    created: int
    group_id: int
    group: str
    thread: int | None  # torch up to 2.7 does not tell
    launch: tuple[int, int]  # of its group: entries that were coalesced share it
    state: str
    retired: bool
    discovered: int | None
    timeout_ms: int | None
    duration_ms: float | None
    op_id: int | None = None  # a hook's: the operation's number in its group

    @property
    def key(self) -> Key:
        """What no other entry of the recorder has: numbers begin anew when it is reset."""
        return self.number, self.created


class Reply(NamedTuple):
    """What a recorder answered: the entries that matter, in the order in which they were made.

    ``full``: not only those that are not complete. ``asked`` and ``answered`` are of
    ``perf_counter_ns``; ``offset`` is unix time less that; ``empty``: it holds no entry at all.
    ``cost``: processor time of the thread that queried, in ns.
    """

    records: Mapping[Key, Record]
    full: bool
    asked: int
    answered: int
    offset: int
    empty: bool
    cost: int


class Question(NamedTuple):
    """``active``: only entries that are not complete. Those matter that were made within one of
    ``times`` (unix ns, from and to, in order and apart), or under one of ``numbers`` (``op_id``).
    """

    active: bool
    times: Sequence[tuple[int, int]]
    numbers: Set[int] = frozenset()

    def concerns(self, created: int | None, op_id: int | None) -> bool:
        if created is None or op_id in self.numbers:
            return True
        last = bisect_right(self.times, (created, _FOR_EVER)) - 1
        return last >= 0 and created <= self.times[last][1]


_FOR_EVER = 1 << 62
EVERYTHING = Question(False, ((0, _FOR_EVER),))


Ask = Callable[[Question], Reply]


def implementation(group: Any, device: str) -> str | None:
    """The class of the backend that serves ``device`` in a live group; None where it hides."""
    name = foreign.type_name(backend_for(group, device))
    return name if name in _RECORDERS else None


def recorder_of(backend: str | None, implemented_by: str | None) -> str | None:
    """The recorder that a backend of this name and class writes to; None where there is none.

    The class decides: from torch 2.15 on `nccl` may be either of two. Where it is hidden
    (TORCH_DISTRIBUTED_DEBUG=DETAIL wraps backends), the name and torch's own switch must do.
    """
    if implemented_by in _RECORDERS:
        return _RECORDERS[implemented_by]
    if backend in ("nccl", "nccl-legacy"):
        return "nccl2" if backend == "nccl" and nccl_is_second() else NATIVE
    return backend if backend in _RECORDERS.values() else None


def nccl_is_second() -> bool:
    """Whether this torch makes ProcessGroupNCCL2 of `nccl`."""
    import torch._C._distributed_c10d as c10d

    exists = hasattr(c10d, "ProcessGroupNCCL2")
    return exists and os.environ.get("TORCH_DIST_USE_NCCL2") != "0"


def source(recorder: str) -> Ask | None:
    """How to ask a recorder; None where this torch has none of that name."""
    import torch._C._distributed_c10d as c10d

    bound = getattr(c10d, _DUMPS.get(recorder, "_dump_fr_trace"), None)
    if bound is None:
        return None
    # What stands there in Python is another's: it knows more than C++ does.
    is_torchs = isinstance(bound, types.BuiltinFunctionType)
    free = nccl_json() if recorder == NATIVE else None
    if recorder not in _DUMPS:
        if "backend" not in (bound.__doc__ or ""):
            return None
        free, bound = named_json(recorder), functools.partial(bound, backend=recorder)
    if free is not None and is_torchs:
        return FreeOfGil(free, bound)
    return functools.partial(from_binding, bound)


def frees_gil(ask: Ask) -> bool:
    """Whether other threads go on while ``ask`` is answered."""
    return isinstance(ask, FreeOfGil) and ask.free


class FreeOfGil:
    """By C++ without the GIL, until it throws (its JSON has no half characters); then bound."""

    def __init__(self, dump: Callable[[bool], bytes], bound: Callable[..., bytes]) -> None:
        self._dump, self._bound = dump, bound
        self.free = True

    def __call__(self, question: Question) -> Reply:
        if self.free:
            try:
                return from_json(self._dump, question)
            except foreign.ours(RuntimeError):
                self.free = False
        return from_binding(self._bound, question)


def switched_off() -> str | None:
    """The variable that turns recorders off, as torch reads them: the first that is set."""
    for name in (_BUFFER_FIRST, BUFFER):
        value = os.environ.get(name)
        if value:
            return name if value.strip() == "0" else None
    return BUFFER if off_by_default() else None


def off_by_default() -> bool:
    """Up to torch 2.5 the recorder's size is 0 where no variable sets it."""
    import torch

    numbers = torch.__version__.split("+")[0].split(".")[:2]
    return [int(number) for number in numbers] < [2, 6]


def advice() -> str:
    """What turns recorders on, true for this torch."""
    name = _BUFFER_FIRST if os.environ.get(_BUFFER_FIRST) else BUFFER
    return f"set {name}=2000"


def unix_offset() -> tuple[int, int]:
    """Unix time less ``perf_counter_ns``, and how far that may be off, in ns."""
    clock = ClockAnchor()
    return clock.unix_ns - clock.mono_ns, clock.error_ns


def from_binding(dump: Callable[..., bytes], question: Question) -> Reply:
    """By the Python binding, which keeps the GIL."""
    which = {"includeCollectives": True, "includeStackTraces": False}
    asking = functools.partial(dump, **which, onlyActive=question.active)

    def concerns(entry: Mapping[str, Any]) -> bool:
        return question.concerns(entry.get("time_created_ns"), entry.get("op_id"))

    return _answer(asking, lambda t: _unpickled(t).get("entries", []), concerns, record, question)


def _unpickled(text: bytes) -> Any:
    """What torch in this process has pickled."""
    try:
        return pickle.loads(text)
    except foreign.ours(UnicodeDecodeError):
        return _Lenient(io.BytesIO(text)).load()


class _Lenient(pickle._Unpickler):
    """Reads texts that are not UTF-8, as a name that the kernel has cut inside a character."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)
    read: Any
    append: Any

    def _load_text(self) -> None:
        (size,) = struct.unpack("<I", self.read(4))
        self.append(self.read(size).decode("utf-8", "replace"))

    dispatch[pickle.BINUNICODE[0]] = _load_text


def from_json(dump: Callable[[bool], bytes], question: Question) -> Reply:
    """By C++, without the GIL."""
    asking = functools.partial(dump, question.active)

    def concerns(entry: bytes) -> bool:
        op_id = _number(entry, _OP_ID) if question.numbers else None
        return question.concerns(_number(entry, _CREATED), op_id)

    def parse(entry: bytes) -> Record:
        return record(json.loads((_OPENING + entry + b"}").decode()))

    return _answer(asking, _entries, concerns, parse, question)


def _number(entry: bytes, key: bytes) -> int | None:
    """What follows ``key`` in an entry's text, without reading the rest, as that takes longer."""
    found = entry.rfind(key)
    begin, end = found + len(key), entry.find(b",", found)
    digits = entry[begin : end if end >= 0 else None]
    is_one = found >= 0 and 0 < len(digits) < 20 and not digits.strip(b"0123456789")
    return int(digits) if is_one else None


def _answer(
    dump: Callable[[], bytes],
    split: Callable[[bytes], Sequence[_E]],
    concerns: Callable[[_E], bool],
    parse: Callable[[_E], Record],
    question: Question,
) -> Reply:
    """Ask between two clocks; read entries that matter, and let other threads go on."""
    offset, _ = unix_offset()
    begin, asked = time.thread_time_ns(), time.perf_counter_ns()
    text = dump()
    answered = time.perf_counter_ns()
    entries = split(text)
    records: dict[Key, Record] = {}
    for index, entry in enumerate(entries):
        if concerns(entry):
            each = parse(entry)
            records[each.key] = each
        if index % _STEP == _STEP - 1:
            sleep(0)
    cost = time.thread_time_ns() - begin
    return Reply(records, not question.active, asked, answered, offset, not entries, cost)


def _entries(text: bytes) -> list[bytes]:
    """The texts of a dump's ``entries``, between the first key and the brace: keys are sorted."""
    begin = text.find(_FIRST)
    if begin < 0:
        return []
    return text[begin + len(_FIRST) : text.rfind(b"}],")].split(_SEPARATOR)


def record(entry: Mapping[str, Any]) -> Record:
    """An entry of a dump, of any version of torch."""
    group = entry.get("process_group") or ("", "")
    thread = entry.get("thread_id")
    duration = entry.get("duration_ms")
    return Record(
        number=int(entry.get("record_id", 0)),
        created=int(entry["time_created_ns"]),
        group_id=int(entry.get("pg_id", 0)),
        group=str(group[0]),
        thread=int(thread)
        if isinstance(thread, str) and thread.isdecimal() and len(thread) < 20
        else None,
        launch=(int(entry.get("collective_seq_id", 0)), int(entry.get("p2p_seq_id", 0))),
        state=str(entry.get("state", "")),
        retired=bool(entry.get("retired")),
        discovered=int(entry.get("time_discovered_completed_ns") or 0) or None,
        timeout_ms=int(entry.get("timeout_ms") or 0) or None,
        duration_ms=None if duration is None else float(duration),
        op_id=None if entry.get("op_id") is None else int(entry["op_id"]),
    )


def statements() -> Iterator[tuple[str, str, str]]:
    """(backend, how it is seen, what to set or "") for the device backends of this torch."""
    import torch._C._distributed_c10d as c10d

    for backend, kind in (
        ("nccl", "ProcessGroupNCCL2" if nccl_is_second() else "ProcessGroupNCCL"),
        ("nccl-lazy", "ProcessGroupNCCLLazy"),
        ("nccl-legacy", "ProcessGroupNCCL"),
        ("xccl", "ProcessGroupXCCL"),
    ):
        legacy = backend == "nccl-legacy"
        if not hasattr(c10d, kind) or (legacy and not hasattr(c10d, "ProcessGroupNCCL2")):
            continue
        recorder = _RECORDERS[kind]
        ask = source(recorder)
        if ask is None:
            yield backend, f"{kind}, which this torch records nowhere", ""
        elif switched_off() is not None:
            yield backend, f"{kind}, whose flight recorder is off", advice()
        else:
            how = "" if frees_gil(ask) else ", which holds up other threads"
            yield backend, f"{kind}, by torch's flight recorder '{recorder}'{how}", ""
