"""`disttrace check -- train.py ARGS`: the program rehearsed in n ranks on this machine's CPU.

The ranks run on gloo, traced. A stall ends the run; when all have ended, the rules of `diagnose`
judge what they did, and a strict replay what they would have done where nothing is let pass.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from disttrace.commands import CommandError
from disttrace.testing import ranks
from disttrace.testing.ranks import diagnosed, has_fault

if TYPE_CHECKING:
    from disttrace.testing.rehearsal import Notes, Program

FAULT, CANNOT, TIMED_OUT = 1, 2, 3
_MOST_FILES = 300
_TAIL = 1500
"""Characters of the output of a rank that failed."""
_RANK_MB = 250
"""What a rank takes at least, where it was not measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.usage = "disttrace check [options] -- train.py [ARGUMENT ...]"
    parser.add_argument("-n", type=_count, default=4, metavar="N", help="ranks (default: 4)")
    parser.add_argument(
        "--steps-limit", type=_count, metavar="S", help="stop after this many optimizer steps"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "keep"),
        default="cpu",
        help="cpu: tensors for a CUDA device are made on the CPU (default); keep: no change",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=180.0,
        metavar="SECONDS",
        help="stop after this long (default: 180)",
    )
    parser.add_argument(
        "--stall",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="seconds without progress that count as a hang (default: 5); waiting for a CPU does"
        " not count",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "github", "junit"),
        default="text",
        help="format of the report, as for `diagnose`",
    )
    parser.add_argument("--keep", metavar="DIR", help="keep journals and outputs in this folder")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments")


def execute(arguments: argparse.Namespace) -> int:
    """0: no fault, 1: a fault, 2: it cannot be rehearsed, 3: the time was over without a fault."""
    from disttrace.testing.rehearsal import Notes

    program = _program(arguments.command)
    _room_for(arguments.n)
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="disttrace-check-")).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}.") from error
    if any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty: what lies there is no part of this rehearsal.")
    keep = arguments.keep is not None
    try:
        run = Rehearsal(arguments, program, folder, Notes(arguments.n))
        code = run.run()
        keep |= code == FAULT
        return code
    finally:
        if keep:
            sys.stderr.write(f"disttrace: the journals and outputs of the ranks: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Rehearsal:
    """One run of the program in its ranks."""

    arguments: argparse.Namespace
    program: Program
    folder: Path
    notes: Notes
    hangs: bytes | None = None
    """The report on a hang."""

    def __post_init__(self) -> None:
        self.journals = self.folder / "journals"
        self.stall_s = max(1.0, self.arguments.stall)

    def run(self) -> int:
        """The exit code; what is found is printed."""
        for name, value in {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}.items():
            os.environ.setdefault(name, value)
        if self.arguments.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        ranks.import_once()
        running = self._start()
        started = time.monotonic()
        try:
            how = running.wait(self.journals, self.stall_s, started + self.arguments.timeout)
            if how != ranks.ENDED:
                self.hangs = self._diagnosis()
        finally:
            running.end()
        return self._judge(running, how != ranks.ENDED, time.monotonic() - started)

    def _start(self) -> ranks.RunningRanks:
        reason = ranks.why_not_fork()
        if reason is not None:
            raise CommandError(f"the ranks cannot be forked: {reason}.", CANNOT)
        from disttrace.testing.rehearsal import rehearse

        port, world = ranks.free_port(), self.arguments.n
        pids = {}
        for rank in range(world):
            env = {
                **ranks.environment(rank, world, port),
                **ranks.settings(self.journals, self.stall_s),
                "TORCHELASTIC_RUN_ID": f"check-{os.getpid()}",
            }

            def body(rank: int = rank) -> int:
                return rehearse(
                    self.program,
                    rank,
                    self.notes,
                    steps=self.arguments.steps_limit,
                    map_device=self.arguments.device == "cpu" and _names_device(self.program),
                )

            pids[ranks.fork(rank, body, env, self.folder / f"rank{rank}.out")] = rank
        return ranks.RunningRanks(pids)

    def _diagnosis(self, *options: str) -> bytes | None:
        """The report of `disttrace diagnose`; None where it finds no fault."""
        options = ("--stall", str(self.stall_s), *options)
        values = diagnosed(self.journals, "json", *options)
        try:
            if not has_fault(values):
                return None
        except ValueError as error:
            raise CommandError("what the ranks did could not be judged.", CANNOT) from error
        wanted = self.arguments.format
        return values if wanted == "json" else diagnosed(self.journals, wanted, *options)

    def _judge(self, running: ranks.RunningRanks, timed_out: bool, took_s: float) -> int:
        notes = self.notes
        cannot = notes.sentences(notes.CANNOT)
        if cannot:
            sys.stderr.write(f"disttrace: cannot be rehearsed: {cannot[0]}\n")
            return CANNOT
        if self.hangs is not None:
            _write(self.hangs)
            return FAULT
        ran = f"ran {took_s:.0f} s, {notes.steps} steps"
        if timed_out:
            sys.stderr.write(f"disttrace: {ran}, no fault so far\n")
            return TIMED_OUT
        in_order = sorted(running.codes, key=lambda rank: running.ended_s[rank])
        failed = {rank: running.codes[rank] for rank in in_order if running.codes[rank]}
        definitions = self.journals.rglob("*.defs.jsonl")
        if not any(b'"def":"group"' in path.read_bytes() for path in definitions) and not failed:
            self._show(failed)
            sys.stderr.write("disttrace: cannot be rehearsed: no rank used torch.distributed\n")
            return CANNOT
        again = "--on-device" if notes.sentences(notes.DEVICE) else "--strict"
        found = self._diagnosis(again)
        if found is not None or failed:
            _write(found or b"")
            self._show(failed)
            return FAULT
        if self.arguments.format == "text":
            sys.stdout.write(f"No fault in {self.arguments.n} ranks: {ran}.\n")
        else:
            _write(diagnosed(self.journals, self.arguments.format, again))
        return 0

    def _show(self, failed: Mapping[int, int]) -> None:
        for rank, code in list(failed.items())[:1]:
            text = (self.folder / f"rank{rank}.out").read_text("utf-8", "replace")[-_TAIL:]
            sys.stderr.write(f"disttrace: rank {rank} ended with {code}; it said:\n{text}")


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _count(text: str) -> int:
    if len(text) > 5 or not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _program(command: Sequence[str]) -> Program:
    """What is to be run, of `train.py ...`, `python train.py ...` or `python -m package ...`."""
    from disttrace.testing.rehearsal import Program

    words = list(command)
    if words[:1] == ["--"]:
        words = words[1:]
    if words and re.fullmatch(r"python[0-9.]*", os.path.basename(words[0])):
        words = words[1:]
    if not words:
        raise CommandError("nothing to rehearse; usage: disttrace check [options] -- train.py ...")
    if words[0] == "-m" and len(words) > 1:
        return Program(words[1], tuple(words[2:]), module=True)
    if not os.path.isfile(words[0]):
        name = os.path.basename(words[0])
        starts = name in ("torchrun", "accelerate", "mpirun", "srun", "deepspeed")
        why = "it starts the ranks itself: give the script" if starts else "there is no such script"
        raise CommandError(f"cannot rehearse {words[0]!r}: {why}.", CANNOT)
    return Program(words[0], tuple(words[1:]))


def _room_for(n: int) -> None:
    """Raise CommandError where so many ranks do not fit."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kb = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return
    if n * _RANK_MB > kb >> 10:
        raise CommandError(
            f"{n} ranks take {n * _RANK_MB >> 10} GB and more, {kb >> 20} GB are free.", CANNOT
        )


def _source(program: Program) -> str:
    path = program.target
    if program.module:
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(path)
        except (ImportError, ValueError):
            spec = None
        path = spec.origin if spec is not None and spec.origin else ""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _names_device(program: Program) -> bool:
    """Whether the script, or a module beside it, speaks of CUDA."""
    texts = [_source(program)]
    if not program.module:
        beside = sorted(Path(program.target).resolve().parent.rglob("*.py"))[:_MOST_FILES]
        texts += [path.read_text("utf-8", "replace") for path in beside]
    return any("cuda" in text for text in texts)
