"""The table of operations: one row per method of ProcessGroup and Backend.

A method that a torch version lacks is passed over, so the rows are the union over versions. An
alias is recorded under the name in the table, whatever was typed.
"""

from __future__ import annotations

from dataclasses import dataclass

from disttrace.journal.format import COLLECTIVE, MESSAGE

# Layouts: which argument is what, by position; keyword names are recognised in arguments.py.
DATA = ("data", "options", "timeout")  # tensors that are input and output
ROOTED = ("data", "root", "op", "timeout")  # with an options object in second place instead
OUT_IN = ("outputs", "inputs", "options", "timeout")
OUT_IN_ROOT = ("outputs", "inputs", "root", "timeout")
SPLIT = ("outputs", "inputs", "output_splits", "input_splits", "options", "timeout")
PEER = ("data", "peer", "tag")
ANY_PEER = ("data", "tag")
NOTHING = ("options", "wait_all")


@dataclass(frozen=True, slots=True)
class Row:
    """One method: the operation's public name, its kind, and the layout of its arguments.

    ``sends`` says which tensors this process passes in: "data" or "inputs" with "outputs" where it
    only receives.
    """

    method: str
    op: str
    layout: tuple[str, ...]
    kind: str = COLLECTIVE


ROWS: tuple[Row, ...] = (
    Row("allreduce", "all_reduce", DATA),
    Row("allreduce_sparse", "all_reduce", DATA),
    Row("allreduce_coalesced", "all_reduce_coalesced", DATA),
    Row("broadcast", "broadcast", ROOTED),
    Row("reduce", "reduce", ROOTED),
    Row("allgather", "all_gather", OUT_IN),
    Row("allgather_coalesced", "all_gather_coalesced", OUT_IN),
    Row("_allgather_base", "all_gather_into_tensor", OUT_IN),
    Row("all_gather_single", "all_gather_into_tensor", OUT_IN),
    Row("allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", OUT_IN),
    Row("all_gather_single_coalesced", "all_gather_into_tensor_coalesced", OUT_IN),
    Row("gather", "gather", OUT_IN_ROOT),
    Row("gather_single", "gather_into_tensor", OUT_IN_ROOT),
    Row("gather_into_tensor", "gather_into_tensor", OUT_IN_ROOT),
    Row("scatter", "scatter", OUT_IN_ROOT),
    Row("reduce_scatter", "reduce_scatter", OUT_IN),
    Row("_reduce_scatter_base", "reduce_scatter_tensor", OUT_IN),
    Row("reduce_scatter_single", "reduce_scatter_tensor", OUT_IN),
    Row("reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", OUT_IN),
    Row("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", OUT_IN),
    Row("alltoall", "all_to_all", OUT_IN),
    Row("alltoall_base", "all_to_all_single", SPLIT),
    Row("all_to_all_single", "all_to_all_single", SPLIT),
    Row("barrier", "barrier", NOTHING),
    Row("monitored_barrier", "monitored_barrier", NOTHING),
    Row("send", "send", PEER, MESSAGE),
    Row("recv", "recv", PEER, MESSAGE),
    Row("recv_anysource", "recv", ANY_PEER, MESSAGE),
)
