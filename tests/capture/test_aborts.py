"""What an abort makes look complete: by the program, by torch's watchdog, in each of its modes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from disttrace.capture.devices import answers, completion
from support.device import Device


def test_aborted_is_not_completed() -> None:
    """An abort makes the kernel leave, and its event complete."""
    device = Device()
    over, hung = device.issue(state="completed"), device.issue()
    other = device.issue(2)
    device.operations.aborting(1)
    device.entries[1]["state"] = "completed"
    device.poll(2)
    assert [device.ends(one) for one in (over, hung, other)] == [[b"c"], [b"e"], []]
    assert any(line.startswith(b'{"e":%d,' % hung.n) and b'"x"' in line
               for line in device.journal.lines)  # fmt: skip


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
def test_an_error_of_the_group_tells_of_an_abort(
    happened: bool, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any error, long before a time-out: torch notes it before it aborts."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    device = Device()
    monkeypatch.setattr(device.operations._answers._aborts, "happened", lambda group: happened)
    operation = device.issue(state="completed")
    assert not device.poll(2)
    assert device.ends(operation) == [end]


@pytest.mark.parametrize("mode", ["0", "1", "2", "3"])
def test_what_may_have_been_aborted_is_doubted_until_a_younger_one(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch tells of no error. Two that complete at once do not vouch for each
    other; one that was issued afterwards does, and of the last nobody knows."""
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
