"""A program that ends without `destroy_process_group`, as many do.

    python examples/faults/launch.py --world 2 examples/healthy/no_destroy.py

Legal: `disttrace diagnose` finds no error and no warning. On torch 2.13 and later such an end
sometimes aborts after the last line of Python, on which nobody waits: at most a note.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
