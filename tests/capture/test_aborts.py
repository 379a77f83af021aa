"""What an abort makes look complete: by the program, by torch's watchdog, in each of its modes."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from disttrace.capture.devices import answers, completion
from disttrace.capture.native import functional
from support.device import Device
from support.preloaded import preloaded
from support.raw import read_journals


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


PROGRAMS = Path(__file__).parent / "programs"
PYTHON_ONLY = ("nothing", "profiler")
FUNCTIONAL = ("functional", "out_argument", "coalesced", "inference", "taken", "threads")
AUTOGRAD = "_c10d_functional_autograd."


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What the program says of each case, and the folder of its journals."""
    folder = tmp_path_factory.mktemp("late")
    outcome = preloaded(PROGRAMS / "late_kernels.py", str(folder), timeout=120).check()
    return [json.loads(line) for line in outcome.stdout.splitlines()], folder


def test_every_operation_is_recorded(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """The first one too: in threads, inference mode, autograd, and from a compiled library."""
    cases, folder = ran
    for case in cases:
        (journal,) = read_journals(folder / case["name"])
        # torch issues some single ones as coalesced.
        names = [call["op"].removesuffix("_coalesced") for call in journal.called("collective")]
        found = collections.Counter(names)
        if case["name"] == "reducer":  # what DDP's constructor does differs by version
            assert found["all_gather"] or found["broadcast"]
        else:
            assert found == case["issued"], case["name"]
        assert journal.of("note") == []


def test_kernels_wait_for_a_call(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """Python's own calls, functional ones and DDP bring none that others pass; all else does."""
    cases, _ = ran
    assert len(cases) == 12
    for case in cases:
        assert case["before"] is False
        other = case["name"] not in (*PYTHON_ONLY, *FUNCTIONAL, "reducer")
        assert case["after"] is (other and not case["hooks"]), case["name"]
        # C++ may wait by itself then.
        waits = case["name"] in ("autograd", "library")
        assert case["functional"] == ["wait_tensor"] * waits, case["name"]
        assert case["left"] == [], case["name"]


def test_calls_of_operators_are_watched(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """Those of functional collectives all the time, those of autograd until the first call."""
    cases, _ = ran
    for case in cases:
        watched = set(case["watched"])
        for name in ("wait_tensor", *(() if case["hooks"] else ("all_reduce",))):
            assert {f"_c10d_functional.{name}", f"_c10d_functional.{name}.default"} <= watched
        assert ("_c10d_functional.all_reduce" in watched) is not case["hooks"]
        autograd = {name for name in watched if name.startswith(AUTOGRAD)}
        assert bool(autograd) is (case["name"] != "autograd"), case["name"]


def test_a_type_is_not_asked() -> None:
    """Whether it takes operators itself is read past its metaclass, which may raise."""

    class Asked(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

        def __hash__(cls) -> int:
            raise RuntimeError("hash")

    class Odd(metaclass=Asked):
        pass

    class Taking(metaclass=Asked):
        def __torch_dispatch__(self) -> None:
            pass

    assert functional._runs(Odd()) is True
    assert functional._runs([torch.ones(1), Taking()]) is False
    assert functional._runs(torch.ones(1)) is True
