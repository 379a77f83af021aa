"""DeepEP: dispatch and combine of experts' tokens, by NVLink and RDMA."""

from __future__ import annotations

from disttrace.capture.adapters.adapter import Adapter, LibraryCall

_METHODS = (
    "dispatch",
    "combine",
    "internode_dispatch",
    "internode_combine",
    "low_latency_dispatch",
    "low_latency_combine",
)

ADAPTER = Adapter(
    library="deep_ep",
    modules=("deep_ep", "deep_ep.buffer"),
    rows=tuple(LibraryCall(name, name, "Buffer") for name in _METHODS),
)
