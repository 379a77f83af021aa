"""Under real frameworks a hang is told by the program's own line, as ``docs/frameworks.md`` says.

Each library is installed from packages into an environment of its own (``make frameworks``).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from frameworks.libraries import environment
from support.processes import Outcome, clean_environ, ending, free_port, run_program
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
LIMIT_S = 160.0
pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Framework:
    """A library as packages, a program with it, and how that is started."""

    packages: tuple[str, ...]
    program: str
    launch: str

    def command(self, *arguments: str) -> list[str]:
        """What starts the program, by the environment's interpreter."""
        programs = environment(*self.packages)
        words = self.launch.split()
        torch = Path(sys.executable).parent / words[0]  # torchrun is in ours
        starter = programs / words[0] if (programs / words[0]).exists() else torch
        return [
            str(programs / "python"), *([] if words[0] == "python" else [str(starter)]), *words[1:],
            str(PROGRAMS / self.program), *arguments,
        ]  # fmt: skip

    def environ(self, out: Path) -> dict[str, str]:
        path = f"{environment(*self.packages)}{os.pathsep}{os.environ['PATH']}"
        ours = {"DISTTRACE": "1", "DISTTRACE_DIR": str(out), "DISTTRACE_STALL": "5"}
        return clean_environ(
            **ours, PATH=path, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", PYTHONFAULTHANDLER=""
        )

    def line(self) -> str:
        lines = (PROGRAMS / self.program).read_text().splitlines()
        (number,) = (n for n, text in enumerate(lines, 1) if text.endswith("# here it hangs"))
        return f"{self.program}:{number}"


LIGHTNING = Framework(("lightning",), "lightning_ddp.py", "python")
TRANSFORMERS = Framework(("transformers", "accelerate"), "transformers_trainer.py", TORCHRUN)
ACCELERATE = Framework(
    ("accelerate",), "accelerate_ddp.py", "accelerate launch --multi_gpu --num_processes 2"
)
DEEPSPEED = Framework(("deepspeed",), "deepspeed_zero.py", "deepspeed --num_accelerators 2")
MEGATRON = Framework(("megatron-core",), "megatron_layers.py", TORCHRUN)
RAY = Framework(("ray[train]",), "ray_train.py", "python")
TORCHFT = Framework(("torchft-nightly",), "torchft_groups.py", TORCHRUN)
ALL = (LIGHTNING, TRANSFORMERS, ACCELERATE, DEEPSPEED, MEGATRON, RAY)


def name(framework: Framework) -> str:
    return framework.packages[0]


@contextlib.contextmanager
def running(words: list[str], environ: dict[str, str], folder: Path) -> Iterator[Path]:
    """A program that is ended as a whole afterwards; the file of all that it says."""
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            words, env=environ, cwd=folder, stdout=file, stderr=file, start_new_session=True
        )
        with ending(process):
            yield said


def wait_for(pattern: str, *said: Path) -> str:
    """What ``pattern`` finds; AssertionError with everything that was said after the limit."""
    until = time.monotonic() + LIMIT_S
    while True:
        text = "".join(one.read_text(errors="replace") for one in said)
        found = re.search(pattern, text, re.MULTILINE)
        if found is not None:
            return found[0]
        assert time.monotonic() < until, text
        time.sleep(0.2)


def disttrace(*words: str) -> Outcome:
    return run_program([sys.executable, "-m", "disttrace", *words], clean_environ())


def prove(framework: Framework, out: Path) -> None:
    """The verdict names rank 1 at the program's line; statistics have lines of the program."""
    first = orjson.loads(disttrace("diagnose", str(out), "--json").stdout)["findings"][0]
    assert (first["kind"], first["culprit_ranks"]) == ("missing_participant", [1])
    told = [f"{Path(each['file']).name}:{each['line']}" for each in first["locations"]]
    assert framework.line() in told
    assert {each.split(":")[0] for each in told} == {framework.program}
    stats = orjson.loads(disttrace("stats", str(out), "--json").stdout)
    lines = [row["line"] for row in stats["operations"] if row["op"] != "barrier"]
    assert lines
    assert any(Path(line).name.startswith(framework.program) for line in lines), lines


@pytest.mark.parametrize("framework", ALL, ids=name)
def test_a_hang_is_told_by_the_programs_line(framework: Framework, tmp_path: Path) -> None:
    """By the job itself, and by `diagnose` afterwards."""
    out = tmp_path / "out"
    words = framework.command("hang")
    with running(words, framework.environ(out), tmp_path / "run") as said:
        told = wait_for(r"^.*disttrace: stalled.*never joined.*$", said)
    assert f"rank 1 is at {framework.line()}" in told
    prove(framework, out)


@pytest.mark.parametrize("framework", [LIGHTNING, TRANSFORMERS], ids=name)
def test_the_verdict_is_below_the_exception(framework: Framework, tmp_path: Path) -> None:
    """Of the rank whose backend gives up, which prints it (torchrun puts the rank before)."""
    out = tmp_path / "out"
    words = framework.command("hang")
    note = (
        r"^(\[rank0\]: ?)?\w*Error: .*[Tt]imed? ?out.*\n(.*\n)*?"
        rf"(\[rank0\]: ?)?disttrace: stalled: Rank 1 never joined .*{re.escape(framework.line())}"
    )
    with running(words, framework.environ(out), tmp_path / "run") as said:
        wait_for(note, said)


@pytest.mark.parametrize("framework", [LIGHTNING, TRANSFORMERS, ACCELERATE], ids=name)
def test_every_collective_has_a_line_of_the_program(framework: Framework, tmp_path: Path) -> None:
    """A healthy run; with the integration its steps have names, and its logger gets numbers."""
    out = tmp_path / "out"
    environ = framework.environ(out)
    outcome = run_program(framework.command(), environ, LIMIT_S, cwd=tmp_path).check()
    seen, names = 0, set()
    for journal in read_journals(out):
        files = {each["n"]: each["v"] for each in journal.of("string")}
        stacks = {each["n"]: each["frames"] for each in journal.of("stack")}
        calls = journal.calls()
        for call in (calls[each["s"]] for each in journal.records if "b" in each):
            names.add(call.get("name") if call.get("op") == "annotate" else None)
            if call.get("kind") == "collective":
                where = [files[file] for file, _, _ in stacks[call["stack"]]]
                assert str(PROGRAMS / framework.program) in where, call
                seen += 1
    assert seen > 10
    if framework is not ACCELERATE:
        assert {"epoch 0 batch 3", "step 3"} & names
        assert re.search(r"^logged:.* disttrace/begun", outcome.stdout, re.MULTILINE)


def test_torchft_tells_where_a_replica_waits(tmp_path: Path) -> None:
    """Its groups tell no member, so who is late there is shown and not accused."""
    out, port = tmp_path / "out", free_port()
    programs = environment(*TORCHFT.packages)
    environ = {
        **TORCHFT.environ(out),
        "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}",
        "DISTTRACE_JOB": "torchft",
    }
    quorum = "--min_replicas 2 --quorum_tick_ms 100 --join_timeout_ms 1000 --bind"
    lighthouse = [str(programs / "torchft_lighthouse"), *quorum.split(), f"[::]:{port}"]
    command = TORCHFT.command("hang")
    with (
        running(lighthouse, environ, tmp_path / "lighthouse"),
        running(command, {**environ, "REPLICA_GROUP_ID": "0"}, tmp_path / "0") as first,
        running(command, {**environ, "REPLICA_GROUP_ID": "1"}, tmp_path / "1") as second,
    ):
        wait_for("disttrace: stalled", first, second)
    told = disttrace("diagnose", str(out)).stdout
    assert "waiting in all_reduce #3" in told
    assert f"not in any collective at {TORCHFT.line()}" in told
