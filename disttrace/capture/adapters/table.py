"""The adapters that there are: a row for each library."""

from __future__ import annotations

from disttrace.capture.adapters import adapter, deep_ep, nvshmem, pynccl, symmetric_memory
from disttrace.capture.adapters.adapter import Adapter
from disttrace.capture.wrapping.context import Capture

PART = adapter.PART
ADAPTERS: tuple[Adapter, ...] = (
    pynccl.ADAPTER,
    deep_ep.ADAPTER,
    symmetric_memory.ADAPTER,
    nvshmem.ADAPTER,
)


def install(capture: Capture) -> None:
    """Wait for each library to be imported by the program."""
    for one in ADAPTERS:
        one.install(capture)
