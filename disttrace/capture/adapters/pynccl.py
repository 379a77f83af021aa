"""PyNccl: how vLLM and SGLang call NCCL by ctypes, with communicators of their own."""

from __future__ import annotations

from disttrace.capture.adapters.adapter import Adapter, LibraryCall

_CLASS = "PyNcclCommunicator"
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gatherv",
    "reduce_scatter",
    "reduce_scatterv",
    "broadcast",
    "reduce",
)

ADAPTER = Adapter(
    library="pynccl",
    modules=(
        "vllm.distributed.device_communicators.pynccl",
        "sglang.srt.distributed.device_communicators.pynccl",
    ),
    rows=(
        *(LibraryCall(name, name, _CLASS) for name in _COLLECTIVES),
        LibraryCall("send", "send", _CLASS, peer="dst"),
        LibraryCall("recv", "recv", _CLASS, peer="src"),
    ),
)
