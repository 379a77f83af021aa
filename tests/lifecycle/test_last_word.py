"""A job that ends badly says why below its tracebacks, once, and a stalled one that ends well that
it went on; a job that is well says nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.companion import last_word
from disttrace_viewer.diagnosis.verdict import Verdict
from support import processes
from support.preloaded import preloaded, ranks, to_its_end
from support.processes import Outcome, free_port, python
from support.raw import verdicts
from support.scenes import stuck, verdict

FAILS = """
import os, pathlib, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp

def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        raise ValueError("bad batch")
    dist.all_reduce(torch.ones(4))

def late(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    folder = pathlib.Path(os.environ["DISTTRACE_DIR"])
    while rank == 1 and not any(
        '"stalled"' in file.read_text() for file in folder.glob("*.verdicts.jsonl")
    ):
        time.sleep(0.1)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()

if __name__ == "__main__":
    how = sys.argv[1]
    os.environ.setdefault("WORLD_SIZE", "2")
    if how == "spawn":
        mp.spawn(main, nprocs=2)
    elif how == "processes":
        ranks = [mp.get_context("spawn").Process(target=main, args=(n,)) for n in range(2)]
        [one.start() for one in ranks]
        [one.join() for one in ranks]
    else:
        {"rank": main, "late": late}[how](int(os.environ["RANK"]))
"""
LAST = re.compile(
    r"\ndisttrace: failed: Rank 1 failed first: ValueError: bad batch \(fails\.py:\d+\)\."
    r" \(\d\d:\d\d:\d\d\)\n(disttrace: \d journals? in .*\n)?$"
)


def program(tmp_path: Path) -> Path:
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    return path


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_QUIET": "0",
        "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **more,
    }  # fmt: skip


RANKS = """
import os, subprocess, sys
os.environ["DISTTRACE"] = "1"
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": str(n)})
         for n in range(2)]
sys.exit(max(one.wait() for one in ranks))
"""


def bare(tmp_path: Path, *args: str | Path, **more: str) -> Outcome:
    given = settings(tmp_path, WORLD_SIZE="2", **more) | {"DISTTRACE": "0"}
    return python("-c", RANKS, *args, timeout=120.0, **given)


WAYS = [("torchrun", 1), ("spawn", 1), ("processes", 0), ("one by one", 1)]


@pytest.mark.parametrize(("how", "code"), WAYS)
def test_whoever_started_the_ranks_says_it(tmp_path: Path, how: str, code: int) -> None:
    """Below torchrun's own table, and also where it ends well itself, for nobody looked at how its
    children ended. Of ranks that draw a job name each the last one says it.
    """
    path, given = program(tmp_path), settings(tmp_path)
    if how == "torchrun":
        ran = processes.torchrun(path, 2, "rank", timeout=120.0, options=(), **given)
    elif how == "one by one":
        ran = bare(tmp_path, path, "rank")
    else:
        ran = python(path, how, timeout=120.0, **given)
    assert ran.code == code, ran.stderr
    assert LAST.search(ran.stderr), ran.stderr[-2000:]
    assert ran.stderr.count("disttrace: failed") == 1
    (one,) = verdicts(tmp_path)
    assert (one["kind"], one["culprit_ranks"], one["disttrace"]) == ("failed", [1], 1)
    assert isinstance(one["finding"], dict)
    assert one["finding"]["kind"] == "process_failed"


LISTS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for size in (3 + (dist.get_rank() == 2), 9):
    dist.broadcast(torch.zeros(size), src=0)
    if dist.get_rank() == 2:
        raise ValueError("a list of four")
dist.all_reduce(torch.ones(4))
"""


def test_it_is_what_diagnose_says_of_the_same_records(tmp_path: Path) -> None:
    """Also where members have gone on since the collective in which they differed."""
    (path := tmp_path / "lists.py").write_text(LISTS)
    ranks(path, 3, **settings(tmp_path, DISTTRACE_JOB="one"))
    said = [one for one in verdicts(tmp_path) if one["kind"] == "failed"]
    (found,) = diagnose(str(tmp_path / "out")).findings
    assert found.kind == "shape_mismatch"
    assert [(one["summary"], one["certainty"]) for one in said] == [(found.summary, "certain")]


def test_the_form_is_that_of_the_settings(tmp_path: Path) -> None:
    ran = bare(tmp_path, program(tmp_path), "rank", DISTTRACE_LOG="json")
    (line,) = [one for one in ran.stderr.splitlines() if one.startswith('{"disttrace"')]
    (one,) = verdicts(tmp_path)
    assert one.pop("process"), "whose it is, where jobs of one name share a file"
    assert json.loads(line) == one


@pytest.mark.parametrize("off", ["DISTTRACE_QUIET=1", "DISTTRACE_HEARTBEAT=0"])
def test_nothing_is_said_where_nobody_wants_to_hear(tmp_path: Path, off: str) -> None:
    """As at the end of a job that is well, and of a program whose exception it caught."""
    name, _, value = off.partition("=")
    ran = bare(tmp_path, program(tmp_path), "rank", **{name: value})
    assert ran.code == 1
    assert "disttrace: failed" not in ran.stderr
    assert verdicts(tmp_path) == []


def test_a_stall_that_is_over_is_not_the_last_word(tmp_path: Path) -> None:
    """All end the moment they go on: the companion could ask nobody to say so."""
    ran = bare(tmp_path, program(tmp_path), "late", DISTTRACE_STALL="2").check()
    said = [one for one in ran.stderr.splitlines() if one.startswith("disttrace: ")]
    stalled = "disttrace: stalled: Rank 1 never joined all_reduce #2"
    assert any(one.startswith(stalled) for one in said), ran.stderr
    last = [one for one in said if "what happened:" not in one][-1]
    assert last.startswith("disttrace: going on: Ranks 0, 1 went on and ended."), ran.stderr
    # Two processes append: what was said is ordered by its time.
    last_two = sorted(verdicts(tmp_path), key=lambda one: float(str(one["at"])))[-2:]
    assert [one["kind"] for one in last_two] == ["stalled", "going on"]


HANGS = """
import datetime, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    time.sleep(8)
dist.all_reduce(torch.ones(4))
"""


def test_a_stall_that_ends_badly_repeats_its_verdict(tmp_path: Path) -> None:
    """Tracebacks of time-outs stand between."""
    path = tmp_path / "hangs.py"
    path.write_text(HANGS)
    ran = bare(tmp_path, path, DISTTRACE_STALL="2")
    assert ran.code == 1
    stalled, *_, failed = [
        one for one in ran.stderr.splitlines() if re.match("disttrace: (stalled|failed): ", one)
    ]
    assert "Rank 1 never joined all_reduce #2" in stalled
    assert failed.startswith("disttrace: failed: ")
    assert "ank 1 " in failed
    assert "all_reduce #2" in failed


def test_what_was_said_beside_a_stall_is_not_the_last_word(tmp_path: Path) -> None:
    """A failure of the attempt before stood below a hang in which nobody is blamed."""
    stuck(tmp_path, "all_reduce", "all_reduce")
    case, found = verdict(tmp_path)
    assert [(one.kind, one.culprits) for one in found] == [("no_progress", ())]
    picture = [("All members have joined", []), ("Rank 1 failed first", [1])]
    told = [
        {"kind": "stalled", "at": 5.0, "summary": text, "culprit_ranks": ranks}
        for text, ranks in picture
    ]
    where = str(tmp_path)
    order = last_word.EndOrder(where, "j", "j-", 10.0, "p", failed=True, alone=False, root=where)
    judged = cast(Verdict, SimpleNamespace(case=case, findings=found))
    said = last_word._values(order, case.evidence.trace, judged, told)
    assert said is not None
    assert said["summary"] == found[0].summary


REPEATED = """
import sys, torch, torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
for text in sys.argv[1:]:
    for n in range(3):
        store.set(f"{n}{text}", "x")
        dist.new_group([0], group_desc=f"{n}{text}")
        try:
            raise KeyError(f"{n}{text}")
        except KeyError:
            pass
print("at its end", flush=True)
raise ValueError("; ".join(sys.argv[1:]))
"""


@pytest.mark.parametrize("pieces", [("sk-", "Authorization: "), ("a=b&", "://@")])
def test_texts_that_repeat_themselves_end_alike(tmp_path: Path, pieces: tuple[str, ...]) -> None:
    """Arguments, keys, names, exceptions: in linear time; a shell takes the hints as they are."""
    folder = tmp_path / """a b'c$(touch hit)"d`touch hit`;&"""
    traced: dict[str, Any] = {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "DISTTRACE_QUIET": ""}
    texts = [56_000 // len(piece) * piece for piece in pieces]
    plain = preloaded("-c", REPEATED, *texts)
    told = to_its_end("-c", REPEATED, *texts, **traced)
    assert (told.code, told.stdout, told.hung) == (plain.code, plain.stdout, False)
    ours = [line for line in told.stderr.splitlines() if line.startswith("disttrace: ")]
    assert [*map(told.stderr.count, texts)] == [*map(plain.stderr.count, texts)]
    assert max(map(len, ours)) < 1000
    hints = re.findall(r"disttrace (?:view|diagnose) (.*?)(?:; what is|$)", "\n".join(ours), re.M)
    assert len(hints) > 1
    for hint in hints:
        heard = subprocess.run(["sh", "-c", f"printf %s {hint}"], capture_output=True, cwd=tmp_path)
        assert heard.stdout.decode() in (str(folder), folder.name)
    assert not (tmp_path / "hit").exists()
