"""Logs, folders, stacks and dumps of real jobs, cut as people cut them, and what is said of them.

python tests/reliability/pasted.py --kept FOLDER [--only NAME ...]     record (once), then draw
python tests/reliability/pasted.py --kept FOLDER --draws 300 --seed 1
python tests/reliability/pasted.py --kept FOLDER --imitated 2.13.0 2.15.0    NCCL's as well
python tests/reliability/pasted.py --large              200 MB of a log: seconds and MB

Each program runs once under two real launchers (two nodes of two ranks), on gloo, and on torch's
own NCCL groups without a device (``tests/gpu/imitated.py``). Then a node or a file is missing, or
lines are wrapped, prefixed, numbered, coloured, cut off or without times. Wrong are an innocent
rank, "all have joined", a duration beyond the job's, and exit code 0 of a failure.
"""

from __future__ import annotations

import collections
import contextlib
import html
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from support.campaigns import RIGHT, UNDECIDED, WRONG, counted, options  # noqa: E402
from support.processes import clean_environ, ending, family, free_port  # noqa: E402

NODES, PER_NODE = 2, 2
LIMIT_S, LOOK_S, PATIENCE_S = 12, 6.0, 120.0

HEAD = """
import datetime, faulthandler, logging, os, signal, sys, threading, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
RANK, BACKEND, LIMIT = int(os.environ["RANK"]), sys.argv[1], float(sys.argv[2])
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
log = logging.getLogger("train")
faulthandler.register(signal.SIGUSR1, all_threads=True)
torch.set_num_threads(1)
def start():
    if BACKEND == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKEND, timeout=datetime.timedelta(seconds=LIMIT))
    step(3)
    log.info("model has 12 layers, world size %d", dist.get_world_size())
def ones(n=4):
    return torch.ones(n, device="cuda" if BACKEND == "nccl" else "cpu")
def step(n=1):
    for number in range(n):
        dist.all_reduce(ones())
        if BACKEND == "nccl":
            torch.cuda.synchronize()
        log.info("step %d loss 0.%d error rate 0.1", number, 7 - number)
def load_batch():
    time.sleep(600)
@record
def main():
    program()
    time.sleep(0.5)
"""
TAIL = """
if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Program:
    """``guilty``: ranks that may be named, of which one is expected; ``joined``: all members have
    joined what hangs; ``absent``: the
    guilty are in no call, and do not wait. ``looks``: its stacks are taken while it hangs.
    """

    text: str
    guilty: frozenset[int] = frozenset()
    healthy: bool = False
    joined: bool = False
    absent: bool = False
    looks: bool = False
    environ: tuple[tuple[str, str], ...] = ()


def _of(
    text: str, *guilty: int, absent: bool = False, looks: bool = False, detail: bool = False
) -> Program:
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    return Program(
        f"{HEAD}\ndef program():\n{lines}{TAIL}", frozenset(guilty), absent=absent, looks=looks,
        environ=(("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),) * detail,
    )  # fmt: skip


PROGRAMS = {
    "healthy": Program(f"{HEAD}\ndef program():\n    start()\n    step(5)\n{TAIL}", healthy=True),
    "raises": _of("start()\nif RANK == 2: raise ValueError('shard 7 is empty')\nstep()", 2),
    "missing": _of("start()\nif RANK == 1: load_batch()\nstep()", 1, absent=True),
    "other operation": _of(
        "start()\ndist.broadcast(ones(), 0) if RANK == 3 else step()", 3, detail=True
    ),
    "other shape": _of("start()\ndist.all_reduce(ones(8 if RANK == 1 else 4))", 1, detail=True),
    "other size": _of("start()\ndist.all_reduce(ones(80_000 if RANK == 1 else 40_000))", 1),
    "monitored": _of(
        "start()\nif RANK == 2: load_batch()\n"
        "dist.monitored_barrier(timeout=datetime.timedelta(seconds=8))", 2,
    ),
    "segfault": _of(
        "start()\nfaulthandler.enable()\nif RANK == 1: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "step()", 1,
    ),
    "killed": _of("start()\nif RANK == 3: os.kill(os.getpid(), signal.SIGKILL)\nstep()", 3),
    "exits": _of("start()\nif RANK == 0: sys.exit(3)\nstep()", 0),
    "never starts": _of("if RANK == 2: load_batch()\nstart()", 2, absent=True),
    "unused": _of(
        "start()\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.a(x) if RANK == 1 else self.b(self.a(x))\n"
        "model = torch.nn.parallel.DistributedDataParallel(Model())\n"
        "for _ in range(3): model(torch.ones(2, 4)).sum().backward()", 1,
    ),
    "dumps later": _of(
        "start()\nfaulthandler.dump_traceback_later(6, exit=True)\n"
        "if RANK == 0: load_batch()\nstep()", 0,
    ),
    "hangs": _of("start()\nif RANK == 3: load_batch()\nstep()", 3, absent=True, looks=True),
    "waits for a lock": _of(
        "start()\nlock = threading.Lock()\nif RANK == 1:\n    lock.acquire()\n    lock.acquire()\n"
        "dist.barrier()", 1, absent=True, looks=True,
    ),
}  # fmt: skip
ON_DEVICES = {
    "missing": _of("start()\nif RANK == 1: load_batch()\nstep()\ntime.sleep(60)", 1, absent=True),
    "other operation": _of(
        "start()\ndist.broadcast(ones(), 0) if RANK == 3 else dist.all_reduce(ones())\n"
        "torch.cuda.synchronize()\ntime.sleep(60)",
        3,
    ),
    "raises": PROGRAMS["raises"],
    "a call less": _of(
        "start()\nif RANK != 2: dist.all_reduce(ones(64))\ndist.all_reduce(ones(8))\n"
        "dist.all_reduce(ones(16))\ntorch.cuda.synchronize()\ntime.sleep(60)",
        2,
    ),
    "healthy": PROGRAMS["healthy"],
}


# -- recording -------------------------------------------------------------------------------


def record(name: str, program: Program, folder: Path, python: str, more: Mapping[str, str]) -> None:
    """Run it under a launcher per node; what it leaves, with ``truth.json``."""
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    for part in ("logs", "stacks", "dumps"):
        (made / part).mkdir(parents=True)
    script, port = made / "train.py", str(free_port())
    script.write_text(program.text)
    limit = "900" if program.looks else str(LIMIT_S)
    environ = clean_environ(
        OMP_NUM_THREADS="1", DISTTRACE="0", TORCH_FR_BUFFER_SIZE="2000",
        TORCH_NCCL_TRACE_BUFFER_SIZE="2000", TORCH_NCCL_DUMP_ON_TIMEOUT="1",
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=str(made / "dumps" / "trace_rank_"),
        **dict(program.environ), **more,
    )  # fmt: skip
    environ = {key: value for key, value in environ.items() if key != "PYTHONPATH"}
    begun, nodes = time.time(), []
    for node in range(NODES):
        command = [
            python, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node",
            str(PER_NODE), "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port",
            port, "--log-dir", str(made / "logs" / f"node{node}"), "--tee", "3", str(script),
            "nccl" if more else "gloo", limit,
        ]  # fmt: skip
        with (made / f"node{node}.log").open("wb") as out:
            nodes.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out,
                                          stdin=subprocess.DEVNULL))  # fmt: skip
    with ending(*nodes):
        if program.looks:
            _look(made, nodes)
        until = time.monotonic() + PATIENCE_S
        for one in nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(1.0, until - time.monotonic()))
    truth = {"wall_s": time.time() - begun, "name": name}
    (made / "truth.json").write_text(json.dumps(truth))
    made.rename(folder)


def _look(folder: Path, nodes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Its stacks, one file per rank and one per node, and the ranks' own; then SIGINT."""
    until = time.monotonic() + PATIENCE_S
    while "step 2 loss" not in (folder / "node1.log").read_text(errors="replace"):
        if time.monotonic() > until:
            raise TimeoutError(folder)
        time.sleep(0.2)
    time.sleep(LOOK_S)
    for number, node in enumerate(nodes):
        ranks = [
            pid for pid in family(node.pid)
            if b"RANK=" in (found := Path(f"/proc/{pid}/environ").read_bytes())
            and b"\0LOCAL_RANK=" in b"\0" + found
        ]  # fmt: skip
        for pid in ranks:
            given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            (folder / f"pid-{pid}").write_bytes(next(v[5:] for v in given if v[:5] == b"RANK="))
            for form, more in (("txt", ()), ("json", ("--json",))):
                shown = _shown("py-spy", "dump", "--pid", str(pid), *more)
                (folder / "stacks" / f"node{number}-{pid}.{form}").write_text(shown)
        (folder / "stacks" / f"node{number}.tree").write_text(
            _shown("py-spy", "dump", "--subprocesses", "--pid", str(node.pid))
        )
        if shutil.which("pystack"):
            for pid in ranks:
                shown = _shown("pystack", "remote", "--no-block", str(pid))
                (folder / "stacks" / f"node{number}-{pid}.pystack").write_text(shown)
        for pid in ranks:
            os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    for node in nodes:
        os.kill(node.pid, signal.SIGINT)


def _shown(*command: str) -> str:
    beside = Path(sys.executable).with_name(command[0])
    found = [str(beside) if beside.exists() else command[0], *command[1:]]
    return subprocess.run(found, capture_output=True, text=True, timeout=60).stdout


# -- cuts ------------------------------------------------------------------------------------

Lines = list[str]
_STAMP = re.compile(r"\b\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?|(?<=\[[EWIF]\d{3} )[\d:.]+")
_GLOG = re.compile(r"\[([EWIF])\d{3,4} [\d:.]+ ")


def _wrapped(lines: Lines, drawn: random.Random) -> Lines:
    width = drawn.choice((80, 100, 120, 132))
    return [one[at : at + width] for one in lines for at in range(0, max(1, len(one)), width)]


def _prefixed(prefix: Callable[[int], str]) -> Callable[[Lines, random.Random], Lines]:
    return lambda lines, _: [f"{prefix(n)}{one}" for n, one in enumerate(lines, 1)]


def _said_once(lines: Lines, drawn: random.Random) -> Lines:
    """As Ray does: what several workers say is said once."""
    bare = [re.sub(r"^\[default\d\]:", "", one) for one in lines]
    times = collections.Counter(bare)
    kept, told = [], set()
    for one, text in zip(lines, bare, strict=True):
        if one == text or text not in told:
            again = f" [repeated {times[text]}x across cluster]" * (one != text and times[text] > 1)
            kept.append(one + again)
        told.add(text)
    return kept


def _cut_off(lines: Lines, drawn: random.Random) -> Lines:
    share = drawn.choice((0.3, 0.5, 0.7))
    count = max(1, int(len(lines) * share))
    return lines[:count] if drawn.random() < 0.4 else lines[-count:]


def _repeated(lines: Lines, drawn: random.Random) -> Lines:
    """As syslog does: a line again and again is said once, with how often."""
    kept: Lines = []
    for one, several in itertools.groupby(lines):
        more = len([*several]) - 1
        kept += [one, *[f"last message repeated {more} times"] * (more > 0)]
    return kept


def _middle_lost(lines: Lines, drawn: random.Random) -> Lines:
    first, last = sorted(drawn.choices(range(len(lines) + 1), k=2))
    return [*lines[:first], "...", f"[{last - first} lines truncated]", *lines[last:]]


CUTS: dict[str, Callable[[Lines, random.Random], Lines]] = {
    "as it is": lambda lines, _: lines,
    "wrapped": _wrapped,
    "numbered": _prefixed(lambda n: f"{n:6}\t"),
    "grep -n": _prefixed(lambda n: f"{n}:"),
    "kubectl": _prefixed(lambda n: "[pod/trainer-0/pytorch] "),
    "srun of one task": _prefixed(lambda n: "0: "),
    "ray": _prefixed(lambda n: "(TrainTrainable pid=2117, ip=10.0.0.5) "),
    "docker compose": _prefixed(lambda n: "trainer-1  | "),
    "coloured": lambda lines, _: [f"\x1b[36m{one}\x1b[0m" for one in lines],
    "windows": lambda lines, _: [f"{one}\r" for one in lines],
    "said once": _said_once,
    "cut off": _cut_off,
    "indented": _prefixed(lambda n: "    "),
    "quoted": _prefixed(lambda n: "> "),
    "whole seconds": lambda lines, _: [
        re.sub(r"(\d\d:\d\d:\d\d)[.,]\d+", r"\1", one) for one in lines
    ],
    "times lost": lambda lines, _: [_STAMP.sub("", _GLOG.sub(r"[\1 ", one)) for one in lines],
    "no prefix": lambda lines, _: [re.sub(r"^\[default\d\]:", "", one) for one in lines],
    "html": lambda lines, _: [html.escape(one) for one in lines],
    "docker json": lambda lines, _: [
        json.dumps(
            {"log": f"{one}\n", "stream": "stderr", "time": f"2026-01-01T10:00:{n % 60:02}Z"}
        )
        for n, one in enumerate(lines)
    ],
    "cloud json": lambda lines, _: [
        json.dumps({"severity": "ERROR", "ts": "x", "message": one}) for one in lines
    ],
    "cri": _prefixed(lambda n: f"2026-01-01T10:00:{n % 60:02}.{n:09}Z stderr F "),
    "syslog": _prefixed(lambda n: f"Jan  1 10:00:{n % 60:02} node-a7 torchrun[2117]: "),
    "pdsh": _prefixed(lambda n: "10.0.0.5: "),
    "hydra": _prefixed(lambda n: f"[2026-01-01 10:00:{n % 60:02},{n % 1000:03}][train][INFO] - "),
    "loguru": _prefixed(lambda n: f"2026-01-01 10:00:{n % 60:02}.123 | ERROR    | app:run:12 - "),
    "vllm": _prefixed(
        lambda n: f"(EngineCore pid=2117) ERROR 01-01 10:00:{n % 60:02} [core.py:9] "
    ),
    "seconds since 1970": _prefixed(lambda n: f"17{n:08}.123456 "),
    "us dates": _prefixed(lambda n: f"01/01/2026 10:00:{n % 60:02} - INFO - "),
    "in a report": lambda lines, _: [
        "Hi all, my job hangs after an hour. Full log:",
        "",
        "```",
        *lines,
        "```",
        "",
        "I tried NCCL_P2P_DISABLE=1 and it fails on rank 0 too. Any idea? Error: no idea",
    ],
    "in a quoted report": lambda lines, _: [
        "On Monday somebody wrote:",
        *(f"> {one}" for one in lines),
        "",
        "Same here.",
    ],
    "in a list": lambda lines, _: ["1. What happens:", "", *(f"       {one}" for one in lines), ""],
    "progress": lambda lines, _: [
        f"{' 12%|#2        | 12/100 [00:01<00:09,  9.1it/s]' * (n % 3 == 0)}{one}"
        for n, one in enumerate(lines)
    ],
    "progress lines": lambda lines, _: [f" 12%|#2        | 12/100 \r{one}" for one in lines],
    "repeated": _repeated,
    "middle lost": _middle_lost,
    "summary alone": lambda lines, _: _after(lines, "====="),
    "no summary": lambda lines, _: lines[: _at(lines, "=====")],
    "errors alone": lambda lines, _: [
        one for one in lines if re.search(r"rror|xception|Watchdog|imed out|Signal", one)
    ],
}


def _at(lines: Lines, text: str) -> int:
    return next((n for n, one in enumerate(lines) if text in one), len(lines))


def _after(lines: Lines, text: str) -> Lines:
    return lines[_at(lines, text) :] or lines[-5:]


@dataclass(frozen=True)
class Cut:
    """What was made of a recording, and what it still holds."""

    text: str
    summary_alone: bool
    """What torchrun says there may be all that is left."""


def cut(folder: Path, into: Path, drawn: random.Random, before: Path | None = None) -> Cut:
    """Some of a recording's files, as somebody would paste them; ``before``: of a job that was
    logged to the same file.
    """
    kinds = ["log", "log", "log", "folder"]
    stacks = sorted((folder / "stacks").iterdir())
    dumps = sorted((folder / "dumps").iterdir())
    kinds += ["stacks"] * 4 * bool(stacks) + ["dumps"] * 3 * bool(dumps)
    kind = drawn.choice(kinds)
    missing = drawn.choice(("nothing", "nothing", "a node", "a file"))
    left = [n for n in range(NODES) if missing != "a node" or n == drawn.randrange(NODES)] or [0]
    text, names = f"{kind}, {missing} missing", [""]
    if kind == "log":
        names = drawn.sample(list(CUTS), 1 if drawn.random() < 0.6 else 2)
        both = [(folder / f"node{n}.log").read_text(errors="replace").splitlines() for n in left]
        several = drawn.random() < 0.4
        if before is not None:
            text += f", behind {before.name}"
            both[0][:0] = (before / "node0.log").read_text(errors="replace").splitlines()
        for n, lines in enumerate(both if several else [[one for own in both for one in own]]):
            for name in names:
                lines = CUTS[name](lines, drawn)
            (into / f"node{n}.log").write_text("\n".join(lines) + "\n")
        text += f", {' and '.join(names)}, {'a file each' if several else 'one file'}"
    elif kind == "folder":
        for n in left:
            shutil.copytree(folder / "logs" / f"node{n}", into / f"node{n}")
        files = sorted(path for path in into.rglob("*") if path.is_file())
        if missing == "a file":
            drawn.choice(files).unlink()
        elif drawn.random() < 0.3:
            for path in files:
                if path.name == "error.json":
                    path.unlink()
            text += ", no error.json"
    else:
        own = stacks if kind == "stacks" else dumps
        if kind == "stacks":
            form = drawn.choice(sorted({path.suffix for path in own}))
            own = [path for path in own if path.suffix == form]
            own = [path for path in own if missing != "a node" or f"node{left[0]}" in path.name]
            text += f", {form}"
        elif missing == "a node":
            own = own[: len(own) // 2]
        if missing == "a file" and len(own) > 1:
            own.remove(drawn.choice(own))
        for path in own:
            shutil.copy2(path, into / path.name.replace(".tree", ".txt"))
        if drawn.random() < 0.5:
            for path in into.iterdir():
                os.utime(path, (1_600_000_000, 1_600_000_000))
            text += ", times lost"
    return Cut(text, bool({"summary alone", "cut off", "middle lost"} & {*names}))


# -- judging ---------------------------------------------------------------------------------

_FOR = re.compile(r"\bfor (\d+(?:\.\d+)?) (ms|s|min|h)\b")
_UNIT_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def draw(number: int, seed: int, recordings: Sequence[tuple[Path, Program]]) -> tuple[str, str]:
    from disttrace_viewer.api.verdict import diagnose
    from disttrace_viewer.load.foreign.evidence import troubles

    drawn = random.Random(f"{seed} {number}")
    folder, program = recordings[number % len(recordings)]
    truth = json.loads((folder / "truth.json").read_text())
    with tempfile.TemporaryDirectory() as made:
        into = Path(made)
        before, its = recordings[drawn.randrange(len(recordings))]
        again = drawn.random() < 0.1
        what = cut(folder, into, drawn, before if again else None)
        if again and "behind" in what.text:
            guilty = program.guilty | its.guilty
            healthy = program.healthy and its.healthy
            program = replace(program, guilty=guilty, healthy=healthy, absent=False)
            truth["wall_s"] += json.loads((before / "truth.json").read_text())["wall_s"]
        try:
            report = diagnose(into)
        except Exception as error:  # whatever it is, it is wrong
            if type(error).__name__ == "ViewerError":
                return (
                    RIGHT if program.healthy else UNDECIDED
                ), f"{number}: {folder.name}: {what.text}: {error}"
            return WRONG, f"{number}: {folder.name}: {what.text}: {type(error).__name__}: {error}"
        bad = [found for found in report.findings if found.severity != "note"]
        # Ranks that are numbers of processes, which the report says.
        guessed = {
            int(rank): int((folder / f"pid-{pid}").read_text())
            for one in troubles([str(into)])
            for rank, pid in re.findall(r"rank (\d+) is process (\d+)", one.sentence)
        }
        wrong = [
            f"blames {[*found.culprit_ranks]}"
            for found in bad
            if {guessed.get(rank, rank) for rank in found.culprit_ranks} - program.guilty
            and not (what.summary_alone and "as its launcher reports" in found.summary)
        ]
        if report.healthy and not report.incomplete and not program.healthy:
            wrong.append("exit 0")
        if program.healthy and bad:
            wrong.append("a fault of a healthy job")
        for found in bad:
            if (
                program.absent
                and found.kind != "process_failed"
                and program.guilty & {guessed.get(rank, rank) for rank in found.waiting_ranks}
            ):
                wrong.append("says that who is absent waits")
            joined = "All members have joined" in found.summary and "may" not in found.summary
            if joined and not program.joined:
                wrong.append("all have joined")
            for value, unit in _FOR.findall(found.summary):
                if float(value) * _UNIT_S[unit] > truth["wall_s"]:
                    wrong.append(f"for {value} {unit}, of a job of {truth['wall_s']:.0f} s")
            ordered = "first" in found.summary and "as its launcher reports" not in found.summary
            if ordered and "times lost" in what.text:
                wrong.append("an order without times")
    named = {rank for found in bad for rank in found.culprit_ranks}
    told = "".join(f"\n      {one.severity} {one.summary}" for one in report.findings)
    told += "".join(f"\n      : {one}" for one in report.incomplete) if not bad else ""
    text = f"{number}: {folder.name}: {what.text}: {', '.join(dict.fromkeys(wrong))}{told}"
    good = program.healthy or bool(named)
    return (WRONG if wrong else RIGHT if good else UNDECIDED), text


# -- large logs ------------------------------------------------------------------------------

WATCHDOG = (
    "[rank{}]: [E ProcessGroupNCCL.cpp:670] [Rank {}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)={}) ran for {}"
    " milliseconds before timing out.\n"
)

AROUND: dict[str, Callable[[str, int], str]] = {
    "lines that differ": lambda one, n: one,
    "prefixes": lambda one, n: f"[rank{n % 8}]:[2026-01-01 10:00:{n % 60:02},1] [INFO] {one}",
    "colours": lambda one, n: f"\x1b[36m(W pid={n % 8})\x1b[0m \x1b[32m{one[:9]}\x1b[0m{one[9:]}",
    "wrapped": lambda one, n: "\n".join(one[k : k + 80] for k in range(0, len(one), 80)),
    "JSON": lambda one, n: f'{{"log":"{one}\\n","stream":"err","time":"2026-01-01T10:00:00Z"}}',
    "words of trouble": lambda one, n: f"{one[:30]} warning {one[30:]}",
    "lines of NCCL": lambda one, n: f"a:{n}:{n + 1} [{n % 8}] NCCL INFO Channel {n % 32}/0 : {one}",
    "very long lines": lambda one, n: f"{one} " * 2000,
}  # fmt: skip


def large(megabytes: int = 200) -> int:
    """Seconds and memory of logs of so many MB, with the lines of a hang at their end: how many
    took more than 10 s of a processor or 300 MB.
    """
    drawn = random.Random(1)
    words = ["".join(drawn.choices(string.ascii_lowercase, k=6)) for _ in range(5000)]
    words += ["rank", "time", "from", "error", "iteration", "processes", "step", "world", "Error"]
    texts = [" ".join(drawn.choices(words, k=14)) for _ in range(5000)]
    command = [sys.executable, "-m", "disttrace", "diagnose"]
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'viewer'}"}
    slow = 0
    for name, around in AROUND.items():
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "job.log"
            with path.open("w") as file:
                n = 0
                while file.tell() < megabytes << 20:
                    for _ in range(99):
                        n += 1
                        file.write(around(f"{words[n // 5000 % 5000]} {texts[n % 5000]}", n) + "\n")
                late = (0, 1, 2, 4, 5, 6, 7)
                file.writelines(WATCHDOG.format(r, r, 7, 600000, 600042) for r in late)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([*command, path], capture_output=True, text=True, env=environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        most = after.ru_maxrss / 1024  # of any of them
        bad = took > 10 or most > 300 or "rank 3" not in done.stdout.lower()
        slow += bad
        print(f"{name}: {took:.1f} s, {most:.0f} MB{', too much' * bad}", flush=True)
    return slow


# -- all of it -------------------------------------------------------------------------------


def recordings(
    kept: Path, only: Sequence[str], imitated: Sequence[str]
) -> list[tuple[Path, Program]]:
    """Each with its program; made where they are not there."""
    from reliability import real_dumps

    rows: list[tuple[str, Program, str, dict[str, str]]] = [
        (name, program, sys.executable, {}) for name, program in PROGRAMS.items()
    ]
    for version in imitated:
        python, more = real_dumps.imitated_in(version)
        more = {**more, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
        label = Path(version).name
        rows += [(f"{name}, NCCL of {label}", program, python, more)
                 for name, program in ON_DEVICES.items()]  # fmt: skip
    found = []
    for name, program, python, more in rows:
        if not only or any(one in name for one in only):
            folder = kept / name.replace(", ", "-").replace(" ", "_")
            if not folder.exists():
                print(f"recording {name}", flush=True)
                shared = {**more, "IMITATED_FOLDER": str(kept)} if more else {}
                record(name, program, folder, python, shared)
            found.append((folder, program))
    return found


def main() -> int:
    """1 if anything was said wrongly."""
    chosen = options(
        __doc__, kept=Path("build/pasted"), draws=300, seed=1, only=[str], number=[int],
        imitated=[str], verbose=False, large=False,
    )  # fmt: skip
    if chosen.large:
        return int(bool(large()))
    chosen.kept.mkdir(parents=True, exist_ok=True)
    made = recordings(chosen.kept.resolve(), chosen.only, chosen.imitated)
    numbers = chosen.number or range(chosen.draws)
    return counted(lambda number: draw(number, chosen.seed, made), numbers, verbose=chosen.verbose)


if __name__ == "__main__":
    sys.exit(main())
