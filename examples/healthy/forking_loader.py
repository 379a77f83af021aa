"""Data loaders that fork after the process group was made.

    python examples/faults/launch.py --world 2 examples/healthy/forking_loader.py

Legal: `disttrace diagnose` finds no error and no warning. The forked workers inherit the rank's
variables, its stores and its groups, and use none of them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(32.0))
    for _ in range(EPOCHS):
        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
        for (batch,) in loader:
            dist.all_reduce(batch.sum())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
