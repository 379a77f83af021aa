"""The table of operations: one row per method of ProcessGroup and Backend.

A method that a torch version lacks is passed over, so the rows are the union over versions. An
alias is recorded under the name in the table, whatever was typed.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Method(NamedTuple):
    """A method: public name, kind, layout of arguments; ``lists``: takes lists of tensors."""

    method: str
    op: str
    layout: tuple[str, ...]
    kind: str = COLLECTIVE
    lists: bool = False

    @property
    def operator(self) -> str:
        """The operator ``c10d::...`` by which C++ issues it, where there is one."""
        return _OPERATORS.get(self.method, f"{self.method}_")

    @property
    def hook(self) -> str:
        """The name that native hooks give it, unless they do not tell it apart from another."""
        return self.method.strip("_").upper()


_OPERATORS = {"barrier": "barrier", "send": "send", "recv_anysource": "recv_any_source_"}


ROWS: tuple[Method, ...] = (
    Method("allreduce", "all_reduce", DATA),
    Method("allreduce_sparse", "all_reduce", DATA),
    Method("allreduce_coalesced", "all_reduce_coalesced", DATA, lists=True),
    Method("broadcast", "broadcast", ROOTED),
    Method("reduce", "reduce", ROOTED),
    Method("allgather", "all_gather", OUT_IN, lists=True),
    Method("allgather_coalesced", "all_gather_coalesced", OUT_IN, lists=True),
    Method("_allgather_base", "all_gather_into_tensor", OUT_IN),
    Method("all_gather_single", "all_gather_into_tensor", OUT_IN),
    Method(
        "allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", OUT_IN, lists=True
    ),
    Method("all_gather_single_coalesced", "all_gather_into_tensor_coalesced", OUT_IN, lists=True),
    Method("gather", "gather", OUT_IN_ROOT),
    Method("gather_single", "gather_into_tensor", OUT_IN_ROOT),
    Method("gather_into_tensor", "gather_into_tensor", OUT_IN_ROOT),
    Method("scatter", "scatter", OUT_IN_ROOT),
    Method("reduce_scatter", "reduce_scatter", OUT_IN, lists=True),
    Method("_reduce_scatter_base", "reduce_scatter_tensor", OUT_IN),
    Method("reduce_scatter_single", "reduce_scatter_tensor", OUT_IN),
    Method(
        "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", OUT_IN, lists=True
    ),
    Method(
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", OUT_IN, lists=True
    ),
    Method("alltoall", "all_to_all", OUT_IN, lists=True),
    Method("alltoall_base", "all_to_all_single", SPLIT),
    Method("all_to_all_single", "all_to_all_single", SPLIT),
    Method("barrier", "barrier", NOTHING),
    Method("monitored_barrier", "monitored_barrier", NOTHING),
    Method("send", "send", PEER, MESSAGE),
    Method("recv", "recv", PEER, MESSAGE),
    Method("recv_anysource", "recv", ANY_PEER, MESSAGE),
)
