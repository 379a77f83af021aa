"""What ``DISTTRACE_DIGEST=n`` takes of a training step, as a share of its CPU time.

    python benchmarks/recorder/digests.py --every 1000

A step multiplies matrices, reduces ten gradients of 256 kB by calls that return with their result,
and says that its parameters (2.5 MB) are equal. The share is too small to be seen in steps: so
calls are timed by themselves, in rounds of n of which each takes one digest, in processes with and
without, and of rounds the fastest counts. ``fake`` stands for the network, so a step takes less
than it would with one, and the share is more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

GRADIENTS, ELEMENTS, SIDE, ROUNDS = 10, 65_536, 512, 8


def child(every: int) -> None:
    """Print the CPU seconds of a call, of a promise, and of what a step computes."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import disttrace

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    gradients = [torch.ones(ELEMENTS) for _ in range(GRADIENTS)]
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)

    def compute() -> None:
        for _ in range(4):
            torch.mm(left, right)

    def call() -> None:
        dist.all_reduce(gradients[0])

    def promise() -> None:
        disttrace.expect_equal("weights", gradients)

    print(json.dumps([fastest(call, every), fastest(promise, every), fastest(compute, 20)]))


def fastest(do: Callable[[], None], times: int) -> float:
    """CPU seconds of one of so many, in the fastest round."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            do()
        rounds.append(time.process_time() - began)
    return min(rounds) / times


def seconds(every: int, digest: int) -> list[float]:
    """What a process measures."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": folder, "DISTTRACE_QUIET": "1"}
        environ |= {"OMP_NUM_THREADS": "1", "DISTTRACE_DIGEST": str(digest)}
        done = subprocess.run(
            [sys.executable, __file__, "--child", str(every)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [float(one) for one in json.loads(done.stdout)]


def main() -> None:
    """The cost of each, and the share of a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    without, found = seconds(options.every, 0), seconds(options.every, options.every)
    call, promise = found[0] - without[0], found[1] - without[1]
    step = without[2] + GRADIENTS * without[0] + without[1]
    print(f"a call of {4 * ELEMENTS >> 10} kB: {call * 1e6:+.2f} us")
    print(f"a promise of {4 * ELEMENTS * GRADIENTS >> 10} kB: {promise * 1e6:+.2f} us")
    share = (GRADIENTS * call + promise) / step
    print(f"{share:.3%} of a step of {step * 1e3:.1f} ms, with DISTTRACE_DIGEST={options.every}")


if __name__ == "__main__":
    main()
