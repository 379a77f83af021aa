"""Ranks that call different things are told of at once: nobody waits, and results are mixed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disttrace.recording.newest_calls import place_of
from disttrace.recording.shown import FACTOR, FIRST_LINE, KEPT, LINES, MASK, NEWEST, Compared, Page
from disttrace_viewer.companion.follower import MOST_READ, HeartbeatMonitor
from support.journals import MS, Journal
from support.preloaded import launched, preloaded, torchrun
from support.processes import static
from support.raw import verdicts

START = """
import sys, time, torch, torch.distributed as dist, disttrace
dist.init_process_group("gloo")
rank = dist.get_rank()
heard = []
disttrace.on_verdict(heard.append)
def one(group, op=dist.ReduceOp.SUM): dist.all_reduce(torch.ones(4), op=op, group=group)
def two(group): dist.all_reduce(torch.ones(4), group=group)
def three(group): dist.all_reduce(torch.ones(4), group=group)
def logs(group): dist.all_reduce(torch.ones(4), group=group)
"""
GROUPS = f"""{START}
def first(group): three(group)
def second(group): three(group)
swaps, maxes, healthy, orders = (dist.new_group([0, 1, 2]) for _ in range(4))
until = time.monotonic() + 20
for step in range(1000):
    odd = rank == 2 and step == 20
    one(healthy); (logs if rank == 0 else two)(healthy)
    for call in (two, one) if odd else (one, two): call(swaps)
    for call in (second, first) if rank == 2 and step >= 20 else (first, second): call(orders)
    if rank == 0: first(healthy)
    else: second(healthy)
    one(orders)
    one(maxes, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM); two(maxes)
    done = torch.tensor([float((len(heard) > 2 and step > 60) or time.monotonic() > until)])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done.item(): break
    time.sleep(0.01)
"""
BIT = f"""{START}
weights = torch.ones(1000, dtype=torch.bfloat16)
for step in range(400):
    work = dist.all_reduce(torch.ones(4), async_op=rank == 0 and step % 2 > 0)
    work and work.wait()
    dist.broadcast(torch.full((2,), float(rank)), 0)
    if (rank, step) == (1, 33): weights.view(torch.int16)[7] ^= 1
    disttrace.expect_equal("weights", [weights])
    done = torch.tensor([float(len(heard) > 0 and step > 60)])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done.item(): break
    time.sleep(0.02)
"""

LOOKED_AT = f"""{START}
from torch.utils._python_dispatch import TorchDispatchMode
seen = []
class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(str(function))
        return function(*args, **(kwargs or {{}}))
def outcome(call, *args, **kwargs):
    try: seen.append(repr(call(*args, **kwargs)))
    except Exception as error: seen.append(repr(error))
    seen.append(repr(args))
for step in range(20):
    x = torch.arange(12.0)[::2].clone()
    if (rank, step) == (1, 17): x[3] = float("nan")
    outcome(dist.all_reduce, x)
    seen.append(x._version)
    outcome(dist.all_reduce, torch.full((4,), float("-inf")), op=dist.ReduceOp.MAX)
    outcome(dist.all_reduce, torch.ones(4, dtype=torch.bool), op=dist.ReduceOp.SUM)
    outcome(dist.all_reduce, torch.full((4,), 1e38), async_op=False)
    outcome(dist.all_reduce, torch.ones(4, dtype=torch.float8_e5m2))
    outcome(dist.all_reduce, torch.ones(3, requires_grad=True))
    outcome(dist.reduce, "no tensor", 0)
    outcome(dist.all_reduce, torch.ones(2, device="meta"))
    outcome(dist.all_reduce_coalesced, [torch.ones(2), torch.ones(3)])
    with Watching(): dist.all_reduce(torch.ones(2))
    work = dist.all_reduce(x := torch.ones(4), async_op=True); work.wait(); seen.append(repr(x))
with open(f"seen.{{rank}}", "a") as file: print(seen, file=file)
import os
until, waits = time.monotonic() + 20, os.environ.get("DISTTRACE") == "1"
while waits:
    done = torch.tensor([float(len(heard) > 0 or time.monotonic() > until)])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done.item(): break
    time.sleep(0.05)
"""
SCALED = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
loss = torch.amp.GradScaler("cpu").scale(torch.ones(()))
dist.all_reduce(torch.full((4,), float("inf")))
"""


def diverged(tmp_path: Path) -> list[dict[str, Any]]:
    return [one for one in verdicts(tmp_path) if one["kind"] == "diverged"]


def told(tmp_path: Path, text: str, **settings: str) -> tuple[list[dict[str, Any]], str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    settings |= {"DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path / "out")}
    ended = torchrun(program, 3, timeout=90, options=static(), **settings).check()
    return diverged(tmp_path), ended.stderr


def test_each_group_that_diverges_is_told_once_before_anybody_hangs(tmp_path: Path) -> None:
    """Other orders, also through a helper, and reduce ops, heard by callbacks of all ranks; another
    line or caller to log is none."""
    said, stderr = told(tmp_path, GROUPS)
    kinds = sorted(one["finding"]["kind"] for one in said)
    assert kinds == ["divergence", "divergence", "reduce_op_mismatch"], stderr
    orders = [one["summary"] for one in said if one["finding"]["kind"] == "divergence"]
    assert all(text.startswith("Rank 2 called in another order than ranks 0, 1") for text in orders)
    assert sum("again and again" in text for text in orders) == 1, orders
    assert [one["certainty"] for one in said if one["finding"]["kind"] == kinds[2]] == ["certain"]
    assert [one["culprit_ranks"] for one in said] == [[2]] * 3
    assert stderr.count("disttrace: diverged") >= 1


def test_one_flipped_bit_is_told_at_the_next_call_that_is_sampled(tmp_path: Path) -> None:
    """Of every tenth, by the rank whose bit it is; and nothing else is told, also where one waits
    for a result later than others."""
    said, stderr = told(tmp_path, BIT, DISTTRACE_DIGEST="10")
    [one] = said
    assert one["summary"].startswith(
        "Rank 1 has other values than ranks 0, 2, where they have to be equal: 'weights' in its"
        " call 40 of the default group at program.py:"
    ), stderr
    assert one["culprit_ranks"] == [1]


def test_a_nonfinite_input_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its rank and line; results, exceptions and what a mode sees are those of a run without."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(LOOKED_AT)
    launched(program, 2)
    settings = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_DIGEST": "1"}
    launched(program, 2, DISTTRACE="1", DISTTRACE_JOB="one", **settings)
    for rank in range(2):
        without, traced = Path(f"seen.{rank}").read_text().splitlines()
        assert traced == without
    (nan,) = [one["finding"]["nan"] for one in diverged(tmp_path)]
    assert (nan["rank"], nan["seq"]) == (1, 10 * 17 + 1)
    assert nan["line"].endswith("program.py:19")


def test_where_losses_are_scaled_inputs_may_be_infinite(tmp_path: Path) -> None:
    """It is how the scale is found; else it is noted."""
    for text in (SCALED, SCALED.replace("loss =", "# loss =")):
        (program := tmp_path / "program.py").write_text(text)
        folder = tmp_path / str(len(text))
        preloaded(program, DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_DIGEST="1").check()
        found = [path for path in folder.iterdir() if b'"nonfinite"' in path.read_bytes()]
        assert len(found) == (text != SCALED)


Calls = list[tuple[int, int]]
"""What, and from which line."""
STEP: Calls = [(7, 10), (7, 20), (9, 30)]


def pages(calls: Calls) -> Page:
    """As the native core leaves them after these calls."""
    words = [0] * (3 * KEPT)
    lines = list(dict.fromkeys(line for _, line in calls))
    words[LINES] = len(lines)
    words[FIRST_LINE : FIRST_LINE + len(lines)] = lines
    for number, (what, line) in enumerate(calls, 1):
        at, before = number % KEPT, (number - 1) % KEPT
        words[KEPT + at] = line
        words[2 * KEPT + at] = (words[2 * KEPT + before] * FACTOR + what) & MASK
    words[NEWEST] = len(calls)
    data = b"".join(word.to_bytes(8, "little") for word in words)
    return Page(memoryview(data).cast("Q"))


def suspected(known: Compared, ours: Calls, theirs: Calls) -> bool:
    known.ask_at = 0.0  # no time passes here
    return known.suspicious(pages(ours), pages(theirs))


def test_equal_calls_are_no_suspicion_however_many_were_made_in_between() -> None:
    known = Compared()
    for steps in (1, 3, 100, 4000):
        assert not suspected(known, STEP * steps, [*STEP * steps, STEP[0]])


def test_one_other_argument_is_seen_also_long_after_it() -> None:
    wrong = [*STEP * 2, (8, 10), *STEP[1:], *STEP * 5000]
    assert suspected(Compared(), wrong, STEP * 5003)


def test_a_line_of_one_side_alone_is_a_habit() -> None:
    logging = [(what, 31 if line == 30 else line) for what, line in STEP]
    assert not suspected(Compared(), logging * 50, STEP * 50)


def test_a_helpers_line_is_told_from_itself_by_its_callers() -> None:
    """But not by whatever of torch's is in between, and not by frames far out."""
    helper, torchs = ("/src/help.py", 3, "reduce"), ("/lib/site-packages/torch/x.py", 1, "call")
    one, two = (("/src/train.py", line, "step") for line in (7, 9))
    assert place_of([helper, one]) != place_of([helper, two])
    assert place_of([torchs, helper, torchs, one]) == place_of([helper, one])
    assert place_of([helper, one, two, two, one]) == place_of([helper, one, two, two, two])


def test_lines_that_both_know_are_suspicious_and_so_they_are_once_both_know_them() -> None:
    skipped = [*STEP[:1], *STEP[:2] * 3]
    same = [(7, line) for _, line in STEP]
    known = Compared()
    assert not suspected(known, same[:2], [same[1]])  # nobody has been at both
    assert suspected(known, same[:3], same[1:3])
    assert suspected(Compared(), skipped, same * 2)


def test_what_leads_to_nothing_is_a_habit_and_the_next_difference_is_not() -> None:
    """Rank 0 passes something else in one step, which no rule minds."""
    known = Compared()
    ours, theirs = [(5, 10), *STEP], [(6, 10), *STEP]
    asked = 0
    while asked < 20 and suspected(known, ours, theirs):
        asked += 1
    assert asked == 6
    ours, theirs = ours + STEP * 3000, theirs + STEP * 3000
    assert not suspected(known, ours, theirs)
    assert suspected(known, [*ours, (1, 10)], [*theirs, (2, 10)])


def looked_at(journal: Journal) -> HeartbeatMonitor:
    """What was written before the first look counts for nothing."""
    seen = HeartbeatMonitor(str(journal.base.parent), journal.base.name, 0.0)
    assert not seen.look(0.0)
    return seen


def test_questions_to_a_store_are_no_progress(tmp_path: Path) -> None:
    """Also of a call that is defined later; nor is what a thread beside the main one does."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    group = journal.world()
    seen = looked_at(journal)
    journal.run(journal.collective(group), t=100 * MS, d=MS, q=1)
    assert seen.look(1.0)
    for op in ("check", "wait"):
        call = journal.call(f"store.{op}", kind="store", store=1)
        for number in range(50):
            journal.run(call, t=(200 + number) * MS, d=MS, k="go")
        assert not seen.look(2.0)
    journal.run(journal.collective(group), t=900 * MS, d=MS, q=2, h=1)
    assert not seen.look(3.0)
    journal.segment()
    journal.run(journal.collective(group), t=950 * MS, d=MS, q=3)
    assert seen.look(4.0)
    assert seen.quiet_since == 4.0


def test_dropped_segments_are_passed_over(tmp_path: Path) -> None:
    """Of a long job only the newest ones are kept."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    call = journal.collective(journal.world())
    for _ in range(3):
        journal.segment().unlink()
    journal.segment()
    journal.run(call, t=100 * MS, d=MS, q=1)
    Path(f"{journal.base}.000001.ops.jsonl").unlink()
    seen = looked_at(journal)
    journal.run(call, t=200 * MS, d=MS, q=2)
    assert seen.look(1.0)
    for path in journal.segments:
        path.unlink(missing_ok=True)
    for _ in range(3):
        journal.segment().unlink()
    journal.segment()
    journal.run(call, t=300 * MS, d=MS, q=3)
    assert seen.look(2.0)


def test_a_look_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was written: no file is opened anew, and kilobytes are read."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=2)
    call = journal.collective(journal.world())
    journal.run(call, t=MS, d=MS, q=1)
    seen = looked_at(journal)
    with journal.segments[-1].open("ab") as file:  # as a mapped one, which is longer
        file.write(b'{"e":1,"d":2}\n' * 100_000)
        file.write(b'{"b":9,"s":%d,"t":5,"q":2}\n' % call + bytes(1 << 16))
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        found = pread(fd, length, offset)
        read.append(len(found))
        return found

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "open", None)
    assert seen.look(1.0)
    assert sum(read) < 3 * MOST_READ
    assert not seen.look(2.0)
    seen.close()
