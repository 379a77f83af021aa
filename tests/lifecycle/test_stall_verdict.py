"""A job that stands still says why on its own stderr, and nothing is left of the one who knows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from disttrace.cli import main
from support.preloaded import preloaded
from support.processes import (
    ROOT,
    Outcome,
    clean_environ,
    companions,
    ending,
    free_port,
    launcher,
    running,
    static,
    wait_until,
)

HANG = ROOT / "examples" / "faults" / "slow_loader.py"
STALLED = "disttrace: stalled: Rank 1 never joined all_reduce #3 of the default group"


def stderr(tmp_path: Path) -> str:
    return (tmp_path / "stderr").read_text(errors="replace")


def _told(path: Path) -> bool:
    return b"disttrace: more:" in path.read_bytes()


@pytest.mark.long
def test_a_killed_companion_is_replaced(tmp_path: Path) -> None:
    """Nothing changes but that nobody speaks, until a second one does."""
    environ = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2", OMP_NUM_THREADS="1"
    )
    command = [sys.executable, *launcher(HANG, 2, "--culprit", "1", options=static())]
    with running(command, tmp_path, environ):
        wait_until(lambda: bool(companions(tmp_path / "out")), timeout=90)
        for pid in companions(tmp_path / "out"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: STALLED in stderr(tmp_path), timeout=90)


@pytest.mark.long
def test_a_failure_elsewhere_is_told(tmp_path: Path) -> None:
    """Its process is gone long before anybody stalls, and its journal is in another folder: its
    words are not for other hosts."""
    faults = ROOT / "examples" / "faults"
    command = [sys.executable, str(faults / "launch.py"), "--world", "2"]
    for rank in range(2):
        command += ["--set", f"{rank}:DISTTRACE_DIR={tmp_path / str(rank)}"]
    environ = clean_environ(DISTTRACE="1", DISTTRACE_STALL="4", OMP_NUM_THREADS="1")
    with running([*command, str(faults / "store_key.py")], tmp_path, environ):
        wait_until(lambda: "disttrace: more:" in stderr(tmp_path), timeout=90)
        failed = "disttrace: stalled: Rank 1 failed first: ValueError (store_key.py:"
        assert failed in stderr(tmp_path)
    wait_until(lambda: not any(companions(tmp_path / str(n)) for n in range(2)), timeout=60)
    assert {path.suffix for path in tmp_path.glob("[01]/*")} == {".jsonl"}


NAMESAKES = """
import os, sys, time, torch, torch.distributed as dist
way, over, rank = sys.argv[1:]
print(os.getpid(), flush=True)
where = f"file://{over}.{way}"  # nothing but the file's store joins its ranks
dist.init_process_group("gloo", init_method=where, rank=int(rank), world_size=2)
for step in range(100_000):
    if way == "hangs" and step == 2 and dist.get_rank() == 1:
        time.sleep(600)
    going = torch.tensor([float(not os.path.exists(over))])
    dist.all_reduce(going)
    if not going:
        break
    time.sleep(0.1)
store = dist.distributed_c10d._get_default_store()
store.set(f"over {dist.get_rank()}", "")  # one that ends sooner may reset what gloo has sent
store.wait([f"over {rank}" for rank in range(dist.get_world_size())])
print("ended well")
"""


def test_a_namesake_is_not_ended(tmp_path: Path) -> None:
    """Of two that nothing joins one stalls and is ended; the other one goes on to its end."""
    program, over = tmp_path / "program.py", tmp_path / "over"
    program.write_text(NAMESAKES)
    variables = {
        "DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_STALL": "2",
        "DISTTRACE_JOB": "sweep", "DISTTRACE_ON_STALL": "abort",
    }  # fmt: skip

    def ended(way: str) -> list[Outcome]:
        def run(rank: str) -> Outcome:
            return preloaded(program, way, over, rank, timeout=120.0, **variables)

        with ThreadPoolExecutor(2) as ranks:
            return list(ranks.map(run, "01"))

    with ThreadPoolExecutor(1) as beside:
        goes_on = beside.submit(ended, "goes-on")
        hangs = ended("hangs")
        over.touch()
        healthy = goes_on.result()
    assert [one.code for one in (*hangs, *healthy)] == [75, 75, 0, 0]
    said = "".join(one.stderr for one in hangs)
    kept = (tmp_path / "out" / "sweep.verdicts.jsonl").read_text().splitlines()
    of = "|".join(json.loads(line)["process"][:12] for line in kept)
    whose = {
        int(path.name.split("-")[-2])
        for path in (tmp_path / "out").iterdir()
        if re.search(of, path.name)
    }
    assert whose <= {int(one.stdout) for one in hangs}
    assert said.count(STALLED) == 1
    assert "ended by DISTTRACE_ON_STALL=abort" in said
    assert "ranks 0, 1" not in said
    assert not [one for one in healthy if "disttrace: stalled" in one.stderr]
    assert [one.stdout.splitlines()[1:] for one in healthy] == [["ended well"]] * 2


ENDS = """
import os, signal, sys, time, torch.distributed as dist
way = sys.argv[1]
handlers = {
    "handler": lambda *_: sys.exit(3), "handler_osexit": lambda *_: os._exit(3),
    "grace": lambda *_: None,
}
signal.signal(signal.SIGTERM, handlers.get(way, signal.SIG_DFL))
dist.init_process_group("gloo")
try:
    dist.barrier()
    while dist.get_rank() == 1:
        time.sleep(0.1)
    dist.barrier()
except KeyboardInterrupt:
    if way == "osexit":
        os._exit(1)
    elif way == "caught":
        sys.exit(1)
    elif way == "caught_0":
        sys.exit(0)
    elif way == "finally":
        raise
finally:
    if way == "finally":
        dist.destroy_process_group()
"""
WAYS = {
    "caught": [signal.SIGINT], "caught_0": [signal.SIGINT], "passed": [signal.SIGINT],
    "osexit": [signal.SIGINT], "finally": [signal.SIGINT], "handler": [signal.SIGTERM],
    "handler_osexit": [signal.SIGTERM], "grace": [signal.SIGTERM, signal.SIGKILL],
    "killed": [signal.SIGKILL],
}  # fmt: skip


@pytest.mark.long
def test_no_end_loses_what_a_job_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The rank, the operation and the line of the live verdict are the later report's, and sure."""
    program = tmp_path / "ends.py"
    program.write_text(ENDS)
    jobs: dict[str, list[subprocess.Popen[bytes]]] = {}
    said = {way: tmp_path / way / "stderr" for way in WAYS}
    try:
        for way in WAYS:
            said[way].parent.mkdir()
            world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            environ = clean_environ(
                DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / way / "out"), DISTTRACE_STALL="2",
                OMP_NUM_THREADS="1", **world,
            )  # fmt: skip
            with said[way].open("wb") as stderr:
                jobs[way] = [
                    subprocess.Popen([sys.executable, program, way], stderr=stderr,
                                     env={**environ, "RANK": rank}, start_new_session=True)
                    for rank in "01"
                ]  # fmt: skip
        for way, signals in WAYS.items():
            wait_until(partial(_told, said[way]), timeout=120)
            for number in signals:
                for process in jobs[way]:
                    process.send_signal(number)
                time.sleep(0.5 if len(signals) > 1 else 0)
    finally:
        for process in [one for job in jobs.values() for one in job]:
            with ending(process):
                process.wait(30)
    lost = {}
    for way in WAYS:
        code = main(["diagnose", str(tmp_path / way / "out"), "--json"])
        found = json.loads(capfd.readouterr().out)
        first, live = found["findings"][0], found["said"][0]["finding"]
        same = ("kind", "certainty", "culprit_ranks", "op", "group", "seq", "lines")
        for one in (first, live):
            one["lines"] = [(at["rank"], at["line"]) for at in one["locations"]]
        first["lines"] = [at for at in live["lines"] if at in first["lines"]]
        if (code, live["certainty"]) != (1, "certain") or any(live[k] != first[k] for k in same):
            lost[way] = (code, {key: (live[key], first[key]) for key in same})
    assert lost == {}
