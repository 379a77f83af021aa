"""NVSHMEM for Python (nvshmem4py): collectives of a team, called on the host.

A team is no process group: what its members call is recorded, and not compared.
"""

from __future__ import annotations

from disttrace.capture.adapters.adapter import Adapter, LibraryCall

_FUNCTIONS = (
    "barrier",
    "sync",
    "reduce",
    "reducescatter",
    "fcollect",
    "alltoall",
    "broadcast",
    "put",
    "get",
    "put_signal",
    "signal_wait",
)

ADAPTER = Adapter(
    library="nvshmem",
    modules=("nvshmem.core",),
    rows=tuple(LibraryCall(name, name, group="process_group") for name in _FUNCTIONS),
)
