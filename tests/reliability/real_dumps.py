"""Programs dumped by torch's own Flight Recorder while they run or hang, and what is said.

PYTHONPATH=viewer:tests python tests/reliability/real_dumps.py [--torch PYTHON] [--only NAME ...]
                                                               [--imitated VERSION]

Each is dumped as a pickle and as JSON, and judged with the files' own times and without them. Wrong
is who is named and innocent, and any fault of a healthy program; but without times a rank that is
behind may be named in a warning, for dumps are made of hangs. They are on gloo; PYTHON is that
of another torch. Imitated: on torch's own NCCL groups without a device (``tests/gpu/imitated.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from support.campaigns import options  # noqa: E402

WORLD = 4
STALL_S, DUMP_AFTER_S = 3.0, 11.0
LONG_AGO_NS = 1_600_000_000_000_000_000

RANKS = """
import os, random, signal, sys, threading, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c
world, port, out, program, after = int(sys.argv[1]), *sys.argv[2:6]
expected, nccl = int(sys.argv[6]), sys.argv[7] == "nccl"
children = []
for rank in range(world):
    children.append(os.fork())
    if not children[-1]:
        break
else:
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(one, signal.SIGKILL) for one in children])
    for child in children:
        os.waitpid(child, 0)
    sys.exit()
def dump():
    # Monitors look now and then whether to dump: not all within a millisecond, as copies are.
    time.sleep(float(after) + random.Random(rank * 7919 + os.getpid()).random())
    each = [(c._dump_nccl_trace(True, False), c._dump_nccl_trace_json())] if nccl else []
    try:  # from 2.15 on hooks record each backend by itself, NCCL's new groups too
        each += [
            (c._dump_fr_trace(True, False, False, name), c._dump_fr_trace_json(True, False, name))
            for name in (("nccl", "nccl2") if nccl else ("gloo",))
        ]
    except (AttributeError, TypeError):
        each += [] if nccl else [(c._dump_fr_trace(True, False), c._dump_fr_trace_json())]
    made = dict(zip(("pickle", "json"), max(each, key=lambda forms: len(forms[1]))))
    for form, data in made.items():
        with open(f"{out}/{form}/trace_rank_{rank}", "wb") as file:
            file.write(data)
    # Whose peer goes away fails before it is dumped.
    while len(os.listdir(f"{out}/json")) < expected:
        time.sleep(0.05)
    time.sleep(0.5)
    os._exit(0)
torch.set_num_threads(1)
where = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": world}
if nccl:
    torch.cuda.set_device(rank)
dist.init_process_group("nccl" if nccl else "gloo", **where)
one = torch.ones(4, device="cuda" if nccl else "cpu")
def step(n=1):
    for _ in range(n):
        dist.all_reduce(one)
        if nccl:
            torch.cuda.synchronize()
step(3)
threading.Thread(target=dump, daemon=True).start()
def rest():
    time.sleep(600)
try:
    exec(open(program).read())
except RuntimeError:
    pass  # whose peer has died is to be there until it has dumped
rest()
"""


@dataclass(frozen=True)
class Program:
    """``guilty``: who may be named; ``says``: kinds of which one is expected where times are known,
    none for a healthy program.
    """

    text: str
    guilty: frozenset[int] = frozenset()
    says: tuple[str, ...] = ()


def _of(text: str, *guilty: int, says: str = "") -> Program:
    return Program(text, frozenset(guilty), tuple(says.split()))


MISSING = "missing_participant"
PROGRAMS = {
    "ended": _of("step(5)"),
    "runs": _of("while True: step()"),
    "runs in subgroups": _of(
        "a = dist.new_group([0, 1]); b = dist.new_group([2, 3])\n"
        "while True:\n"
        "    dist.all_reduce(one, group=a if rank < 2 else b)\n"
        "    if rank < 2: time.sleep(0.01)"
    ),
    "not waited for": _of(
        "works = [dist.all_reduce(one.clone(), async_op=True) for _ in range(5)]"
    ),
    "objects": _of(
        "found = [None] * world\nfor _ in range(3): dist.all_gather_object(found, rank)"
    ),
    "messages": _of(
        "while True:\n"
        "    dist.send(one, (rank + 1) % world) if rank % 2 == 0 else dist.recv(one, rank - 1)\n"
        "    step()"
    ),
    "uneven in the end": _of("step(3 if rank else 3); rest()"),
    "missing": _of("step(2)\nif rank == 2: rest()\nstep()", 2, says=MISSING),
    "missing at a barrier": _of("if rank == 0: rest()\ndist.barrier()", 0, says=MISSING),
    "computes": _of("if rank == 3:\n    while True: pass\nstep()", 3, says=MISSING),
    "other operation": _of(
        "dist.broadcast(one, 0) if rank == 1 else step()", 1, says="op_mismatch"
    ),
    "other type": _of(
        "x = one.to(torch.int32) if rank == 0 else one\ndist.all_reduce(x)\nstep()",
        0,
        says="dtype_mismatch",
    ),
    "other root": _of(
        "dist.broadcast(one, 1 if rank == 2 else 0)\nstep()", 2, says=f"no_progress {MISSING}"
    ),
    "missing in a subgroup": _of(
        "a = dist.new_group([0, 1])\n"
        "if rank < 2: dist.all_reduce(one, group=a)\n"
        "if rank == 1: rest()\n"
        "if rank == 0: dist.all_reduce(one, group=a)\n"
        "step()",
        1,
        says=f"no_progress {MISSING}",
    ),
    "crossed groups": _of(
        "a = dist.new_group([0, 1]); b = dist.new_group([0, 1])\n"
        "for g in (a, b) if rank < 2 else ():\n"  # NCCL's recorder has no first call that hangs
        "    dist.all_reduce(one, group=g)\n"
        "for g in ((a, b) if rank == 0 else (b, a)) if rank < 2 else ():\n"
        "    dist.all_reduce(one, group=g)",
        says="deadlock no_progress",
    ),
    "receives for ever": _of(
        "if rank == 1: dist.recv(one, 3)\nstep()", 1, says=f"{MISSING} unmatched_recv deadlock"
    ),
    "died": _of("if rank == 3: os._exit(0)\ntime.sleep(0.5)\nstep()", 3, says="any"),
    "one more call": _of("if rank == 1: step()\nstep(3)\ndist.barrier()", 1, says="any"),
    "one call less": _of("step(2 if rank == 2 else 3)\ndist.barrier()", 2, says="any"),
    "a group that one does not make": _of("if rank != 2: dist.new_group([0, 1, 2, 3])", says="any"),
}


def dumped(name: str, python: str, folder: Path, more: Mapping[str, str] | None) -> None:
    """Run a program in its ranks, which dump themselves and end; ``more``: variables for NCCL."""
    from support.processes import clean_environ, free_port

    for form in ("pickle", "json"):
        (folder / form).mkdir()
    (folder / "ranks.py").write_text(RANKS)
    program, port = folder / "program.py", str(free_port())
    program.write_text(PROGRAMS[name].text)
    size = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    given = {**size, **(more or {}), "IMITATED_FOLDER": str(folder)}
    environ = clean_environ(OMP_NUM_THREADS="1", DISTTRACE="0", **given)
    ranks = subprocess.Popen(
        [
            python, folder / "ranks.py", str(WORLD), port, folder, program, str(DUMP_AFTER_S),
            str(WORLD - (name == "died")), "gloo" if more is None else "nccl",
        ],
        env={k: v for k, v in environ.items() if k != "PYTHONPATH"},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ranks.wait(300)
    except subprocess.TimeoutExpired:
        ranks.terminate()
        ranks.wait()


def wrongs(name: str, folder: Path, *, timed: bool) -> list[str]:
    """What is wrong with what is said of these dumps."""
    from disttrace_viewer.api.verdict import diagnose

    program = PROGRAMS[name]
    if not any(folder.iterdir()):
        return ["left no dump at all"]
    report = diagnose(folder, stall_s=STALL_S)
    bad = [found for found in report.findings if found.severity != "note"]
    named = {rank for found in bad for rank in found.culprit_ranks}
    wrong = [f"blames {sorted(named - program.guilty)}"] if named - program.guilty else []
    if not timed and not program.says:
        bad = [found for found in bad if found.severity != "warning"]
        wrong = []
    if not program.says and bad:
        wrong.append(f"alarms: {bad[0].summary}")
    if timed and program.says and "any" not in program.says:
        kinds = [found.kind for found in report.findings]
        if not set(kinds) & set(program.says):
            wrong.append(f"says {kinds or 'nothing'} where {program.says} is true")
    return wrong


def imitated_in(version: str) -> tuple[str, dict[str, str]]:
    """The Python of an environment with that torch (a version, or its folder), and variables by
    which it has devices.
    """
    from gpu import imitated

    folder = Path(version) if os.sep in version else imitated.environment(version)
    library = imitated.library(folder)
    return str(folder / "bin" / "python"), {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(library.parent),
        "IMITATED_DEVICES": str(WORLD),
        # Whose peer has died is to be there until it has dumped.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    }


def main() -> int:
    """1 if anything was said wrongly."""
    chosen = options(__doc__, torch=sys.executable, only=list(PROGRAMS), imitated=str)
    total, right, more = 0, 0, None
    if chosen.imitated:
        chosen.torch, more = imitated_in(chosen.imitated)
    for name in chosen.only:
        with tempfile.TemporaryDirectory(prefix="disttrace-dumps-") as made:
            folder = Path(made)
            dumped(name, chosen.torch, folder, more)
            for form in ("pickle", "json"):
                copied = folder / f"{form}-copied"
                shutil.copytree(folder / form, copied)
                for path in copied.iterdir():
                    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
                for where, timed in ((folder / form, True), (copied, False)):
                    wrong = wrongs(name, where, timed=timed)
                    total, right = total + 1, right + (not wrong)
                    if wrong:
                        times = "own times" if timed else "no times"
                        print(f"{name} ({form}, {times}): {'; '.join(wrong)}", flush=True)
    print(f"{right} of {total} right")
    return right < total


if __name__ == "__main__":
    sys.exit(main())
