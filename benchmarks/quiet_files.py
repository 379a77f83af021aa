"""What a healthy rank asks of the file system beside its own writes, by strace.

python benchmarks/quiet_files.py --old 20000 --seconds 20

Bare ranks (no launcher says how many there are), beside journals of other jobs. Looks by path,
listings and bytes that are read back are counted of rank 0 in a window in which it communicates
all the time, and from its start on; of its companion, if it has one, in the same window.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
begun = open(sys.argv[2], "w")
one = torch.ones(4)
until = time.monotonic() + float(sys.argv[1])
print("begun", file=begun, flush=True)
more = torch.ones(1)
while more.item() > 0:
    dist.all_reduce(one)
    more.fill_(float(time.monotonic() < until))
    dist.all_reduce(more, op=dist.ReduceOp.MIN)
    time.sleep(0.01)
dist.destroy_process_group()
"""
BY_PATH = (
    "open,openat,stat,lstat,newfstatat,statx,access,faccessat,faccessat2,readlink,mkdir,unlink"
)
CALLS = f"{BY_PATH},getdents64,read,pread64,execve"
_CALL = re.compile(r"^(\d+) +([\d.]+) (\w+)\((.*)\) += (-?\d+)")
_COMPANION = "disttrace_viewer.companion"


def main() -> None:
    """Print a line for each process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--old", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "journals"
        folder.mkdir()
        for number in range(options.old):
            (folder / f"old{number // 100}-h-{number}-{number:012x}.defs.jsonl").touch()
        program, trace, begun = (Path(made) / name for name in ("program.py", "trace", "begun"))
        program.write_text(PROGRAM)
        ranks = []
        for rank in range(options.ranks):
            command = [sys.executable, str(program), str(options.seconds), f"{begun}{rank}"]
            if rank == 0:
                look = ["strace", "-f", "-ttt", "-y", "-s", "300", "-e", f"trace={CALLS}"]
                command = [*look, "-o", str(trace), *command]
            variables = {
                **os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "RANK": str(rank),
                "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29517", "DISTTRACE_JOB": "quiet", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            variables.pop("LOCAL_WORLD_SIZE", None)
            ranks.append(subprocess.Popen(command, env=variables))
        while not Path(f"{begun}0").exists():
            time.sleep(0.1)
        began = time.time() + 2
        for process in ranks:
            process.wait()
        report(trace, str(folder), began, began + options.seconds - 4)


def report(trace: Path, folder: str, began: float, ended: float) -> None:
    """Counts of the window and of all of the process's life, of the rank and of its companion."""
    counts: dict[str, Counter[str]] = {}
    paths: Counter[str] = Counter()
    companions: set[str] = set()
    ours = (folder, f"/tmp/disttrace-{os.geteuid()}")
    for line in trace.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        pid, at, call, arguments, result = found.groups()
        if call == "execve" and _COMPANION in arguments:
            companions.add(pid)
        if not any(place in arguments for place in ours) or "AT_EMPTY_PATH" in arguments:
            continue
        whose = "companion" if pid in companions else "rank"
        within = began <= float(at) <= ended
        for when in ("in all", *(["a second, while it communicates"] if within else [])):
            count = counts.setdefault(f"{whose}, {when}", Counter())
            if call in BY_PATH.split(","):
                count["look-ups by path"] += 1
                paths[f"{whose} {call} {arguments[:120]}"] += within
            elif call == "getdents64":
                count["listings"] += 1
            elif call in ("read", "pread64"):
                count["bytes read"] += max(int(result), 0)
    for name, count in sorted(counts.items()):
        each = ended - began if "second" in name else 1
        kinds = ("look-ups by path", "listings", "bytes read")
        print(f"{name}: {', '.join(f'{count[kind] / each:,.1f} {kind}' for kind in kinds)}")
    for path, times in paths.most_common(5):
        if times:
            print(f"  {times} times {path}")


if __name__ == "__main__":
    if shutil.which("strace") is None:
        sys.exit("this needs strace")
    main()
