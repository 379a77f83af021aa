"""A training step of DistributedDataParallel, of a small and of a medium model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SMALL, MEDIUM = "small", "medium"


def training(size: str, group: Any) -> Callable[[], None]:
    """A step of training, with the gradients reduced in ``group``."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    if size == SMALL:
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Linear(32, 32), nn.ReLU()]
        model: nn.Module = nn.Sequential(*layers)
        batch, bucket_mb = torch.randn(16, 32), 0.005  # about a bucket per layer
    else:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        batch, bucket_mb = torch.randn(4, 64, 256), 4
    parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()

    return step
