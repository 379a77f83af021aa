"""Whom `disttrace attach` names of jobs that hang untraced: real ones, by four launchers.

    python tests/reliability/attached.py [--only NAME ...] [--ranks 4]
    python tests/reliability/attached.py --size 64
    python tests/reliability/attached.py --server path

With a worker server of torch in each rank (``--server``: at a path, or at a port) Flight Recorder's
numbers are there too, and who calls something else is to be named.

Of each job it is known who does not come, and where that one is. It is looked at once, goes on as
it was, and how long the look took is told: 5 s are allowed for 4 ranks, 15 s for 64 processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.campaigns import options
from support.processes import (
    clean_environ,
    ending,
    free_port,
    launcher,
    run_program,
    wait_until,
)

START_S = 180
HEAD = """\
import os, pathlib, queue, signal, socket, subprocess, sys, threading, time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)  # culprit

def halves(x):
    total = 0
    for n in range(200):  # culprit
        total += n * x  # culprit
    return total

def main(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if os.environ["HANG_SERVER"] == "path":
        from torch.distributed.elastic import control_plane
        server = control_plane._worker_server(f"{os.environ['HANG_FOLDER']}/{rank}.sock")
        server.__enter__()
    elif os.environ["HANG_SERVER"] == "port":
        from torch._C._distributed_c10d import _WorkerServer
        server = _WorkerServer("::", 0)
    guilty = rank == world // 2
    here = pathlib.Path(os.environ["HANG_FOLDER"])
    group = dist.new_group(list(range(world)))
    x, ones = [None] * world, torch.ones(4)
    store = dist.distributed_c10d._get_default_store()
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), group=group)
    (here / f"ready-{os.getpid()}").touch()
"""
TAIL = """

def child(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    main(rank, world)

if __name__ == "__main__":
    if len(sys.argv) == 1:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        how, world, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        torch.set_num_threads(1)
        import torch.multiprocessing as mp
        if how == "spawn":
            mp.spawn(child, args=(world, port), nprocs=world)
        else:
            fork = mp.get_context("fork").Process
            made = [fork(target=child, args=(n, world, port)) for n in range(world)]
            [one.start() for one in made]
            [one.join() for one in made]
"""
WAITS = {
    "all_reduce": "dist.all_reduce(torch.ones(4))", "barrier": "dist.barrier()",
    "work": "dist.all_reduce(torch.ones(4), async_op=True).wait()",
    "subgroup": "dist.all_gather([torch.empty(2) for _ in range(world)], torch.ones(2), group)",
    "object": "dist.all_gather_object([None] * world, 'x')",
    "functional": "print(functional.all_reduce(torch.ones(4), 'sum', group).sum().item())",
    "backward": "model = DDP(torch.nn.Linear(4, 4))\nmodel(torch.ones(4)).sum().backward()",
    "monitored": "dist.monitored_barrier(group)", "creation": "dist.new_group(list(range(world)))",
}  # fmt: skip
"""What the others wait in."""

UNRECORDED = ("monitored", "creation", "recv_idle")
"""What is in no Flight Recorder of gloo."""

PLACES = {
    "loader": "next(iter(DataLoader(Slow(), num_workers=1)))  # culprit",
    "dataset": "next(iter(DataLoader(Slow())))",
    "sleep": "time.sleep(600)  # culprit",
    "lock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()  # culprit",
    "busy": "while True:  # culprit\n    pass  # culprit",
    "calls": "while True:\n    halves(3)  # culprit",
    "tensors": "x = torch.ones(64, 64)\nwhile True:\n    x = x @ x / 64  # culprit",
    "queue": "queue.Queue().get()  # culprit",
    "socket": "one, other = socket.socketpair()\none.recv(1)  # culprit",
    "child": "subprocess.run(['sleep', '600'])  # culprit",
    "thread": "t = threading.Thread(target=time.sleep, args=[99])\nt.start()\nt.join()  # culprit",
    "file": "name = here / 'pipe'\nos.mkfifo(name)\nname.read_text()  # culprit",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)  # culprit",
}
"""Where the one is that does not come."""

BODIES: dict[str, tuple[str, str | None]] = {
    "recv": ("if guilty:\n    dist.recv(torch.ones(4), (rank + 1) % world)\ndist.barrier()", None),
    "recv_idle": ("if guilty:\n    dist.recv(torch.ones(4), src=0)\ntime.sleep(600)", "peer"),
    "other_op": ("if guilty:\n    dist.broadcast(ones, 0)\ndist.all_reduce(ones)", "number"),
    "one_more": ("if guilty:\n    dist.barrier()\ndist.barrier()\ndist.all_reduce(ones)", "number"),
    "left_out": ("if not guilty:\n    dist.all_reduce(torch.ones(4))\ndist.barrier()", "number"),
    "key": ("if guilty:\n    store.wait(['nobody sets it'])\ndist.all_gather_object(x, 1)", None),
    "two_groups": ("if guilty:\n    dist.barrier(group)\ndist.barrier()", None),
    "healthy": ("while True:\n    time.sleep(0.001)\n    dist.barrier()", "healthy"),
    "steps": ("while True:\n    time.sleep(guilty * 1.5)\n    dist.barrier()", "healthy"),
    "computing": ("while True:\n    halves(20000 * guilty)\n    dist.barrier()", "healthy"),
    "idle": ("time.sleep(600)", "healthy"),
    "computes": ("while True:\n    halves(3)", "healthy"),
}
"""What all do, and who is to be told: ``peer`` is who does not send, ``healthy`` is no stall,
``number`` is the guilty one where there are numbers, and else nobody.
"""


@dataclass(frozen=True, slots=True)
class Hang:
    """A program that hangs. ``told``: ``culprit`` (who and where), ``peer``, ``number``, nobody."""

    name: str
    body: str
    told: str | None


def text(hang: Hang) -> str:
    return HEAD + indent(hang.body, "    ")


def hangs() -> list[Hang]:
    """Each place with one way of waiting, each way of waiting with a sleep."""
    pairs = [(place, way) for place, way in zip(PLACES, list(WAITS) * 2, strict=False)]
    pairs += [("sleep", way) for way in WAITS]
    found = {
        f"{place}/{way}": Hang(
            f"{place}/{way}",
            "if guilty:\n" + indent(PLACES[place], "    ") + "\n" + WAITS[way],
            "culprit",
        )
        for place, way in pairs
    }
    found.update({name: Hang(name, body, told) for name, (body, told) in BODIES.items()})
    return list(found.values())


LAUNCHERS = ("torchrun", "spawn", "fork", "variables")


def started(folder: Path, way: str, ranks: int, server: str) -> list[subprocess.Popen[bytes]]:
    """The processes that start the job, in a session of their own each."""
    environ = clean_environ(HANG_FOLDER=str(folder), HANG_SERVER=server, OMP_NUM_THREADS="1")
    port = str(free_port())
    commands: list[tuple[list[str], dict[str, str]]]
    if way == "torchrun":
        commands = [([sys.executable, *launcher("train.py", ranks)], environ)]
    elif way == "variables":
        shared = {**environ, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        shared["WORLD_SIZE"] = str(ranks)
        envs = ({**shared, "RANK": str(rank)} for rank in range(ranks))
        commands = [([sys.executable, "train.py"], env) for env in envs]
    else:
        commands = [([sys.executable, "train.py", way, str(ranks), port], environ)]
    output = (folder / "output").open("wb")
    return [
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=output, start_new_session=True
        )
        for command, env in commands
    ]


def come(folder: Path, ranks: int) -> list[int]:
    """The pids of all ranks, once all are where they hang."""
    try:
        wait_until(lambda: len([*folder.glob("ready-*")]) == ranks, START_S)
    except AssertionError as error:
        raise TimeoutError((folder / "output").read_text(errors="replace")[-2000:]) from error
    time.sleep(4)
    return [int(path.name.partition("-")[2]) for path in folder.glob("ready-*")]


def wrong(hang: Hang, ranks: int, report: dict[str, Any], code: int, server: str) -> str | None:
    findings = report["findings"]
    named = sorted({rank for one in findings for rank in one["culprit_ranks"]})
    said = " | ".join(f"{one['kind']}: {one['summary']}" for one in findings) or "nothing"
    if hang.told == "healthy":
        return None if code == 0 else f"exit code {code} of a healthy job: {said}"
    if code != 1:
        return f"exit code {code}: {said}"
    guilty = ranks // 2
    if hang.told is None or (hang.told == "number" and not server):
        return f"rank {named} named: {said}" if named else None
    wanted = [0] if hang.told == "peer" else []
    if named != (wanted or [guilty]):
        return f"{named} named for {wanted or [guilty]}: {said}"
    way = hang.name.partition("/")[2] or hang.name
    if server and "stopped" not in hang.name and way not in UNRECORDED and " #" not in said:
        return f"no number told: {said}"
    if hang.told == "culprit":
        lines = text(hang).splitlines()
        places = {f"train.py:{n}" for n, line in enumerate(lines, 1) if "# culprit" in line}
        if not any(place in said for place in places):
            return f"none of {sorted(places)} told: {said}"
    return None


def attach(pids: list[int], *more: str) -> tuple[int, dict[str, Any], float, str]:
    """Exit code, report, seconds and stderr of a look."""
    command = [sys.executable, "-m", "disttrace", "attach", "--json", *more, *map(str, pids)]
    start = time.monotonic()
    done = run_program(command, timeout=120)
    took = time.monotonic() - start
    return done.code, json.loads(done.stdout or '{"findings": []}'), took, done.stderr


def tried(hang: Hang, way: str, ranks: int, server: str) -> str | None:
    """Run a job, look at it, end it; prints a line and gives what was wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(text(hang) + TAIL)
        group = started(folder, way, ranks, server)
        with ending(*group):
            pids = come(folder, ranks)
            code, report, took, said = attach([one.pid for one in group], *["--ask"] * bool(server))
            gone = [pid for pid in pids if not Path(f"/proc/{pid}").exists()]
            problem = wrong(hang, ranks, report, code, server)
            if gone:
                problem = f"{len(gone)} ranks did not go on"
    print(f"{'right' if problem is None else 'WRONG'} {took:5.1f} s  {way:9} {hang.name}")
    if problem:
        print(f"      {problem}\n      {said}")
    sys.stdout.flush()
    return problem


def main() -> None:
    """Try every hang, each by one of the launchers."""
    args = options(__doc__, only=[str], launcher=str, server="", ranks=4, size=int)
    chosen = [hang for hang in hangs() if not args.only or hang.name in args.only]
    if args.size:
        chosen = [hang for hang in hangs() if hang.name == "sleep/all_reduce"]
    ways = (args.launcher or LAUNCHERS[n % len(LAUNCHERS)] for n in range(len(chosen)))
    ranks = args.size or args.ranks
    problems = [tried(hang, way, ranks, args.server) for hang, way in zip(chosen, ways)]
    bad = sum(problem is not None for problem in problems)
    print(f"{len(problems) - bad} of {len(problems)} right")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
