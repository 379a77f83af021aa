"""One rank of a job that takes turns with others: steps on demand, and what they took.

    python -m benchmarks.steps.rank PROGRAM TRACER FOLDER

Each line of stdin is a number of steps; the answer is CPU nanoseconds of all threads and of reaped
children, those of the main thread, and wall nanoseconds. The end of stdin is the end of the job.
Without a program the only answer is the CPU time until the group was there.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from benchmarks.recorder.tracers import available


def main() -> int:
    """Serve until nobody asks any more."""
    import torch.distributed as dist

    program, tracer, folder = sys.argv[1:]
    method, rank = os.environ["BENCH_INIT"], int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    if program:
        _serve(program, tracer, Path(folder))
    else:
        dist.barrier()
        _answer(_cpu())
    dist.destroy_process_group()
    return 0


def _serve(program: str, tracer: str, folder: Path) -> None:
    from benchmarks.steps.programs import PROGRAMS

    step = PROGRAMS[program]()
    enter = available(tracer)[tracer]
    for line in sys.stdin:
        count = int(line)
        with enter(folder):
            cpu, main, wall = _cpu(), time.thread_time_ns(), time.perf_counter_ns()
            for _ in range(count):
                step()
            wall, main = time.perf_counter_ns() - wall, time.thread_time_ns() - main
            cpu = _cpu() - cpu
        _answer(cpu, main, wall)


def _cpu() -> int:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


def _answer(*numbers: int) -> None:
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
