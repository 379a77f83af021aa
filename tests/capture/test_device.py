"""Completion on devices from the flight recorder's entries, on hand-made ones."""

from __future__ import annotations

import time
from typing import Any

import pytest

from disttrace import errors
from disttrace.capture.native.flight_recorder import BLIND, DeviceOperations
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation
from disttrace.recording.recorder import Recorder

Entry = dict[str, Any]


class Journal:
    """Keeps lines in memory, as far as the recorder needs a journal."""

    number = 0

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.definitions: list[dict[str, Any]] = []
        self.put = self.lines.append

    def define(self, record: dict[str, Any]) -> None:
        self.definitions.append(record)

    def open_segment(self, lines: list[bytes]) -> None:
        self.lines += lines


class Device:
    """A capture without torch, its journal, and what the flight recorder would say."""

    def __init__(self, *, timed: bool = False) -> None:
        self.journal = Journal()
        self.entries: list[Entry] = []
        self.asked: list[bool] = []
        recorder = Recorder(
            t0=0,
            process=lambda: "p",
            open_journal=lambda: self.journal,  # type: ignore[arg-type, return-value]
            opening=list,
            on_failure=lambda error: pytest.fail(str(error)),
        )
        self.recorder = recorder
        self.capture = Capture(recorder, errors.Reporter(), stack_depth=0)
        self.operations = DeviceOperations(self.capture, self.dump, timed=timed)
        self.call = recorder.call("all_reduce", synchronous=True, counter=None, kind="collective")

    def dump(self, active: bool) -> list[Entry]:
        self.asked.append(active)
        return [e for e in self.entries if not (active and e["state"] == "completed")]

    def issue(self, **entry: Any) -> Operation:
        """An operation in whose call the flight recorder makes an entry."""
        operation = self.recorder.begin(self.recorder.threads.state, self.call)
        self.entries.append({"time_created_ns": time.time_ns(), "state": "scheduled", **entry})
        self.recorder.issued(operation)
        self.operations.add(operation, None)
        return operation

    def poll(self) -> bool:
        """One turn of the poller, which else takes its time between two."""
        self.operations._next = 0
        return self.operations.poll()

    def completed(self) -> list[bytes]:
        return [line for line in self.journal.lines if line.startswith(b'{"c":')]


def test_in_flight_until_the_device_has_finished() -> None:
    """The call returned long ago; the operation is over when its own entry says so."""
    device = Device()
    first, second = device.issue(), device.issue()
    assert device.poll()
    assert device.completed() == []
    device.entries[0]["state"] = "completed"
    assert device.poll()
    (line,) = device.completed()
    assert line.startswith(b'{"c":%d,' % first.n)
    device.entries[1]["state"] = "completed"
    assert not device.poll()
    assert device.completed()[1].startswith(b'{"c":%d,' % second.n)
    assert device.asked == [False, True, True]


def test_the_backends_own_duration() -> None:
    """With timing on, completed entries are asked for too, and their duration recorded."""
    device = Device(timed=True)
    device.issue(duration_ms=1.5)
    device.entries[0]["state"] = "completed"
    assert not device.poll()
    (line,) = device.completed()
    assert line.endswith(b',"z":1500000}\n')


def test_operations_end_with_their_call_where_nobody_can_tell() -> None:
    """A flight recorder that is off leaves nothing in flight for ever, and one sentence."""
    device = Device()
    operation = device.issue()
    device.entries.clear()
    assert not device.poll()
    assert device.journal.lines[-1].startswith(b'{"e":%d,' % operation.n)
    assert [r["text"] for r in device.journal.definitions if r["def"] == "note"] == [BLIND]
    later = device.issue()
    assert device.journal.lines[-1].startswith(b'{"e":%d,' % later.n)


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    """A query from another thread would break the capture."""
    device = Device()
    device.issue()
    device.operations.capturing.add(1)
    assert device.poll()
    assert device.asked == []


def test_a_coalesced_operation_is_found_in_the_call_that_issued_it() -> None:
    """Its entry is made when coalescing ends, after the call of the operation itself."""
    device = Device()
    operation = device.recorder.begin(device.recorder.threads.state, device.call)
    device.recorder.issued(operation)
    before = time.perf_counter_ns()
    device.entries.append({"time_created_ns": time.time_ns(), "state": "started"})
    device.operations.add(operation, (before, time.perf_counter_ns()))
    assert device.poll()
    device.entries[0]["state"] = "completed"
    assert not device.poll()
    assert len(device.completed()) == 1
