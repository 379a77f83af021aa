"""What a loop of calls that are all different costs: memory and journal, at its tenths.

    python benchmarks/recorder/different_calls.py [--calls 10000000] [--max-mb 16] [--way shapes]

Ways to differ: shapes, tags, code made by ``exec``, annotations, prefixes of stores, groups, texts
of exceptions, threads. Each runs in a process of its own. What is kept must stop to grow, and the
journal must stay within ``DISTTRACE_MAX_MB``; the calls go on all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

MB = 1 << 20
POINTS = 10


def ways() -> dict[str, Callable[[int], None]]:
    """By name, a call that differs from that of every other number."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import disttrace

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    base, small, large = dist.HashStore(), torch.ones(1), torch.empty(1 << 13)

    def shapes(n: int) -> None:
        dist.all_reduce(large.as_strided((n % 4096 + 1, n // 4096 + 1), (1, 0)))

    def tags(n: int) -> None:
        dist.send(small, 1, tag=n)

    def code(n: int) -> None:
        exec("dist.barrier()", {"dist": dist})

    def annotations(n: int) -> None:
        with disttrace.annotate(f"step {n}"):
            pass

    def prefixes(n: int) -> None:
        dist.PrefixStore(f"{n}", base).set("k", "v")

    def groups(n: int) -> None:
        group = dist.ProcessGroup(dist.PrefixStore(f"{n}", base), 0, 1)
        assert group.size() == 1

    def failures(n: int) -> None:
        try:
            dist.all_reduce(f"no tensor {n}")
        except TypeError:
            pass

    def threads(n: int) -> None:
        thread = threading.Thread(target=dist.barrier, name=f"thread {n}")
        thread.start()
        thread.join()

    return {
        f.__name__: f
        for f in (shapes, tags, code, annotations, prefixes, groups, failures, threads)
    }


WAYS = ("shapes", "tags", "code", "annotations", "prefixes", "groups", "failures", "threads")


def work(way: str, calls: int, folder: str) -> None:
    """Be the program; one line of JSON: resident MB and journal MB at each tenth."""
    call = ways()[way]
    found = []
    begun = time.perf_counter()
    for point in range(1, POINTS + 1):
        for n in range(calls * (point - 1) // POINTS, calls * point // POINTS):
            call(n)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) if folder else 0
        found.append((resident(), size / MB))
    print(json.dumps([found, time.perf_counter() - begun]))


def resident() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def measured(way: str, calls: int, max_mb: int, traced: bool) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DISTTRACE")}
        if traced:
            env |= {"DISTTRACE": "1", "DISTTRACE_DIR": folder, "DISTTRACE_MAX_MB": str(max_mb)}
            env["DISTTRACE_QUIET"] = "1"
        arguments = ["--work", way, "--calls", str(calls), "--folder", folder if traced else ""]
        output = subprocess.run(
            [sys.executable, __file__, *arguments], env=env, check=True, stdout=subprocess.PIPE
        ).stdout
        found, took = json.loads(output.splitlines()[-1])
    first, middle, last = found[0], found[POINTS // 2 - 1], found[-1]
    memory = " | ".join(f"{point[0]:.0f}" for point in (first, middle, last))
    return (
        f"| {way} | {'traced' if traced else 'bare'} | {calls:,} | {memory} | {last[1]:.1f} | "
        f"{took / calls * 1e6:.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--max-mb", type=int, default=16)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.calls, options.folder)
        return
    print("| calls differ in | | calls | MB after 10% | 50% | 100% | journal, MB | us a call |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for way in options.way or WAYS:
        for traced in (False, True):
            print(measured(way, options.calls, options.max_mb, traced), flush=True)


if __name__ == "__main__":
    main()
