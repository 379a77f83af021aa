"""Two jobs in one folder, of which one hangs: it is not hidden by the one that it started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from support.processes import python, torchrun, wait_until

TRAINING = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", "1", sys.argv[1]]
    subprocess.run(command, check=True, timeout=60)
    dist.barrier()
else:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.1)
    dist.barrier()
dist.destroy_process_group()
"""
EVALUATION = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def judged(folder: Path) -> tuple[int, dict[str, Any]]:
    command = ("-m", "disttrace", "diagnose", "--json", "--stall", "1", str(folder))
    done = python(*command, timeout=60)
    return done.code, orjson.loads(done.stdout) if done.stdout else {}


def test_a_hang_is_found_behind_the_evaluation_that_the_job_started(tmp_path: Path) -> None:
    """The newest job ended well while the older one hangs; when that goes on nothing is wrong."""
    training, evaluation = tmp_path / "training.py", tmp_path / "evaluation.py"
    training.write_text(TRAINING)
    evaluation.write_text(EVALUATION)
    folder, go_on = tmp_path / "journals", tmp_path / "go on"
    settings = {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder)}
    seen: list[tuple[int, dict[str, Any]]] = []

    def hangs() -> bool:
        seen.append(judged(folder))
        return seen[-1][0] == 1 and len(seen[-1][1]["jobs"]) == 2

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            torchrun, training, 2, str(evaluation), str(go_on), timeout=120, **settings
        )
        try:
            wait_until(hangs, timeout=90)
        finally:
            go_on.touch()
        run.result().check()
    found = seen[-1][1]
    newest, older = found["jobs"]
    assert (newest["healthy"], older["healthy"]) == (True, False)
    (finding,) = [one for one in found["findings"] if one["severity"] == "error"]
    assert (finding["job"], finding["kind"]) == (older["id"], "missing_participant")
    assert (finding["culprit_ranks"], finding["waiting_ranks"]) == ([1], [0])
    code, found = judged(folder)
    assert (code, [one["id"] for one in found["jobs"]]) == (0, [newest["id"], older["id"]])
