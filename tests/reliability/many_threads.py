"""64 threads on stores and collectives at once: nothing is switched off, and nothing is lost.

    python many_threads.py [--threads 64] [--seconds 60] [--core c] [--max-mb 1] [--written]

Without ``--core`` and ``--max-mb`` every core meets every bound. At one that drops nothing every
operation has its begin and its end in the journal. At a smaller one every number since the oldest
segment is there, and the journal within its bound. ``--written``: segments are not mapped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options

WHOLE_MB = 1 << 14
"""A bound that no minute reaches."""
BOUNDS = (1, 16, WHOLE_MB)
SLACK = 1.25
"""By how much a journal may exceed its bound: a segment that opens while others are full."""


def work(folder: str, core: str, max_mb: int, written: bool, threads: int, seconds: float) -> None:
    """Be the program: threads that go round until the time is over."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import disttrace
    from disttrace.journal import segment

    if written:
        segment.MAPPABLE = frozenset()
    disttrace.install(dir=folder, core=core, max_mb=max_mb, quiet=True)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    until = time.monotonic() + seconds
    done = [0] * threads
    ready = threading.Barrier(threads)

    def turns(me: int) -> None:
        store = dist.PrefixStore(f"thread {me}", dist.HashStore())
        tensor = torch.ones(me % 7 + 1)
        long = "k" * 300
        ready.wait()
        while time.monotonic() < until:
            if me % 2:
                store.set(long if me % 8 == 1 else "key", "v")
                store.get(long if me % 8 == 1 else "key")
                store.add("count", 1)
                done[me] += 3
            else:
                dist.all_reduce(tensor)
                dist.all_reduce(tensor, async_op=True).wait()
                dist.barrier()
                done[me] += 3

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(turns, range(threads)))
    session: Any = disttrace.session._session
    off = [str(session.recorder.off), *sorted(session.capture.broken)]
    disttrace.uninstall()
    print(json.dumps({"done": sum(done), "off": off}))


def judged(folder: Path, done: int, max_mb: int) -> list[str]:
    """What is wrong with the journal of ``done`` operations beside those of the start."""
    begun: set[int] = set()
    put: set[int] = set()
    over: set[int] = set()
    first: set[int] = set()  # begun in the oldest segment that is left
    calls: dict[int, str] = {}
    wrong: list[str] = []
    for line in _lines(next(folder.glob("*.defs.jsonl"))):
        if line.get("def") == "call":
            calls[line["n"]] = line["op"]
        elif line.get("def") == "note":
            wrong.append(line["text"])
    segments = sorted(folder.glob("*.ops.jsonl"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    counted = 0
    for number, path in enumerate(segments):
        for line in _lines(path):
            if "b" in line:
                n = line["b"]
                if "r" not in line:  # a copy may stand before a begin that was about to come
                    if n in put:
                        wrong.append(f"number {n} twice")
                    put.add(n)
                counted += n not in begun and calls[line["s"]] != "init_process_group"
                begun.add(n)
                if number == 0:
                    first.add(n)
            elif "e" in line:
                over.add(line["e"])
    # In the oldest segment some are missing whose begins were dropped with the one before.
    since = 1 if len(segments) < 2 or min(first) == 1 else max(first)
    missing = set(range(since, max(begun) + 1)) - begun
    if missing:
        wrong.append(f"{len(missing)} begins are missing, the first is {min(missing)}")
    open_ones = {n for n in begun if n >= since} - over
    if open_ones:
        wrong.append(f"{len(open_ones)} operations have no end, the first is {min(open_ones)}")
    if since == 1 and counted < done:
        wrong.append(f"{done:,} operations were done, {counted:,} are on record")
    if max(begun) < done:
        wrong.append(f"{done:,} operations were done, {max(begun):,} were numbered")
    if size > max_mb * 2**20 * SLACK:
        wrong.append(f"{size:,} bytes where {max_mb} MB are allowed")
    return wrong


def _lines(path: Path) -> Any:
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"{"):  # else stacks that faulthandler wrote among definitions
                yield json.loads(line)


def run(core: str, max_mb: int, chosen: argparse.Namespace) -> bool:
    """One program, and whether all is well with what it left."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--folder", folder, "--core", core]
        command += ["--max-mb", str(max_mb), "--threads", str(chosen.threads)]
        command += ["--seconds", str(chosen.seconds)] + ["--written"] * chosen.written
        limit = chosen.seconds * 2 + 120
        result = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        wrong, done = [result.stderr.strip()] if result.stderr.strip() else [], 0
        if result.returncode:
            wrong.append(f"exit code {result.returncode}")
        else:
            done, off = json.loads(result.stdout).values()
            wrong += [f"switched off: {off}"] * (off != ["False"]) + judged(
                Path(folder), done, max_mb
            )
    bound = "no bound" if max_mb == WHOLE_MB else f"{max_mb} MB"
    kind = "written" if chosen.written else "mapped"
    print(f"core {core}, {bound}, {kind}: {done:,} operations; {'; '.join(wrong) or 'all there'}")
    return not wrong


def main() -> int:
    """Each core at each bound; 1 where something was off or lost."""
    chosen = options(
        __doc__, threads=64, seconds=60.0, core=["c", "python"], max_mb=[*BOUNDS], written=False,
        folder=str,
    )  # fmt: skip
    if chosen.folder:
        (core,), (max_mb,) = chosen.core, chosen.max_mb
        work(chosen.folder, core, max_mb, chosen.written, chosen.threads, chosen.seconds)
        return 0
    well = [run(core, bound, chosen) for core in chosen.core for bound in chosen.max_mb]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
