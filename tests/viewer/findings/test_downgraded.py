"""What makes a note of a finding: a handled error, an attempt that is over, others that get on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis import live
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.report import healthy
from support.journals import MS, PEER_GONE, T0, UNIX_NS, Journal, S
from support.scenes import (
    alive,
    all_gone,
    findings,
    finds,
    hang_without,
    only,
    ranks,
    steps,
    tried,
    verdict,
)


def handles(journal: Journal, t: int, *, text: str = "bad batch", h: int = 0) -> None:
    """Seen by the background thread at ``t``."""
    where = journal.stack(("loader.py", 7, "load"), ("train.py", 20, "main"))
    journal.define("handling", t=t, h=h, type="ValueError", text=text, stack=where)


def hang(folder: Path, *, calls: bool, **handled: Any) -> None:
    """Two of three in all_reduce #3; rank 1 in a barrier under that number, or in no call."""
    for journal, group in alive(steps(folder, 3)):
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        elif calls:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
        if journal.rank == 1:
            handles(journal, 1_500 * MS, **handled)


@pytest.mark.parametrize(("calls", "kind"), [(True, "op_mismatch"), (False, "missing_participant")])
def test_it_is_told_with_its_line(tmp_path: Path, calls: bool, kind: str) -> None:
    hang(tmp_path, calls=calls)
    found = finds(tmp_path, kind, [1])
    assert found.summary.endswith(" Rank 1 handles ValueError: bad batch (loader.py:7) there.")
    assert (found.hint or "").startswith("Find why rank 1 raised ValueError: bad batch (loader.py")


@pytest.mark.parametrize("other", [{"h": 1}, {"text": PEER_GONE}])
def test_what_says_nothing_of_the_reason_is_not_told(tmp_path: Path, other: dict[str, Any]) -> None:
    """What another thread handles; and that a peer went away, which is what became of something."""
    hang(tmp_path, calls=True, **other)
    assert "handles" not in only(findings(tmp_path)).summary


@pytest.mark.parametrize("later", ["no more", "call"])
def test_it_is_over(tmp_path: Path, later: str) -> None:
    """Where the thread handles nothing any more, or has made another call since."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank == 1:
            handles(journal, 150 * MS)
            if later == "no more":
                journal.define("handling", t=160 * MS, h=0)
        if journal.rank == 1 and later == "call":
            journal.begin(journal.collective(group, "barrier"), 210 * MS, q=3)
        elif journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
    assert "handles" not in only(findings(tmp_path)).summary


def test_one_that_ended_the_process_is_told_once(tmp_path: Path) -> None:
    """It left the `finally`, and nobody caught it: that is what is told."""
    for journal, _ in hang_without(tmp_path, 3, 1, beats=False):
        handles(journal, 1_500 * MS)
        journal.fail(2_000 * MS, "ValueError", "bad batch", ("loader.py", 7, "load"))
    told = " ".join(found.summary for found in findings(tmp_path))
    assert "ValueError: bad batch" in told
    assert "handles" not in told


PATH = "/tmp/meeting"


def run(folder: Path, pid: int, start_s: int, written_ns: int | None) -> list[tuple[Journal, int]]:
    """Two ranks make their store of a file; each with the number of the base store."""
    found = []
    for rank in range(2):
        journal = Journal(folder, pid=pid + rank, rank=rank, world_size=2, t0=T0 + start_s * S)
        where = journal.stack(("train.py", 6, "main"))
        base = journal.numbered(
            "store", type="FileStore", name=f"file://{PATH}", base=None, prefix=[], path=PATH
        )
        init = journal.call("init_process_group", kind="composed", origin="python", stack=where)
        written = None if written_ns is None else written_ns + rank * start_s * S
        args = {"path": PATH, "world_size": 2, **({"written": written} if written else {})}
        make = journal.call(
            "FileStore", kind="constructor", store=base, origin="python", stack=where, args=args
        )
        one = journal.begin(init, MS)
        journal.run(make, 2 * MS, MS, p=one)
        mesh = journal.call(
            "ProcessGroupGloo", kind="constructor",
            store=journal.prefix_store(base, "default_pg", "0/"), origin="python", stack=where,
            args={"rank": rank, "size": 2},
        )  # fmt: skip
        number = journal.begin(mesh, 4 * MS, p=one)
        found.append((journal, number))
    return found


def broken(journal: Journal, number: int) -> None:
    """It meets nobody at the address in the file."""
    journal.end(number, 50 * MS, x=journal.string(PEER_GONE))
    journal.fail(60 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])


@pytest.mark.parametrize("earlier", [True, False])
def test_a_file_that_an_earlier_run_has_left(tmp_path: Path, earlier: bool) -> None:
    """Whether its journals are there, of ranks that were killed, or not."""
    if earlier:
        for journal, number in alive(run(tmp_path, 4000, 0, None), 4):
            journal.end(number, MS)
            journal.end(1, 5 * MS)
    for journal, number in run(tmp_path, 4100, 8, UNIX_NS + S):
        broken(journal, number)
    found = next(one for one in findings(tmp_path, look=all_gone) if one.severity == "error")
    assert found.culprits == ()
    told = "; /tmp/meeting is left over from an earlier run: the file still holds its addresses."
    assert found.summary.endswith(told)
    assert (found.hint or "").startswith("Delete that file")


def test_a_file_that_this_run_has_made(tmp_path: Path) -> None:
    """Rank 0 wrote it, and then rank 1 began."""
    for journal, number in run(tmp_path, 4100, 8, UNIX_NS + 9 * S):
        broken(journal, number)
    found = findings(tmp_path, look=all_gone)
    assert found
    assert not any("left over" in one.summary for one in found)


def restarted(folder: Path, size: int = 1) -> tuple[Journal, Journal]:
    """torchrun's agent, whose rank 0 failed and was started anew; it, and the second attempt."""
    agent = Journal(folder, pid=500, role="agent")
    tries = [
        Journal(
            folder, rank=0, world_size=size, pid=600 + n, parent=agent.process, keys={"attempt": n}
        )
        for n in range(2)
    ]
    tries[0].fail(S, "ValueError", "bad batch")
    return agent, tries[1]


def test_a_failure_that_was_overcome_is_a_note(tmp_path: Path) -> None:
    """It cost an attempt, and the job ended well."""
    agent, second = restarted(tmp_path)
    second.leave(3 * S)
    agent.leave(4 * S)
    found = finds(tmp_path, "process_failed", severity="note", look=all_gone)
    assert found.summary.startswith("Attempt 0 failed (Rank 0 failed first: ValueError: bad batch")
    assert found.summary.endswith("; attempt 1 ran to its end.")
    # No later attempt came through.
    agent, second = restarted(tmp_path / "failed")
    second.leave(3 * S)
    agent.fail(4 * S, "ChildFailedError", "train.py FAILED")
    assert findings(tmp_path / "failed", look=all_gone)[0].severity == "error"


def test_one_that_hangs_and_is_ended_from_outside_keeps_its_verdict(tmp_path: Path) -> None:
    """Rank 1 failed and all began anew; what ended the first attempt was no interrupt."""
    agent = Journal(tmp_path, pid=500, role="agent")

    def told(journal: Journal, t: int, event: str) -> None:
        agent.define("worker", t=t, pid=journal.pid, event=event, rank=journal.rank)

    for attempt, rank in itertools.product((0, 1), (0, 1)):
        journal = tried(tmp_path, agent, attempt, rank)
        group = journal.world()
        begin = 4 * S * attempt
        journal.run(journal.collective(group), begin + 100 * MS, MS, q=1)
        failed = (attempt, rank) == (0, 1)
        if failed:
            journal.fail(S, "ValueError", "bad batch")
        elif attempt == 1:
            if rank == 0:
                journal.begin(journal.collective(group), begin + 200 * MS, q=2)
            journal.beat(30)
        told(journal, 30 * S if attempt else 2 * S, "failed" if failed else "killed")
    agent.fail(30 * S + MS, "SignalException", "Process 500 got signal: 15")
    first, second, note = findings(tmp_path)
    assert (first.kind, ranks(tmp_path, first.culprits)) == ("missing_participant", [1])
    assert (second.kind, note.severity) == ("process_failed", "note")


@pytest.mark.parametrize("lost", ["its end", "its journal", "a rank's end"])
def test_without_launcher_the_ranks_of_the_later_attempt_tell(tmp_path: Path, lost: str) -> None:
    """They all ended well; of one of which that is unknown it may be wrong."""
    agent, second = restarted(tmp_path)
    if lost != "a rank's end":
        second.leave(3 * S)
    if lost == "its journal":
        agent.definitions.unlink()
    found = findings(tmp_path, look=all_gone)
    assert found[0].kind == "process_failed"
    assert found[0].severity == ("error" if lost == "a rank's end" else "note")


@pytest.mark.parametrize("how", ["killed", "left", "began anew"])
def test_a_job_that_goes_on_without_a_node_that_was_killed(tmp_path: Path, how: str) -> None:
    """Node 0 began anew and came through; a node that ended well, or later, may belong to it."""
    stays = Journal(tmp_path, pid=500, role="agent")
    gone = Journal(tmp_path, pid=501, role="agent")
    first = [tried(tmp_path, agent, 0, rank) for rank, agent in enumerate((stays, gone))]
    for journal in first:
        group = journal.world()
        journal.run(journal.collective(group), S, MS, q=1)
    first[0].raises(first[0].collective(1), S + 2 * MS, 18 * MS, PEER_GONE, q=2)
    first[0].fail(S + 21 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])
    gone.define("sighting", t=S + 20 * MS, state="gone", code=-9, others=3)
    again = Journal(
        tmp_path, rank=0, world_size=1, pid=700, parent=stays.process, keys={"attempt": 1},
        t0=T0 + 8 * S,
    )  # fmt: skip
    again.leave(S)
    stays.leave(10 * S)
    if how == "left":
        gone.leave(S + 20 * MS)
    if how == "began anew":
        tried(tmp_path, gone, 1, 1, t0=T0 + 8 * S)
    case, (found, *_) = verdict(tmp_path, look=all_gone)
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("process_failed", [1])
    assert found.severity == ("note" if how == "killed" else "error")
    told = [place.line(case).split("  ")[0] for place in places(case, [found])]
    assert {"rank 0 (attempt 0)", "rank 0 (attempt 1)"} < {*told}


def test_an_attempt_that_failed_holds_up_nobody_of_the_next_one(tmp_path: Path) -> None:
    """That one starts, and a rank of it imports for long: while it runs nothing is stalled."""
    agent, second = restarted(tmp_path, 2)
    second.join(3 * S, 2)
    for journal in (agent, second):
        journal.beat(20)
    case, found = verdict(tmp_path)
    told = {(f.kind, f.severity) for f in found}
    assert told == {("process_failed", "error"), ("rendezvous_incomplete", "note")}
    assert live.stalled(case, found, 10.0) == []
    late = verdict(tmp_path, stall_s=2)
    first = [f.kind for f in live.stalled(*late, 2.0)]  # what holds up the living
    assert first == ["rendezvous_incomplete", "process_failed"]


def makes_group(folder: Path, agent: Journal, attempt: int, rank: int, *, own_keys: bool) -> Any:
    """A rank of an attempt, in the same store; and its call that makes the group."""
    journal = tried(folder, agent, attempt, rank, t0=T0 + 10 * S * attempt)
    lead = (f"attempt_{attempt}",) if own_keys else ()
    store = journal.prefix_store(journal.tcp_store(29500), *lead, "default_pg", "0/")
    args = {"rank": rank, "size": 2}
    return journal, journal.call("ProcessGroupGloo", kind="constructor", store=store, args=args)


@pytest.mark.parametrize("own_keys", [False, True])
def test_an_attempt_meets_the_addresses_of_the_last_one(tmp_path: Path, *, own_keys: bool) -> None:
    """Same store, same keys: who is refused at once did not wait for one who comes later."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    agent.tcp_store(29500, server=True)
    for attempt, rank in itertools.product((0, 1), (0, 1)):
        journal, call = makes_group(tmp_path, agent, attempt, rank, own_keys=own_keys)
        begin = (1 + 2 * rank * attempt * (not own_keys)) * S
        if attempt == 0:
            journal.run(call, begin, 10 * MS)
            journal.fail(2 * S, "ValueError", f"bad {rank}")
        else:
            refused = "RuntimeError: Gloo connectFullMesh failed: Connection refused"
            journal.break_off(call, begin, 20 * MS, begin + S, refused)
    found = findings(tmp_path)[0]
    assert (found.kind, found.culprits) == ("process_failed", ())
    assert ("attempt 0 made this group under the same keys" in found.summary) is not own_keys


@pytest.mark.parametrize("own_keys", [False, True])
def test_an_attempt_hangs_in_the_addresses_of_the_last_one(tmp_path: Path, own_keys: bool) -> None:
    """All are in the making of their group, as those of the first one were, in the same store."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    agent.tcp_store(29500, server=True)
    agent.beat(40)
    for attempt, rank in itertools.product((0, 1), (0, 1)):
        journal, call = makes_group(tmp_path, agent, attempt, rank, own_keys=own_keys)
        number = journal.begin(call, S)
        if attempt == 0:
            journal.end(number, 10 * MS)
            journal.fail(2 * S, "ValueError", f"bad {rank}")
        else:
            journal.beat(30)
    case, found = verdict(tmp_path)
    assert (found[0].kind, found[0].culprits) == ("no_progress", ())
    assert {case.evidence.trace.processes[p].pid for p in found[0].waiting} == {4100, 4101}
    assert ("attempt 0 made this group under the same keys" in found[0].summary) is not own_keys
    assert live.stalled(case, found, 10.0)[0] == found[0]


def test_who_only_begins_to_make_a_group_is_told_to_be_in_that(tmp_path: Path) -> None:
    """It is no wait yet, and its main thread was seen in the line around it."""
    journal = Journal(tmp_path, rank=0, world_size=2, pid=600)
    store = journal.prefix_store(journal.tcp_store(29500, server=True), "default_pg", "0/")
    call = journal.call("ProcessGroupGloo", kind="constructor", store=store, args={"size": 2})
    journal.begin(call, S)
    journal.stand(S + 500 * MS, "train.py", 3, "main")
    case, found = verdict(tmp_path, look=all_gone)
    told = places(case, found)[0].line(case)
    assert told.partition("  ")[2].startswith("killed  in ProcessGroupGloo")


def swept(folder: Path, *, role: str = "main", second: bool = True) -> Journal:
    """A program that runs a trial in two ranks, which fails on one, and another; itself."""
    starter = Journal(folder, pid=500, role=role)
    for trial, rank in itertools.product(range(1 + second), range(2)):
        journal = Journal(
            folder, rank=rank, world_size=2, pid=600 + 10 * trial + rank, parent=starter.process,
            t0=T0 + trial * 5 * S,
        )  # fmt: skip
        if (trial, rank) == (0, 1):
            journal.fail(S, "FloatingPointError", "diverged")
        else:
            journal.leave(S)
    return starter


@pytest.mark.parametrize("end", ["well", "badly", "unknown"])
def test_a_trial_that_failed_beside_others_is_a_note(tmp_path: Path, end: str) -> None:
    """The program that ran them handled it, and ended well; else it is a failure."""
    starter = swept(tmp_path)
    if end == "well":
        starter.leave(9 * S)
    elif end == "badly":
        starter.fail(9 * S, "ProcessRaisedException", "FloatingPointError: diverged")
    found = findings(tmp_path, look=all_gone)[0]
    assert (found.severity == "note") is (end == "well")
    assert "FloatingPointError: diverged" in found.summary
    assert found.summary.startswith("One of several runs that ") is (end == "well")


@pytest.mark.parametrize("other", ["alone", "agent"])
def test_who_begins_nothing_after_a_failure_has_failed(tmp_path: Path, other: str) -> None:
    """A parent may but ignore how its ranks end; and a launcher's attempts have numbers."""
    starter = swept(tmp_path, second=other != "alone", role="agent" if other == "agent" else "main")
    starter.leave(9 * S)
    assert findings(tmp_path, look=all_gone)[0].severity == "error"


UNTIL_S = 30


def with_spare(folder: Path, *, waits_in: str, stops_s: int | None = None) -> None:
    """Ranks 0 and 1 go round, rank 2 waits to be needed; from ``stops_s`` on rank 1 is away."""
    for journal, group in alive(steps(folder, 3), UNTIL_S):
        if journal.rank == 2:
            waits(journal, group, waits_in)
        else:
            goes_round(journal, stops_s)


def waits(journal: Journal, group: int, how: str) -> None:
    """The last rank's call, which is over when it is called."""
    keys: dict[str, object]
    if how == "barrier":
        call, keys = journal.collective(group, "barrier", shapes=None), {"q": 3}
    elif how == "recv":
        call, keys = journal.message(group, "recv", 0), {"q": 1}
    else:
        call, keys = journal.store_call("get", 50), {"k": "promoted"}
    number = journal.begin(call, 200 * MS, **keys)
    if how == "recv":
        journal.record(v=number, d=MS)


def goes_round(journal: Journal, stops_s: int | None) -> None:
    """All_reduces of the active ones, ten a second."""
    active = journal.group(store=journal.prefix_store(1, "active"), name="active", ranks=[0, 1])
    call = journal.collective(active)
    end_s = UNTIL_S if stops_s is None else stops_s
    last = end_s * 10
    for n in range(3, last):
        journal.run(call, t=n * S // 10, d=MS, q=n - 2)
    if stops_s is not None and journal.rank == 0:
        journal.begin(call, last * S // 10, q=last - 2)


@pytest.mark.parametrize("waits_in", ["barrier", "recv", "key"])
def test_a_wait_while_all_others_get_on_is_a_note(tmp_path: Path, waits_in: str) -> None:
    """Nothing stands still, so nobody is to blame."""
    with_spare(tmp_path, waits_in=waits_in)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits) == ("note", ())
    assert ranks(tmp_path, found.waiting) == [2]
    assert "still make other calls" in (found.hint or "")
    assert healthy([found])


@pytest.mark.parametrize("waits_in", ["barrier", "recv"])
def test_it_is_a_fault_when_one_of_them_stops(tmp_path: Path, waits_in: str) -> None:
    """Then the job stands still, and rank 1 is missing."""
    with_spare(tmp_path, waits_in=waits_in, stops_s=10)
    found = [f for f in findings(tmp_path) if f.severity == "error"]
    assert [f.kind for f in found][:1] == ["missing_participant"]
    assert 1 in ranks(tmp_path, found[0].culprits)
