"""How processes end, who failed first, and what is only an echo."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.trace.operation import is_connection_error
from disttrace_viewer.trace.process import Process
from support.journals import MS, PEER_GONE, Journal, S
from support.scenes import alive, all_gone, findings, finds, hang_without, only, ranks, retry, steps


def test_the_first_failure_is_the_finding_and_echoes_follow(tmp_path: Path) -> None:
    """Rank 1 raises; the others report a closed connection, one of them hangs."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group)
        if journal.rank == 1:
            journal.fail(210 * MS, "ValueError", "the loss is not a number")
        elif journal.rank == 0:
            journal.break_off(call, 200 * MS, 30 * MS, 240 * MS, q=3)
        else:
            journal.begin(call, 200 * MS, q=3)
            journal.beat(20)
    found = finds(tmp_path, "process_failed", [1], certainty="certain", waiting=[0, 2])
    told = "Rank 1 failed first: ValueError: the loss is not a number (train.py:30)."
    assert found.summary == told
    assert any(text.startswith("Rank 0 failed with RuntimeError") for text in found.consequences)


def test_one_error_with_numbers_of_its_own_on_each_rank_is_told_once(tmp_path: Path) -> None:
    """Each names its batch; an exit code is no such number."""
    for rank, (journal, _) in enumerate(steps(tmp_path, 5)):
        if rank < 3:
            journal.fail(210 * MS + rank, "ValueError", f"bad batch {7 * rank}")
        else:
            journal.define("exit", t=220 * MS, how="sys.exit", code=rank)
    report = diagnose(str(tmp_path))
    found = report.findings[0]
    assert found.summary.startswith("Ranks 0-2 failed first: ValueError: bad batch 0 (")
    assert not any("bad batch" in text for text in found.consequences)
    placed = str(report).partition("Where the ranks are:")[2]
    assert placed.count("ValueError") == 1
    assert "failed   ValueError: bad batch 0 (numbers differ) at train.py:30 in step\n" in placed
    assert placed.count("exit code 3\n") == placed.count("exit code 4\n") == 1


@pytest.mark.parametrize("how", ["killed", "timed out", "destroyed"])
def test_who_left_no_word_and_whose_connection_closed_first(tmp_path: Path, how: str) -> None:
    """All others have ended since they lost rank 1, or gave up by themselves, or it had left."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            if how == "destroyed":
                journal.run(journal.call("destroy_process_group", kind="composed"), 150 * MS, MS)
            continue
        text = PEER_GONE if how != "timed out" else "RuntimeError: Timed out waiting 30000ms"
        journal.lose(group, 200 * MS, 90 * MS, text, fails=300 * MS)
    found = finds(tmp_path, "process_failed" if how == "killed" else "missing_participant", [1])
    if how == "killed":
        assert found.certainty == "certain"
        assert "after all_reduce #2 of the default group" in found.summary


def test_what_closes_while_another_one_is_killed_proves_no_end(tmp_path: Path) -> None:
    """Rank 1 stands still; all are killed, and rank 2 may have lost its connection to rank 0."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            continue
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.beat(20)
        if journal.rank == 2:
            journal.end(number, 20 * S, x=journal.string(PEER_GONE))
            journal.fail(20 * S + 300 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])
    finds(tmp_path, "missing_participant", [1], certainty="likely", look=all_gone)


@pytest.mark.parametrize(
    ("backend", "kind"), [("gloo", "missing_participant"), ("nccl", "process_failed")]
)
def test_a_silent_end_nobody_noticed_is_likely(tmp_path: Path, backend: str, kind: str) -> None:
    """On gloo they would have lost its connection: it was frozen. NCCL tells nothing."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group, backend=backend), 200 * MS, q=3)
            journal.beat(20)
    finds(tmp_path, kind, [1], certainty="likely")


@pytest.mark.parametrize("lives", [True, False])
def test_beats_missed_just_before_the_end_make_nobody_sure(tmp_path: Path, lives: bool) -> None:
    """Rank 1 was killed five seconds before all others: it may have stood still, or not."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group, backend="nccl"), 200 * MS, q=3)
        journal.beat(20 if journal.rank == 0 else 15)
    seen = Observation(True if lives else None)
    certainty = "certain" if lives else "likely"
    finds(tmp_path, "missing_participant", [1], certainty=certainty, look=lambda _: seen)


def test_a_hanging_job_that_was_aborted_keeps_its_verdict(tmp_path: Path) -> None:
    """Our own hand ended it, with a code of ours: nobody failed."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.beat(20)
        journal.define("exit", t=20 * S, how="aborted", code=75)
    finds(tmp_path, "missing_participant", [1], look=all_gone)


@pytest.mark.parametrize(("after_s", "certainty"), [(2, "likely"), (8, "certain")])
def test_a_job_killed_soon_after_it_hung(tmp_path: Path, after_s: int, certainty: str) -> None:
    """So soon it might still have come; its last call is shown, and that it is outside since."""
    for journal, group in alive(steps(tmp_path, 3), 4 + after_s):
        if journal.rank != 2:
            journal.begin(journal.collective(group), 4 * S, q=3)
    found = finds(tmp_path, "missing_participant", [2], certainty=certainty, look=all_gone)
    assert (bool(found.settles), found.consequences) == (certainty == "likely", ())
    assert "rank 2 is not in any collective since all_reduce #2" in found.summary


def test_a_wait_no_longer_than_those_before_it_is_not_certain(tmp_path: Path) -> None:
    """Rank 1 computes for seven seconds in every step; in the third one all are killed."""
    for journal, group in alive(steps(tmp_path, 2, count=0), 22):
        call = journal.collective(group)
        for step in (1, 2):
            if journal.rank == 0:
                journal.run(call, t=(8 * step - 7) * S, d=7 * S, q=step)
            else:
                journal.run(call, t=8 * step * S, d=MS, q=step)
        if journal.rank == 0:
            journal.begin(call, 17 * S, q=3)
    finds(tmp_path, "missing_participant", certainty="likely", look=all_gone)


def test_a_healthy_job_that_was_killed_has_no_finding(tmp_path: Path) -> None:
    """Somebody is always in something for some milliseconds."""
    for journal, group in alive(steps(tmp_path, 3), 4):
        if journal.rank != 2:
            journal.begin(journal.collective(group), 4 * S + 10 * MS, q=3)
    assert findings(tmp_path, look=all_gone) == []


def test_os_exit_with_a_code_is_a_failure(tmp_path: Path) -> None:
    """It is the only way of leaving that says its code itself."""
    for journal, _ in hang_without(tmp_path, 2, 1, beats=False):
        journal.define("exit", t=210 * MS, how="os._exit", code=4)
    found = finds(tmp_path, "process_failed")
    assert found.summary.startswith("Rank 1 left by os._exit(4), after all_reduce #2")


def test_a_rank_that_is_no_member_explains_the_exception(tmp_path: Path) -> None:
    """The group rank was given where the global rank is wanted."""
    text = "Global rank 0 is not part of group <torch.distributed.ProcessGroup object at 0x7f>"
    for journal, group in steps(tmp_path, 4):
        if (journal.rank or 0) >= 2:
            sub = journal.group(name="1", ranks=[2, 3], size=2, rank=0, default=False)
            journal.run(journal.collective(sub, "broadcast", root=0), t=200 * MS, d=MS, q=1)
            journal.fail(210 * MS, "ValueError", text, line=25)
        else:
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
            journal.beat(20)
    found = finds(tmp_path, "not_in_group", [2, 3])
    assert found.summary == "Ranks 2, 3 name rank 0 (train.py:25), no member of [2, 3]."
    assert ranks(tmp_path, found.waiting) == [0, 1]


@pytest.mark.parametrize("part", [None, [1, 2]])
def test_a_message_to_oneself_is_told_as_that(tmp_path: Path, part: list[int] | None) -> None:
    """Where there are other than global ranks, 1 may mean rank 2 of [1, 2]."""
    text = (
        "Invalid destination rank: destination rank should not be the same as the rank of the"
        " current process."
    )
    for journal, group in steps(tmp_path, 3):
        rank = journal.rank or 0
        if part and rank in part:
            journal.group(name="1", ranks=part, size=2, rank=part.index(rank), default=False)
        if rank == 1:
            journal.fail(210 * MS, "ValueError", text, line=25)
        else:
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
            journal.beat(20)
    found = finds(tmp_path, "not_in_group", [1])
    assert (found.summary, found.certainty) == (
        "Rank 1 sends to itself (train.py:25).",
        "likely" if part else "certain",
    )
    assert ("get_global_rank" in (found.hint or "")) is bool(part)
    told = [text for text in found.consequences if "current process" in text]
    assert told == [f"Rank 1 failed with ValueError: {text}"]


def test_work_that_was_dropped_unwaited_is_a_note(tmp_path: Path) -> None:
    """A note makes nobody unhealthy; sends are left out."""
    for journal, group in steps(tmp_path, 2):
        rank = journal.rank or 0
        for call in (
            journal.collective(group, asynchronous=True),
            journal.message(group, "recv" if rank else "send", 1 - rank),
        ):
            number = journal.issue(call, 200 * MS, q=3 if call == 2 else 1, d=MS)
            journal.record(l=number, d=2 * MS)
        journal.leave(300 * MS)
    found = findings(tmp_path)
    assert {f.severity for f in found} == {"note"}
    told = sorted((f.kind, f.op) for f in found)
    assert told == [("unwaited_work", "all_reduce"), ("unwaited_work", "recv")]


def test_a_connection_to_a_worker_of_the_loader_is_none_to_a_rank(tmp_path: Path) -> None:
    """The worker was killed; the text is that of a lost rank."""
    for journal, _ in hang_without(tmp_path, 2, 1, beats=False):
        stack = journal.stack(
            ("/venv/torch/multiprocessing/reductions.py", 538, "rebuild_storage_fd"),
            ("train.py", 24, "main"),
        )
        journal.define(
            "failure", t=S, type="ConnectionResetError", stack=stack, h=0,
            text="[Errno 104] Connection reset by peer",
        )  # fmt: skip
        journal.define("exit", t=S + MS, how="exception", code=1)
    finds(tmp_path, "process_failed", [1], hints="a worker of the rank's DataLoader")


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        ("RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        ("RuntimeError: Timed out waiting 3000ms for recv operation to complete", True),
        ("DistStoreError: wait timeout after 3000ms, keys: /ready/1", True),
        ("RuntimeError: Rank 2 failed to pass monitoredBarrier in 100 ms", True),
        ("ValueError: the loss is not a number", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("KeyError: 'step'", False),
        ("RuntimeError: TimeoutError: On WorkerInfo(id=0, name=ps): TimeoutError: busy", False),
    ],
)
def test_what_is_an_echo(text: str, echo: bool) -> None:
    """An error that says only that somebody went away, or did not come."""
    assert is_connection_error(text) is echo


def test_a_failure_explains_nothing_in_the_next_attempt(tmp_path: Path) -> None:
    """All was started anew since; what hangs now is a finding of its own."""
    retry(tmp_path)
    found = findings(tmp_path)
    assert [one.kind for one in found] == ["store_key_missing", "process_failed"]


def leave_with(journal: Journal, t: int, code: int, line: int) -> None:
    """An end by ``sys.exit`` that nobody caught."""
    journal.define("exit", t=t, how="exit", code=code, stack=("train.py", line, "main"))


def test_sys_exit_with_a_code_is_a_failure(tmp_path: Path) -> None:
    """With the line that asked for it; two ranks that leave there are one finding."""
    for journal, _ in hang_without(tmp_path, 3, 1, 2, beats=False):
        leave_with(journal, 210 * MS, code=3, line=55)
    found = finds(tmp_path, "process_failed", [1, 2], certainty="certain")
    told = "Ranks 1, 2 ended with exit code 3 at train.py:55 in main, after all_reduce #2"
    assert found.summary.startswith(told)
    assert [one.line for one in found.locations] == [55, 55]
    # Whoever leaves so early is missing, and did not fail; the line is known.
    for journal, _ in hang_without(tmp_path / "zero", 2, 1, beats=False):
        leave_with(journal, 210 * MS, code=0, line=55)
    found = finds(tmp_path / "zero", "missing_participant", [1])
    assert found.locations[0].line == 55
    assert found.summary.endswith("rank 1 has ended at train.py:55 in main.")


def test_an_agent_knows_the_code_that_sys_exit_hides(tmp_path: Path) -> None:
    """It ended the other worker for it, which is no failure of that one; its own end follows."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    jobs = steps(tmp_path, 2, parent=agent.process)
    for journal, _ in jobs:
        failed = journal.rank == 1
        end = {"code": 3} if failed else {"signal": "SIGTERM"}
        event = {"event": "failed" if failed else "killed", **end}
        agent.define("worker", t=(400 if failed else 500) * MS, pid=journal.pid, **event)
    jobs[1][0].leave(210 * MS)
    agent.fail(600 * MS, "ChildFailedError", "")
    found = finds(tmp_path, "process_failed", [1])
    assert found.summary.startswith("Rank 1 ended with exit code 3, after all_reduce #2")
    assert found.consequences == ("Agent 3999 failed with ChildFailedError.",)


@pytest.mark.parametrize("lost", [False, True])
def test_whom_a_launcher_ended_alone_was_where_it_began(tmp_path: Path, lost: bool) -> None:
    """The others break then; a rank without a journal may have failed before."""
    parent = Journal(tmp_path, pid=3999, role="main")
    for journal, group in steps(tmp_path, 3, parent=parent.process):
        if journal.rank == 1:
            journal.stand(202 * MS, "/src/train.py", 40, "load")
            parent.define("worker", t=300 * MS, pid=journal.pid, event="killed", signal="SIGTERM")
            continue
        journal.lose(group, 200 * MS, 120 * MS)
        journal.fail(330 * MS, "RuntimeError", PEER_GONE)
    if lost:
        for path in tmp_path.glob("*-4002-*"):
            path.unlink()
    found = findings(tmp_path)
    told = [(f.kind, f.certainty, ranks(tmp_path, f.culprits)) for f in found]
    if lost:
        assert ("process_failed", [1]) not in [(kind, who) for kind, _, who in told]
    else:
        assert told == [("process_failed", "likely", [1])]
        assert "was ended by its launcher" in found[0].summary


def test_whom_a_launcher_ended_alone_since_another_aborted_did_not_fail(tmp_path: Path) -> None:
    """Rank 1 was aborted over what rank 0 sent it; the launcher ended rank 2, the others broke."""
    parent = Journal(tmp_path, pid=3999, role="main")
    for journal, group in steps(tmp_path, 4, parent=parent.process):
        rank = journal.rank or 0
        if rank < 2:
            keys = {"shapes": [[4 + 4 * rank]], "bytes": 16 + 16 * rank}
            message = journal.message(group, "recv" if rank else "send", 1 - rank, **keys)
            if rank:
                journal.begin(message, 200 * MS, q=1)
                end = {"event": "failed", "signal": "SIGABRT"}
                parent.define("worker", t=300 * MS, pid=journal.pid, **end)
                continue
            journal.run(message, t=200 * MS, d=MS, q=1)
        number = journal.begin(journal.collective(group), 202 * MS, q=3)
        if rank == 2:
            parent.define("worker", t=330 * MS, pid=journal.pid, event="killed", signal="SIGTERM")
        else:
            journal.end(number, 120 * MS, x=journal.string(PEER_GONE))
            journal.fail(330 * MS, "RuntimeError", PEER_GONE)
    parent.fail(600 * MS, "ProcessExitedException", "process 1 terminated with signal SIGABRT")
    finds(tmp_path, "size_mismatch", [])


def test_whom_a_launcher_is_about_to_end_did_not_fail(tmp_path: Path) -> None:
    """It sends signals to all others at once, and notes how they ended when the last one has."""
    parent = Journal(tmp_path, pid=3999, role="main")
    jobs = steps(tmp_path, 3, parent=parent.process)
    parent.define("worker", t=300 * MS, pid=jobs[0][0].pid, event="failed", signal="SIGTERM")
    for journal, group in jobs[1:]:
        number = journal.begin(journal.collective(group, "gather"), 200 * MS, q=3)
        if journal.rank == 1:
            journal.end(number, 20 * MS, x=journal.string(PEER_GONE))

    def seen(process: Process) -> Observation:
        if process.role == "main" or process.rank == 1:
            return Observation(alive=True)
        return Observation(alive=False, code=-signal.SIGTERM)

    finds(tmp_path, "process_failed", [0], look=seen)


def forked(parent: Journal) -> Journal:
    """A child with its parent's variables."""
    return Journal(
        parent.folder, pid=5001, role="child", parent=parent.process, rank=parent.rank,
        world_size=parent.world_size,
    )  # fmt: skip


def test_a_forked_child_in_an_inherited_group_is_told_as_that(tmp_path: Path) -> None:
    """Neither its parent is there for it, nor is anybody missing; the others get on."""
    for journal, group in steps(tmp_path, 2, count=0):
        call = journal.collective(group)
        for number in range(1, 20):
            journal.run(call, t=number * 900 * MS, d=MS, q=number)
        journal.beat(20)
        if journal.rank == 1:
            child = forked(journal)
            child.begin(child.collective(child.world()), 2_000 * MS, q=3)
            child.beat(20)
    found = finds(tmp_path, "not_in_group", severity="error", certainty="certain", waiting=[])
    told = "Process 5001, a forked child of rank 1, has been in all_reduce"
    assert found.summary.startswith(told)


@pytest.mark.parametrize("parent", [0, 1], ids=["the server of the store", "a client"])
def test_the_calls_of_a_copy_are_not_its_parents(tmp_path: Path, parent: int) -> None:
    """The parent stands in a loader, and its child has called as often as the others."""
    for journal, group in alive(steps(tmp_path, 2, count=2)):
        if journal.rank != parent:
            journal.begin(journal.collective(group), 2_000 * MS, q=3)
        else:
            child = forked(journal)
            child.begin(child.collective(child.world()), 2_000 * MS, q=3)
            child.beat(20)
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"missing_participant", "not_in_group"}
    missing = next(f for f in found if f.kind == "missing_participant")
    assert ranks(tmp_path, missing.culprits) == [parent]


def destroy(journal: Journal, t: int) -> int:
    call = journal.call("destroy_process_group", kind="composed", stack=("train.py", 40, "main"))
    return journal.begin(call, t)


@pytest.mark.parametrize("since", [1, 12])
def test_it_waits_for_the_oldest_work_from_its_own_begin_on(tmp_path: Path, since: int) -> None:
    """Rank 0 issued all_reduce #3, and waits for it only in the destruction."""
    for journal, group in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            journal.issue(journal.collective(group, asynchronous=True), 200 * MS, q=3, d=MS)
            destroy(journal, since * S)
        else:
            journal.stand(3 * S, "/src/loader.py", 9, "load")
    found = findings(tmp_path)
    if since > 10:
        assert found == []
        return
    assert only(found).kind == "missing_participant"
    assert ranks(tmp_path, only(found).culprits) == [1]
    assert "rank 0 has been waiting at train.py:10 for 19.0 s" in only(found).summary


def test_without_a_record_of_its_work_nobody_is_blamed(tmp_path: Path) -> None:
    """The program dropped the Work, so nobody knows of its end."""
    for journal, _ in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            destroy(journal, 1 * S)
        else:
            journal.stand(3 * S, "/src/loader.py", 9, "load")
    finds(tmp_path, "no_progress", [], says="in destroy_process_group at train.py:40 for 19.0 s")


@pytest.mark.parametrize(("held_by", "told_s"), [("nobody", 70), ("a graph", 20)])
def test_who_destroy_their_groups_have_a_minute(tmp_path: Path, held_by: str, told_s: int) -> None:
    """NCCL takes seconds for some dozen communicators; a graph that holds any keeps it for ever."""
    for until in (20, 70):
        folder = tmp_path / str(until)
        for journal, group in alive(steps(folder, 2), until):
            if held_by == "a graph":
                call = journal.collective(group, op="graph_replay(all_reduce)", backend="graph")
                journal.run(call, 200 * MS, MS, q=1)
            destroy(journal, 1 * S)
        found = findings(folder)
        assert [f.kind for f in found] == ["no_progress"] * (until >= told_s)
        assert all(("reset()" in (f.hint or "")) == (held_by == "a graph") for f in found)


def test_a_device_says_itself_what_it_is_at(tmp_path: Path) -> None:
    """One finding, and not another one for the destruction."""
    for journal, group in alive(steps(tmp_path, 2)):
        call = journal.collective(group, backend="nccl", device="cuda")
        if journal.rank == 0:
            journal.issue(call, 200 * MS, q=1, d=MS)
            destroy(journal, 1 * S)
        else:
            journal.stand(3 * S, "/src/loader.py", 9, "load")
    assert only(findings(tmp_path)).kind == "missing_participant"


@pytest.mark.parametrize(("lived_s", "kind"), [(0, "process_failed"), (5, "no_progress")])
def test_an_abort_just_after_enqueueing_is_its_own(tmp_path: Path, lived_s: int, kind: str) -> None:
    """A backend of devices ends an innocent process too, but over what has been late for long."""
    for journal, group in steps(tmp_path, 3, count=0):
        call = journal.collective(group, backend="nccl", device="cuda")
        for number in (1, 2):
            journal.issue(call, (199 + number) * MS, q=number)
        journal.beat(lived_s if journal.rank == 1 else 20)
    found = findings(tmp_path, look=lambda p: Observation(p.rank != 1, -6 if p.rank == 1 else None))
    assert only(found).kind == kind


@pytest.mark.parametrize("first_is_over", [True, False])
def test_who_ends_before_its_device_is_missing_there(tmp_path: Path, first_is_over: bool) -> None:
    """It issued the same as the others and waited for none; the network may be at fault."""
    for journal, group in steps(tmp_path, 3, count=0):
        call = journal.collective(group, backend="nccl", device="cuda")
        for number in (1, 2):
            work = journal.issue(call, (199 + number) * MS, q=number)
            if number == 1 and (journal.rank != 2 or first_is_over):
                journal.record(c=work, d=MS)
        if journal.rank == 2:
            journal.leave(210 * MS)
        else:
            journal.beat(20)
    found = finds(tmp_path, "missing_participant", [2], certainty="likely")
    assert found.summary.startswith(
        "Rank 2 ended before all_reduce #2 of the default group was over on its device: ranks 0, 1"
    )
