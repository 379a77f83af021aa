"""A real job stands still; devices and NCCL's service are asked by its companion, or never answer.

PYTHONPATH=viewer:tests python tests/reliability/asked_live.py

A mount namespace (it needs root) has what a driver of NVIDIA's shows: a node that the ranks keep
open, and its version. Two ranks on gloo are cut off from each other: all are in, and nothing moves.
Two seconds for all answers are little on a busy machine: a rank's service has to get the CPU.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from support.processes import Outcome, clean_environ, free_port, run_program  # noqa: E402

PROGRAM = """
import os, pathlib, socket, sys, threading, time
import torch, torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = open(f"/dev/nvidia{rank}")
STATUS = f'''Errors
======

#0-0 (cf264af53edbe986) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported System error -- GPU 0 managed by process {os.getpid()} on node 127.0.0.1
'''

def serve(server):
    one, _ = server.accept()
    pathlib.Path("asked").touch()
    for line in one.makefile("rb"):
        if sys.argv[1] == "silent":
            time.sleep(600)
        word = line.split()[0]
        said = {b"CLIENT": b"SERVER PROTOCOL 2\\n", b"TIMEOUT": b"OK\\n"}
        one.sendall(said.get(word, STATUS.encode()))
        if word == b"VERBOSE":
            return one.close()

def told():
    folder = pathlib.Path(os.environ["DISTTRACE_DIR"])
    while not any('"stalled"' in f.read_text() for f in folder.glob("*.verdicts.jsonl")):
        time.sleep(0.1)
    os._exit(0)

def peers():
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
            at = one.getpeername()[1]
        except (OSError, IndexError):
            continue
        families = socket.AF_INET, socket.AF_INET6
        if one.family in families and port not in (at, one.getsockname()[1]):
            yield int(name), one

port = int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(("127.0.0.1", int(os.environ["NCCL_RAS_ADDR"].split(":")[1])))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
dist.init_process_group("gloo")
one = torch.ones(4)
dist.all_reduce(one)
kept = list(peers())  # the connections stay open, and nothing comes through any more
silent = socket.socketpair()
for number, _ in kept:
    os.dup2(silent[0].fileno(), number)
threading.Thread(target=told, daemon=True).start()
dist.all_reduce(one)
"""
NAMESPACE = """
set -e
mount -t tmpfs none /proc/driver
mkdir -p /proc/driver/nvidia "$1"
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module" > /proc/driver/nvidia/version
mount -t tmpfs none "$1"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fd /dev/std* "$1"
mkdir "$1/shm"
mount --bind /dev/shm "$1/shm"
touch "$1/nvidia0" "$1/nvidia1"
mount --rbind "$1" /dev
shift
exec "$@"
"""
ANSWERS = "0, 00000000:65:00.0, P0"
LOST = "0, 00000000:65:00.0, [GPU is lost]"
UNSHARE = ["unshare", "--mount", "--propagation", "private"]


def job(folder: Path, service: str, smi: str) -> Outcome:
    (folder / "job.py").write_text(PROGRAM)
    (folder / "namespace.sh").write_text(NAMESPACE)
    command = folder / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ntouch {folder}/smi\n{smi}\n")
    command.chmod(0o755)
    env = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(folder / "out"), DISTTRACE_STALL="3",
        NCCL_RAS_ADDR=f"127.0.0.1:{free_port()}", PATH=f"{command.parent}:{os.environ['PATH']}",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    where = ["sh", "namespace.sh", str(folder / "dev"), *start, "--master-port", str(free_port())]
    return run_program([*UNSHARE, *where, "job.py", service], env, timeout=240, cwd=folder)


CASES = (
    (
        "answers",
        f"echo '{ANSWERS}'",
        "NCCL RAS on HOST says `Rank 0 reported System error",
        {"NCCL RAS"},
    ),
    # What is on the CPU waits for no device: the answer is kept, and nothing made of it.
    ("silent", f"echo '{LOST}'", ": nothing moves.", {"nvidia-smi"}),
    ("silent", "exec sleep 600", ": nothing moves.", set[str]()),
)


def main() -> int:
    """1 if anything was said otherwise."""
    wrong = 0
    for service, smi, said, written in CASES:
        with tempfile.TemporaryDirectory(prefix="disttrace-asked-") as name:
            folder = Path(name)
            done = job(folder, service, smi)
            lines = [one for one in done.stderr.splitlines() if one.startswith("disttrace: stal")]
            asked = [name for name in ("smi", "asked") if (folder / name).exists()]
            journals = [path.read_text() for path in (folder / "out").glob("*.defs.jsonl")]
            told = set(re.findall(r'"def":"trouble".*?"by":"([^"]+)"', "".join(journals)))
            right = len(lines) == 1 and said.replace("HOST", os.uname().nodename) in lines[0]
            right = right and told == written and asked == ["smi", "asked"]
            wrong += not right
            what = "right" if right else f"WRONG (asked: {asked}, written: {told})"
            print(f"RAS {service}, `{smi}`: {what}\n  {lines or done}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
