"""A recorded job becomes a program of plain torch, and the shrunk one stands in the same way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttrace_viewer.api.replayed import replayed
from disttrace_viewer.trace.errors import ViewerError
from support.journals import MS, Journal, training, workers
from support.processes import clean_environ, command_line, family, is_running, run_program
from support.scenes import S, beat, fail, join, leave, mesh, stand, steps


def missing(folder: Path, world: int = 4) -> None:
    """Five all_reduces, and rank 2 does not come to the sixth."""
    for journal in workers(folder, world):
        call = journal.collective(journal.world())
        for step in range(1, 6):
            journal.run(call, t=step * MS, d=MS // 10, q=step)
        if journal.rank == 2:
            stack = journal.stack(("loader.py", 34, "load"))
            journal.record(at=3 * S, h=0, k=stack)
        else:
            journal.begin(call, t=10 * MS, q=6)
        journal.record(hb=30 * S)


def cycle(folder: Path) -> None:
    """After a step rank 0 and rank 1 send to one another; rank 2 waits in a collective."""
    for journal in workers(folder, 3):
        group = journal.world()
        journal.run(journal.collective(group), t=MS, d=MS // 10, q=1)
        if journal.rank == 2:
            journal.begin(journal.collective(group), t=2 * MS, q=2)
        else:
            _sends(journal, group)
        journal.record(hb=30 * S)


def _sends(journal: Journal, group: int) -> None:
    call = journal.message(group, "send", 1 - (journal.rank or 0), **{"async": False})
    journal.begin(call, t=2 * MS, q=1)


def test_what_is_over_and_who_does_the_same_is_left_out(tmp_path: Path) -> None:
    """Two of those that wait stay, and who does not come; its line is a comment."""
    missing(tmp_path)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.ranks, found.calls) == ("missing_participant", 3, 2)
    assert found.text.count("dist.all_reduce(tensor(4), op=dist.ReduceOp.SUM)  # train.py:10") == 2
    assert "time.sleep(86400)  # stays at loader.py:34" in found.text
    compile(found.text, "repro.py", "exec")
    whole = replayed(tmp_path)
    assert (whole.ranks, whole.calls) == (4, 23)
    paced = replayed(tmp_path, speed=2.0)
    assert "time.sleep(0.0025)" in paced.text, "from the begin at 5 ms to that at 10 ms"


def test_a_healthy_job_is_not_shrunk(tmp_path: Path) -> None:
    """There is nothing to keep."""
    training(tmp_path)
    with pytest.raises(ViewerError, match="nothing to shrink to"):
        replayed(tmp_path, shrink=True)
    assert replayed(tmp_path).calls == 6


def _makes(journal: Journal, t: int, ranks: list[int], *, over: bool) -> None:
    call = journal.call("new_group", kind="composed", origin="python", args={"ranks": ranks})
    made, rank = journal.begin(call, t), journal.rank or 0
    if over:
        journal.end(made, MS)
    elif rank in ranks:
        mesh(journal, t + 1, made, len(ranks), ranks.index(rank), "0/", "1/", "cpu/")


def test_groups_that_differ_are_made_where_they_were_made(tmp_path: Path) -> None:
    """Rank 1 makes another one than the others; what all made alike is made first of all."""
    for journal, _ in steps(tmp_path, 3):
        _makes(journal, 200 * MS, [0, 1, 2], over=True)
        _makes(journal, 210 * MS, [1, 2] if journal.rank == 1 else [0, 1], over=False)
        beat(journal, 20)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("group_mismatch", 3)
    body = found.text.partition("def rank0():")[2]
    assert [body.count(f"    dist.new_group({one})") for one in ([0, 1], [1, 2])] == [2, 1]
    assert "dist.new_group([0, 1, 2])" not in body, "nobody uses it"
    compile(found.text, "repro.py", "exec")


def test_groups_that_are_alike_are_made_first(tmp_path: Path) -> None:
    for journal, _ in steps(tmp_path, 2):
        _makes(journal, 200 * MS, [0, 1], over=True)
    text = replayed(tmp_path).text
    assert "new_group" not in text, "its definition is what tells the group, and there is none"
    assert text.count('dist.init_process_group("gloo")\n') == 1


@pytest.mark.parametrize("has_journal", [True, False])
def test_who_never_joins_does_not_join_here(tmp_path: Path, *, has_journal: bool) -> None:
    for journal in workers(tmp_path, 3):
        if journal.rank == 2:
            stand(journal, 3 * S, "/src/train.py", 1, "<module>")
        else:
            join(journal, 100 * MS, 3)
        beat(journal, 90)
    for path in [] if has_journal else list(tmp_path.glob("*-4002-*")):
        path.unlink()
    text = replayed(tmp_path).text
    ranks = (
        text.partition("def rank0():")[2].replace("def rank1", "def rank2").split("def rank2():")
    )
    assert ['init_process_group("gloo")' in one for one in ranks] == [True, True, False]
    assert '[rank0, rank1, rank2][int(os.environ["RANK"])]()' in text
    assert "import os\n" in text
    compile(text, "repro.py", "exec")


def test_who_claims_anothers_rank_does_so_here(tmp_path: Path) -> None:
    """And who says that there are more of them."""
    for journal in (*workers(tmp_path / "a", 3)[:2], Journal(tmp_path, 4007, rank=0, world_size=3)):
        join(journal, 100 * MS, 3)
        beat(journal, 90)
    text = replayed(tmp_path).text
    assert text.count('    dist.init_process_group("gloo")\n') == 2
    assert '    dist.init_process_group("gloo", rank=0, world_size=3)' in text


def test_a_key_that_nobody_sets_is_waited_for(tmp_path: Path) -> None:
    """What was set and read stays in the whole program only."""
    for journal, _ in steps(tmp_path, 2):
        store = journal.prefix_store(journal.tcp_store(29500, server=journal.rank == 0), "app")
        get = journal.call("store.get", kind="store", store=store, origin="python")
        put = journal.call("store.set", kind="store", store=store, origin="python")
        journal.run(put, t=200 * MS, d=MS, k=f"shard {journal.rank}")
        if journal.rank == 0:
            journal.begin(get, 210 * MS, k="ready")
        beat(journal, 20)
    whole, found = replayed(tmp_path), replayed(tmp_path, shrink=True)
    assert [whole.text.count(f"store.{op}(") for op in ("set", "get")] == [2, 1]
    assert (found.kind, found.calls) == ("store_key_missing", 1)
    assert "    store.get('app/ready')" in found.text
    assert "store = dist.PrefixStore(" in found.text


TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"


def test_who_comes_after_others_gave_up_comes_late_here(tmp_path: Path) -> None:
    """All groups give up soon, so that the program is over soon."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group)
        if journal.rank == 1:
            stand(journal, 3 * S, "/src/loader.py", 28, "load")
            number = journal.begin(call, 14 * S, q=3)
            journal.end(number, MS, x=journal.string("RuntimeError: Connection closed by peer"))
            fail(journal, 15 * S, "RuntimeError", "Connection closed by peer")
        else:
            number = journal.begin(call, 200 * MS, q=3)
            journal.end(number, 6 * S, x=journal.string(TIMED_OUT))
            fail(journal, 7 * S, "RuntimeError", TIMED_OUT.partition(": ")[2])
    found = replayed(tmp_path, shrink=True)
    assert found.kind == "missing_participant"
    assert 'dist.init_process_group("gloo", timeout=TIMEOUT)' in found.text
    assert "TIMEOUT = timedelta(seconds=" in found.text
    of = found.text.split("def rank")[1:]
    assert ["time.sleep(15)" in one for one in of] == [False, True]
    compile(found.text, "repro.py", "exec")


def test_nobody_is_late_for_who_failed_by_itself(tmp_path: Path) -> None:
    """Rank 0 is killed by an error of its own; the others come afterwards."""
    for journal, group in steps(tmp_path, 3):
        number = journal.begin(journal.collective(group), S if journal.rank else 200 * MS, q=3)
        if journal.rank == 0:
            journal.end(number, MS, x=journal.string("KeyError: 'layer 7'"))
            fail(journal, 300 * MS, "KeyError", "'layer 7'")
        else:
            beat(journal, 60)
    found = replayed(tmp_path, shrink=True)
    assert found.kind == "process_failed"
    assert "TIMEOUT" not in found.text


def test_a_monitored_barrier_that_gives_up_is_called(tmp_path: Path) -> None:
    """Its error is raised by the call itself, as that of what torch refuses."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group, "monitored_barrier")
        number = journal.begin(call, 9 * S if journal.rank == 1 else 200 * MS, q=3)
        late = "RuntimeError: timed out"
        journal.end(number, MS if journal.rank == 1 else 6 * S, x=journal.string(late), f=1)
        journal.define("exit", t=16 * S, how="excepthook")
    text = replayed(tmp_path).text
    assert text.count("dist.monitored_barrier(timeout=TIMEOUT)") == 3
    assert text.count("time.sleep(15)") == 1


def test_the_attempt_that_hangs_is_called(tmp_path: Path) -> None:
    """And not the one before it, in which somebody failed."""
    for attempt in (0, 1):
        for rank in (0, 1):
            journal = Journal(
                tmp_path, 5010 - 10 * attempt + rank, rank=rank, keys={"attempt": attempt}
            )
            call = journal.collective(
                journal.world(29500 + attempt), ["all_reduce", "barrier"][attempt]
            )
            at = attempt * 20 * S
            journal.run(call, at + MS, MS, q=1)
            if attempt == 0:
                journal.define("exit", t=at + S, how="excepthook")
            elif rank == 0:
                journal.begin(call, at + 9 * MS, q=2)
                beat(journal, 60)
            else:
                stand(journal, at + S, "/src/train.py", 7, "load")
                beat(journal, 60)
    found = replayed(tmp_path, shrink=True)
    assert "barrier" in found.text
    assert "all_reduce" not in found.text
    assert "# stays at train.py:7" in found.text


def test_threads_come_in_the_recorded_order(tmp_path: Path) -> None:
    """Where they share a group; and the main thread stays where it was, whoever else waits."""
    for journal, group in steps(tmp_path, 3):
        call, barrier = journal.collective(group), journal.collective(group, "barrier")
        first, second = (barrier, call) if journal.rank == 2 else (call, barrier)
        journal.begin(first, 200 * MS, q=3, h=1)
        journal.begin(second, 201 * MS, q=4, h=2)
        stand(journal, 3 * S, "/src/train.py", 45, "main")
        beat(journal, 60)
    found = replayed(tmp_path, shrink=True)
    assert found.kind == "op_mismatch"
    for rank in found.text.split("def rank")[1:]:
        before, after = rank.split("def thread2")
        assert "time.sleep(0.5)" in after
        assert "time.sleep(0.5)" not in before
        assert "    time.sleep(86400)  # stays at train.py:45" in after
    compile(found.text, "repro.py", "exec")


def test_a_message_that_is_over_stays_where_it_is_what_is_wrong(tmp_path: Path) -> None:
    """The receiver's tensor is larger than what was sent, and nobody waits."""
    for journal, group in steps(tmp_path, 2):
        op, size = (("send", 8), ("recv", 16))[journal.rank or 0]
        shapes = {"shapes": [[size]], "bytes": 4 * size, "async": False}
        message = journal.message(group, op, 1 - (journal.rank or 0), **shapes)
        journal.run(message, 300 * MS, MS, q=1)
        journal.define("exit", t=S, how="atexit")
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("size_mismatch", 2)
    assert "dist.send(tensor(8), 1)" in found.text


MISMATCH = "RuntimeError: Detected mismatch between collectives on ranks."
OWN_MISTAKE = "RuntimeError: ProcessGroupGloo::scatter: Incorrect input list size 1."


def test_what_torch_refused_since_members_differ_is_called(tmp_path: Path) -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL it is refused, and hangs without."""
    for journal, group in steps(tmp_path, 3):
        call, gather = journal.collective(group), journal.collective(group, "all_gather")
        number = journal.begin(gather if journal.rank == 0 else call, 200 * MS, q=3)
        journal.end(number, MS, x=journal.string(MISMATCH), f=1)
        journal.define("exit", t=S, how="excepthook")
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("op_mismatch", 3)


def test_what_torch_refused_since_it_was_called_wrongly_is_not(tmp_path: Path) -> None:
    """Rank 0 goes on with the next call, which meets what the other one is in."""
    for journal, group in steps(tmp_path, 2):
        call = journal.collective(group, "scatter", root=0)
        number = journal.begin(call, 200 * MS, q=3)
        if journal.rank == 0:
            journal.end(number, MS, x=journal.string(OWN_MISTAKE), f=1)
            journal.begin(journal.collective(group, "barrier"), 300 * MS, q=3)
        beat(journal, 60)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("op_mismatch", 2)
    assert "time.sleep(15)" not in found.text


@pytest.mark.parametrize("within", [True, False])
def test_who_is_stopped_is_so_here(tmp_path: Path, *, within: bool) -> None:
    """In a collective that it has begun, which goes on without it, or before that."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group, "all_reduce", **{"async": False})
        if journal.rank != 1:
            journal.begin(call, 200 * MS, q=3)
            beat(journal, 60)
            continue
        if within:
            journal.begin(call, 200 * MS, q=3)
        journal.record(hb=S)
        journal.define("seen", t=20 * S, state="stopped", others=2)
    found = replayed(tmp_path, shrink=True)
    assert found.kind == ("no_progress" if within else "missing_participant")
    stops = "    os.kill(os.getpid(), signal.SIGSTOP)  # is stopped\n"
    _, _, body = found.text.partition("def rank1():\n")
    if within:
        issued, _, after = body.partition(stops)
        assert issued.endswith("async_op=True)  # train.py:10\n")
        assert after.startswith("    work0.wait()\n")
    else:
        assert body.startswith(stops)


LOST = "DistNetworkError: Connection was likely closed."


@pytest.mark.parametrize("op", ["new_group", "store.get"])
def test_who_needs_a_store_whose_server_has_left_comes_after_that(tmp_path: Path, op: str) -> None:
    """Here too it fails, where it would have had its answer."""
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 0:
            journal.tcp_store(29500, server=True)
            leave(journal, S)
            continue
        lost = journal.string(LOST)
        if op == "new_group":
            args = {"ranks": [1, 2]}
            call = journal.call(op, kind="composed", origin="python", args=args)
            number = journal.begin(call, 5 * S)
        else:
            store = journal.tcp_store(29500, server=False)
            call = journal.call(op, kind="store", store=store, origin="python")
            number = journal.begin(call, 5 * S, k="epoch")
        journal.end(number, MS, x=lost, f=1)
        fail(journal, 5 * S + 2 * MS, "DistNetworkError", LOST.partition(": ")[2])
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("process_failed", 2)
    of = found.text.split("def rank")[1:]
    assert [one.count("somebody has left who served the store") for one in of] == [0, 1, 1]
    compile(found.text, "repro.py", "exec")


@pytest.mark.long
def test_it_hangs_in_the_same_way(tmp_path: Path) -> None:
    """The command runs it on gloo; the file by itself hangs under torchrun."""
    cycle(tmp_path / "journals")
    command = [sys.executable, "-m", "disttrace", "replay", str(tmp_path / "journals")]
    done = run_program([*command, "--shrink"], clean_environ(), timeout=120)
    assert done.code == 0, done
    assert "as recorded (deadlock)." in done.stdout
    file = tmp_path / "repro.py"
    subprocess.run([*command, "--shrink", "-o", str(file)], env=clean_environ(), check=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = [*launcher, "--nproc-per-node", "3", str(file)]
    assert run_program(ranks, clean_environ(), timeout=25).hung  # and its ranks are ended with it


@pytest.mark.long
def test_nothing_outlives_it(tmp_path: Path) -> None:
    """Killed, it can end nobody; the check that it started, and its ranks, would stay."""
    cycle(tmp_path)
    command = [sys.executable, "-m", "disttrace", "replay", str(tmp_path)]
    running = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    started = list[int]()
    ranks = list[int]()  # and the check that forked them, whose arguments they keep
    try:
        while len(ranks) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
            started = family(running.pid)[1:]
            ranks = [pid for pid in started if "check" in command_line(pid)]
    finally:
        running.kill()
        running.wait()
    assert len(ranks) == 4
    deadline = time.monotonic() + 3  # by itself it takes ten seconds to see a stall
    while left := [pid for pid in started if is_running(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
