"""Remote calls become functions of the replay, which other workers run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttrace_viewer.api.replayed import replayed
from support.journals import MS, Journal, workers
from support.processes import clean_environ, run_program
from support.scenes import S, beat


def job(folder: Path, world: int = 3, threads: int = 1) -> list[Journal]:
    """Workers w0, w1, ... that have joined, and have no default group."""
    journals = workers(folder, world)
    for journal in journals:
        rank = journal.rank or 0
        made = composed(journal, "init_rpc", 5, name=f"w{rank}", rank=rank, threads=threads)
        joined = journal.begin(made, 100 * MS)
        # What torch calls inside of it, it calls again.
        inner = composed(journal, "rpc_sync", 5, to="w0", func="_gather_to_leader")
        journal.end(journal.begin(inner, 110 * MS, p=joined), MS)
        journal.end(joined, 50 * MS)
    return journals


def composed(journal: Journal, op: str, line: int | None, **args: object) -> int:
    """A call of an operation of RPC at a line; without a line by C++."""
    stack = {} if line is None else {"stack": journal.stack(("calls.py", line, "main"))}
    if op == "rpc_async":
        stack["async"] = True
    return journal.call(op, kind="composed", origin="python", args=args, **stack)


def serve(journal: Journal, t: int, func: str) -> int:
    """Begin to run a function for another worker."""
    journal.define("thread", n=1, name="rpc")
    return journal.begin(composed(journal, "rpc.run", None, func=func), t, h=1)


def leave(journal: Journal, t: int) -> None:
    """Wait for everybody at the end."""
    outer = journal.begin(composed(journal, "rpc.shutdown", 30, graceful=True), t)
    journal.begin(composed(journal, "rpc.all_gather", 30), t + 1, p=outer)


def cycle(folder: Path) -> None:
    """After a call that is answered, w1 calls w0, whose only thread calls w1, which calls w0."""
    journals = job(folder)
    first, second, third = journals
    second.run(composed(second, "rpc_sync", 11, to="w0", func="pull"), t=200 * MS, d=9 * MS)
    first.end(serve(first, 202 * MS, "pull"), MS)
    second.begin(composed(second, "rpc_sync", 12, to="w0", func="onward"), 300 * MS)
    for journal, to, t in ((first, "w1", 310 * MS), (second, "w0", 320 * MS)):
        run = serve(journal, t, "onward")
        call = composed(journal, "rpc_sync", 7, to=to, func="onward")
        journal.begin(call, t + MS, h=1, p=run)
    for journal in (first, third):
        leave(journal, 330 * MS)
    for journal in journals:
        beat(journal, 20)


def body(text: str, name: str) -> list[str]:
    """The lines of a function, without what follows."""
    lines = text.split(f"def {name}():\n")[1].splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("    ")), len(lines))
    return [line.strip() for line in lines[:end]]


def test_a_call_is_answered_by_what_was_run_for_it(tmp_path: Path) -> None:
    """Each function calls the next one; the last one was never begun, and nobody has a group."""
    cycle(tmp_path)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.ranks, found.calls) == ("deadlock", 3, 5)
    compile(found.text, "repro.py", "exec")
    assert body(found.text, "onward") == ['rpc.rpc_sync("w1", onward__2)  # calls.py:7']
    assert body(found.text, "onward__2") == ['rpc.rpc_sync("w0", onward__3)  # calls.py:7']
    assert body(found.text, "onward__3") == ["pass  # nobody has begun it"]
    assert body(found.text, "rank1") == [
        'rpc.init_rpc("w1", rank=1, world_size=3, rpc_backend_options=threads(1))  # calls.py:5',
        'rpc.rpc_sync("w0", onward)  # calls.py:12',
    ]
    assert body(found.text, "rank2")[1:] == ["rpc.shutdown(graceful=True)  # calls.py:30"]
    assert "init_process_group" not in found.text
    whole = replayed(tmp_path).text
    assert 'rpc.rpc_sync("w0", pull)  # calls.py:11' in body(whole, "rank1")
    assert body(whole, "pull") == ["pass"], "it was run, and is over"
    assert "_gather_to_leader" not in whole


def test_a_function_stays_where_it_stayed(tmp_path: Path) -> None:
    """Where nobody waits for the call that runs it, too."""
    journals = job(tmp_path, threads=4)
    caller = journals[1]
    caller.run(composed(caller, "rpc_async", 9, to="w0", func="load"), t=200 * MS, d=MS)
    serve(journals[0], 210 * MS, "load")
    stack = journals[0].stack(("loader.py", 34, "load"))
    journals[0].record(at=3 * S, h=1, k=stack)
    for journal in journals:
        leave(journal, 330 * MS)
        beat(journal, 20)
    found = replayed(tmp_path, shrink=True)
    assert found.kind == "rpc_unanswered"
    assert body(found.text, "load") == ["time.sleep(86400)  # stays at loader.py:34"]
    assert 'rpc.rpc_async("w0", load)  # calls.py:9' in found.text


def test_a_future_that_nobody_sets_is_the_answer(tmp_path: Path) -> None:
    """The function is over, and the caller waits on: with a thread to take an answer in."""
    journals = job(tmp_path, threads=4)
    caller = journals[1]
    caller.run(composed(caller, "rpc_async", 9, to="w0", func="later"), t=200 * MS, d=MS)
    journals[0].end(serve(journals[0], 210 * MS, "later"), MS)
    caller.begin(composed(caller, "rpc.wait", 10, to="w0", func="later"), 220 * MS)
    for journal in journals:
        if journal is not caller:
            leave(journal, 330 * MS)
        beat(journal, 20)
    found = replayed(tmp_path, shrink=True)
    assert found.kind == "rpc_unanswered"
    head = "@rpc.functions.async_execution\ndef later():\n    return torch.futures.Future()"
    assert head in found.text
    assert body(found.text, "rank1")[1:] == [
        'work2 = rpc.rpc_async("w0", later)  # calls.py:9',
        "work2.wait()",
    ]


def test_what_is_over_of_remote_calls_is_left_out(tmp_path: Path) -> None:
    """Of a job that has a default group, and hangs there."""
    journals = job(tmp_path, threads=4)
    for journal in journals:
        group = journal.world()
        if journal.rank == 1:
            call = composed(journal, "rpc_sync", 9, to="w0", func="pull")
            journal.run(call, t=200 * MS, d=5 * MS)
        elif journal.rank == 0:
            journal.end(serve(journal, 202 * MS, "pull"), MS)
        if journal.rank != 2:
            journal.begin(journal.collective(group), t=300 * MS, q=1)
        beat(journal, 20)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.calls) == ("missing_participant", 2)
    assert "rpc." not in found.text
    assert 'dist.init_process_group("gloo")' in found.text
    whole = replayed(tmp_path).text
    assert "rpc.init_rpc(" in whole
    assert 'dist.init_process_group("gloo")' in whole


@pytest.mark.long
def test_it_hangs_in_the_same_way(tmp_path: Path) -> None:
    """TensorPipe asks for messages again and again: that is no work, and `check` sees the stall
    long before its time is over.
    """
    cycle(tmp_path / "journals")
    command = [sys.executable, "-m", "disttrace", "replay", str(tmp_path / "journals")]
    done = run_program([*command, "--shrink"], clean_environ(), timeout=120)
    assert done.code == 0, done
    assert "as recorded (deadlock)." in done.stdout
