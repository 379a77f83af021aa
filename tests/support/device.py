"""A capture without torch whose flight recorder says what a test has it say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from disttrace import errors
from disttrace.capture.devices.completion import DeviceOperations
from disttrace.capture.devices.flight_recorder import Question, Reply, record, unix_offset
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import CallRecord, Operation
from disttrace.recording.recorder import Recorder

Entry = dict[str, Any]


class Journal:
    """Keeps lines in memory, as far as the recorder needs a journal."""

    number = 0
    most_definitions = 2**20

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.definitions: list[dict[str, Any]] = []
        self.put = self.lines.append

    def define(self, record: dict[str, Any]) -> int:
        self.definitions.append(record)
        return 1

    def open_segment(self, lines: list[bytes], dropping: object) -> None:
        self.lines += lines


class Asked:
    """An asker that answers at once, in the thread that asks."""

    def __init__(self) -> None:
        self.busy = False
        self._answers: list[Any] = []

    def ask(self, question: Callable[[], Any]) -> None:
        self.busy = True
        self._answers.append(question())

    def answer(self, patience_s: float = 0.0) -> Any:
        self.busy = False
        return self._answers.pop()

    def forget(self) -> None:
        self._answers.clear()


class Device:
    """Operations of a group ``0`` on ``backend``, and the entries of its flight recorder."""

    def __init__(self, backend: str = "nccl-legacy") -> None:
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
        self.backend = backend
        for number in (1, 2):
            entry = GroupEntry(number, {"name": str(number - 1)}, {"cuda": backend})
            self.capture.groups._definitions[number] = entry
        self.operations = DeviceOperations(self.capture, lambda name: self.ask, asker=Asked())
        self.calls = {number: self.call("all_reduce", group=number) for number in (1, 2)}

    def call(
        self, op: str, *, kind: str = "collective", group: int = 1, synchronous: bool = True
    ) -> CallRecord:
        """A call of the group, with a counter of its own."""
        return self.recorder.call(
            op, synchronous=synchronous, counter=self.recorder.core.new_counter(), kind=kind,
            group=group, backend=self.backend, device="cuda",
        )[0]  # fmt: skip

    def ask(self, question: Question) -> Reply:
        self.asked.append(question.active)

        offset, _ = unix_offset()
        asked = time.perf_counter_ns()
        told = (
            record(each)
            for each in self.entries
            if not (question.active and each["state"] == "completed")
        )
        wanted = (each for each in told if question.concerns(each.created, each.op_id))
        found = {each.key: each for each in wanted}
        answered = time.perf_counter_ns()
        return Reply(found, not question.active, asked, answered, offset, not self.entries, 0)

    def entry(self, state: str = "scheduled", **keys: Any) -> Entry:
        """An entry made now, by this thread, for a launch of its own."""
        n = len(self.entries)
        made: Entry = {
            "record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": n + 1, "p2p_seq_id": 0, "is_p2p": False,
            "time_created_ns": time.time_ns(), "state": state, "retired": False,
            "thread_id": str(threading.get_ident()), **keys,
        }  # fmt: skip
        self.entries.append(made)
        return made

    def begin(self, group: int = 1) -> Operation:
        return self.recorder.begin(self.recorder.threads.state, self.calls[group])

    def done(self, operation: Operation, call: tuple[int, int] | None = None) -> None:
        self.recorder.issued(operation)
        self.operations.add(operation, call, None)

    def issue(self, group: int = 1, **entry: Any) -> Operation:
        """An operation in whose call the flight recorder makes an entry."""
        operation = self.begin(group)
        self.entry(process_group=(str(group - 1), ""), **entry)
        self.done(operation)
        return operation

    def poll(self, turns: int = 1) -> int:
        """Turns of the poller, which else takes its time between two."""
        pending = 0
        for _ in range(turns):
            for channel in self.operations._recorders.channels.values():
                channel.active_due = channel.full_due = 0
            pending = self.operations.poll()
        return pending

    def ends(self, operation: Operation) -> list[bytes]:
        """The records that end it, without what varies."""
        return [
            key
            for line in self.journal.lines
            for key in (b"c", b"e", b"l")
            if line.startswith(b'{"%b":%d,' % (key, operation.n))
        ]

    def notes(self) -> list[str]:
        return [r["text"] for r in self.journal.definitions if r["def"] == "note"]
