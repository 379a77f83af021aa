"""Runs a drawn program as real processes over gloo, and has it diagnosed live and afterwards."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.drawn.program import BARE, SPAWN, STANDALONE, Program, source
from faults.drawn.truth import FAILED, SLOWNESS, Faulty, Truth
from faults.harness import diagnose
from support import marked
from support.processes import ROOT, free_port, is_running

NAME = "program.py"
LIVE_S = 8.0
"""A program that hangs is diagnosed so long after its processes are there; 3 s count as stalled."""
AGAIN_S = 4.0
LONGEST_S = 90.0
STARTED_S = 180.0
"""Longer no program runs, whatever it does; what is said of it then counts."""
_ANSWER_S = 120.0
_ALARM = re.compile(r"^disttrace: (?:stalled|diverged|failed).*", re.MULTILINE)
_WAITED = re.compile(r"waiting [^;]*?for (\d+\.\d) s")


@dataclass(frozen=True, slots=True)
class Said:
    """One diagnosis: when, the serious findings, the exit code."""

    when: str
    findings: tuple[dict[str, Any], ...]
    code: int
    age_s: float = math.inf
    """How old the run was then: nobody has waited for longer."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a program of one seed came to."""

    faulty: Faulty
    said: tuple[Said, ...]
    output: str
    broken: str | None = None
    """Why it could not be run and judged."""

    @property
    def wrong(self) -> list[str]:
        if self.broken is not None:
            return [self.broken]
        found = [f"{one.when}: {text}" for one in self.said for text in problems(self, one)]
        return found + [f"on stderr: {line}" for line in self.alarms]

    @property
    def alarms(self) -> list[str]:
        """What the job itself says of a fault, where there is none."""
        return [] if self.faulty.truth.kinds else _ALARM.findall(self.output)

    @property
    def blamed(self) -> bool:
        return any(innocent(self.faulty.truth, one) for one in self.said)

    @property
    def certain_wrong(self) -> list[str]:
        truth = self.faulty.truth
        return [
            f"{one.when}: {f['summary']}"
            for one in self.said
            for f in one.findings
            if f["certainty"] == "certain"
            and (set(f["culprit_ranks"]) - truth.guilty or f["kind"] not in allowed(truth, one))
        ]

    @property
    def silent(self) -> bool:
        """Something was wrong, and nothing at all was said about it."""
        return bool(self.faulty.truth.kinds) and any(
            not one.findings and one.code == 0 and not self._well(one) for one in self.said
        )

    def _well(self, one: Said) -> bool:
        return self.faulty.truth.harmless and one.when == "ended"


def innocent(truth: Truth, said: Said) -> list[int]:
    """Ranks that are named and did nothing."""
    return sorted({r for f in said.findings for r in f["culprit_ranks"]} - truth.guilty)


def allowed(truth: Truth, said: Said) -> frozenset[str]:
    mute = truth.mute and said.when == "post mortem"
    meanwhile = truth.meanwhile if said.when != "ended" else frozenset[str]()
    return truth.kinds | meanwhile | (FAILED if mute else frozenset())


def problems(run: Run, said: Said) -> list[str]:
    truth = run.faulty.truth
    found = [f"rank {rank} is blamed and did nothing" for rank in innocent(truth, said)]
    kinds = [f["kind"] for f in said.findings]
    if not truth.kinds:
        beyond = [kind for kind in kinds if kind not in allowed(truth, said)]
        return found + [f"nothing is wrong, and said was {kind}" for kind in beyond]
    right = [f for f in said.findings if f["kind"] in allowed(truth, said)]
    if truth.harmless and said.when == "ended" and not kinds:
        return found
    if truth.incomplete:
        return found + (["exit code 0 over a lost journal"] if said.code == 0 else [])
    if not right:
        return [*found, f"none of {sorted(truth.kinds)}; said was {kinds or 'nothing'}"]
    if truth.named and not any(set(f["culprit_ranks"]) == truth.guilty for f in right):
        found.append(f"rank {sorted(truth.guilty)} is not named")
    names = {n for f in right for one in f.get("parameters", ()) for n in one["names"]}
    modules = {f" of {name.partition('.')[0]} " for name in truth.parameters}
    named = names or any(one in f["summary"] for f in right for one in modules)
    if names - truth.parameters or (said.when != "live" and truth.parameters and not named):
        found.append(f"parameters {sorted(names)} are named, and not {sorted(truth.parameters)}")
    return found + _misplaced(run.faulty, said, right)


def _misplaced(faulty: Faulty, said: Said, right: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the places, times and advice of findings of the right kind."""
    truth = faulty.truth
    lines = source(faulty.program).splitlines()
    text = " ".join(f"{f['summary']} {f['hint'] or ''}" for f in right)
    shown = {at["line"] for f in right for at in f["locations"] if f"/{NAME}" in str(at["file"])}
    shown |= {int(number) for number in re.findall(rf"\b{NAME}:(\d+)", text)}
    meant = {i for i, line in enumerate(lines, 1) if line.strip() == truth.line}
    found = []
    if truth.line is not None and not meant & shown:
        found.append(f"shown are lines {sorted(shown)}, and not {sorted(meant)}: {truth.line}")
    elif not shown:
        found.append("no line of the program is shown")
    found += [f"the advice speaks of {word!r}" for word in truth.unsaid if word in text]
    waited = max(map(float, _WAITED.findall(text)), default=0.0)
    if waited > said.age_s:
        found.append(f"a wait of {waited} s in a run of {said.age_s:.1f} s")
    return found


class Zygote:
    """The process that forks ranks, for all runs; when it ends, all that bears ``mark`` does."""

    def __init__(self) -> None:
        self.mark = f"drawn-{os.getpid()}-{secrets.token_hex(4)}"
        path = os.pathsep.join((str(ROOT), str(ROOT / "viewer")))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DISTTRACE")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        environment[marked.VARIABLE] = self.mark
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the one who has it end the others
        )
        self._lock = threading.Lock()
        self._answer("ready")

    def _answer(self, expected: str | None = None) -> str:
        assert self._process.stdout is not None
        text, until = b"", time.monotonic() + _ANSWER_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n") and selector.select(until - time.monotonic()):
                part = os.read(self._process.stdout.fileno(), 99)
                if not part:
                    break
                text += part
        line = text.decode().strip()
        if not line or (expected is not None and line != expected):
            raise RuntimeError(f"the process that forks ranks answered {line!r}")
        return line

    def start(self, **wanted: object) -> int:
        """Fork one rank; its process id."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def run(faulty: Faulty, folder: Path, zygote: Zygote) -> Run:
    """One program in an empty folder of its own; leaves no process."""
    program = faulty.program
    script = folder / NAME
    script.write_text(source(program))
    journals = folder / "journals"
    said: list[Said] = []
    began = time.monotonic()
    with _started(program, script, journals, folder, zygote) as pids:
        expected = (program.world - len(program.absent)) * (1 + program.restarts)
        while len(list(journals.glob("*.defs.jsonl"))) < expected and _alive(pids):
            time.sleep(0.2)  # a busy machine imports torch for long
            if time.monotonic() - began > STARTED_S:
                break  # as where the first attempt hangs, and the second never begins
        there = time.monotonic()
        pause = LIVE_S if faulty.truth.hangs else LONGEST_S
        while _alive(pids):
            waited = time.monotonic() - there
            if waited > pause or time.monotonic() - began > STARTED_S:
                one = _diagnosed(faulty, journals, "live", began)
                if one.findings or waited > LONGEST_S:
                    said.append(one)
                    break
                pause = waited + AGAIN_S
            time.sleep(0.2)
        over = not _alive(pids)
    if over and faulty.truth.harmless:  # it was only slow
        said = [one for one in said if one.findings]
    _lose(program, journals)
    said.append(_diagnosed(faulty, journals, "ended" if over else "post mortem", began))
    output = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("output*")))
    return Run(faulty, tuple(said), output)


@contextmanager
def _started(
    program: Program, script: Path, journals: Path, folder: Path, zygote: Zygote
) -> Iterator[Sequence[int]]:
    port = str(free_port())
    pids: list[int] = []
    launcher: subprocess.Popen[bytes] | None = None
    mark = f"{zygote.mark}/{folder.name}"
    try:
        if program.launch == BARE:
            started = (r for r in range(program.world) if r not in program.absent)
            pids.extend(_fork(program, r, port, script, folder, zygote) for r in started)
        else:
            launcher = _launcher(program, port, script, journals, folder, mark)
            pids.append(launcher.pid)
        yield pids
    finally:
        marked.end(mark, pids)
        if launcher is not None:
            launcher.wait(_ANSWER_S)


def _fork(
    program: Program, rank: int, port: str, script: Path, folder: Path, zygote: Zygote
) -> int:
    environ = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(program.world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        marked.VARIABLE: f"{zygote.mark}/{folder.name}",
        **program.environ.get(rank, {}),
    }  # fmt: skip
    if environ["MASTER_PORT"] == "{free}":
        environ["MASTER_PORT"] = str(free_port())
    return zygote.start(
        program=str(script), folder=str(folder / "journals"), output=str(folder / f"output{rank}"),
        environ=environ,
    )  # fmt: skip


def _launcher(
    program: Program, port: str, script: Path, journals: Path, folder: Path, mark: str
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, marked.VARIABLE: mark, "DISTTRACE": "1", "DISTTRACE_DIR": str(journals),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "viewer"))),
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [sys.executable, str(script)]
    if program.launch == SPAWN:
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {**meet, "WORLD_SIZE": str(program.world)}
    else:
        way = "--standalone" if program.launch == STANDALONE else f"--master-port={port}"
        size = f"--nproc-per-node={program.world}"
        again = f"--max-restarts={program.restarts}"
        command = [sys.executable, "-m", "torch.distributed.run", way, size, again, str(script)]
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def _alive(pids: Sequence[int]) -> bool:
    return any(map(is_running, pids))


def _lose(program: Program, journals: Path) -> None:
    """Take the journals of ranks away, as a disk that was not collected does."""
    for definitions in journals.glob("*.defs.jsonl"):
        first = definitions.read_text(errors="replace").splitlines()[0]
        if any(f'"RANK":"{rank}"' in first.replace(" ", "") for rank in program.lost):
            for path in journals.glob(definitions.name.removesuffix("defs.jsonl") + "*"):
                path.unlink()


def _diagnosed(faulty: Faulty, journals: Path, when: str, began: float) -> Said:
    """What is said now; that a busy machine makes one rank slow is nobody's fault."""
    report, code, text = diagnose(journals)
    age_s = time.monotonic() - began
    if report is None:
        if code == 2 and faulty.truth.incomplete:
            return Said(when, (), code, age_s)
        none: dict[str, Any] = {"culprit_ranks": [], "locations": [], "hint": None}
        nothing = {**none, "kind": text[-300:], "certainty": "likely", "summary": text}
        return Said(when, (nothing,), code, age_s)
    if when == "post mortem" and {one["state"] for one in report["processes"]} == {"exited"}:
        when = "ended"  # between the last look at it and its end from outside
    serious = [f for f in report["findings"] if f["severity"] in ("error", "warning")]
    ignored = SLOWNESS - faulty.truth.kinds
    kept = tuple(f for f in serious if f["kind"] not in ignored)
    return Said(when, kept, 0 if serious and not kept else code, age_s)
