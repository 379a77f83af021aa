"""The commands of README and of the users' pages run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from disttrace.cli import COMMANDS, main
from support.flight_dumps import dump, entry, write
from support.journals import training
from support.processes import ROOT, clean_environ, run_program, running, wait_until
from support.profiles import late_rank_1

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
OWN = {"hang.md", "alerts.md", "otlp.md"}
"""Pages of which a test of their own runs the commands, on jobs that hang."""
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in TEXTS.items()
    for number, block in enumerate(SHELL.findall(text))
    if name not in OWN
]
HERE = {" ... ": " --nproc-per-node 2 ", "-node 8": "-node 2", "-n 4": "-n 2", " /journals": " A",
        " /tmp/": " $HOME/"}  # fmt: skip
"""Fewer ranks, and folders of the test's own."""
SCRIPTS = {
    "disttrace": f'''[ "$*" = "serve --prometheus" ] && exit 0
{sys.executable} -m disttrace "$@"; echo "$1 $?" >> $HOME/codes''',
    "torchrun": f'''case "$*" in *--rdzv-endpoint*node1:29500\\ train.py) exit 0 ;; esac
{sys.executable} -m torch.distributed.run --standalone "$@" || echo "torchrun $?" >> $HOME/codes''',
    "srun": 'while case $1 in bash | torchrun) false ;; esac; do shift; done; exec "$@"',
    "mpirun": '''while [ "$1" != python ]; do shift; done
RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 exec "$@"''',
    "python": f'exec {sys.executable} "$@"',
    "kubectl": 'case $1 in get) echo pod/p0 ;; *) shift 3; exec "$@" ;; esac',
    "ssh": 'shift; exec sh -c "$*"',
    "scp": 'exec cp "${1#*:}" "$2"',
    "scontrol": "echo node1", "squeue": "echo 1", "pip": "", "make": "",
}  # fmt: skip
"""What a reader's shell finds: ours and torch's for one host, and what needs a cluster as a sketch.
``pip`` and ``make`` have tests that run them."""
ALONE = ("unshare", "--pid", "--fork", "--mount-proc") if os.geteuid() == 0 else ()
"""Where `disttrace attach` sees no job of another test."""
PROGRAM = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
LOG = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 9, in <module>
[rank1]: ValueError: no such shard
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with everything that the pages name."""
    for name in ("disttrace-out", "A", "B", "DIR", "disttrace-7", "run/disttrace-out"):
        training(tmp_path / name)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.log").write_text(LOG)
    groups = {"0": (0, 1)}
    one, two = entry("all_reduce", 1), entry("all_reduce", 2, at_s=1.0, state="started")
    write(tmp_path / "DUMPS", {0: dump([one, two], groups=groups), 1: dump([one], groups=groups)})
    (tmp_path / "PROFILES").mkdir()
    late_rank_1(tmp_path / "PROFILES")
    for name, text in SCRIPTS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return tmp_path


def _environ(desk: Path) -> dict[str, str]:
    path = f"{desk / 'bin'}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n0", "SLURM_NNODES": "1"}
    more = {"JOB": "7", "SLURM_SUBMIT_DIR": str(desk), "OMP_NUM_THREADS": "1"}
    return clean_environ(PATH=path, HOME=str(desk), **slurm, **more)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(desk: Path, block: str) -> None:
    """Each command ends well, or with 1 where it reads a fault, with 2 where there is no job."""
    for there, here in HERE.items():
        block = block.replace(there, here)
    run_program([*ALONE, "bash", "-euc", block], _environ(desk), 150, cwd=desk).check()
    codes = (desk / "codes").read_text().splitlines() if (desk / "codes").exists() else []
    assert {code for code in codes if not code.endswith(" 0")} <= {"diagnose 1", "attach 2"}
    assert len(codes) >= len(re.findall(r"^disttrace (?!serve)", block, re.MULTILINE))


def test_metrics_are_served_until_it_is_interrupted(desk: Path) -> None:
    """At the address that it prints."""
    command = [sys.executable, "-m", "disttrace", "serve", "--prometheus", "--port", "0"]
    with running(command, desk, _environ(desk), cwd=desk) as process:
        (url,) = wait_until(lambda: re.findall(r"http://\S+", (desk / "stderr").read_text()), 60)
        assert b"disttrace_" in urlopen(url).read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_options_that_sentences_name_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    called = re.findall(rf"`(?:\w+=\S+ )*disttrace {name}\b([^`]*)`", " ".join(TEXTS.values()))
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    named = {option for one in called for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", one)}
    assert [option for option in sorted(named) if not re.search(rf"{option}\b", shown)] == []
