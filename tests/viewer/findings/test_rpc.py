"""Remote calls that are not answered: who waits for whom, and where that one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.findings.finding import Finding
from support.journals import MS, Journal, workers
from support.scenes import all_gone, beat, fail, findings, mesh, only, ranks, stand, store_call

S = 1000 * MS


def job(folder: Path, world_size: int = 2, threads: int | None = None) -> list[Journal]:
    """Workers that have come through ``init_rpc``; older journals tell of no threads."""
    told = {} if threads is None else {"threads": threads}
    journals = workers(folder, world_size)
    for journal in journals:
        rank = journal.rank or 0
        made = composed(journal, "init_rpc", 5, name=f"worker{rank}", rank=rank, **told)
        journal.run(made, t=100 * MS, d=50 * MS)
    return journals


def composed(journal: Journal, op: str, line: int | None, **args: object) -> int:
    """A call of an operation of RPC at a line; without a line by C++."""
    stack = {} if line is None else {"stack": journal.stack(("calls.py", line, "main"))}
    return journal.call(op, kind="composed", origin="python", args=args, **stack)


def shut_down(journal: Journal, t: int) -> None:
    """Wait for everybody at the end."""
    outer = journal.begin(composed(journal, "rpc.shutdown", 30, graceful=True), t)
    journal.begin(composed(journal, "rpc.all_gather", 30), t + 1, p=outer)


def serve(journal: Journal, t: int, func: str, line: int) -> int:
    """Run a function for another worker, in a thread that stands at a line."""
    journal.define("thread", n=1, name="rpc")
    stack = journal.stack(("calls.py", line, func))
    number = journal.begin(composed(journal, "rpc.run", None, func=func), t, h=1)
    journal.record(at=t + 2 * S, h=1, k=stack)
    return number


def test_a_call_that_hangs_in_its_function_is_told_there(tmp_path: Path) -> None:
    """The callee's main thread is in the shutdown, which follows from it."""
    caller, callee = job(tmp_path)
    caller.begin(composed(caller, "rpc_sync", 12, to="worker1", func="load"), 200 * MS)
    serve(callee, 210 * MS, "load", 7)
    shut_down(callee, 220 * MS)
    for journal in (caller, callee):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("rpc_unanswered", "likely")
    assert ranks(tmp_path, found.culprits) == [1]
    assert found.summary.startswith(
        "Rank 0 has been waiting in rpc_sync of load to worker1 at calls"
    )
    assert found.summary.endswith("worker1 (rank 1) is inside load at calls.py:7 in load.")
    assert found.consequences == ("Rank 1 waits in rpc.shutdown (calls.py:30).",)


def test_a_worker_that_never_shuts_down_is_missing(tmp_path: Path) -> None:
    """All others have come to the end."""
    one, two, three = job(tmp_path, 3)
    for journal in (one, three):
        shut_down(journal, 300 * MS)
    for journal in (one, two, three):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [1])
    assert ranks(tmp_path, found.waiting) == [0, 2]


@pytest.mark.parametrize(
    ("file", "culprits"), [("/venv/torch/futures/__init__.py", [2]), ("/job/loader.py", [])]
)
def test_who_has_not_come_may_wait_for_what_is_run(
    tmp_path: Path, file: str, culprits: list[int]
) -> None:
    """Rank 0 made calls and waits for several futures at once, of which no record tells; by its
    stack it is known to wait for futures, or else nobody is named."""
    journals = job(tmp_path, 3)
    for journal in journals[1:]:
        shut_down(journal, 200 * MS)
    for to in ("worker1", "worker2"):
        journals[0].run(composed(journals[0], "rpc_async", 9, to=to, func="step"), t=S, d=MS)
    serve(journals[2], S + MS, "step", 7)
    stack = journals[0].stack((file, 334, "wait_all"), ("calls.py", 9, "main"))
    journals[0].record(at=3 * S, k=stack)
    for journal in journals:
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.severity) == ("rpc_unanswered", "error")
    assert ranks(tmp_path, found.culprits) == culprits
    assert "rank 0 never came" in found.summary
    assert found.summary.endswith(
        "rank 2 is inside step at calls.py:7 in step, and rank 0 may wait for that."
    )


def test_who_has_not_come_since_it_waits_itself_is_not_named(tmp_path: Path) -> None:
    """Rank 1 left a collective out and waits for the others at the end; they wait for rank 1."""
    journals = job(tmp_path, 3)
    for journal in journals:
        group = journal.world()
        if journal.rank == 1:
            shut_down(journal, 300 * MS)
        else:
            journal.begin(journal.collective(group), 300 * MS, q=1)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty, found.culprits) == ("deadlock", "likely", ())
    assert "is in rpc.all_gather inside rpc.shutdown (calls.py:30) and waits for" in found.summary
    assert "Rank 1 went on to rpc.all_gather (calls.py:30) without all_reduce #1" in str(found.hint)


@pytest.mark.parametrize("kind", ["recv", "all_reduce"])
def test_who_keeps_those_from_the_end_is_named(tmp_path: Path, kind: str) -> None:
    """Rank 0 waits at the end for rank 1, and that one for rank 2: what comes first is told."""
    journals = job(tmp_path, 3)
    groups = [journal.world() for journal in journals]
    shut_down(journals[0], 300 * MS)
    own = [
        journal.group(name="own", ranks=[1, 2], rank=n, size=2, default=False)
        for n, journal in enumerate(journals[1:])
    ]
    if kind == "recv":
        waits = journals[1].message(groups[1], "recv", peer=2)
    else:
        waits = journals[1].collective(own[0])
    journals[1].begin(waits, 300 * MS, q=1)
    stand(journals[2], 2 * S, "loader.py", 7, "load")
    for journal in journals:
        beat(journal, 20)
    found = only(findings(tmp_path))
    told = "unmatched_recv" if kind == "recv" else "missing_participant"
    assert (found.kind, ranks(tmp_path, found.culprits)) == (told, [2])
    assert len(found.consequences) == 1


def test_who_asks_for_a_lock_meanwhile_is_not_blamed(tmp_path: Path) -> None:
    """Rank 0 had the lock before, and cannot get it again; rank 1 waits for it, rank 2 at the end
    for both.
    """
    journals = job(tmp_path, 3)
    for journal in journals:
        group = journal.world()
        if journal.rank == 2:
            shut_down(journal, 300 * MS)
        else:
            lock = store_call(journal, "compare_set", 40)
            if journal.rank == 0:
                journal.run(lock, 100 * MS, MS, k="lock")
            call = journal.message(
                group, "send" if journal.rank == 0 else "recv", int(journal.rank == 0)
            )
            journal.run(call, 300 * MS, MS, q=1)
            if journal.rank == 0:
                for n in range(20, 20 * 20):
                    journal.run(lock, n * S // 20, MS, k="lock")
            else:
                journal.begin(call, 400 * MS, q=2)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("unmatched_recv", ())
    assert "asks again and again (store.compare_set of '" in found.summary
    assert len(found.consequences) == 1


def test_who_became_another_program_answers_no_more(tmp_path: Path) -> None:
    """It has no threads that could run anything, so none are advised to be looked at."""
    caller, callee = job(tmp_path)
    callee.define("exit", t=300 * MS, how="exec")
    caller.begin(composed(caller, "rpc_sync", 12, to="worker1", func="load"), 400 * MS)
    beat(caller, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [1])
    assert found.summary.endswith("worker1 (rank 1) became another program (exec).")
    assert found.hint == "See why that worker is gone while others still call it."


def test_a_call_that_was_not_begun_is_told(tmp_path: Path) -> None:
    """By its id; nothing runs there."""
    caller, callee = job(tmp_path)
    caller.begin(composed(caller, "rpc_sync", 12, to=1, func="load"), 200 * MS)
    for journal in (caller, callee):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert found.summary.endswith(
        "1 (rank 1) has not begun it, or has answered with a future that is not set yet."
    )


def call_back(journal: Journal, t: int, func: str, line: int, to: str, asks: str) -> None:
    """Run a function for another worker that calls one and waits."""
    journal.define("thread", n=1, name="rpc")
    outer = journal.begin(composed(journal, "rpc.run", None, func=func), t, h=1)
    call = composed(journal, "rpc_sync", line, to=to, func=asks)
    journal.begin(call, t + 1, h=1, p=outer)


def in_a_circle(folder: Path, size: int, first: int, threads: int | None = None) -> list[Journal]:
    """The last worker calls the first one, and the function of each the next one; all others, and
    those that serve, are in the shutdown, the one that came ``first`` before them.
    """
    journals = job(folder, size + 1, threads)
    for place, journal in enumerate(journals[:size]):
        to = f"worker{(place + 1) % size}"
        call_back(
            journal, (300 + 10 * place) * MS, f"step{place}", 10 + place, to, f"step{place + 1}"
        )
    caller = journals[size - 1]
    caller.begin(composed(caller, "rpc_sync", 27, to="worker0", func="step0"), 290 * MS)
    for place, journal in enumerate(journals):
        if place != size - 1:
            shut_down(journal, 250 * MS if place == first else 280 * MS + place)
        beat(journal, 20)
    return journals


def around(folder: Path, found: Finding) -> list[int | None]:
    """The ranks along a closed cycle."""
    cycle = found.cycle or ()
    assert [b for _, _, b in cycle] == [a for a, _, _ in (*cycle[1:], cycle[0])]
    return [one for a, _, _ in cycle for one in ranks(folder, [a])]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("threads", [None, 1])
def test_calls_in_a_cycle_are_one(tmp_path: Path, first: int, threads: int | None) -> None:
    """Whoever came first into the shutdown; the answer to the third call takes a thread."""
    in_a_circle(tmp_path, 2, first, threads)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty, found.culprits) == ("deadlock", "likely", ())
    assert ranks(tmp_path, found.waiting) == [0, 1]
    assert around(tmp_path, found) == [0, 1]
    there = "a thread" if threads is None else "the only thread"
    assert found.summary == (
        "Ranks 0, 1 wait for one another: rank 0 runs step0, which is in rpc_sync of step1 to"
        " worker1 (calls.py:10) and waits for rank 1; rank 1 runs step1, which is in rpc_sync of"
        " step2 to worker0 (calls.py:11) and waits for rank 0, which has not begun it:"
        f" {there} there runs step0."
    )
    assert sorted(found.consequences) == [
        "Rank 1 waits in rpc_sync of step0 to worker0 (calls.py:27).",
        "Ranks 0, 2 wait in rpc.all_gather inside rpc.shutdown (calls.py:30).",
    ]


def test_a_cycle_of_three_is_told_with_all(tmp_path: Path) -> None:
    """Each runs a function that calls the next."""
    in_a_circle(tmp_path, 3, 3)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("deadlock", ())
    assert around(tmp_path, found) == [0, 1, 2]


def test_who_has_threads_left_is_in_no_cycle(tmp_path: Path) -> None:
    """A call that is not begun there has another reason."""
    in_a_circle(tmp_path, 2, 2, 2)
    found = only(findings(tmp_path))
    assert found.kind == "rpc_unanswered"
    assert found.summary.startswith("Rank 1 has been waiting in rpc_sync of step2 to worker0")
    assert "worker0 (rank 0) has not begun it, or has answered with a future" in found.summary


def test_another_thread_may_end_it(tmp_path: Path) -> None:
    """Of two threads one is in a lock: when it is through, the call is run there."""
    journals = in_a_circle(tmp_path, 2, 2, 2)
    journals[0].define("thread", n=2, name="rpc")
    load = composed(journals[0], "rpc.run", None, func="load")
    journals[0].begin(load, 295 * MS, h=2)
    journals[0].record(at=2 * S, h=2, k=journals[0].stack(("calls.py", 7, "load")))
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [0])
    assert found.summary.endswith(
        "worker0 (rank 0) has not begun it and is inside load at calls.py:7 in load."
    )


def test_a_worker_of_one_thread_that_calls_itself(tmp_path: Path) -> None:
    """It waits for itself; and so it does for an answer, which a thread has to take in."""
    for to, why in (("worker0", "has not begun it"), ("worker2", "has to take the answer in")):
        folder = tmp_path / to
        journals = job(folder, 3, 1)
        call_back(journals[0], 310 * MS, "outer", 10, to, "inner")
        journals[1].begin(
            composed(journals[1], "rpc_sync", 27, to="worker0", func="outer"), 300 * MS
        )
        for journal in journals:
            if journal.rank != 1:
                shut_down(journal, 280 * MS)
            beat(journal, 20)
        found = only(findings(folder))
        assert (found.kind, found.culprits) == ("deadlock", ())
        assert found.summary == (
            f"Rank 0 waits for itself: rank 0 runs outer, which is in rpc_sync of inner to {to}"
            f" (calls.py:10) and waits for rank 0, which {why}: the only thread there runs outer."
        )


def test_a_function_that_waits_for_its_caller_in_a_collective(tmp_path: Path) -> None:
    """The caller comes to it only when it has its answer."""
    journals = job(tmp_path, 2)
    groups = [journal.world() for journal in journals]
    serve(journals[0], 310 * MS, "reduce", 7)
    journals[0].begin(journals[0].collective(groups[0]), 320 * MS, q=1, h=1)
    journals[1].begin(composed(journals[1], "rpc_sync", 27, to="worker0", func="reduce"), 300 * MS)
    shut_down(journals[0], 280 * MS)
    for journal in journals:
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty, found.culprits) == ("deadlock", "likely", ())
    assert "rank 0 runs reduce, which is in all_reduce #1 of the default group" in found.summary
    assert "rank 1 is in rpc_sync of reduce to worker0 (calls.py:27)" in found.summary
    assert str(found.hint).startswith("The function waits for its own caller")


def test_who_may_come_by_another_function_is_in_no_cycle(tmp_path: Path) -> None:
    """Rank 2 is in the shutdown, but also runs a function, and that may come to the collective."""
    journals = job(tmp_path, 3)
    groups = [journal.world() for journal in journals]
    serve(journals[0], 310 * MS, "reduce", 7)
    journals[0].begin(journals[0].collective(groups[0]), 320 * MS, q=1, h=1)
    journals[1].begin(composed(journals[1], "rpc_sync", 27, to="worker0", func="reduce"), 300 * MS)
    serve(journals[2], 310 * MS, "reduce", 5)
    for journal in journals:
        if journal.rank != 1:
            shut_down(journal, 280 * MS)
        beat(journal, 20)
    assert "deadlock" not in [found.kind for found in findings(tmp_path)]


def test_a_call_that_nobody_waits_for_holds_up_the_shutdown(tmp_path: Path) -> None:
    """All have come and exchanged what they do there; it ends when everything is over."""
    journals = job(tmp_path)
    serve(journals[1], 210 * MS, "load", 7)
    for journal in journals:
        journal.begin(composed(journal, "rpc.shutdown", 30, graceful=True), 300 * MS)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [1])
    assert ranks(tmp_path, found.waiting) == [0, 1]
    assert found.summary.endswith(
        ": all workers have come, and rank 1 is inside load at calls.py:7 in load."
    )


def test_a_cycle_that_nobody_waits_for_holds_up_the_shutdown(tmp_path: Path) -> None:
    """What all exchange there takes a thread, too."""
    journals = job(tmp_path, 3, 1)
    call_back(journals[0], 300 * MS, "step0", 10, "worker1", "step1")
    call_back(journals[1], 310 * MS, "step1", 11, "worker0", "step2")
    for journal in journals:
        shut_down(journal, 320 * MS)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("deadlock", ())
    assert found.consequences == (
        "Ranks 0-2 wait in rpc.all_gather inside rpc.shutdown (calls.py:30).",
    )


def test_what_is_called_within_a_round_is_the_round(tmp_path: Path) -> None:
    """All ask the leader, who does not come, and cannot answer."""
    journals = job(tmp_path, 3)
    for journal in journals[1:]:
        outer = journal.begin(composed(journal, "rpc.shutdown", 30, graceful=True), 300 * MS)
        inner = journal.begin(composed(journal, "rpc.all_gather", 30), 301 * MS, p=outer)
        gather = composed(journal, "rpc_sync", 30, to="worker0", func="_gather_to_leader")
        journal.begin(gather, 302 * MS, p=inner)
    for journal in journals:
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [0])
    assert "waiting in rpc.shutdown" in found.summary


def drives(folder: Path, last_s: int, *, over: bool) -> list[Finding]:
    """Workers are in the shutdown from the start on; rank 0 calls one of them every two seconds."""
    journals = job(folder)
    shut_down(journals[1], 200 * MS)
    call = composed(journals[0], "rpc_sync", 12, to="worker1", func="step")
    for at_s in range(1, last_s, 2):
        journals[0].run(call, t=at_s * S, d=S)
    if not over:
        journals[0].begin(call, last_s * S)
    for journal in journals:
        beat(journal, 20)
    return findings(folder)


def test_a_worker_waits_for_one_that_makes_calls(tmp_path: Path) -> None:
    """Such a job is well: workers serve in their shutdown. A call that lasts is told."""
    assert drives(tmp_path / "within", 19, over=False) == []
    note = only(drives(tmp_path / "between", 19, over=True))
    assert (note.severity, note.culprits) == ("note", ())
    found = only(drives(tmp_path / "stopped", 5, over=False))
    assert (found.severity, found.op) == ("error", "rpc_sync")


def test_who_waits_for_an_answer_has_not_gone_past_the_group_that_others_make(
    tmp_path: Path,
) -> None:
    """Rank 0 will come to it after its remote call, which a thread of rank 1's works at."""
    caller, callee, other = job(tmp_path, 3)
    for journal in (caller, callee, other):
        journal.world()
    caller.begin(composed(caller, "rpc_sync", 12, to="worker1", func="load"), 200 * MS)
    serve(callee, 210 * MS, "load", 7)
    for journal in (callee, other):
        args = {"ranks": [0, 1, 2], "use_local_synchronization": False}
        make = journal.call("new_group", kind="composed", origin="python", args=args)
        outer = journal.begin(make, 220 * MS)
        mesh(journal, 221 * MS, outer, 3, journal.rank or 0, "0/", "1/", "cpu/")
    for journal in (caller, callee, other):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [1])


LOST = "process_vm_readv: No such process (this error originated at tensorpipe/channel/cma/c.cc:60)"


def test_a_worker_that_a_mismatch_ended_owes_no_answer(tmp_path: Path) -> None:
    """Gloo aborts who gets more than it expects; rank 2 was in a remote call to that one."""
    journals = job(tmp_path, 3)
    for journal in journals:
        group = journal.world()
        size = 8 if journal.rank == 1 else 4
        call = journal.collective(group, shapes=[[size]], bytes=4 * size)
        if journal.rank == 0:
            journal.begin(call, 200 * MS, q=1)
            continue
        journal.run(call, t=200 * MS, d=MS, q=1)
        if journal.rank == 1:
            journal.begin(journal.message(group, "send", 2), 210 * MS, q=1)
        else:
            call = composed(journal, "rpc_sync", 12, to="worker0", func="add")
            asked = journal.begin(call, 210 * MS)
            journal.end(asked, 3 * S - 210 * MS, x=journal.string(f"RuntimeError: {LOST}"), f=1)
            fail(journal, 3 * S, "RuntimeError", LOST)
    found = findings(tmp_path, look=all_gone)
    assert [(f.kind, ranks(tmp_path, f.culprits)) for f in found] == [("shape_mismatch", [1])]
