"""Exchanges that C++ makes through the store, imitated: which rank is at another turn is named.

    python tests/reliability/hidden_collectives.py --runs 12 --seed 1

Symmetric memory and NVSHMEM share handles and ids by keys ``PREFIX/TURN/RANK``: each rank sets its
own and awaits those of the others (``StoreExchange`` in torch's CUDASymmetricMemoryUtils.hpp). The
same keys are set here from Python. In one step one rank leaves an exchange out, makes one more, or
stays away; of healthy runs nothing is said.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.processes import clean_environ, free_port  # noqa: E402

PROGRAM = """
import sys, time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
how, prefix, odd, at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank, world, turn = dist.get_rank(), dist.get_world_size(), 0
store = dist.PrefixStore("symmetric_memory-0", dist.distributed_c10d._get_default_store())
def exchange():
    global turn
    keys = [f"{prefix}/{turn}/{one}" for one in range(world)]
    turn += 1
    store.set(keys[rank], b"handle")
    for one in range(world):
        if one != rank:
            store.wait([keys[one]])
            store.get(keys[one])
for step in range(8):
    dist.all_reduce(torch.ones(4))
    wrong = (rank, step) == (odd, at)
    if wrong and how == "away":
        time.sleep(12)
    for _ in range(1 + wrong * {"skip": -1, "more": 1}.get(how, 0)):
        exchange()
dist.barrier()
"""
HOW = ("skip", "more", "away", "healthy")
PREFIXES = ("CUDASymmetricMemory", "NVSHMEMSymmetricMemory", "NCCLAllocation")


def main() -> int:
    """Exit code 1 if a rank was missed, or a wrong one named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    right = 0
    for number in range(options.runs):
        draw = random.Random(options.seed * 1000 + number)
        how, prefix, world = HOW[number % len(HOW)], draw.choice(PREFIXES), draw.choice([3, 4])
        odd, at = draw.randrange(world), draw.randrange(2, 6)
        with tempfile.TemporaryDirectory() as folder:
            (program := Path(folder, "program.py")).write_text(PROGRAM)
            environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=f"{folder}/out")
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}"]
            command += [
                f"--master-port={free_port()}", str(program), how, prefix, str(odd), str(at),
            ]  # fmt: skip
            subprocess.run(command, env=environ, capture_output=True, timeout=180, check=False)
            command = [sys.executable, "-m", "disttrace", "diagnose", "--json", f"{folder}/out"]
            told = subprocess.run(
                command, env=clean_environ(), capture_output=True, text=True, timeout=180,
                check=False,
            )  # fmt: skip
        findings = [one for one in json.loads(told.stdout)["findings"] if one["severity"] != "note"]
        named = findings[0]["culprit_ranks"] if findings else []
        fine = named == ([] if how == "healthy" else [odd])
        right += fine
        first = str(findings[0]["summary"])[:300] if findings else "nothing"
        print(f"{'ok ' if fine else 'BAD'} {how} by rank {odd} of {world}, step {at}: {first}")
    print(f"{right} of {options.runs} right")
    return int(right < options.runs)


if __name__ == "__main__":
    raise SystemExit(main())
