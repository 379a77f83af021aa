"""Capture: the only part of the recorder that knows torch, which importing this does not import."""

from __future__ import annotations


def has_distributed() -> bool:
    """Whether this torch was built with torch.distributed. Raises ImportError without torch."""
    import torch.distributed as dist

    return bool(dist.is_available())
