"""Who is blamed, whose an address is, and waits that are tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import Look
from disttrace_viewer.merge.reader import load
from support.journals import MS, PEER_GONE, Journal, S
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
)


@pytest.mark.parametrize("polls", [True, False])
def test_who_polls_a_store_waits_for_somebody_as_well(tmp_path: Path, *, polls: bool) -> None:
    """Rank 0 asks for the count of those that are done; another rank forgot to add to it."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank:
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        elif polls:
            add = journal.store_call("add", 60)
            for n in range(1, 40):
                journal.run(add, t=n * S // 2, d=MS, k="done/2")
    found = finds(
        tmp_path, "missing_participant", [] if polls else [0],
        certainty="likely" if polls else "certain",
    )  # fmt: skip
    if polls:
        assert "asks again and again (store.add of 'app/done/2' at train.py:60)" in found.summary


def test_a_thread_that_ends_the_process_under_a_call(tmp_path: Path) -> None:
    """The main thread is in a collective when another one calls ``os._exit(0)``."""
    for journal, group in steps(tmp_path, 3):
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        if journal.rank == 1:
            stack = journal.stack(("train.py", 9, "watchdog"))
            journal.define("exit", t=300 * MS, how="os._exit", code=0, stack=stack)
            continue
        journal.end(number, 110 * MS, x=journal.string(PEER_GONE))
        journal.fail(311 * MS, "RuntimeError", PEER_GONE.partition(": ")[2], line=40)
    found = finds(tmp_path, "process_failed", [1], look=all_gone)
    assert "left by os._exit(0) at train.py:9 in watchdog" in found.summary


def given_up(folder: Path, ranks: int, at_s: int) -> None:
    """Rank 0 is missing, and rank 1's watchdog ends it."""
    for journal, group in steps(folder, ranks):
        if journal.rank:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        if journal.rank == 1:
            stack = journal.stack(("train.py", 9, "watchdog"))
            journal.define("exit", t=at_s * S, how="os._exit", code=3, stack=stack)
        else:
            journal.beat(20 if ranks == 3 else at_s)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("look", [nobody_knows, all_gone])
def test_a_thread_gives_up_what_another_awaits(tmp_path: Path, look: Look, ranks: int) -> None:
    """A watchdog: rank 0 is missing; of two an untraced launcher ends the other one."""
    given_up(tmp_path, ranks, 8 if ranks == 3 else 12)
    told = ("Rank 1 left by os._exit(3).",)
    finds(tmp_path, "missing_participant", [0], consequences=told, look=look)


def test_a_thread_that_gives_up_too_early_to_tell(tmp_path: Path) -> None:
    """The other one might still have come: it is said who left, and where."""
    given_up(tmp_path, 2, 8)
    finds(tmp_path, "process_failed", [1], says="left by os._exit(3) at train.py:9 in watchdog")


def test_who_leaves_in_a_handler_of_signals_was_ended(tmp_path: Path) -> None:
    """Rank 0 leaves within the call in which it waits for rank 1; that one by the same line."""
    leave = ("train.py", 9, "leave")
    for journal, group in steps(tmp_path, 2):
        within = ("loader.py", 7, "load") if journal.rank else ("train.py", 10, "step")
        if journal.rank:
            journal.stand(2 * S, *within)
        else:
            journal.begin(journal.collective(group, stack=journal.stack(within)), 200 * MS, q=3)
        end = {"how": "os._exit", "code": 3, "stack": journal.stack(leave, within)}
        journal.define("exit", t=12 * S - (journal.rank or 0) * MS, **end)
    finds(tmp_path, "missing_participant", [1], look=all_gone)


def test_a_member_that_was_frozen_inside_of_a_collective(tmp_path: Path) -> None:
    """All have begun it; rank 2 gives no sign of life since, and nobody lost its connection."""
    for journal, group in steps(tmp_path, 3):
        journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.beat(0 if journal.rank == 2 else 30)
    found = finds(tmp_path, "no_progress", [2], certainty="likely", look=all_gone)
    assert "rank 2 has been frozen for 29.8 s" in found.summary


def test_the_exception_of_a_thread_is_told_of_whoever_waits_for_it(tmp_path: Path) -> None:
    """Rank 1's loading thread failed; its main thread waits for the next batch."""
    for journal, _ in hang_without(tmp_path, 3, 1):
        thread = journal.numbered("thread", name="load", native=7)
        where = ("train.py", 13, "load")
        journal.failure(180 * MS, "OSError", "disk is gone", where, thread=thread)
    found = finds(tmp_path, "missing_participant", [1])
    assert "thread first: OSError: disk is gone at train.py:13 in load" in (found.hint or "")


def test_an_exception_of_whom_a_finding_names_is_always_quoted(tmp_path: Path) -> None:
    """Another operation was called; the rank that did ends by an exception of its own."""
    for journal, group in hang_without(tmp_path, 3, 1, beats=False):
        journal.run(journal.collective(group, "broadcast"), t=200 * MS, d=MS, q=3)
        journal.fail(400 * MS, "KeyError", "'lr'")
    found = finds(tmp_path, "op_mismatch", [1])
    assert any("KeyError: 'lr'" in one for one in (found.summary, *found.consequences))


DIED = "the loss is not a number"


def echo(journal: Journal, call: int, text: str = PEER_GONE) -> None:
    """An operation that ends in an echo which then ends the process."""
    journal.break_off(call, 200 * MS, 30 * MS, 240 * MS, text, q=3)


@pytest.mark.parametrize(
    ("size", "who", "whose"), [(2, "Rank 0", " (rank 1)"), (3, "Ranks 0, 2", "")]
)
def test_of_two_the_address_is_that_of_the_other(
    tmp_path: Path, size: int, who: str, whose: str
) -> None:
    """Rank 1 fails; a mesh of two has no other connection, and one of more has."""
    for journal, group in steps(tmp_path, size):
        if journal.rank == 1:
            journal.fail(210 * MS, "ValueError", DIED)
        else:
            echo(journal, journal.collective(group))
    text = "failed with RuntimeError: Connection closed by peer [127.0.0.1]:4711"
    assert f"{who} {text}{whose}." in only(findings(tmp_path, look=all_gone)).consequences


def test_the_address_in_a_message_is_that_of_its_peer(tmp_path: Path) -> None:
    """Rank 0 receives from rank 1 of three; from any source nothing would be certain."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.fail(210 * MS, "ValueError", DIED)
        else:
            echo(journal, journal.message(group, "recv", None if journal.rank else 1))
    found = only(findings(tmp_path, look=all_gone))
    text = "failed with RuntimeError: Connection closed by peer [127.0.0.1]:4711"
    assert f"Rank 0 {text} (rank 1)." in found.consequences
    assert f"Rank 2 {text}." in found.consequences


def test_those_that_lost_different_ranks_are_told_apart(tmp_path: Path) -> None:
    """Rank 3 fails; 1 and 2 lose it in groups of two, and then 0 loses rank 2."""
    groups = {0: [0, 2], 1: [1, 3], 2: [2, 3], 3: [1, 3]}
    for journal, _ in steps(tmp_path, 4):
        rank = journal.rank or 0
        if rank == 3:
            journal.fail(210 * MS, "ValueError", DIED)
            continue
        store = journal.prefix_store(journal.tcp_store(), "app")
        pair = journal.group(
            store, size=2, ranks=groups[rank], rank=groups[rank].index(rank), id=f"{groups[rank]}",
            name=f"{groups[rank]}",
        )  # fmt: skip
        text = f"RuntimeError: Connection closed by peer [127.0.0.1]:{4711 + rank}"
        call, late = journal.collective(pair), (rank == 0) * 10 * MS
        journal.break_off(call, 200 * MS, 30 * MS + late, 240 * MS + late, text, q=1)
    found = findings(tmp_path, look=all_gone)
    told = [one for f in found for one in f.consequences if "peer" in one]
    text = "failed with RuntimeError: Connection closed by peer [127.0.0.1]"
    assert sorted(told) == [f"Rank 0 {text}:4711 (rank 2).", f"Ranks 1, 2 {text}:4712 (rank 3)."]


DETAIL = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running ..."


@pytest.mark.parametrize("habit", [False, True])
def test_a_message_to_the_wrong_rank(tmp_path: Path, habit: bool) -> None:
    """Rank 0 sends to 2, rank 1 receives from 0; if that call met rank 2 before, 2 is late."""
    for journal, group in alive(steps(tmp_path, 3)):
        if habit and journal.rank == 0:
            call = journal.message(group, "send", 2)
            journal.run(call, t=150 * MS, d=2 * MS, q=1)
            journal.begin(call, 200 * MS, q=2)
        elif habit and journal.rank == 2:
            journal.run(journal.message(group, "recv", 0), t=150 * MS, d=2 * MS, q=1)
        elif journal.rank == 0:
            journal.begin(journal.message(group, "send", 2), 200 * MS, q=1)
        if journal.rank == 1:
            journal.begin(journal.message(group, "recv", 0), 200 * MS, q=1)
        if journal.rank == 2:
            journal.stand(3 * S, "/src/loader.py", 9, "load")
    found = finds(tmp_path, "unmatched_send", [2] if habit else [])
    assert ("is the destination right?" in found.summary) is not habit


def test_a_collective_in_the_wrong_group(tmp_path: Path) -> None:
    """Rank 1 is in the group with rank 2 at the line where rank 0 waits in that with rank 1."""
    for journal, _ in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        groups = {}
        for members in ([0, 1], [1, 2]):
            if rank in members:
                groups[members[0]] = journal.group(
                    journal.prefix_store(1, f"{members}"), name=f"{members}", ranks=members, size=2,
                    rank=members.index(rank), default=False,
                )  # fmt: skip
        if rank < 2:
            journal.begin(journal.collective(groups[rank]), 200 * MS, q=1)
    finds(tmp_path, "missing_participant", [], says="is the group right?")


def test_a_side_thread_holds_up_nobody(tmp_path: Path) -> None:
    """Every rank's listener waits for "shutdown"; rank 1's main thread is in its loader."""
    for journal, group in alive(steps(tmp_path, 3)):
        journal.numbered("thread", name="listener", native=7)
        wait = journal.call("store.wait", kind="store", store=1)
        journal.begin(wait, 150 * MS, k="shutdown", h=1)
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
    finds(tmp_path, "missing_participant", [1])


@pytest.mark.parametrize("joined", [False, True])
def test_a_side_thread_that_is_joined_counts(tmp_path: Path, joined: bool) -> None:
    """The main thread is at work, or waits for the thread that waits for a key nobody sets."""
    for journal, _ in alive(steps(tmp_path, 2)):
        wait = journal.call("store.wait", kind="store", store=1)
        journal.begin(wait, 150 * MS, k="done", h=1)
        if joined:
            frames = (("/usr/lib/python3.12/threading.py", 1149, "join"), ("train.py", 9, "main"))
            journal.record(at=3 * S, h=0, k=journal.stack(*frames))
        else:
            journal.stand(3 * S, "train.py", 12, "compute")
    kinds = [found.kind for found in findings(tmp_path)]
    assert kinds == (["store_key_missing"] if joined else [])


def test_a_call_that_raises_under_detail_has_begun(tmp_path: Path) -> None:
    """All members raise in the call, which takes no number: the calls themselves are compared."""
    for journal, group in steps(tmp_path, 3):
        op = "all_gather" if journal.rank == 0 else "all_reduce"
        call = journal.collective(group, op)
        journal.break_off(call, 200 * MS, MS, 210 * MS, DETAIL, q=3, refused=True, line=10)
    found = finds(tmp_path, "op_mismatch", [0], seq=3)
    assert found.consequences[0].startswith("Ranks 1, 2 failed with RuntimeError")


UNTIL_S = 20
LIMIT = "RuntimeError: Operation timed out!"
IN_VAIN = "torch.distributed.DistStoreError: wait timeout after 1900ms, keys: /app/weights"
ITS_LIMIT = {"args": {"timeout": 1.9}}
"""A store operation with a time limit of its own bears that in each record."""


def tries(journal: Journal, group: int, until_s: int = UNTIL_S, pause_ns: int = 100 * MS) -> int:
    """An all_reduce that is waited for two seconds, again and again, to the middle of a try."""
    number = journal.issue(journal.collective(group, asynchronous=True), 200 * MS, q=3, d=MS)
    for second in range(1, until_s, 2):
        journal.record(w=number, d=second * S)
        journal.record(e=number, d=(second + 2) * S - pause_ns, x=journal.string(LIMIT), r=1)
    return number


def in_loader(journal: Journal) -> None:
    journal.stand(3 * S, "/src/train.py", 70, "load")
    journal.beat(UNTIL_S)


@pytest.mark.parametrize("between", [False, True])
def test_a_work_that_is_waited_for_again(tmp_path: Path, *, between: bool) -> None:
    """Also in the moment between two tries, when nothing is in flight."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            in_loader(journal)
            continue
        number = tries(journal, group)
        if not between:
            journal.record(w=number, d=21 * S)
        journal.beat(UNTIL_S + 2)
    finds(tmp_path, "missing_participant", [0], says="rank 1 has been waiting at train.py:10 for 2")


def test_who_gave_up_for_good_waits_no_more(tmp_path: Path) -> None:
    """It caught the last error and computes since: nobody stands still by it."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            tries(journal, group, until_s=6)
        in_loader(journal)
    assert findings(tmp_path) == []


def test_who_ends_by_the_last_try_is_no_culprit(tmp_path: Path) -> None:
    """The exception of a wait that reached its limit passes on that somebody did not come."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            in_loader(journal)
            continue
        tries(journal, group)
        journal.fail(21_800 * MS, "RuntimeError", "Operation timed out!")
    finds(tmp_path, "missing_participant", [0])


@pytest.mark.parametrize("handled", [True, False])
def test_a_limit_that_was_handled_breaks_nothing(tmp_path: Path, *, handled: bool) -> None:
    """What the program fails of after that is its own, unless it was raised from it."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 0:
            call = journal.collective(group, asynchronous=True)
            number = journal.issue(call, 200 * MS, q=3, d=MS)
            journal.record(w=number, d=MS)
            journal.record(e=number, d=2 * S, x=journal.string(LIMIT), r=1)
            journal.fail(3 * S, "ValueError", "bad", causes=[] if handled else [LIMIT])
            continue
        late = journal.rank == 1
        number = journal.begin(journal.collective(group), (5 * S if late else 200 * MS), q=3)
        gone = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
        journal.end(number, 5 * S - 100 * MS if not late else MS, x=journal.string(gone))
        journal.fail(6 * S, "RuntimeError", gone.partition(": ")[2])
    found = only(findings(tmp_path))
    expected = ("process_failed", [0]) if handled else ("missing_participant", [1])
    assert (found.kind, ranks(tmp_path, found.culprits)) == expected
    if handled:
        assert "ValueError: bad" in found.summary


def test_one_that_comes_through_at_last_ended_well(tmp_path: Path) -> None:
    """Also in the table of all operations: one operation, with one end and no error."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.run(journal.collective(group), 10 * S, 900 * MS, q=3)
            continue
        number = tries(journal, group, until_s=8)
        journal.record(w=number, d=9 * S)
        journal.record(e=number, d=10_700 * MS)
    trace = load([str(tmp_path)])
    rows = trace.operations.filter(seq=3)
    assert rows["error"].to_list() == [None, None]
    assert rows["end_ns"].null_count() == 0
    assert trace.problems == ()
    assert [f for f in findings(tmp_path) if f.severity == "error"] == []


def awaits_key(journal: Journal) -> int:
    """``store.wait`` of two seconds, again and again; the number of its call."""
    call = journal.store_call("wait", 50)
    for second in range(1, UNTIL_S, 2):
        number = journal.begin(call, second * S, k="weights", a=ITS_LIMIT)
        journal.record(e=number, d=1_900 * MS, x=journal.string(IN_VAIN))
    return call


@pytest.mark.parametrize("pending", [False, True])
def test_a_key_that_is_awaited_again(tmp_path: Path, *, pending: bool) -> None:
    """By one process alone, which has had no other part in the key."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 1:
            call = awaits_key(journal)
            if pending:
                journal.begin(call, 21 * S, k="weights", a=ITS_LIMIT)
            journal.beat(UNTIL_S + 1)
        else:
            in_loader(journal)
    found = finds(tmp_path, "store_key_missing", [], certainty="likely")
    assert "'app/weights' again and again for" in found.summary
    assert "rank 0 is at train.py:70 in load" in found.summary


@pytest.mark.parametrize("computed", [False, True])
def test_a_kill_after_long_asking_is_not_the_cause(tmp_path: Path, *, computed: bool) -> None:
    """Of two killed one served the store; the other had held the GIL, and lived by its counts."""
    lost = "Failed to recv, got 0 bytes. Connection was likely closed."
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 2:
            journal.stand(150 * MS, "/src/train.py", 70, "match")
            if computed:
                journal.define("activity", t=20 * S, over=5 * S, cpu=S, read=0, written=0, busy=1)
            journal.define("seen", t=25 * S, state="gone", others=0)
            continue
        number = journal.begin(awaits_key(journal), 21 * S, k="weights", a=ITS_LIMIT)
        journal.beat(UNTIL_S + 1)
        if journal.rank == 1:
            error = journal.string(f"torch.distributed.DistNetworkError: {lost}")
            journal.end(number, 700 * MS, x=error)
            journal.fail(21_701 * MS, "DistNetworkError", lost)
        else:
            journal.define("seen", t=22 * S, state="gone", others=0)
    if not computed:
        finds(tmp_path, "process_failed", [2], look=all_gone)
        return
    found = finds(tmp_path, "store_key_missing", [], certainty="likely", look=all_gone)
    assert "rank 2 is at train.py:70 in match" in found.summary


@pytest.mark.parametrize("needed", [False, True])
def test_who_awaits_a_key_while_something_else_is_wrong(tmp_path: Path, *, needed: bool) -> None:
    """It may look for a message every now and then; if others wait for it, that is told."""
    for journal, _ in alive(steps(tmp_path, 4), UNTIL_S):
        rank = journal.rank or 0
        first = 2 * (rank // 2)
        store = journal.prefix_store(1, f"pair {first}")
        members = [first, first + 1]
        pair = journal.group(store, name=f"{first}", rank=rank - first, ranks=members)
        if journal.rank == 1 or (needed and journal.rank == 2):
            journal.begin(journal.collective(pair), 200 * MS, q=1)
        if journal.rank == 3:
            awaits_key(journal)
    kinds = sorted(one.kind for one in findings(tmp_path) if one.severity == "error")
    assert kinds == ["missing_participant", *["store_key_missing"] * needed]
