"""Who waits for requests is idle: a note, and an error as soon as anything else is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrace.journal.code_files import BUILT_IN
from disttrace_viewer.api import live
from support.journals import MS, PEER_GONE, Journal, S, workers
from support.scenes import alive, all_gone, finds, hang_without, ranks, steps, verdict

PYTHON = "/usr/lib/python3.11"
Frames = tuple[tuple[str, int, str], ...]
LINE = ("server.py", 9, "requests")
QUEUE: Frames = ((f"{PYTHON}/threading.py", 327, "wait"), (f"{PYTHON}/queue.py", 171, "get"), LINE)
IDLE: dict[str, Frames] = {
    "a queue": QUEUE,
    "accept": ((f"{PYTHON}/socket.py", 294, "accept"), LINE),
    "an event loop": (
        (f"{PYTHON}/selectors.py", 468, "select"),
        (f"{PYTHON}/asyncio/base_events.py", 1874, "_run_once"),
        LINE,
    ),
    "a signal": ((f"{PYTHON}/signal.py", 82, "sigwait"), LINE),
    "recv, which is no Python": ((BUILT_IN, 9, "recv"), LINE),
    "an event of processes": ((f"{PYTHON}/multiprocessing/synchronize.py", 268, "wait"), LINE),
    "an event loop in C": ((f"{PYTHON}/asyncio/runners.py", 118, "run"), LINE),
    "a prompt": ((f"{PYTHON}/cmd.py", 132, "cmdloop"), LINE),
    "a child's pipe": ((f"{PYTHON}/multiprocessing/connection.py", 378, "_recv"), LINE),
}
NOT: dict[str, Frames] = {
    "a lock": (LINE,),
    "a pool": (QUEUE[0], (f"{PYTHON}/concurrent/futures/_base.py", 451, "result"), LINE),
    "a thread's end": ((f"{PYTHON}/threading.py", 1119, "join"), LINE),
    "its own program's end": (
        (f"{PYTHON}/selectors.py", 415, "select"),
        (f"{PYTHON}/subprocess.py", 2115, "_communicate"),
        LINE,
    ),
    "a loader": (*QUEUE[:2], ("/site-packages/torch/utils/data/dataloader.py", 9, "next"), LINE),
}


def served(
    folder: Path, stands: Frames, *, rounds: int = 5, now: Frames | None = None,
    op: str = "broadcast", missing: Sequence[int] = (), loads: int = 0,
) -> list[Journal]:  # fmt: skip
    """Rank 0 stands there for half of each second, and then, or at ``now``, for 20 s."""
    journals = workers(folder, 3)
    for journal in alive(journals, 26):
        group, root = journal.world(), 0 if op == "broadcast" else None
        call = journal.collective(group, op, root=root)
        usual, last = journal.stack(*stands), journal.stack(*(now or stands))
        for n in range(0 if journal.rank else loads):
            journal.stand(n * MS, "server.py", 40 + n, "load")
        for n in range(rounds + 1):
            if journal.rank == 0:
                at = usual if n < rounds or now is None else last
                journal.record(at=n * S + 600 * MS, h=0, k=at)
            if n < rounds:
                late = 0 if journal.rank else S - 100 * MS
                journal.run(call, n * S + late + 50 * MS, S - late - 50 * MS, q=n + 1)
            elif journal.rank not in (0, *missing):
                journal.begin(call, n * S + 50 * MS, q=n + 1)
    return journals


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("stands", IDLE.values(), ids=IDLE)
def test_a_server_without_requests_is_idle(tmp_path: Path, stands: Frames, *, ended: bool) -> None:
    """As before each of the rounds that it came through; also where it was ended: the stack that a
    signal has written has no frame for what is no Python, and no number."""
    for journal in served(tmp_path, stands):
        where = stands if journal.rank == 0 else (("train.py", 10, "main"),)
        lines = [f'  File "{f}", line {n} in {name}' for f, n, name in where if f != BUILT_IN]
        with journal.definitions.open("a") as file:
            file.write("\n".join(["Stack (most recent call first):", *lines, ""] * ended))
    look = {"look": all_gone} if ended else {}
    found = finds(tmp_path, "waiting_for_input", [], severity="note", **look)
    source = "Rank 0, the source of broadcast #6 of the default group, waits for input at"
    assert found.summary.startswith(f"{source} server.py:9 in requests")
    assert "as in the rounds before: ranks 1, 2 wait for it at train.py:10." in found.summary
    assert ranks(tmp_path, found.waiting) == [1, 2]
    assert ended or live.snapshot(str(tmp_path)).verdict.summary == found.summary


@pytest.mark.parametrize("main", [*IDLE.values(), NOT["a thread's end"]])
def test_a_thread_serves_what_the_main_thread_is_sent(tmp_path: Path, main: Frames) -> None:
    """It alone issues operations: the rank is where that thread is."""
    for journal in alive(workers(tmp_path, 2), 26):
        group, queue = journal.world(), journal.stack(*QUEUE)
        call = serve(journal, group, queue, 5, thread=1)
        if journal.rank:
            journal.begin(call, 6 * S, q=6, h=1)
        else:
            journal.record(at=7 * S, h=1, k=queue)
            journal.record(at=8 * S, h=0, k=journal.stack(*main[:-1], ("server.py", 60, "main")))
    finds(tmp_path, "waiting_for_input", [], severity="note")


def test_an_idle_server_is_no_straggler(tmp_path: Path) -> None:
    """Where it was seldom looked at while it waited for the requests before."""
    served(tmp_path, QUEUE, rounds=10, loads=20)
    finds(tmp_path, "waiting_for_input", [], severity="note")


@pytest.mark.parametrize("how", ["idle", "new line", "no source"])
def test_an_actor_without_input_holds_up_the_learner(tmp_path: Path, how: str) -> None:
    """Rank 0 waits for its message, and rank 2 for what rank 0 broadcasts then."""
    for journal in alive(workers(tmp_path, 3), 26):
        rank, group, root = journal.rank, journal.world(), None if how == "no source" else 0
        share = journal.collective(group, "broadcast", root=root)
        message = journal.message(group, "send" if rank else "recv", int(not rank))
        usual = journal.stack(*QUEUE)
        last = usual if how != "new line" else journal.stack(*QUEUE[:2], ("actor.py", 30, "drain"))
        for n in range(6):
            at, over = n * S + (900 if rank == 1 else 50) * MS, n * S + 920 * MS
            if rank == 1:
                journal.record(at=n * S + 600 * MS, h=0, k=usual if n < 5 else last)
            elif n == 5:
                journal.begin(share if rank else message, at, q=6)
            if n < 5:
                journal.run(message, at, over - at, q=n + 1)
                journal.run(share, over, MS, q=n + 1)
    kind = "waiting_for_input" if how == "idle" else "missing_participant"
    finds(tmp_path, kind, [] if how == "idle" else [1])


@pytest.mark.parametrize("stands", [QUEUE, (LINE,)], ids=["idle", "one in a lock"])
def test_workers_without_input_hold_up_a_parameter_server(tmp_path: Path, stands: Frames) -> None:
    """It takes what any of them sends."""
    for journal in alive(workers(tmp_path, 3), 26):
        group, rank, queue = journal.world(), journal.rank, journal.stack(*QUEUE)
        message = journal.message(group, "send" if rank else "recv", 0 if rank else None)
        for n in range(10):
            peer, t_ns = 1 + n % 2, n * S // 2 + 300 * MS
            if rank == 0:
                number = journal.begin(message, t_ns - 100 * MS, q=n + 1)
                journal.record(e=number, d=101 * MS, src=peer)
            elif rank == peer:
                journal.record(at=t_ns - 200 * MS, h=0, k=queue)
                journal.run(message, t_ns, MS, q=n // 2 + 1)
        if rank == 0:
            journal.begin(message, 5 * S, q=11)
        else:
            where = queue if rank == 1 or stands == QUEUE else journal.stack(*stands)
            journal.record(at=6 * S, h=0, k=where)
    kind = "waiting_for_input" if stands == QUEUE else "unmatched_recv"
    finds(tmp_path, kind, [], severity="note" if stands == QUEUE else "error")


BROKEN = "first round|new line|no source|another one too|its thread failed|its child failed"


@pytest.mark.parametrize("how", [*NOT, *BROKEN.split("|")])
def test_what_looks_alike_is_broken(tmp_path: Path, how: str) -> None:
    """It waits for its own, or one thing differs from the idle server."""
    if how in NOT or how == "first round":
        served(tmp_path, NOT.get(how, QUEUE), rounds=5 if how in NOT else 0)
    elif how == "new line":
        served(tmp_path, QUEUE, now=(*QUEUE[:2], ("server.py", 30, "drain")))
    elif how == "no source":
        served(tmp_path, QUEUE, op="all_reduce")
    elif how == "another one too":
        served(tmp_path, QUEUE, missing=[2])
    elif how == "its thread failed":
        fail_thread(served(tmp_path, QUEUE)[0])
    else:
        served(tmp_path, QUEUE)[0].define("activity", t=15 * S, over=5 * S, cpu=0, failed=1)
    finds(tmp_path, "missing_participant", [2 if how == "another one too" else 0])


@pytest.mark.parametrize("lost", ["definitions", "all"])
def test_the_culprits_journal_is_lost(tmp_path: Path, lost: str) -> None:
    """The source is as idle as it is where that journal is there, and not to blame."""
    culprit = served(tmp_path, QUEUE, missing=[2])[2]
    if lost == "all":
        culprit.remove()
    else:
        culprit.definitions.unlink()
    case, found = verdict(tmp_path, look=all_gone)
    assert [(one.kind, one.severity) for one in found] == [("waiting_for_input", "note")]
    assert case.incomplete


@pytest.mark.parametrize(
    ("stands", "idle"),
    [
        ((IDLE["recv, which is no Python"][0], ("server.py", 30, "close")), True),
        ((*QUEUE[:2], ("server.py", 30, "close")), False),
        ((("server.py", 30, "close"),), False),
    ],
    ids=["a client's connection", "a queue", "a lock"],
)
def test_a_server_waits_for_its_clients(tmp_path: Path, stands: Frames, *, idle: bool) -> None:
    """All have left the loop, and the others are in a last barrier."""
    for journal in alive(workers(tmp_path, 3), 26):
        serve(journal, journal.world(), journal.stack(*IDLE["accept"]), 5)
        last = journal.collective(1, "barrier", stack=("server.py", 50, "main"))
        if journal.rank:
            journal.begin(last, 6 * S, q=6)
        else:
            journal.record(at=7 * S, h=0, k=journal.stack(*stands))
    found = finds(tmp_path, "waiting_for_input" if idle else "missing_participant")
    assert ("waits for its clients at server.py:30 in close" in found.summary) is idle


def serve(journal: Journal, group: int, stands: int, rounds: int, thread: int = 0) -> int:
    """Rank 0 waits there for half of each second. Returns the number of the call."""
    call = journal.collective(group, "broadcast", root=0)
    for n in range(rounds):
        late = 0 if journal.rank else 900 * MS
        if not journal.rank:
            journal.record(at=n * S + 600 * MS, h=thread, k=stands)
        journal.run(call, n * S + late + 50 * MS, S - late - 50 * MS, q=n + 1, h=thread)
    return call


def fail_thread(journal: Journal) -> None:
    """An exception ended the thread that hands it the requests."""
    thread = journal.numbered("thread", name="client", native=7)
    journal.failure(5 * S, "OSError", "gone", ("server.py", 70, "client"), thread=thread)


UNTIL_S = 20


def talks(journal: Journal, thread: int) -> None:
    """It tells a store that it lives, five times a second until the end."""
    call = journal.store_call("set", 90, "live")
    for n in range(5, 5 * UNTIL_S):
        journal.run(call, n * S // 5, MS, k="alive", h=thread)


TALKS = {
    "it stands": "rank 1 is at train.py:70 in load", "its main thread talks": "",
    "it joins that thread": "", "not known": "rank 1 is not in any collective since all_reduce #2",
    "that thread exchanges": "",
}  # fmt: skip
STANDS = {"it stands": ("train.py", 70, "load")}
STANDS["it joins that thread"] = (f"{PYTHON}/threading.py", 1119, "join")


@pytest.mark.parametrize("how", TALKS)
def test_who_stands_beside_a_thread_that_talks(tmp_path: Path, how: str) -> None:
    """Rank 1 is to blame; not where its main thread asks, or waits for the one that does, or who
    exchanges asks: then somebody else may have to act."""
    exchanges = how == "that thread exchanges"
    for journal, group in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 400 * MS, q=3 + exchanges)
            continue
        if exchanges:
            journal.run(journal.collective(group), 200 * MS, MS, q=3, h=1)
        if how in STANDS:
            journal.stand(12 * S, *STANDS[how])
        talks(journal, int(how != "its main thread talks"))
    finds(tmp_path, "missing_participant", [1] if TALKS[how] else [], says=TALKS[how])


def test_it_does_not_get_on_by_that(tmp_path: Path) -> None:
    """Rank 0 awaits a key again and again, which rank 1 does not set."""
    for journal, _ in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank == 0:
            call, error = journal.store_call("wait", 50), journal.string("wait timeout after 1s")
            for second in range(1, UNTIL_S):
                number = journal.begin(call, second * S, k="weights")
                journal.record(e=number, d=900 * MS, x=error)
        else:
            journal.stand(12 * S, "/src/train.py", 70, "load")
            talks(journal, 1)
    finds(tmp_path, "store_key_missing", [])


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_reducer_waits_also_beside_another_thread(tmp_path: Path, *, exchanges: bool) -> None:
    """Rank 1 may wait for something in that one's group; what it asks a store says nothing."""
    for journal, group in alive(steps(tmp_path, 2), UNTIL_S):
        if journal.rank == 0:
            reduce = journal.collective(group, origin="c++", asynchronous=True)
            journal.record(i=journal.begin(reduce, 200 * MS, q=3), d=MS // 10)
        if exchanges:
            call = journal.collective(journal.group(name="watch", default=False))
            for n in range(1, 3 * UNTIL_S):
                journal.run(call, n * S // 3, MS, q=n, h=1)
            continue
        talks(journal, 1)
        if journal.rank:
            frames = ("train.py", 70, "load"), ("train.py", 20, "main")
            journal.record(at=12 * S, h=0, k=journal.stack(*frames))
    found = finds(tmp_path, "missing_participant", None if exchanges else [1], seq=3)
    assert found.certainty == "likely"
    assert "uneven" not in str(found.hint), "that thread's function is not the one it has left"


def test_a_straggler_is_found_beside_threads_that_talk(tmp_path: Path) -> None:
    """Rank 1 is away for 300 ms now and then, while a thread of it says that it lives."""
    let_go, number = 200 * MS, 2
    jobs = steps(tmp_path, 2)
    calls = [(journal.collective(group), journal.store_call("set", 90)) for journal, group in jobs]
    for step in range(40):
        pause, number = 300 * MS * (step % 5 == 3), number + 1
        for (journal, _), (call, lives) in zip(jobs, calls, strict=True):
            for beat_ns in range(let_go + 50 * MS, let_go + pause, 50 * MS):
                journal.run(lives, beat_ns, MS, k="alive", h=1)
            begin = let_go + MS + (pause if journal.rank else 0)
            journal.run(call, begin, let_go + MS + pause + MS // 5 - begin, q=number)
        let_go += MS + pause + MS // 5
    for journal, _ in jobs:
        journal.leave(let_go + MS)
    finds(tmp_path, "straggler", [1], look=all_gone, says="by 300 ms in 8 of")


@pytest.mark.parametrize("last", [-50 * MS, 50 * MS], ids=["the thread's", "the main one's"])
def test_who_asks_beside_a_thread_that_talks(tmp_path: Path, last: int) -> None:
    """Whichever of the two did something last, rank 1 asks for what somebody else should bring."""
    for journal, _ in hang_without(tmp_path, 2, 1):
        asks, lives = journal.store_call("check", 30), journal.store_call("set", 90, "live")
        for n in range(5, 5 * UNTIL_S):
            told = [(n * S // 5 + last, asks, "ready", 0), (n * S // 5, lives, "alive", 1)]
            for t, call, key, thread in sorted(told):
                journal.run(call, t, MS, k=key, h=thread)
    finds(tmp_path, "missing_participant", [], says="rank 1 asks again and again (store.check of '")


def test_who_ended_after_a_call_of_a_pool_has_the_line_before(tmp_path: Path) -> None:
    """No line of the program's made that call."""
    pool = ("/usr/lib/python3.11/concurrent/futures/thread.py", 58, "run")
    for journal, group in steps(tmp_path, 2):
        journal.run(journal.store_call("set", 90), 150 * MS, MS, k="ready")
        theirs = journal.collective(group, stack=journal.stack(pool))
        journal.run(theirs, 200 * MS, MS, q=3, h=1)
        if journal.rank == 1:
            error = journal.string(PEER_GONE)
            number = journal.begin(journal.collective(group), 210 * MS, q=4)
            journal.end(number, MS, x=error)
            journal.fail(215 * MS, "RuntimeError", PEER_GONE)
    found = finds(tmp_path, "process_failed", [0], look=all_gone)
    assert [(where.file, where.line) for where in found.locations] == [("train.py", 90)]
