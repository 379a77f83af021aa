"""What is over, drawn from tables of all operations. They and what is judged are of the same
processes under the same numbers; groups are known by their ids."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from functools import cached_property, partial

import polars as pl

from disttrace_viewer.analysis.delays import late
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.past import Joined, Late, Misfit, Past, Unwaited, fits
from disttrace_viewer.trace.model import Call, JobTrace
from disttrace_viewer.trace.operation import GROUPED, Op, ops
from disttrace_viewer.trace.values import dataclass, replace, together

PATTERNS = 50_000
"""More different ways to be unlike than this are not looked at."""


@dataclass(frozen=True)
class WholePast(Past):
    """What is over, by tables, in the terms of the trace that is judged."""

    exchanges: Exchanges
    judged: JobTrace
    known = True

    def unlike(self) -> Iterator[Joined]:
        table = self.exchanges.collectives.filter(~pl.col("alike"))
        if not table.height:
            return
        for group, backend, seq, times, exchange in self._patterns(table).iter_rows():
            known = self._groups.get(group)
            if known is not None:
                members = partial(self._members, exchange)
                yield Joined(known, backend, seq, times, members)

    def misfits(self) -> Iterator[Misfit]:
        messages, trace = self.exchanges.messages, self.exchanges.trace
        met = messages.lazy().filter(
            pl.col("send_process").is_not_null() & pl.col("recv_process").is_not_null()
        )
        pairs = (
            met.sort("first_ns")
            .group_by("send_call", "recv_call", maintain_order=True)
            .agg(pl.first("send_process", "send_number"), pl.first("recv_process", "recv_number"),
                 pl.len().alias("times"),
                 pl.col("message").alias("all"))
            .collect()
        )  # fmt: skip
        for row in pairs.iter_rows(named=True):
            if fits(trace.call(row["send_call"]), trace.call(row["recv_call"])):
                continue
            stream = ("group", "source", "destination", "tag", "seq")
            keys: list[Hashable] = [
                ("message", self._groups.get(group), *key)
                for group, *key in messages[row["all"]].select(stream).iter_rows()
            ]
            send = self._op(row["send_process"], row["send_number"])
            receive = self._op(row["recv_process"], row["recv_number"])
            yield send, receive, row["times"], keys

    def late(self) -> Iterator[Late]:
        return late(self.exchanges)

    def unwaited(self) -> Iterator[Unwaited]:
        """A send that is not waited for is a habit and no fault."""
        trace = self.exchanges.trace
        calls = trace.calls.lazy().with_row_index("call")
        wanted = calls.filter(
            pl.col("kind").is_in(GROUPED)
            & (pl.col("op") != "send")
            & (pl.col("origin") == "python")
        ).select("call")
        lost = (
            trace.operations.lazy()
            .filter(pl.col("lost") & ~pl.col("asked"))
            .filter(pl.col("error").is_null() & pl.col("wait_begin_ns").is_null())
            .join(wanted, on="call", how="semi")
            .sort("begin_ns")
            .collect()
        )
        calls_lost = map(trace.call, lost["call"].to_list())
        sites = together(((call.op, call.stack), row) for row, call in enumerate(calls_lost))
        for rows in sites.values():
            first = next(ops(trace, lost[rows[:1]]))
            processes = tuple(sorted(set(lost["process"][rows].to_list())))
            yield Unwaited(first, trace.group_id(first.call), processes, len(rows))

    def moved(self, process: int, since_ns: int, until_ns: int) -> float:
        trace = self.exchanges.trace
        if trace.processes[process].dropped:
            return math.inf
        calls = trace.calls.lazy().with_row_index("call").filter(pl.col("kind").is_in(GROUPED))
        made = trace.operations.lazy().filter(
            (pl.col("process") == process) & pl.col("begin_ns").is_between(since_ns, until_ns)
        )
        sizes = made.join(calls.select("call", pl.col("bytes").alias("_bytes")), on="call")
        known = sizes.select(pl.coalesce("bytes", "_bytes").sum()).collect().item()
        return float(known)

    # -- in the terms of what is judged --------------------------------------------------------

    @cached_property
    def _groups(self) -> dict[int, int]:
        """The index of each group in the trace that is judged."""
        ours = self.judged.group_by_id
        return {g.index: ours[g.id].index for g in self.exchanges.trace.groups if g.id in ours}

    def _call(self, call: Call) -> Call:
        group = None if call.group is None else self._groups.get(call.group)
        return replace(call, group=group, store=None)

    def _members(self, exchange: int) -> dict[int, Op]:
        """Who took part in a collective, by group rank."""
        rows = self.exchanges.participants([exchange])
        found: dict[int, Op] = {}
        for rank, op in zip(
            rows["group_rank"].to_list(), ops(self.exchanges.trace, rows), strict=True
        ):
            if rank is not None:
                found.setdefault(rank, replace(op, call=self._call(op.call)))
        return found

    def _op(self, process: int, number: int) -> Op:
        trace = self.exchanges.trace
        rows = trace.operations.filter(
            (pl.col("process") == process) & (pl.col("number") == number)
        )
        op = next(ops(trace, rows))
        return replace(op, call=self._call(op.call))

    def _patterns(self, table: pl.DataFrame) -> pl.DataFrame:
        """The first exchange of every way to be unlike: group, backend, seq, times, exchange."""
        calls = self.exchanges.trace.calls.lazy().with_row_index("call")
        return (
            self.exchanges.participants(table["exchange"])
            .lazy()
            .join(calls.select("call", "signature"), on="call")
            .sort("exchange", "group_rank")
            .group_by("exchange", maintain_order=True)
            .agg(pl.struct("group_rank", "signature").hash().implode().hash().first().alias("like"))
            .join(table.lazy().select("exchange", "group", "backend", "seq"), on="exchange")
            .sort("group", "backend", "seq")
            .group_by("group", "backend", "like", maintain_order=True)
            .agg(pl.col("seq").first(), pl.len().alias("times"), pl.col("exchange").first())
            .select("group", "backend", "seq", "times", "exchange")
            .sort("group", "backend", "seq")
            .head(PATTERNS)
            .collect()
        )
