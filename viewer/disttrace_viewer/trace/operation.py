"""One operation as a value: only what is unusual becomes one of these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from disttrace.journal.format import COLLECTIVE, MESSAGE, ends_on_device
from disttrace_viewer.trace.model import Call, Trace
from disttrace_viewer.trace.process import Stack

if TYPE_CHECKING:
    import polars as pl

SYNCHRONIZING = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
"""Collectives that nobody completes before all members have begun them."""
GROUPED = (COLLECTIVE, MESSAGE)
"""Kinds of operations that members of a group do together."""
CREATING = ("init_process_group", "new_group", "split_group")
"""Operations that make a group."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A row of the operations table with its call. Times are unix nanoseconds."""

    process: int
    number: int
    call: Call
    thread: int
    parent: int | None
    seq: int | None
    key: int | None
    source: int | None
    error: str | None
    refused: bool
    lost: bool
    asked: bool
    begin_ns: int
    issued_ns: int | None
    wait_begin_ns: int | None
    complete_ns: int | None
    end_ns: int | None
    awaited_at: Stack = ()
    """Where the main thread waits for the thread of this operation, if that one runs nothing of the
    program's: a pool that was given ``dist.all_reduce`` itself.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> tuple[int, int]:
        """Process and number: what no other operation of the trace has."""
        return (self.process, self.number)

    @property
    def pending(self) -> bool:
        """Begun and not known to be over."""
        return self.end_ns is None and self.error is None and not self.lost

    @property
    def since_ns(self) -> int:
        """Since when somebody waits in it."""
        return self.wait_begin_ns or self.begin_ns

    @property
    def holds(self) -> bool:
        """Whether it holds its thread up until it is over: that is in the call, or waits for it."""
        return self.issued_ns is None or self.wait_begin_ns is not None

    @property
    def underway(self) -> bool:
        """Asynchronous work that was issued, is not over, and for which nobody waits."""
        return self.pending and not self.holds

    @property
    def is_polled(self) -> bool:
        """Whether the program asked for the completion of asynchronous work in another form than a
        wait: it polls it, or waits for its future. As long as it begins nothing else it seems to be
        held up by that, but may compute as well.
        """
        return self.asked and self.underway

    @property
    def is_inferred(self) -> bool:
        """Whether nothing says that somebody waits in it, but that nothing came after."""
        return self.call.origin == "c++" or self.is_polled

    @property
    def on_device(self) -> bool:
        """A collective or P2P operation that is over when a device says so: its call returned."""
        call = self.call
        return call.kind in GROUPED and ends_on_device(call.backend, call.device)

    @property
    def peer(self) -> int | None:
        """Group rank of a message's other end; null for a receive from any source so far."""
        return self.call.peer if self.call.peer is not None else self.source

    @property
    def status(self) -> str:
        """``ok``, ``error`` or ``in_flight``."""
        if self.error is not None:
            return "error"
        return "in_flight" if self.end_ns is None else "ok"

    @property
    def elements(self) -> int | None:
        """Elements of all tensors passed, where the call tells shapes."""
        if self.call.shapes is None:
            return None
        return sum(math.prod(shape) for shape in self.call.shapes)


COLUMNS = tuple(field.name for field in fields(Op) if field.name != "awaited_at")
"""What is read of a row of the operations table, as ``Op`` has it."""


def ops(trace: Trace, rows: pl.DataFrame) -> Iterator[Op]:
    """Rows of the operations table as values, in their order."""
    for row in rows.select(COLUMNS).iter_rows():
        process, number, call, thread, parent, seq, key, source, error, *rest = row
        yield Op(
            process,
            number,
            trace.call(call),
            thread or 0,
            parent,
            seq,
            key,
            source,
            None if error is None else trace.errors[error],
            *rest,
        )
