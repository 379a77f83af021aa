"""Which findings count while the job runs: what holds up somebody now, as far as that is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from disttrace.journal import proc
from disttrace_viewer.analysis.liveness import Look
from disttrace_viewer.companion import activity
from disttrace_viewer.companion.last_word import EndOrder, word
from disttrace_viewer.diagnosis.announced import settled
from disttrace_viewer.diagnosis.live import AGAIN_S, Picture, gave_up, open_waits, picture
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load.discover import named
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.trace.process import Process
from support.journals import MS, PEER_GONE, T0, Journal, S
from support.processes import ending, wait_until
from support.scenes import (
    alive,
    all_gone,
    findings,
    finds,
    hang_without,
    nobody_knows,
    only,
    ranks,
    steps,
    verdict,
)

LIMIT_S = 10.0


def now(folder: Path, age_s: int, **changes: Any) -> Picture:
    """The picture where rank 0 has not come to a collective in which rank 1 waits."""
    list(hang_without(folder, 2, 0, until_s=age_s))
    case, found = verdict(folder)
    given: dict[str, Any] = {"unknown": (), "asks": False, "looked_into": False, **changes}
    return picture(case, found, LIMIT_S, **given)


def test_before_the_limit_nothing_is_told(tmp_path: Path) -> None:
    """But when to look again."""
    found = now(tmp_path, 8)
    assert found.errors == []
    assert 0 < found.next_s < 4


@pytest.mark.parametrize("age_s", [12, 14])
def test_others_may_be_about_to_answer(tmp_path: Path, age_s: int) -> None:
    """So long beyond the limit nobody is blamed; then what is known is told."""
    found = now(tmp_path, age_s, unknown=(2,), asks=True)
    assert bool(found.errors) is (age_s == 14)
    assert found.next_s == (AGAIN_S if age_s == 12 else LIMIT_S)


@pytest.mark.parametrize(
    ("age_s", "moved_s", "told"), [(24, 22, False), (24, 2, True), (70, 68, True)]
)
def test_who_imports_has_more_time(tmp_path: Path, age_s: int, moved_s: int, *, told: bool) -> None:
    """The first functional collective imports half of torch; an import that stands still hangs."""
    for journal, _ in hang_without(tmp_path, 2, 0, until_s=age_s):
        stack = journal.stack(
            ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
            ("/src/train.py", 30, "main"),
        )
        journal.record(at=moved_s * S, h=0, k=stack)
    _, found = verdict(tmp_path)
    assert [one.kind for one in found] == ["missing_participant"] * told


def test_who_starts_is_told_in_the_call_of_the_program(tmp_path: Path) -> None:
    """Two are in ``init_process_group``, in the store and in the group; of rank 2 nobody knows."""
    for rank in range(2):
        journal = Journal(tmp_path, pid=4000 + rank, rank=rank, world_size=3)
        outer, meet, store = journal.join(100 * MS, 3)
        if journal.rank == 1:
            journal.end(store, MS)
            journal.end(meet, 2 * MS)
            journal.mesh(110 * MS, outer, 3, 1, "default_pg", "0/", "cpu/")
        journal.beat(70)
    case, found = verdict(tmp_path)
    keys: dict[str, Any] = {"asks": False, "looked_into": False}
    seen = picture(case, found, LIMIT_S, unknown=[2], **keys)
    (told,) = (one.summary for one in seen.errors)
    assert told.startswith("Ranks 0, 1 have been waiting in init_process_group at train.py:5")
    assert told.endswith("rank 2 may be missing there.")


@pytest.mark.parametrize(("error", "later"), [(True, False), (True, True), (False, False)])
def test_who_gave_up_does_not_go_on(tmp_path: Path, *, error: bool, later: bool) -> None:
    """A lost connection ends a wait as well; unless the program goes on in another group."""
    told: set[tuple[str, int]] = set()
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.fail(12 * S, "ValueError", "bad batch")
            continue
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.beat(12)
        told |= {w for w in open_waits(verdict(tmp_path)[0]) if w[1] == number}
        journal.end(number, 13 * S, **({"x": journal.string(PEER_GONE)} if error else {}))
        if later:
            journal.run(journal.collective(group), 14 * S, MS, q=4)
    case, _ = verdict(tmp_path)
    assert told
    assert not told & open_waits(case)
    assert gave_up(case, told) is (error and not later)


def waiting_in_a_store(folder: Path) -> Journal:
    """Ranks 0 and 2 ask for a key for 20 s; of rank 1, whose journal it is, nothing more came."""
    for journal, _ in steps(folder, 3):
        if journal.rank == 1:
            quiet = journal
            continue
        journal.begin(journal.store_call("get", 9), 200 * MS, k="never")
        journal.beat(20)
    return quiet


@pytest.mark.parametrize("look", [all_gone, nobody_knows])
@pytest.mark.parametrize("code", [-6, None])
def test_who_had_gone_while_others_lived_has_failed(
    tmp_path: Path, look: Look, code: int | None
) -> None:
    """Also where all are gone by now, the journals are read elsewhere, its parent took the code."""
    keys = {} if code is None else {"code": code}
    waiting_in_a_store(tmp_path).define("seen", t=4 * S, state="gone", others=2, **keys)
    found = finds(tmp_path, "process_failed", [1], certainty="certain", look=look)
    told = "was ended by SIGABRT, after all_reduce #2" if code else "ended without an exit record"
    assert f"ank 1 {told}" in found.summary


def test_crashes_after_the_same_call_are_one_finding(tmp_path: Path) -> None:
    """A library crashes on every rank that comes to it."""
    for journal, _ in steps(tmp_path, 3):
        if journal.rank:
            journal.define("seen", t=4 * S, state="gone", code=-11, others=1)
        else:
            journal.begin(journal.store_call("get", 9), 200 * MS, k="never")
            journal.beat(20)
    found = only(findings(tmp_path, look=all_gone))
    assert found.summary.startswith("Ranks 1, 2 were ended by SIGSEGV, after all_reduce #2")
    assert ranks(tmp_path, found.culprits) == [1, 2]
    assert (found.hint or "").startswith("Look for a crash in native code (run with PYTHONFAULT")


@pytest.mark.parametrize(("launcher_s", "blamed"), [(4, False), (30, True), (None, True)])
def test_who_was_killed_after_its_launcher_has_not_failed(
    tmp_path: Path, launcher_s: int | None, *, blamed: bool
) -> None:
    """`pkill -9 python` ends torchrun first and its ranks one by one: none of them is to blame."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    agent.define("worker", t=MS, pid=4000, event="started", rank=0)
    agent.beat(launcher_s or 40)
    if launcher_s is not None:
        agent.define("seen", t=launcher_s * S + MS, state="gone", code=-9, others=2)
    for rank in (0, 1):
        journal = Journal(tmp_path, pid=4000 + rank, rank=rank, parent=agent.process)
        if rank == 0:  # killed before it had used a group
            journal.beat(4)
            journal.define("seen", t=4 * S + 2 * MS, state="gone", code=-9, others=1)
        else:
            journal.beat(launcher_s or 40)
    assert [f.kind for f in findings(tmp_path, look=all_gone)] == ["process_failed"] * blamed


@pytest.mark.parametrize(("lived_s", "told"), [(40, True), (5, False)])
def test_ranks_that_outlive_a_killed_launcher(tmp_path: Path, lived_s: int, *, told: bool) -> None:
    """They hold their ports and devices, and the job may end well all the same."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    agent.beat(4)
    agent.define("seen", t=4 * S + MS, state="gone", code=-9, others=2)
    for journal, _ in alive(steps(tmp_path, 2, parent=agent.process), lived_s):
        journal.leave(lived_s * S)
    found = findings(tmp_path, look=all_gone)
    assert [(f.severity, f.culprits) for f in found] == [("note", ())] * told
    summary = "Agent 3999 was ended by SIGKILL, and ranks 0, 1 lived on."
    assert [one.summary for one in found] == [summary] * told


@pytest.mark.parametrize("look", [all_gone, nobody_knows])
def test_who_was_stopped_has_not_failed(tmp_path: Path, look: Look) -> None:
    """Whoever ended the job ended it too, later."""
    quiet = waiting_in_a_store(tmp_path)
    quiet.define("seen", t=4 * S, state="stopped", others=2)
    quiet.define("seen", t=19 * S, state="gone", code=-9, others=1)
    found = finds(tmp_path, "store_key_missing", [], look=look)
    assert "rank 1 is stopped (SIGSTOP, or a debugger)" in found.summary


@pytest.mark.parametrize("look", [all_gone, nobody_knows])
def test_who_was_stopped_lived(tmp_path: Path, look: Look) -> None:
    """So it is certain that it is the one that did not come."""
    for journal, _ in hang_without(tmp_path, 2, 1, beats=False):
        journal.define("seen", t=4 * S, state="stopped", others=1)
    finds(tmp_path, "missing_participant", certainty="certain", look=look, says="rank 1 is stopped")


def test_a_sign_of_life_after_it_voids_it(tmp_path: Path) -> None:
    """It was stopped and went on; that somebody wrote about it is no sign of its own."""
    for journal, _ in hang_without(tmp_path, 2, 1):
        journal.define("seen", t=4 * S, state="stopped", others=1)
    assert "stopped" not in only(findings(tmp_path)).summary


def processes(folder: Path) -> Sequence[Process]:
    found = named(str(path) for path in folder.iterdir())
    return trace_of(of_journals(found, window=WINDOW))[0].processes


def test_what_the_kernel_says_is_written_once(tmp_path: Path) -> None:
    """Of one stopped (twice), of a zombie; not of the living; behind half a line of a dead one."""
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    children = [subprocess.Popen(program) for _ in range(2)]
    one, other = children
    with ending(*children):
        for rank, child in enumerate(children):
            Journal(
                tmp_path, rank=rank, pid=child.pid, boot_id=proc.boot_id() or "",
                t0=time.perf_counter_ns(), keys={**proc.own(), "ticks": proc.stat(child.pid).ticks},
            )  # fmt: skip
        journal = next(tmp_path.glob(f"*-{other.pid}-*.defs.jsonl"))
        with journal.open("a") as file:
            file.write('{"def":"no')

        def noted() -> list[tuple[int | None, str, int | None, int]]:
            for _ in range(2):
                activity.note(processes(tmp_path))
            found = processes(tmp_path)
            return [(p.rank, s.state, s.code, s.others) for p in found for s in p.sightings]

        assert noted() == []
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: proc.stat(other.pid).state == "T")
        assert noted() == [(1, "stopped", None, 1)]
        other.kill()
        wait_until(lambda: proc.stat(other.pid).has_ended)
        assert noted() == [(1, "stopped", None, 1), (1, "gone", -9, 1)]
        assert os.path.exists(journal)
    assert one.returncode == -9


def test_what_the_last_word_rests_on_is_written_down(tmp_path: Path) -> None:
    """Its verdict names the signal of a rank whose parent has not taken it yet."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.kill()
    wait_until(lambda: proc.stat(child.pid).has_ended)
    try:
        keys = {**proc.own(), "ticks": proc.stat(child.pid).ticks}
        for rank in range(2):
            journal = Journal(
                tmp_path, rank=rank, world_size=2, pid=child.pid if rank else os.getpid(),
                boot_id=proc.boot_id() or "", keys=keys if rank else {},
            )  # fmt: skip
            group = journal.world()
            journal.run(journal.collective(group), t=100 * MS, d=MS, q=1)
            if rank == 0:
                call = journal.collective(group)
                journal.break_off(call, 200 * MS, 10 * MS, 220 * MS, q=2)
                order = EndOrder(
                    directory=str(tmp_path), root=str(tmp_path), job=journal.job,
                    in_names=journal.job, stall_s=10, process=journal.process, failed=True,
                    alone=True,
                )  # fmt: skip
        said = word(order)
    finally:
        child.wait()
    summary = "Rank 1 was ended by SIGKILL, after all_reduce #1 of the default group."
    assert said is not None
    assert said["objects"][0]["summary"] == summary
    assert only(findings(tmp_path)).summary == summary


def test_an_abort_after_a_step_whose_buckets_nobody_saw_complete_is_its_own(tmp_path: Path) -> None:
    """Rank 1 went on after what its reducer issued; nobody has noted yet that this is over."""
    for journal, group in steps(tmp_path, 2):
        buffers = journal.collective(group, "broadcast", origin="c++", asynchronous=True, root=0)
        journal.record(i=journal.begin(buffers, 200 * MS, q=3), d=MS // 10)
        call = journal.collective(group)
        journal.run(call, 210 * MS, MS, q=4)
        if journal.rank == 1:
            journal.define("seen", t=S, state="gone", code=-6, others=1)
        else:
            journal.begin(call, 220 * MS, q=5)
            journal.beat(20)
    found = finds(tmp_path, "process_failed", [1], look=all_gone)
    assert found.summary.startswith("Rank 1 was ended by SIGABRT")


@pytest.mark.parametrize(("apart", "told"), [(600 * MS, []), (3 * S, ["process_failed"])])
def test_a_job_killed_whole_blames_nobody(tmp_path: Path, apart: int, told: list[str]) -> None:
    """Whoever ends it does so one by one: the first are seen to be gone while others still live."""
    for journal, _ in alive(steps(tmp_path, 4), 4):
        at = 5 * S + apart * (journal.rank or 0)
        journal.define("seen", t=at, state="gone", code=-9, others=3 - (journal.rank or 0))
    assert [f.kind for f in findings(tmp_path, look=all_gone)][:1] == told


def test_who_acted_after_it_was_read_is_not_missing(tmp_path: Path) -> None:
    """Rank 1's journal was read first: before it sent what rank 0's error speaks of."""
    now = {"offset_ns": time.time_ns() - T0 - 20 * S}
    (first, group), (second, other) = steps(tmp_path, 2, **now)
    first.raises(first.message(group, "recv", 1), 19 * S, 100 * MS, PEER_GONE, q=1)
    second.record(hb=18 * S)
    readings: list[tuple[Case, tuple[RuleFinding, ...]]] = []

    def read() -> tuple[Case, tuple[RuleFinding, ...]]:
        if len(readings) == 1:
            second.begin(second.message(other, "send", 0, shapes=[[5]], bytes=20), 18 * S, q=1)
        readings.append(verdict(tmp_path, look=all_gone))
        return readings[-1]

    _, found = settled(read, lambda said: [said[0].evidence])
    assert len(readings) == 2
    assert ranks(tmp_path, only(readings[0][1]).culprits) == [1]
    assert only(found).kind == "size_mismatch"


def test_what_broke_long_ago_is_read_once(tmp_path: Path) -> None:
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.raises(journal.collective(group), 2 * S, 100 * MS, PEER_GONE, q=3)
    times = []

    def read() -> tuple[Case, tuple[RuleFinding, ...]]:
        times.append(1)
        return verdict(tmp_path, look=all_gone)

    settled(read, lambda said: [said[0].evidence])
    assert times == [1]
