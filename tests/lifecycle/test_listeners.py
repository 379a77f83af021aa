"""Callbacks of ``on_verdict`` hear what the job says of itself, and harm nobody."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import disttrace
from disttrace.lifecycle import listeners
from support.processes import clean_environ, run_program, static, torchrun, wait_until

OBJECT = {"disttrace": 1, "kind": "going on", "at": 1.5, "summary": "they communicate again."}
HANGS = """
import json, os, signal, sys, time, torch, torch.distributed as dist, disttrace

def heard(said):
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", "a") as file:
        file.write(json.dumps([said, disttrace.live()]) + "\\n")
    raise SystemExit("not the program's")

def never(said):
    with open(f"{sys.argv[1]}/never", "a") as file:
        file.write("called\\n")

def end(said):
    # Not before all have heard: to end one ends the wait of the other.
    until = time.monotonic() + 20
    while not all(os.path.exists(f"{sys.argv[1]}/{r}") for r in "01") and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

disttrace.on_verdict(heard)
disttrace.on_verdict(never)()
disttrace.on_verdict(end)
dist.init_process_group("gloo")
for step in range(3):
    if step == 2 and dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))  # <- the line
"""


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    listeners._listeners = ()


def told(*objects: Any) -> None:
    listeners.tell([*objects])
    listeners.wait()


def test_each_gets_an_object_of_its_own_with_every_key() -> None:
    """What one callback does to it no other sees."""
    heard: list[dict[str, Any]] = []

    def takes(said: dict[str, Any]) -> None:
        heard.append(dict(said))
        said.clear()

    disttrace.on_verdict(takes)
    take_back = disttrace.on_verdict(takes)
    told(OBJECT)
    assert heard == [{**OBJECT, "certainty": None, "culprit_ranks": [], "finding": None}] * 2
    take_back()
    take_back()
    told(OBJECT)
    assert len(heard) == 3


@pytest.mark.parametrize("error", [ValueError("no\nsuch host"), SystemExit(3), KeyboardInterrupt()])
def test_who_raises_is_not_called(capfd: pytest.CaptureFixture[str], error: BaseException) -> None:
    """The others are."""
    heard: list[Any] = []

    def raises(said: object) -> None:
        raise error

    disttrace.on_verdict(raises)
    disttrace.on_verdict(heard.append)
    told(OBJECT, OBJECT)
    told(OBJECT)
    assert len(heard) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("disttrace: the callback test_who_raises")
    assert type(error).__name__ in line


def test_who_blocks_holds_up_only_what_comes_after() -> None:
    """Neither whoever tells, nor the end of the process for longer than a moment."""
    go, heard = threading.Event(), list[str]()

    def blocks(said: dict[str, Any]) -> None:
        go.wait(30)
        heard.append(said["summary"])

    disttrace.on_verdict(blocks)
    for n in "123":
        listeners.tell([{**OBJECT, "summary": n}])
    listeners.wait()
    assert heard == []
    go.set()
    wait_until(lambda: heard == ["1", "2", "3"], timeout=30)


def test_what_a_callback_starts_can_be_ended() -> None:
    """Our threads block signals; a command that inherits that could not be told to end."""
    masks: list[set[Any]] = []
    disttrace.on_verdict(lambda said: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    told(OBJECT)
    assert masks == [signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    with pytest.raises(TypeError, match="takes a callable, not 'slack'"):
        disttrace.on_verdict("slack")  # type: ignore[arg-type]


def test_after_uninstall_nobody_is_called_until_it_begins_anew(tmp_path: Path) -> None:
    """What the program registered stays; a telling that was held up meanwhile is dropped."""
    program = """
import sys, threading, disttrace
from disttrace.lifecycle import listeners
came, go, heard = threading.Event(), threading.Event(), []
def hears(said):
    heard.append(said["summary"])
    came.set()
    go.wait(30)
disttrace.on_verdict(hears)
disttrace.install(dir=sys.argv[1])
said = lambda text: listeners.tell([{"summary": text}])
said("first")
said("held up")
came.wait(30)
disttrace.uninstall()
go.set()
listeners.wait()
disttrace.install(dir=sys.argv[1])
said("anew")
listeners.wait()
print(heard)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    assert run_program(command, clean_environ(), 60).check().stdout == "['first', 'anew']\n"


def test_every_rank_of_a_host_hears_of_a_hang(tmp_path: Path) -> None:
    """Under torchrun, whose agent speaks; one callback fails, another ends its rank."""
    program = tmp_path / "program.py"
    program.write_text(HANGS)
    done = torchrun(
        program, 2, str(tmp_path), options=static(), DISTTRACE="1",
        DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2",
    )  # fmt: skip
    assert done.code != 0
    assert not done.hung
    for rank in "01":
        first, *rest = (tmp_path / rank).read_text().splitlines()
        said, live = json.loads(first)
        assert rest == []  # it raised
        assert said["disttrace"] == 1
        told = (said["kind"], said["certainty"], said["culprit_ranks"])
        assert told == ("stalled", "certain", [1])
        assert said["summary"] in done.stderr
        assert said["finding"]["kind"] == "missing_participant"
        assert (live["rank"], live["said"]) == (int(rank), said)
        where = (live["in_flight"], live["oldest_op"], live["oldest_line"])
        line = HANGS[: HANGS.index("# <- the line")].count("\n") + 1
        assert where == ((0, None, None) if rank == "1" else (1, "all_reduce", f"{program}:{line}"))
        if rank == "0":
            assert 1 < live["oldest_age_s"] < 60
        assert live["begun"] >= 3 - int(rank)
    assert done.stderr.count("the callback heard of on_verdict raised SystemExit") == 2
    assert "Signal 15 (SIGTERM)" in done.stderr
    assert not (tmp_path / "never").exists()


def test_live_counts_what_begins_and_is_empty_without_tracing(tmp_path: Path) -> None:
    """Before torch is imported, too; a tracker can write all of it down."""
    program = """
import json, sys, disttrace
print(disttrace.live())
disttrace.install(dir=sys.argv[1])
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
before = disttrace.live()
dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
ready = disttrace.live()
for _ in range(5):
    dist.all_reduce(torch.ones(4))
after = disttrace.live()
json.dumps(after)
print(before["rank"], after["rank"], after["begun"] - ready["begun"], after["in_flight"])
print(after["oldest_op"], after["said"])
disttrace.uninstall()
print(disttrace.live())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    said = run_program(command, clean_environ(), 60).check().stdout.splitlines()
    assert said == ["{}", "None 3 5 0", "None None", "{}"]
