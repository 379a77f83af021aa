"""Who hears what a job says of itself: callbacks of ``on_verdict``, trainers, and the process that
prints it; and when a process asks for a companion.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import disttrace
from disttrace import integrations
from disttrace.config import resolve
from disttrace.identity import Identity
from disttrace.lifecycle import listeners, rendezvous_folder
from disttrace.lifecycle.announcer import Announcer
from disttrace.lifecycle.companion import Companion
from support.journals import MS
from support.preloaded import preloaded
from support.processes import clean_environ, run_program, wait_until

OBJECT = {"disttrace": 1, "kind": "going on", "at": 1.5, "summary": "they communicate again."}


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
print(disttrace.live())
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
    assert run_program(command, clean_environ(), 60).check().stdout == "{}\n['first', 'anew']\n"


def test_live_counts_what_begins_and_is_empty_without_tracing(tmp_path: Path) -> None:
    """A tracker can write all of it down."""
    program = """
import json, sys, threading, time, disttrace
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
def waits():
    dist.HashStore().wait(["never"])  # 17
threading.Thread(target=waits, daemon=True).start()
while not disttrace.live()["in_flight"]:
    time.sleep(0.01)
time.sleep(0.2)
stuck = disttrace.live()
where = [stuck[key] for key in ("in_flight", "oldest_op", "oldest_line")]
print(*where, 0.1 < stuck["oldest_age_s"] < 60)
disttrace.uninstall()
print(disttrace.live())
"""
    said = preloaded("-c", program, str(tmp_path / "out")).check().stdout.splitlines()
    stuck = "1 store.wait <string>:17 True"
    assert said == ["{}", "None 3 5 0", "None None", stuck, "{}"]


# -- what trainers get of a trace, by what `disttrace.live` says (with trainers: make frameworks)


SLOW = {"rank": 5, "share": 0.2, "since": 1.0, "line": "a.py:1", "others": 7, "rank_hours": 0.1}
LIVE: dict[str, Any] = {
    "rank": 3, "begun": 40, "in_flight": 1, "oldest_op": "all_reduce", "oldest_age_s": 2.5,
    "oldest_line": "train.py:7", "waiting_share": None, "slow": [], "said": None,
}  # fmt: skip


OTHERS = ("going on", "starting", "slow")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    values = dict(LIVE)
    monkeypatch.setattr(disttrace, "live", lambda: dict(values))
    return values


def test_a_logger_gets_numbers(live: dict[str, Any]) -> None:
    """No text, nothing that is unknown, and of slow ranks the worst."""
    usual = {"disttrace/begun": 40, "disttrace/in_flight": 1, "disttrace/oldest_age_s": 2.5}
    assert integrations.numbers() == {**usual, "disttrace/slow_ranks": 0}
    live.update(waiting_share=0.25, slow=[SLOW, {**SLOW, "rank": 6, "share": 0.1}])
    assert integrations.numbers() == {
        **usual, "disttrace/waiting_share": 0.25, "disttrace/slow_ranks": 2,
        "disttrace/slowest_rank": 5, "disttrace/slowest_share": 0.2,
    }  # fmt: skip


def test_without_tracing_there_is_nothing() -> None:
    error = RuntimeError("lost")
    integrations.explain(error)
    assert integrations.numbers() == {}
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    ("kind", "told"),
    [(kind, kind in ("stalled", "failed")) for kind in ("stalled", "failed", *OTHERS)],
)
def test_what_the_job_said_is_below_the_error(live: dict[str, Any], kind: str, told: bool) -> None:
    """Once, however often it passes; what explains no failure is not there."""
    live["said"] = {"kind": kind, "summary": "Rank 1 never joined."}
    error = RuntimeError("timed out")
    integrations.explain(error)
    integrations.explain(error)
    shown = told and sys.version_info >= (3, 11)
    assert getattr(error, "__notes__", []) == [f"disttrace: {kind}: Rank 1 never joined."] * shown


# -- when a process asks for a companion: where it stands still, or only asks a store


LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left where other processes of this user meet."""
    monkeypatch.setattr(rendezvous_folder, "PARENT", str(tmp_path_factory.mktemp("meeting")))


@pytest.mark.parametrize(("kind", "started"), [("store", 1), ("collective", 0), (None, 1)])
def test_polling_is_standing_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, started: int
) -> None:
    """Operations begin all the time, of a store alone or not; or none does."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    identity = Identity({}, job="j")
    starts: list[Identity] = []
    monkeypatch.setattr(Companion, "start", lambda _, who, **__: starts.append(who))
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    config, _ = resolve({"dir": tmp_path, "stall": LIMIT_S}, {})
    companion = Companion(config, lambda part, sentence: True)
    asked, got_on = [0], [0]
    announcer = Announcer(config, companion, lambda: asked[0], lambda code: None, lambda: got_on[0])
    announcer.start(identity)
    for look in range(1, 13):  # 6 s: past four tenths of the limit
        now[0] = look * 500 * MS
        asked[0] += kind is not None
        got_on[0] += kind == "collective"
        announcer.look()
    assert len(starts) == started


class Ears:
    """A process that is asked by the file of its job and host, and what it does then."""

    def __init__(self, folder: Path, *, on_stall: str | None = "abort", log: str = "text") -> None:
        self.identity = Identity({"DISTTRACE_PARENT": "a" * 32 + ",worker@" + "b" * 32 + ",j"})
        self.ended: list[int] = []
        self.noted = 0
        settings = {"dir": folder, "on_stall": on_stall, "log": log, "stall": LIMIT_S}
        config, _ = resolve(settings, {})
        companion = Companion(config, lambda part, sentence: True)
        self.file = Path(companion.announcements(self.identity))
        self.announcer = Announcer(config, companion, lambda: 0, self.ended.append, lambda: 0)
        self.announcer.sample = self.note

    def note(self) -> None:
        self.noted += 1

    def write(self, **record: Any) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def receive(self) -> tuple[list[int], int]:
        """Exit codes with which it was ended, and how often it noted where its threads are."""
        self.announcer.look()
        return self.ended, self.noted


def order(ears: Ears) -> None:
    """One that this process obeys, in each form."""
    ears.write(abort=75, **{"for": ["0" * 32, ears.identity.process]})
    ears.write(stacks=1, under="b" * 32)


def test_orders_are_obeyed_by_those_that_they_name(tmp_path: Path) -> None:
    """Each once; the launcher may be the parent's parent."""
    ears = Ears(tmp_path)
    ears.announcer.start(ears.identity)
    order(ears)
    assert ears.receive() == ([75], 1)
    assert ears.receive() == ([75], 1)
    ears.write(stacks=1, under="a" * 32)
    assert ears.receive() == ([75], 2)


@pytest.mark.parametrize("named", [None, [], ["0" * 32], "0" * 32, 7, {"0": 1}])
def test_others_orders(tmp_path: Path, capfd: pytest.CaptureFixture[str], named: object) -> None:
    """Nor are those that name nobody, as older companions wrote them."""
    ears = Ears(tmp_path)
    ears.announcer.start(ears.identity)
    ears.write(**{"abort": 75, "for": named})
    ears.write(stacks=1, under=named)
    ears.write(abort=75)
    ears.write(stacks=1)
    ears.write(n=1, announcer="0" * 32, lines=["for somebody else"])
    assert ears.receive() == ([], 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("on_stall", [None, "cat > report"])
def test_who_did_not_ask_to_be_ended_is_not(tmp_path: Path, on_stall: str | None) -> None:
    """Only a process of whom DISTTRACE_ON_STALL=abort was asked itself."""
    ears = Ears(tmp_path, on_stall=on_stall)
    ears.announcer.start(ears.identity)
    order(ears)
    assert ears.receive() == ([], 1)


def test_what_was_there_before_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A companion that was killed with its job leaves its file behind, even with our id in it."""
    ears = Ears(tmp_path)
    order(ears)
    ears.write(n=1, announcer=ears.identity.process, lines=["of yesterday"])
    ears.announcer.start(ears.identity)
    assert ears.receive() == ([], 0)
    ears.write(n=2, announcer=ears.identity.process, lines=["of today"])
    ears.receive()
    assert re.fullmatch(r"\ndisttrace: of today \(\d\d:\d\d:\d\d\)\n", capfd.readouterr().err)


def test_lines_begin_where_a_line_begins() -> None:
    """A progress bar leaves its line open."""
    script = (
        "import sys; from disttrace.lifecycle.announcer import _print\n"
        "sys.stderr.write('bar 10%'); _print(['stalled: a', 'more: b'])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stderr
    timeless = re.sub(rb"\(\d\d:\d\d:\d\d\)", b"(TIME)", said)
    assert timeless == b"bar 10%\ndisttrace: stalled: a (TIME)\ndisttrace: more: b\n"


def test_programs_read_objects(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """DISTTRACE_LOG=json: one object a line, and no line for people; of an order to end, too."""
    ears = Ears(tmp_path, log="json")
    ears.announcer.start(ears.identity)
    found = {"disttrace": 1, "kind": "stalled", "at": 1.5, "summary": "Rank 1 never\x1b joined"}
    me = ears.identity.process
    ears.write(n=1, announcer=me, lines=["stalled: Rank 1", "more: x"], objects=[found])
    ears.receive()
    assert json.loads(capfd.readouterr().err) == found
    order(ears)
    assert ears.receive()[0] == [75]
    assert json.loads(capfd.readouterr().err)["kind"] == "ended"


def test_a_file_in_the_place_of_another_is_read_from_its_start(tmp_path: Path) -> None:
    """The next companion makes one anew, which may be longer by the time somebody looks."""
    ears = Ears(tmp_path)
    ears.write(stacks=1)
    ears.announcer.start(ears.identity)
    assert ears.receive() == ([], 0)
    other = ears.file.with_suffix(".new")
    other.touch()
    os.replace(other, ears.file)
    order(ears)
    assert ears.receive() == ([75], 1)
