"""What is told of a stall, when the picture changes and when it is over."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from disttrace.journal import proc
from disttrace_viewer.analysis.liveness import Look, Observation
from disttrace_viewer.companion import reports, verdict, watch, words
from disttrace_viewer.companion.endpoint import PeerReply
from disttrace_viewer.companion.service import CompanionLog
from disttrace_viewer.companion.watch import Watch
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.process import Process
from support import scenes
from support.journals import MS, PEER_GONE, Journal, S
from support.orders import order
from support.processes import ending
from support.scenes import alive, hang_without, retry, steps


class Told(Watch):
    """Keeps what it would have somebody say."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with tempfile.TemporaryFile() as file:
            super().__init__(order(directory), CompanionLog(file.fileno()))
        self.said: list[str] = []
        self.now = 0.0
        self.aborting: list[str] = []
        self.marks: list[float] = []
        self.died = False
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def _announce(self, lines: list[str], *_: object, **__: object) -> None:
        self.said += lines

    def see(self, at: float, missing: str = "", *, spare: str = "", **more: object) -> None:
        """A verdict at a time: these processes are missing in one collective; empty: no fault."""
        self.now = at
        found: dict[str, Any] = {
            "signature": [["missing_participant", [*missing], "g", 3, None]] if missing else [],
            "lines": [f"stalled: {missing}"], "announcers": ["me"],
            "notes": [f"waiting: {spare}"] if spare else [], "noted": [*spare],
            "alert": {"report": ""}, "ops": [], "objects": [],
            "aborting": self.aborting, "waiting": True, "over": False, "next_s": 5.0,
            "going_on": "all", "marks": self.marks, "died": self.died, **more,
        }  # fmt: skip
        self._judge(found)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(tmp_path, monkeypatch)


def test_what_nobody_can_say_is_ended_as_well(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are stopped: the picture is looked at anew each time, and has stood all the while."""
    ended: list[object] = []
    told.aborting, told._verdicts = ["asked for it"], cast(Any, object())
    monkeypatch.setattr(told, "_abort", lambda of, **_: ended.append(of))
    monkeypatch.setattr(told, "_tell_child", lambda line: True)
    for at in (20.0, 24.0, 28.0, 32.0):
        assert not ended
        told.see(at, "ab")
        told._be_mute()  # nobody is left to be asked
    assert ended


FAILED: dict[str, Any] = {"over": True, "waiting": False, "going_on": ""}
LONG = [(at, "a") for at in range(10, 5000, 60)]
COMING = [(10, "abc"), (15, "ab"), (20, "b"), (30, "b")]
PICTURES: dict[str, tuple[list[Any], str]] = {
    "however often it is looked at": ([(10, "ab"), (12, "ab"), (70, "ab")], "stalled: ab"),
    "again after 10, 30 and 70 minutes, for who looks there an hour later":
        (LONG, "stalled: a|stalled: a|stalled: a|stalled: a"),
    "another one after these":
        ([*LONG, (5000, "b"), (5300, "b")], "stalled: a|" * 4 + "stalled: b"),
    "waits that ended with their processes do not go on":
        ([(10, "ab"), (12, "", FAILED), (40, "ab"), (42, "", {"over": True})],
         "stalled: ab|stalled: ab|going on: all"),
    "who waits while others get on is no stall, which is told when the others stop":
        ([*((at, "", {"spare": "a"}) for at in (10, 12, 70)), (80, "b")], "waiting: a|stalled: b"),
    "who comes is slow": (COMING, "stalled: abc"),
    "who is still missing after twice the limit": ([*COMING, (36, "b")], "stalled: abc|stalled: b"),
    "another rank is another picture": ([(10, "a"), (12, "ab")], "stalled: a|stalled: ab"),
    "waits that ended by errors": ([(10, "a"), (12, "", FAILED)], "stalled: a"),
    "what comes after these": ([(10, "a"), (12, "", FAILED), (30, "a")], "stalled: a|stalled: a"),
}  # fmt: skip
"""What is seen: when, who is missing, what else; and what is told of it."""


@pytest.mark.parametrize(("seen", "said"), PICTURES.values(), ids=PICTURES)
def test_what_is_told_of_pictures(told: Told, seen: list[Any], said: str) -> None:
    for at, missing, *more in seen:
        told.see(at, missing, **(more[0] if more else {}))
    assert told.said == said.split("|")


@pytest.mark.parametrize("over", [True, False])
def test_it_goes_on_when_those_are_over_who_were_told_of(told: Told, *, over: bool) -> None:
    """In a job that is well somebody waits at every moment."""
    told.see(10, "a")
    told.see(12, over=over)
    assert told.said == ["stalled: a", *(["going on: all"] if over else [])]
    told.see(14, waiting=False)
    assert told.said == ["stalled: a", "going on: all"]


def test_time_that_runs_out_is_told_again(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """At half of the limit and near it, of those at work as well: once each."""
    monkeypatch.setattr("time.time", lambda: 1000 + told.now)
    told.marks = [1050.0, 1100.0]
    told._judged_at = 1000.0
    for at in (10, 49):
        told.see(at, spare="a")
    assert told.said == ["waiting: a"]
    assert told._due <= 50
    for at in (50, 60):
        told.see(at, spare="a")
    assert told.said == ["waiting: a"] * 2
    told.see(70, "a")
    for at in (99, 100, 101):
        told.see(at, "a")
    assert told.said[2:] == ["stalled: a"] * 2


def test_one_that_died_is_not_waited_for_twice(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a job is to be ended by its stall: a second limit is for those that may come yet."""
    ended: list[bool] = []
    monkeypatch.setattr(told, "_abort", lambda of, *, died: ended.append(died))
    told.aborting = ["asked for it"]
    told.see(20, "a")
    assert not ended
    told.died = True
    told.see(21, "a")
    assert ended == [True]


def test_who_does_not_end_is_killed_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that has its number by now, and not what it has become without a journal."""
    told = Told(tmp_path, monkeypatch)
    monkeypatch.setattr(told, "_write", lambda record: orders.append(record))
    orders: list[dict[str, Any]] = []
    journal = tmp_path / "its.defs.jsonl"
    with journal.open("w") as file:
        writes = subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()])
        other = subprocess.Popen(["sleep", "60"])
        again = subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()])
    with ending(writes, other, again):
        named = [
            {"process": str(n), "pid": one.pid, "boot_id": proc.boot_id(), **proc.own(),
             "ticks": proc.stat(one.pid).ticks - (one is again), "journal": str(journal)}
            for n, one in enumerate((writes, other, again))
        ]  # fmt: skip
        told._abort(named)
        assert orders == [{"abort": 75, "died": False, "for": ["0", "1", "2"]}]
        assert writes.poll() is None
        told._abort(named)
        assert writes.wait(10) == -signal.SIGKILL
        assert (other.poll(), again.poll()) == (None, None)


def judged(folder: Path, monkeypatch: pytest.MonkeyPatch, look: Look) -> dict[str, Any]:
    """What a companion makes of the journals of a job whose processes are as that says."""
    for module in (verdict, reports):
        monkeypatch.setattr(module, "look", look)
    (job,) = {path.name.split("-")[0] for path in folder.iterdir()}
    return verdict.Judge(order(folder, job)).verdict()


def all_live(_process: Process) -> Observation:
    return Observation(alive=True)


def the_launcher_and_its_second_attempt(process: Process) -> Observation:
    return Observation(process.pid in (3999, 4100, 4101), None)


def seen(process: Process) -> Observation:
    """Rank 1 lives, the others are gone."""
    return Observation(process.rank == 1, None if process.rank == 1 else 1)


def test_who_gave_up_is_told_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited for milliseconds only, and the job does not end: one of its processes lives."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.lose(group, 200 * MS, 30 * MS, fails=240 * MS)
        else:
            journal.stand(3 * S, "/src/loader.py", 9, "load")
            journal.beat(20)
    told = judged(tmp_path, monkeypatch, seen)
    assert "Rank 1 never joined all_reduce #3" in told["lines"][0]


def test_unnamed_it_holds_who_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one comes the last one is named: no other picture, but one with fewer missing."""
    missing = []
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank:
            missing.append(journal.process)
        else:
            journal.begin(journal.collective(group, stack=("train.py", 60, "main")), 200 * MS, q=3)
    told = judged(tmp_path, monkeypatch, all_live)
    assert [who for _, who, *_ in told["signature"]] == [sorted(missing)]


@pytest.mark.parametrize("again", [False, True])
def test_a_launcher_whose_workers_have_failed_does_not_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """It is about to start them anew, or has: those import something still."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    agent.beat(20)
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.lose(group, 200 * MS, 30 * MS)
        journal.fail(240 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])
    for rank in (0, 1) if again else ():
        keys = {"attempt": 1}
        Journal(tmp_path, pid=4100 + rank, rank=rank, world_size=2, keys=keys).beat(20)
    told = judged(tmp_path, monkeypatch, the_launcher_and_its_second_attempt)
    assert (told["signature"], told["waiting"]) == ([], False)


def test_what_holds_up_the_living_is_told_before_why_an_earlier_attempt_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher has started all anew, and now one awaits a key that nobody sets."""
    retry(tmp_path)
    told = judged(tmp_path, monkeypatch, the_launcher_and_its_second_attempt)
    assert "Rank 0 has been in store.get of" in told["lines"][0]
    assert "the first attempt fails" in told["lines"][1]


@pytest.mark.parametrize("frozen", [False, True])
def test_the_mute_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """Rank 0 is asked first, unless nothing runs in it."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.beat(4 if frozen and journal.rank == 0 else 20)
    told = judged(tmp_path, monkeypatch, all_live)
    ranks = {process.id: process.rank for process in load([str(tmp_path)]).processes}
    assert [ranks[one] for one in told["announcers"]] == ([1, 0] if frozen else [0, 1])


def test_where_nothing_joins_companions_that_of_the_best_speaks(tmp_path: Path) -> None:
    """Ranks that met in a file have a companion each, which reads the journals of the others."""
    list(hang_without(tmp_path, 2, 0))
    case, _ = scenes.verdict(tmp_path, look=all_live)
    ids = [process.id for process in case.evidence.trace.processes]
    said = [words.announcers(case, {one}, {0, 1}, anywhere=False) for one in reversed(ids)]
    assert sorted(said) == [[], [min(case.evidence.trace.processes, key=lambda p: p.rank or 0).id]]


def test_one_whose_main_thread_failed_speaks_where_nobody_else_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread keeps it alive, and the journal of the other rank is on another host."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.remove()
            continue
        journal.fail(240 * MS, "ValueError", "the loss is not a number")
        lines = journal.definitions.read_text().splitlines(keepends=True)
        journal.definitions.write_text("".join(x for x in lines if '"def":"exit"' not in x))
        journal.beat(20)
    told = judged(tmp_path, monkeypatch, all_live)
    assert "Rank 1 failed: ValueError" in told["lines"][0]  # of rank 0 nothing is known
    assert len(told["announcers"]) == 1


def test_its_modules_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that judges runs where the program runs."""
    steps(tmp_path, 2)
    (tmp_path / "select.py").write_text("raise SystemExit('this one is the program\\'s')")
    monkeypatch.chdir(tmp_path)
    child = watch._start(order(tmp_path))
    answer, _ = child.communicate(b"\n", 60)
    assert json.loads(answer)["waiting"] is False


def test_suspicions_of_many_are_judged_at_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight ranks each has its own, and a verdict that is due would wait for all of them."""
    asked: list[bytes] = []
    monkeypatch.setattr(told, "_ask", asked.append)
    for answers in ([], [PeerReply("b", b"old")], [], [PeerReply("b", b"new")]):
        told.suspect(answers)
    for _ in range(3):
        told.turn()
    assert asked == [b'diverged [[], [["b", "bmV3"]]]\n']
