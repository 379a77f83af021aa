"""Symmetric memory of torch: functions that communicate by loads and stores between devices.

Operators called as ``torch.ops.symm_mem`` pass no function of Python, and are not seen.
"""

from __future__ import annotations

from disttrace.capture.adapters.adapter import Adapter, LibraryCall

_FUNCTIONS = (
    "_fused_all_gather_matmul",
    "_fused_matmul_reduce_scatter",
    "_fused_all_gather_scaled_matmul",
    "_fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather",
    "_low_contention_reduce_scatter",
)

ADAPTER = Adapter(
    library="symmetric_memory",
    modules=("torch.distributed._symmetric_memory",),
    rows=(
        *(LibraryCall(name, name.lstrip("_"), group="group_name") for name in _FUNCTIONS),
        LibraryCall("rendezvous", "rendezvous"),
    ),
)
