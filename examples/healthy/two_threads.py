"""Two threads, each with a group of its own.

    python examples/faults/launch.py --world 2 examples/healthy/two_threads.py

Legal: `disttrace diagnose` finds no error and no warning. Their operations overlap in time; each
group has its own order, and between groups none is needed.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist


def work(group: dist.ProcessGroup, steps: int) -> None:
    """Reduce in one group, at one's own pace."""
    for _ in range(steps):
        dist.all_reduce(torch.ones(8), group=group)


def main() -> None:
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    threads = [
        threading.Thread(target=work, args=(group, 10 * (number + 1)))
        for number, group in enumerate(groups)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
