"""Kills a random rank at a random instant, many times: is every operation that began on record?

A store's method notes the count of its calls while it runs, that is after the operation began and
before it can return. The journal must hold at least that many begins of it, whenever SIGKILL came,
and of every all_reduce that returned. Afterwards the viewer must read every file.

    python tests/reliability/kill_runs.py --runs 100
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options
from support.processes import free_port

RANKS = 3
_SLOT = struct.Struct("qq")  # calls of the store seen from inside, all_reduces that returned


@dataclass
class Tally:
    """What went wrong, over all runs."""

    runs: int = 0
    journals: int = 0
    operations: int = 0
    lost: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.journals} journals, {self.operations} operations known to "
            f"have begun: {len(self.lost)} lost, {len(self.unread)} journals not read"
        )


def rank_main(rank: int, port: int, notes: mmap.mmap) -> None:
    """One rank: operations without an end, noted from inside and after their return."""
    import torch
    import torch.distributed as dist

    class NotingStore(dist.Store):
        """Counts the calls that have reached it."""

        calls = 0

        def set(self, key: str, value: str) -> None:
            NotingStore.calls += 1
            note()

    def note() -> None:
        _SLOT.pack_into(notes, rank * _SLOT.size, NotingStore.calls, returned)

    # A rank whose peer was killed fails or waits; either way it has done its part.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    returned = 0
    store = NotingStore()
    tensor = torch.ones(8)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    while True:
        store.set("key", "value")
        dist.all_reduce(tensor)
        returned += 1
        note()


def run(folder: str, chance: random.Random) -> dict[int, tuple[int, int]]:
    """One run into ``folder``; by pid, what is known to have begun."""
    import disttrace

    port = free_port()
    notes = mmap.mmap(-1, RANKS * _SLOT.size)
    disttrace.install(dir=folder)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_main, args=(r, port, notes)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _SLOT.unpack_from(notes, 0)[1] < 5:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.3))
    victim = chance.choice(ranks)
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join()
    time.sleep(0.02)
    for process in ranks:  # those that are left fail or hang
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    disttrace.uninstall()
    known = {p.pid or 0: _SLOT.unpack_from(notes, n * _SLOT.size) for n, p in enumerate(ranks)}
    notes.close()
    return {pid: (calls, returned) for pid, (calls, returned) in known.items()}


def check(folder: str, known: dict[int, tuple[int, int]], tally: Tally) -> None:
    """Compare what is known to have begun with what the viewer reads."""
    from disttrace_viewer.merge.reader import load

    trace = load([folder])
    tally.runs += 1
    tally.unread += [problem.sentence for problem in trace.problems]
    names = ("store.set", "all_reduce")
    counts = {(process.pid, op): 0 for process in trace.processes for op in names}
    ops = trace.calls["op"].to_list()
    for process, call in trace.operations.select("process", "call").iter_rows():
        key = (trace.processes[process].pid, ops[call])
        if key in counts:
            counts[key] += 1
    for pid, (calls, returned) in known.items():
        tally.journals += 1
        tally.operations += calls + returned
        for op, least in (("store.set", calls), ("all_reduce", returned)):
            found = counts.get((pid, op))
            if found is None:
                tally.unread.append(f"no journal of process {pid}")
            elif found < least:
                tally.lost.append(f"process {pid}: {found} of {least} {op}")


def main() -> int:
    """Print the figure; the exit code is 1 if anything was lost."""
    chosen = options(__doc__, runs=100, seed=0)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.distributed  # noqa: F401 - once, for all ranks

    chance, tally = random.Random(chosen.seed), Tally()
    for _ in range(chosen.runs):
        folder = tempfile.mkdtemp(prefix="disttrace-kill-")
        try:
            check(folder, run(str(Path(folder, "out")), chance), tally)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(tally)
    for sentence in (*tally.lost, *tally.unread)[:20]:
        print("  " + sentence)
    return 1 if tally.lost or tally.unread else 0


if __name__ == "__main__":
    sys.exit(main())
