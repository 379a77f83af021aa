"""All-reduces between batches of a DataLoader with forked workers; prints how it ends."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.zeros(1)
    for _ in range(2):
        loader = DataLoader(
            TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2,
            multiprocessing_context="fork",
        )  # fmt: skip
        for (batch,) in loader:
            part = batch.sum().reshape(1)
            dist.all_reduce(part)
            total += part
    # One write: the two workers share a pipe, and print writes its parts one by one.
    sys.stdout.write(f"total {total.item()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
