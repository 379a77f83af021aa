"""Completion on devices from the flight recorder's entries, on hand-made ones.

The entries are of the shape that torch's sources give; each test is a way in which an operation was
once taken for finished, or for running, and was not. Replays of graphs follow.
"""

from __future__ import annotations

import ctypes
import gc
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from disttrace.capture.devices import (
    answers,
    completion,
    flight_recorder,
    graphs,
    matching,
    recorders,
)
from disttrace.capture.devices.asker import AskingDevice, DeviceError
from disttrace.capture.devices.flight_recorder import EVERYTHING, Question, Reply, advice
from disttrace.capture.devices.recorders import SPOILT, blind
from support.device import Device
from support.preloaded import preloaded
from support.processes import Outcome


@pytest.fixture
def device() -> Device:
    return Device()


class Work:
    """One that is over when a test says so."""

    over = False

    def is_completed(self) -> bool:
        return self.over


def test_in_flight_until_the_device_has_finished(device: Device) -> None:
    """The call returned long ago; the operation is over when its own entry says so."""
    first, second = device.issue(), device.issue()
    assert device.poll(3)
    assert not device.ends(first)
    device.entries[0]["state"] = "completed"
    assert device.poll(2)
    assert device.ends(first) == [b"c"]
    device.entries[1]["state"] = "completed"
    assert not device.poll(2)
    assert device.ends(second) == [b"c"]


def test_what_runs_is_asked_for_alone_once_its_entry_is_known(device: Device) -> None:
    """All entries are asked for only to find one, and to see that it is completed."""
    device.issue()
    device.poll(4)
    assert device.asked == [False, True, True, True]
    device.entries[0]["state"] = "completed"
    device.poll(2)
    assert device.asked[4:] == [True, False]


def test_when_it_was_over_is_when_it_was_first_seen_so(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries come late; that it ran no more was known before."""
    operation = device.issue()
    device.poll(2)
    device.entries[0]["state"] = "completed"
    device.poll()
    seen = time.perf_counter_ns() - operation.begin
    time.sleep(0.02)
    device.poll()
    (line,) = [one for one in device.journal.lines if one.startswith(b'{"c":')]
    assert int(line.split(b'"d":')[1].split(b",")[0]) <= seen


def test_the_backends_own_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """With timing on, it is awaited: it comes when torch's watchdog retires the entry."""
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    device = Device()
    device.issue(state="completed")
    assert device.poll(2)
    device.entries[0].update(duration_ms=1.5, retired=True)
    assert not device.poll()
    assert device.journal.lines[-1].endswith(b',"z":1500000}\n')


def test_what_nobody_can_tell_is_unknown(device: Device) -> None:
    """A flight recorder that is off leaves nothing in flight for ever, and one sentence."""
    operation = device.issue()
    device.entries.clear()
    assert not device.poll()
    later = device.issue()
    assert [device.ends(one) for one in (operation, later)] == [[b"l"], [b"l"]]
    assert device.notes() == [blind()]


@pytest.mark.parametrize("variable", [None, "TORCH_FR_BUFFER_SIZE"])
def test_the_advice_names_a_variable(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is set wins."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable or "TORCH_NCCL_TRACE_BUFFER_SIZE", "0")
    assert advice() == f"set {variable or 'TORCH_NCCL_TRACE_BUFFER_SIZE'}=2000"
    assert flight_recorder.switched_off() == (variable or "TORCH_NCCL_TRACE_BUFFER_SIZE")


def test_nothing_is_asked_while_a_graph_is_captured(device: Device) -> None:
    """A query from another thread would break the capture."""
    device.issue()
    thread = threading.Thread(target=device.operations.graphs.began, args=(7,))
    thread.start()
    thread.join()
    assert device.poll(2)
    assert device.asked == []
    device.operations.graphs.ended(7)
    device.poll()
    assert device.asked == [False]


def test_a_capture_waits_for_the_question_under_way() -> None:
    """Between the look whether anything is captured and the last event, nothing begins."""
    captures = Device().operations.graphs
    order: list[str] = []
    asking = threading.Event()

    def ask() -> None:
        asking.set()
        time.sleep(0.05)
        order.append("asked")

    thread = threading.Thread(target=captures.query, args=(ask,))
    thread.start()
    assert asking.wait(5)
    captures.began(1)
    order.append("captured")
    thread.join()
    assert order == ["asked", "captured"]


def test_a_captured_operation_ends_with_its_call(device: Device) -> None:
    """It has an entry whose event belongs to the graph: that never completes."""
    device.operations.graphs.began(1)
    operation = device.issue(profiling_name="nccl:allreduce_coalesced")
    device.operations.graphs.ended(1)
    assert device.ends(operation) == [b"e"]
    assert not device.poll(2)


@pytest.mark.parametrize(
    ("op", "kind", "batched"),
    [
        ("send", "message", False),
        ("send", "message", True),
        ("all_reduce_coalesced", "collective", False),
        ("all_reduce", "collective", False),
    ],
)
def test_a_recorder_that_prints_errors_is_asked_no_more(
    device: Device, op: str, kind: str, batched: bool
) -> None:
    """It keeps an entry of a captured message, and of operations coalesced in one call, whose event
    is the graph's: each dump would print thirty lines for it."""
    spoils = (op, batched) in (("send", False), ("all_reduce_coalesced", False))
    device.calls[1] = device.call(op, kind=kind)
    device.operations.graphs.began(1)
    for _ in range(2):
        captured = device.begin()
        device.done(captured, (0, 1) if batched else None)
        assert device.ends(captured) == [b"e"]
    device.operations.graphs.ended(1)
    after = device.issue(2)
    assert device.poll(3) is not spoils
    assert bool(device.asked) is not spoils
    assert device.ends(after) == ([b"l"] if spoils else [])
    notes = [one["text"] for one in device.journal.definitions if one.get("def") == "note"]
    assert notes == ([SPOILT] if spoils else [])


def test_who_was_noted_when_it_was_issued_is_not_noted_by_its_wait(device: Device) -> None:
    """Only a call that waits itself is known by its wait alone."""
    device.poll()
    device.issue()  # makes a note enough from now on
    device.poll()
    later = device.call("all_reduce", synchronous=False)
    for call, notes in ((later, 1), (device.calls[1], 2)):
        device.calls[2] = call
        operation = device.issue(2)
        device.operations.waited(operation, None)
        assert len(device.operations._inbox.take()) == notes


@pytest.mark.parametrize(
    ("count", "each", "last"),
    [
        (1, {}, {}),
        (
            2,
            {"p2p_seq_id": 1, "is_p2p": True},
            {"p2p_seq_id": 1, "profiling_name": "nccl:coalesced"},
        ),
    ],
    ids=["an operation", "messages"],
)
def test_what_is_coalesced_is_over_with_its_last_entry(
    device: Device, count: int, each: Any, last: Any
) -> None:
    """It is made when coalescing ends, after the calls; of it NCCL's recorder says no message."""
    batch = [device.begin() for _ in range(count)]
    for operation in batch:
        device.entry(collective_seq_id=1, **each)  # without events: scheduled for ever
        device.recorder.issued(operation)
    before = time.perf_counter_ns()
    last = device.entry("started", collective_seq_id=1, **last)
    for operation in batch:
        device.operations.add(operation, (before, time.perf_counter_ns()), None)
    assert device.poll(3)
    last["state"] = "completed"
    assert not device.poll(2)
    assert [device.ends(operation) for operation in batch] == [[b"c"]] * count


def test_of_coalesced_entries_only_the_newest_counts(device: Device) -> None:
    """An uneven all_gather is several broadcasts in one call; only the last entry has events."""
    operation = device.begin()
    for name in ("nccl:_broadcast_oop", "nccl:_broadcast_oop", "nccl:ALLGATHER_coalesced"):
        device.entry(collective_seq_id=1, profiling_name=name)
    device.done(operation)
    assert device.poll(3)
    device.entries[-1]["state"] = "completed"
    assert not device.poll(2)
    assert device.ends(operation) == [b"c"]


def test_a_step_of_the_unix_clock_ends_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs, and the clock is set: it still hangs."""
    operation = device.issue()
    assert device.poll()
    real = time.time_ns
    for step in (5_000_000, -5_000_000, 3600 * 10**9):
        monkeypatch.setattr(time, "time_ns", lambda step=step: real() + step)
        assert device.poll(2)
    assert not device.ends(operation)
    device.entries[0]["state"] = "completed"
    assert not device.poll(2)


def test_a_thread_loses_the_processor_between_two_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are read until they agree."""
    real, readings = time.time_ns, iter(range(100))

    def late() -> int:
        unix = real()
        if next(readings) % 2 == 0:
            time.sleep(0.003)
        return unix

    monkeypatch.setattr(time, "time_ns", late)
    device = Device()
    operation = device.begin()
    device.entries.clear()
    device.entry("started", time_created_ns=real())
    device.done(operation)
    assert device.poll(3)
    assert not device.ends(operation)


def test_an_overwritten_entry_ends_nothing(device: Device) -> None:
    """It hung when it was last seen; what became of it cannot be known."""
    operation = device.issue()
    assert device.poll()
    device.entries.clear()
    device.entry("completed", record_id=2000, process_group=("1", ""))
    assert device.poll(5)
    assert not device.ends(operation)


def test_a_younger_operation_of_the_group_says_that_the_elder_is_over(device: Device) -> None:
    """Many short ones overwrite each other's entries; a device executes a stream in order."""
    first = device.issue()
    device.entries.clear()
    second = device.issue(state="completed")
    other = device.issue(2)
    assert device.poll(2)
    assert [device.ends(one) for one in (first, second, other)] == [[b"c"], [b"c"], []]


def test_an_operation_that_is_in_no_answer_is_unknown(device: Device) -> None:
    """It was overwritten before anybody looked: asked twice, and then neither over nor hung."""
    operation = device.issue()
    device.entries.clear()
    device.entry("completed", process_group=("1", ""), thread_id="1")
    assert device.poll()
    assert not device.poll()
    assert device.ends(operation) == [b"l"]


@pytest.mark.parametrize(
    ("ours", "other"), [({}, "2"), ({"thread_id": None}, None)], ids=["thread", "group"]
)
def test_another_threads_entry_is_not_ours(device: Device, ours: Any, other: str | None) -> None:
    """It was made during our call, the first of a group, which takes seconds; it hangs. Up to
    torch 2.7 threads are not told, and the group tells.
    """
    operation = device.begin()
    device.entry("completed", **ours)
    device.entry(thread_id=other, process_group=("1", ""))
    device.done(operation)
    assert not device.poll(2)
    assert device.ends(operation) == [b"c"]


def test_two_ends_never(device: Device) -> None:
    """A wait that raised has ended it; later its entry completes."""
    operation = device.issue()
    assert device.poll()
    device.recorder.failed(operation, RuntimeError("timed out"), on_issue=False)
    device.entries[0]["state"] = "completed"
    assert not device.poll(3)
    assert device.ends(operation) == [b"e"]


def test_torch_2_15_where_nccl_is_another_backend() -> None:
    """Its recorder is a hook's: a completed entry is over, a retired one tells nothing."""
    device = Device("nccl2")
    over, hung, untold = (device.issue(collective_seq_id=n) for n in (1, 2, 3))
    device.entries[0].update(state="completed", retired=True)
    device.entries[2].update(retired=True)
    assert device.poll(2)
    assert [device.ends(one) for one in (over, hung, untold)] == [[b"c"], [], [b"l"]]


def test_a_hooks_entry_may_be_made_before_the_begin() -> None:
    """Operations of C++: torch's hook runs before ours."""
    device = Device("nccl2")
    device.issue(state="completed")
    made = device.entry()
    operation = device.begin()
    device.done(operation)
    assert device.poll(3)
    made["state"] = "completed"
    assert not device.poll(2)
    assert device.ends(operation) == [b"c"]


def test_with_blocking_waits_the_wait_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked then: entries keep events that are used again."""
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    device = Device()
    waited, dropped, none = device.begin(), device.begin(), device.begin()
    works = Work(), Work()
    device.operations.add(waited, None, works[0])
    device.operations.add(dropped, None, works[1])
    device.operations.add(none, None, None)
    assert not device.ends(waited)
    device.operations.waited(waited, works[0])
    del works
    device.operations.poll()
    assert [device.ends(one) for one in (waited, dropped, none)] == [[b"e"], [b"l"], [b"l"]]
    assert not device.poll()
    assert device.asked == []


def test_not_asked_where_torch_would_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are not cached are freed while a dump of torch 2.6 to 2.14 queries them."""
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCH_NCCL_CUDA_EVENT_CACHE", "0")
    monkeypatch.setattr(flight_recorder, "off_by_default", lambda: False)
    import torch._C._distributed_c10d as c10d

    device = Device()
    operation = device.issue()
    if hasattr(c10d, "ProcessGroupNCCL2"):
        assert device.poll()
    else:
        assert device.ends(operation) == [b"l"]
        assert device.notes() == [recorders.UNSAFE]


@pytest.mark.parametrize("backend", ["hccl", "somebodys"])
def test_a_backend_without_a_recorder_is_followed_by_its_work(backend: str) -> None:
    """The Work is held until it is complete, and no longer."""
    device, work = Device(backend), Work()
    operation, without = device.begin(), device.begin()
    device.operations.add(operation, None, work)
    device.operations.waited(operation, work)
    device.operations.add(without, None, None)
    assert device.poll()
    assert [device.ends(one) for one in (operation, without)] == [[], [b"l"]]
    work.over = True
    assert not device.poll()
    assert device.ends(operation) == [b"c"]
    assert not device.operations._followed


def test_a_failure_of_ours_leaves_nothing_in_flight(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever see it finished."""
    operation = device.issue()
    monkeypatch.setattr(matching, "Entries", None)
    with pytest.raises(TypeError):
        device.poll()
    assert device.ends(operation) == [b"l"]


def test_which_recorder_a_group_writes_to() -> None:
    """By the class of its backend, and by its name where that is hidden."""
    recorder_of = flight_recorder.recorder_of
    assert recorder_of("nccl", "ProcessGroupNCCL") == "nccl"
    assert recorder_of("nccl", "ProcessGroupNCCL2") == "nccl2"
    assert recorder_of("nccl-lazy", "ProcessGroupNCCLLazy") == "nccl-lazy"
    assert recorder_of("nccl-legacy", None) == "nccl"
    assert recorder_of("hccl", None) is None
    assert recorder_of(None, None) is None


def recorded(program: str, **variables: str) -> Outcome:
    """How a program ends that uses a real recorder: gloo's, which has the same code."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch records nothing of gloo")
    # At exit a thread of the group may abort the process.
    ends = "\ndist.destroy_process_group()"
    return preloaded("-c", _RECORDER + program + ends, timeout=60.0, **variables)


_RECORDER = """
import torch, torch.distributed as dist
from disttrace.capture.devices import flight_recorder as fr
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_a_dump_without_the_gil_says_what_the_binding_says() -> None:
    """On a real recorder: gloo's, which has the same code."""
    outcome = recorded(_BOTH)
    assert outcome.stdout.split() == ["20", "20", "True", "True"], outcome.stderr


_BOTH = """
from torch._C._distributed_c10d import _dump_fr_trace
for _ in range(20):
    dist.all_reduce(torch.ones(2))
dist.barrier()
gloo = fr.named_json("gloo") or fr.named_json(None)
free = list(fr.from_json(gloo, fr.EVERYTHING).records.values())[:20]
held = list(fr.from_binding(_dump_fr_trace, fr.EVERYTHING).records.values())[:20]
print(len(free), len(held), free == held, free[0].thread is not None)
"""


@pytest.mark.parametrize("variable", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_the_advice_is_true(variable: str) -> None:
    """On a real recorder: off with that variable at 0, on again as advised."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        libraries = Path(torch.__file__).parent / "lib"
        names = [libraries / name for name in ("libtorch_cuda.so", "libtorch_cpu.so")]
        texts = [name.read_bytes() for name in names if name.exists()]
        if not any(b"TORCH_NCCL_TRACE_BUFFER_SIZE" in text for text in texts):
            pytest.skip("this torch was built without NCCL")
        assert not any(b"TORCH_FR_BUFFER_SIZE" in text for text in texts)
        return
    outcome = recorded(_ADVISED, **{variable: "0"})
    assert outcome.stdout.splitlines() == ["True", "0", f"set {variable}=2000"], outcome.stderr
    outcome = recorded(_ADVISED, **{variable: "2000"})
    assert outcome.stdout.splitlines()[:2] == ["False", "3"]


_ADVISED = """
for _ in range(3):
    dist.all_reduce(torch.ones(2))
print(fr.switched_off() is not None)
gloo = fr.named_json("gloo") or fr.named_json(None)
print(len(fr.from_json(gloo, fr.EVERYTHING).records))
print(fr.advice())
"""


def test_switched_off_nothing_is_asked(device: Device) -> None:
    """No poller, no dump, no patch of an abort: of every operation only its end is unknown."""
    device.capture.asks_devices = False
    unwatched = device.capture.works.device
    completion.install(device.capture)
    assert device.capture.works.device is unwatched
    assert (device.capture.pollers, device.capture.engine.names(completion.PART)) == ([], [])
    operation = device.begin()
    device.recorder.issued(operation)
    unwatched.add(operation, None, None)
    assert device.ends(operation) == [b"l"]


def test_info_says_that_devices_are_not_asked() -> None:
    """And with what they would be."""
    from disttrace.commands.info import _devices

    seen = [("nccl", "by its recorder", "")]
    (off,) = _devices(seen, queried=False)
    (on,) = _devices(seen, queried=True)
    assert off["set"] == "set DISTTRACE_DEVICE=auto"
    assert "DISTTRACE_DEVICE is off" in off["completion"]
    assert (on["completion"], on["set"]) == ("by its recorder", None)


def test_an_exception_of_cxx_and_a_cut_name_end_and_blind_nothing() -> None:
    """On a real recorder: a thread whose name is cut inside a character, and a dump that throws."""
    outcome = recorded(_CUT)
    assert outcome.stdout.split() == ["5", "5", "False"], outcome.stderr


_CUT = """
import ctypes, functools, threading
from torch._C._distributed_c10d import _dump_fr_trace
def work():
    ctypes.CDLL(None).prctl(15, "aaaaaaaaaaaaaa\\u00e4".encode(), 0, 0, 0)
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
thread = threading.Thread(target=work)
thread.start()
thread.join()
free = fr.named_json("gloo") or fr.named_json(None)
ask = functools.partial(fr.from_binding, _dump_fr_trace)
if free is not None:
    ask = fr.FreeOfGil(free, _dump_fr_trace)
    assert fr.frees_gil(ask)
print(len(ask(fr.EVERYTHING).records), len(ask(fr.EVERYTHING).records), fr.frees_gil(ask))
"""


@pytest.mark.parametrize("backend", ["nccl-legacy", "nccl2"])
def test_what_follows_an_answer_is_not_quadratic(backend: str) -> None:
    """Ten times as many new operations, in one turn: ten times as many lines are run."""
    assert _lines_to_match(backend, 1_000) < 15 * _lines_to_match(backend, 100)


def _lines_to_match(backend: str, count: int) -> int:
    """How many lines are run to find the own entry of each of `count` new operations."""
    device = Device(backend)
    issued = [device.issue() for _ in range(count)]
    device.operations.poll()  # asks; an asker of the tests' answers at once
    running = list(device.operations._open.running.values())
    for each in running:
        each.entries, each.confirmed = (), False
    answer = device.ask(EVERYTHING)
    channel = next(iter(device.operations._recorders.channels.values()))
    lines = 0

    def counts(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return counts

    before = sys.gettrace()
    sys.settrace(counts)
    try:
        device.operations._answers.take(channel, answer)
    finally:
        sys.settrace(before)
    assert len({each.entries for each in running}) == len(issued)
    return lines


def test_a_dump_that_raises_is_tried_again_and_told_once(device: Device) -> None:
    """A transient failure blinds for its time only, and hides no hang of some seconds."""
    plain = device.operations._recorders.channel("nccl").ask
    channel = device.operations._recorders.channel("nccl")

    def raising(question: Question) -> Reply:
        raise RuntimeError("not now")

    channel.ask = raising
    first = device.issue()
    assert device.poll(2)
    assert not device.ends(first)
    assert not device.poll()
    assert device.ends(first) == [b"l"]
    paused = device.issue()
    assert device.ends(paused) == [b"l"]  # nobody would know that it is over
    assert [text for text in device.notes() if "not now" in text] == device.notes() != []
    assert len(device.notes()) == 1
    channel.ask, channel.full_due = plain, 0
    later = device.issue(state="completed")
    assert not device.poll(2)
    assert device.ends(later) == [b"c"]


@pytest.mark.parametrize("text", ["CUDA error: device-side assert triggered", "HIP error: x"])
def test_a_device_that_failed_is_asked_no_more(device: Device, text: str) -> None:
    """Each dump would print a message per operation in flight."""
    asked = []

    def raising(question: Question) -> Reply:
        asked.append(question)
        raise RuntimeError(text + "\nfurther lines")

    device.operations._recorders.channel("nccl").ask = raising
    operations = [device.issue() for _ in range(3)]
    assert not device.poll()
    operations.append(device.issue())
    assert not device.poll(3)
    assert (len(asked), len(device.notes())) == (1, 1)
    assert [device.ends(one) for one in operations] == [[b"l"]] * 4


def test_each_asking_thread_gets_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process uses the second one; the asking thread ends after some quiet, and the next one
    starts on device 0.
    """
    bound: list[tuple[str, int]] = []
    torch = Mock(version=SimpleNamespace(hip=None, cuda="0.0"))
    torch._C._cuda_hasPrimaryContext = lambda index: index == 1
    torch.cuda.device_count.return_value = 2
    torch.cuda.set_device = lambda index: bound.append((threading.current_thread().name, index))
    monkeypatch.setitem(sys.modules, "torch", torch)
    device = AskingDevice()

    def enter_twice() -> None:
        device.enter()
        device.enter()

    for name in ("a", "b"):
        thread = threading.Thread(target=enter_twice, name=name)
        thread.start()
        thread.join()
    assert bound == [("a", 1), ("b", 1)]
    device.enter()
    failed = RuntimeError("CUDA error: an illegal memory access was encountered\n...")
    torch.cuda.Event.return_value.query.side_effect = failed
    with pytest.raises(DeviceError, match=r"illegal memory access was encountered$"):
        device.enter()


def test_a_batch_of_torch_2_15_is_over_when_its_work_says_so() -> None:
    """There the entries are completed and retired when the batch is issued."""
    device, work = Device("nccl2"), Work()
    batch = [device.begin() for _ in range(2)]
    for operation in batch:
        device.entry("completed", retired=True, is_p2p=True)
        device.recorder.issued(operation)
    now = time.perf_counter_ns()
    for operation in batch:
        device.operations.add(operation, (now - 1_000, now), work)
    assert device.poll(3)
    device.operations.graphs.began(1)
    work.over = True
    assert device.poll()  # nothing is queried while a graph is captured
    assert [device.ends(one) for one in batch] == [[], []]
    device.operations.graphs.ended(1)
    assert not device.poll()
    assert [device.ends(one) for one in batch] == [[b"c"], [b"c"]]


@pytest.mark.parametrize("known", [True, False])
def test_a_capture_that_no_graph_of_torchs_began(
    device: Device, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """By cuda-python, cupy or TensorRT, or in autograd's threads: the stream itself knows. The
    legacy stream beside a capture, or a failed device, cannot be asked: no part is off.
    """

    def capturing() -> bool:
        if not known:
            raise RuntimeError("CUDA error: the legacy stream would depend on a capture")
        return True

    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=capturing)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        captured = device.operations.graphs.here()
    assert captured is known
    assert not device.operations.graphs.here()


def test_a_capture_ends_with_its_graph() -> None:
    """Nobody ended it, and nothing would be asked for ever."""
    captures = Device().operations.graphs
    begin = captures._capturing(True, Graph.capture_begin)
    graph = Graph()
    begin(graph)
    assert captures.any()
    del graph
    assert not captures.any()


def test_an_entry_is_found_by_its_number_however_early_it_was_made() -> None:
    """Torch's hook ran first, and ours had to wait for the GIL; the number is exact."""
    device = Device("nccl2")
    ours = threading.get_ident()
    device.issue(state="completed", op_id=1)
    for name, age_ns in (("0", 3_000_000_000), ("1", 5_000_000)):
        made = time.time_ns() - age_ns
        device.entry(op_id=2, time_created_ns=made, process_group=(name, ""))
    operations = []
    for group in (2, 1):  # another thread's came first
        operation = device.begin(group)
        device.capture.op_ids[ours] = 2
        device.done(operation)
        operations.append(operation)
    assert device.poll(3)
    device.entries[1]["state"] = "completed"
    assert device.poll(2)
    assert [device.ends(one) for one in operations] == [[], [b"c"]]


def test_a_group_that_was_made_anew_counts_its_numbers_anew() -> None:
    """The newest entry of that number is meant, and none that was made after the call."""
    device = Device("nccl2")
    device.entry("completed", op_id=1, time_created_ns=time.time_ns() - 1_000_000_000)
    device.capture.op_ids[threading.get_ident()] = 1
    operation = device.issue(op_id=1)
    device.entry("completed", op_id=1, time_created_ns=time.time_ns() + 1_000_000_000)
    assert device.poll(3)
    assert not device.ends(operation)


@pytest.mark.parametrize("compiled", [True, False])
def test_both_inboxes_note_what_is_issued(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known groups are noted and the first note wakes; all else is left to Python."""
    if compiled:
        pytest.importorskip("disttrace.capture.devices._inbox")
    rare: list[object] = []
    woken: list[int] = []
    made = matching.make if compiled else matching.PlainInbox
    box = made(lambda operation, call, work: rare.append(operation), lambda: woken.append(1))
    device = Device()
    operations = [device.begin(group) for group in (1, 1, 2, 1, 1)]
    box.add(operations[0], None, None)
    box.known[1] = {threading.get_ident(): 7}
    box.add(operations[1], None, None)
    box.add(operations[2], None, None)
    box.add(operations[3], (1, 2), None)
    device.recorder.end(operations[4])
    box.add(operations[4], None, None)
    assert rare == [operations[0], operations[2], operations[3]]
    ((operation, thread, offset, error, number),) = box.take()
    assert (operation, thread, number) == (operations[1], threading.get_ident(), 7)
    assert abs(offset - flight_recorder.unix_offset()[0]) < 1_000_000_000
    assert 0 <= error < 1_000_000_000
    assert (woken, box.take()) == ([1], [])
    given_up: list[object] = []
    box.known[2] = given_up.append
    box.add(operations[2], None, None)
    assert (given_up, rare[3:], box.take()) == ([operations[2]], [], [])
    box.capturing = lambda: True
    box.add(operations[2], None, None)
    assert rare.pop() == operations[2]
    box.add(device.begin(), None, None)
    box.known.clear()
    box.add(device.begin(), None, None)
    assert (len(rare), box.take()) == (5, [])


def test_of_many_at_once_only_some_are_asked_for(device: Device) -> None:
    """Those before one that is over are over; of those before one that runs each is looked at."""
    device.issue(state="completed")
    device.poll(2)
    issued = [device.issue(state="completed" if n < 180 else "scheduled") for n in range(260)]
    device.operations._take_notes()
    assert len(device.operations._open.running) == 5
    assert device.poll(3)
    assert [len(device.ends(one)) for one in issued] == [1] * 180 + [0] * 80
    for entry in device.entries[:201]:
        entry["state"] = "completed"
    device.operations.look(0.5)
    assert [len(device.ends(one)) for one in issued] == [1] * 200 + [0] * 60
    device.operations.aborting(1)
    assert {tuple(device.ends(one)) for one in issued} == {(b"c",), (b"e",)}


def test_what_was_issued_and_waited_for_is_one_operation(device: Device) -> None:
    """Its wait is a note of its own: whether the two are seen to together or apart."""
    device.issue(state="completed")
    device.poll(2)
    issued = []
    for _ in range(2):
        for _ in range(300):
            issued.append(device.issue(state="completed"))
            device.operations.waited(issued[-1], None)
        device.operations.waited(issued[0], None)
        device.operations._take_notes()
        device.operations.waited(issued[-1], None)
    assert not device.poll(3)
    assert {tuple(device.ends(one)) for one in issued} == {(b"c",)}


def test_between_two_questions_notes_wait(device: Device) -> None:
    """To see to them each time that somebody looks costs more than to do it when one is asked."""
    device.issue(state="completed")
    device.poll(2)
    (channel,) = device.operations._recorders.channels.values()
    channel.active_due = channel.full_due = 1 << 62
    operation = device.issue(state="completed")
    assert device.operations.poll()
    assert operation.n not in device.operations._open.running
    device.operations.look(0.0)
    assert device.ends(operation) == [b"c"]


@pytest.mark.parametrize(("cost_ms", "pause_s"), [(5, 1.0), (1_000, 4.0)])
def test_asking_takes_half_a_hundredth_of_a_core(
    device: Device, cost_ms: int, pause_s: float
) -> None:
    """By a pause, which has its limit: what is over must not look hung."""
    channel = device.operations._recorders.channel("nccl")
    ask = channel.ask
    assert ask is not None
    channel.ask = lambda question: ask(question)._replace(cost=cost_ms * 1_000_000)
    device.issue(state="completed")
    device.operations.poll()
    left = (channel.full_due - time.perf_counter_ns()) / 1e9
    assert pause_s - 0.5 < left <= pause_s + 0.5


def test_only_entries_that_matter_are_read() -> None:
    """By when they were made, and by the number of an operation; of the text and of the binding."""
    entry = b'{"collective_seq_id":%d,"op_id":%d,"state":"x","time_created_ns":%d,"timeout_ms":1}'
    text = b'{"entries":[%b],"v":1}' % b",".join(entry % (n, n, n * 10) for n in range(5))
    question = Question(False, ((5, 10), (40, 40)), frozenset((2,)))
    answer = flight_recorder.from_json(lambda active: text, question)
    assert [each.created for each in answer.records.values()] == [10, 20, 40]
    pickled = pickle.dumps(json.loads(text))
    bound = flight_recorder.from_binding(lambda **_: pickled, question)
    assert list(bound.records) == list(answer.records)
    assert flight_recorder.from_json(lambda active: text, Question(False, ())).records == {}


def test_what_stands_in_the_way_of_a_note_is_seen_to_at_once(device: Device) -> None:
    """A capture, and a recorder that fails: no note is taken that nobody could use."""
    device.issue()
    known = device.operations._inbox.known
    assert 1 in known
    device.operations.graphs.began(5)
    assert not known
    captured = device.issue()
    assert device.ends(captured) == [b"e"]
    device.operations.graphs.ended(5)
    device.issue()
    assert 1 in known


def test_where_nobody_can_be_asked_each_is_unknown_at_once(device: Device) -> None:
    """Nothing is noted for a recorder that is off; what a graph captures ends with its call."""
    device.operations._switch_off(device.operations._recorders.channel("nccl"), "off")
    device.issue()
    for _ in range(2):
        assert device.ends(device.issue()) == [b"l"]
        assert not device.operations._inbox.notes
    device.operations.graphs.began(5)
    assert device.ends(device.issue()) == [b"e"]


def test_rocms_library_bears_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function, in libtorch_hip.so: found there, and told by its address."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("disttrace.capture.devices._dump")
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    name = "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb"
    source, library = tmp_path / "hip.c", tmp_path / "lib" / "libtorch_hip.so"
    library.parent.mkdir()
    source.write_text(f'void dump(void) __asm__("{name}");\nvoid dump(void) {{}}\n')
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert flight_recorder.nccl_json() is None  # it is not loaded
    loaded = ctypes.CDLL(str(library))
    found = flight_recorder.nccl_json()
    assert found is not None
    (address,) = [c.cell_contents for c in found.__closure__ or () if type(c.cell_contents) is int]
    assert address == ctypes.cast(loaded[name], ctypes.c_void_p).value


# -- what an abort makes look complete: by the program, by torch's watchdog, in each of its modes


def test_aborted_is_not_completed() -> None:
    """An abort makes the kernel leave, and its event complete."""
    device = Device()
    over, hung = device.issue(state="completed"), device.issue()
    other = device.issue(2)
    device.operations.aborting(1)
    device.entries[1]["state"] = "completed"
    device.poll(2)
    assert [device.ends(one) for one in (over, hung, other)] == [[b"c"], [b"e"], []]
    lines = device.journal.lines
    assert any(line.startswith(b'{"e":%d,' % hung.n) and b'"x"' in line for line in lines)


@pytest.mark.parametrize("mode", ["1", "2"])
def test_what_the_watchdog_aborts(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it tears the process down and where that goes on: completed, after the time-out."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", mode)
    device = Device()
    operation = device.issue(timeout_ms=1)
    made = device.entries[0]
    made.update(state="completed", time_discovered_completed_ns=made["time_created_ns"] + 2_000_000)
    assert not device.poll(2)
    assert device.ends(operation) == [b"e"]


@pytest.mark.parametrize(("happened", "end"), [(True, b"e"), (False, b"c")])
def test_an_error_tells_abort(happened: bool, end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any error, long before a time-out: torch notes it before it aborts."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    device = Device()
    monkeypatch.setattr(device.operations._answers, "_has_error", lambda group: happened)
    operation = device.issue(state="completed")
    assert not device.poll(2)
    assert device.ends(operation) == [end]


@pytest.mark.parametrize("mode", ["0", "1", "2", "3"])
def test_an_end_is_doubted_until_a_younger_one(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that complete at once do not vouch for each other; one that was issued later does."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", mode)
    device = Device()
    both = [device.issue(), device.issue()]
    other = device.issue(2)
    device.poll()
    for entry in device.entries:
        entry["state"] = "completed"
    device.poll(3)
    at_once = [device.ends(one) for one in (*both, other)]
    if mode in ("0", "3"):
        assert at_once == [[b"c"]] * 3
        return
    assert at_once == [[]] * 3
    younger = device.issue(state="completed")
    device.poll(2)
    assert [device.ends(one) for one in (*both, other, younger)] == [[b"c"], [b"c"], [], []]
    device.operations.look(0.5)
    assert [device.ends(one) for one in (other, younger)] == [[b"l"], [b"l"]]


def test_a_doubt_lasts_for_some_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look hung else."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.setattr(answers, "_DOUBT_NS", 0)
    device = Device()
    operation = device.issue(state="completed")
    assert not device.poll(3)
    assert device.ends(operation) == [b"l"]


def test_a_shrink_that_aborts_fails_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's flag for it is 1; without it what is in flight ends well."""
    pytest.importorskip("torch")
    from torch._C._distributed_c10d import ProcessGroup

    aborted: list[int] = []
    device = Device()
    monkeypatch.setattr(completion.DeviceOperations, "aborting", lambda self, n: aborted.append(n))

    class Shrinks:
        def shrink(self, ranks: object, shrink_flags: int = 0, opts: object = None) -> None:
            return None

    monkeypatch.setattr(ProcessGroup, "shrink", Shrinks.shrink, raising=False)
    monkeypatch.setattr(device.capture.groups, "of", lambda group: SimpleNamespace(n=7))
    completion.install(device.capture)
    try:
        for arguments in ((), (0,), (1,)):
            ProcessGroup.shrink(None, [1], *arguments)
        ProcessGroup.shrink(None, [1], shrink_flags=1)
    finally:
        device.capture.engine.undo(completion.PART)
    assert aborted == [7, 7]


# -- replays of CUDA graphs as operations, on a class that imitates torch's


class Graph:
    """As ``torch.cuda.CUDAGraph``, without a device."""

    def __init__(self) -> None:
        self.replayed = 0

    def capture_begin(self, pool: object = None) -> None:
        return None

    def capture_end(self) -> None:
        return None

    def replay(self) -> None:
        self.replayed += 1


class Events:
    """What would be asked of the device: replays are over when a test says so."""

    def __init__(self) -> None:
        self.over = False

    def after(self, stream: object) -> Any:
        return lambda: self.over


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events()
    monkeypatch.setattr(graphs, "after", made.after)
    return made


def watched(device: Device) -> type[Graph]:
    """A class of graphs whose captures and replays are seen."""
    kind = type("CUDAGraph", (), dict(Graph.__dict__))
    device.operations.graphs.watch(SimpleNamespace(CUDAGraph=kind))
    return kind


def captured(device: Device, graph: Graph, *groups: int) -> Graph:
    """A graph with one all_reduce in each of these groups."""
    graph.capture_begin()
    for group in groups:
        device.issue(group)
    graph.capture_end()
    return graph


def replays(device: Device) -> list[tuple[str, int]]:
    calls = {d["n"]: d for d in device.journal.definitions if d["def"] == "call"}
    found = []
    for line in device.journal.lines:
        if line.startswith(b'{"b":') and b'"s":' in line:
            call = calls[int(line.split(b'"s":')[1].split(b",")[0].rstrip(b"}\n"))]
            if call["op"].startswith("graph_replay"):
                found.append((call["op"], call["group"]))
    return found


def test_a_replay_is_an_operation_of_each_group_in_it(events: Events) -> None:
    """In flight until its event says that the device is through."""
    device = Device()
    graph = captured(device, watched(device)(), 1, 2, 2)
    graph.replay()
    assert graph.replayed == 1
    assert replays(device) == [("graph_replay(all_reduce)", 1), ("graph_replay(2 all_reduce)", 2)]
    assert device.poll(2)
    events.over = True
    assert not device.poll()
    assert sum(line.startswith(b'{"c":') for line in device.journal.lines) == 2


def test_a_graph_without_collectives_costs_nothing(events: Events) -> None:
    """And one that is gone is forgotten."""
    device = Device()
    kind = watched(device)
    captured(device, kind()).replay()
    graph = captured(device, kind(), 1)
    del graph
    gc.collect()
    assert (replays(device), device.operations.graphs._names.entries) == ([], {})


def test_a_replay_that_raises_has_failed(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: Graph) -> None:
        raise ValueError("not now")

    monkeypatch.setattr(Graph, "replay", raises)
    device = Device()
    graph = captured(device, watched(device)(), 1)
    with pytest.raises(ValueError, match="not now"):
        graph.replay()
    assert any(line.startswith(b'{"e":') and b'"f":1' in line for line in device.journal.lines)


def test_other_contents_are_another_operation() -> None:
    """Of graphs with many runs a checksum tells them apart."""
    many = ["all_reduce", "all_gather"] * 20
    contents = graphs._contents
    assert contents(["all_reduce"] * 3 + ["barrier"]) == "3 all_reduce, barrier"
    assert contents(many) != contents([*many, "all_reduce"])
    assert len(contents(many)) < 200
