"""The line at the end of a job: once, by whoever launched it, however the ranks were started."""

from __future__ import annotations

from pathlib import Path

from support.processes import ROOT, python, torchrun

EXAMPLE = ROOT / "examples" / "allreduce_subgroup.py"
RANKS = """
import os, subprocess, sys
rank = '''
import sys, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]),
                        world_size=2)
dist.barrier()
dist.destroy_process_group()
'''
traced = {**os.environ, "DISTTRACE": "1"}
ranks = [
    subprocess.Popen([sys.executable, "-c", rank, sys.argv[1], str(n)], env=traced)
    for n in range(2)
]
sys.exit(any([one.wait() for one in ranks]))
"""


def said(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "what happened: disttrace view" in line]


def test_ranks_that_no_variable_numbers_say_it_once(tmp_path: Path) -> None:
    """As mpirun starts them: nobody traced is their parent, and only torch knows who is rank 0."""
    journals = tmp_path / "journals"
    ran = python(
        "-c",
        RANKS,
        tmp_path / "rendezvous",
        DISTTRACE_DIR=str(journals),
        DISTTRACE_JOB="alone",
        DISTTRACE_QUIET="0",
    ).check()
    (line,) = said(ran.stderr)
    assert line.startswith("disttrace: ")
    assert line.endswith(f"disttrace diagnose {journals}")
    assert len(list(journals.glob("alone-*.defs.jsonl"))) == 2


def test_a_launcher_says_it_for_its_workers(tmp_path: Path) -> None:
    """It counts its own journal too."""
    ran = torchrun(EXAMPLE, 2, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path), DISTTRACE_QUIET="0")
    (line,) = said(ran.check().stderr)
    assert line.startswith("disttrace: 3 journals in ")
