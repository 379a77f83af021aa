"""What is over, as the rules ask for it: drawn from tables of all operations.

The tables and the case are of the same processes under the same numbers; groups are known by their
ids, since whoever read more of a job may have found more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges, Numbers
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.analysis.sample import Course
from disttrace_viewer.diagnosis.job import judged
from disttrace_viewer.diagnosis.said import with_said
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.courses import Place, place_of
from disttrace_viewer.evidence.mismatches import Joined
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.findings.case import Case, Misfit, Past
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.rules.argument_mismatch import fits
from disttrace_viewer.history import straggler
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.model import Call, Stream, Trace
from disttrace_viewer.trace.operation import Op, ops

RULES: tuple[Callable[..., Iterator[Finding]], ...] = (straggler.find_unwaited, straggler.find)
"""The rules about what is over, in order."""
PATTERNS = 50_000
"""More different ways to be unlike than this are not looked at."""


@dataclass(frozen=True)
class Read(Past):
    """What tables tell, in the terms of the trace that is judged."""

    exchanges: Exchanges
    judged: Trace
    known = True

    @cached_property
    def rules(self) -> tuple[Callable[[Case], Iterator[Finding]], ...]:  # type: ignore[override]
        """The rules about what is over, each with the tables that it asks."""
        return tuple(partial(rule, exchanges=self.exchanges) for rule in RULES)

    def unlike(self) -> Iterator[Joined]:
        """As ``Past`` says."""
        table = self.exchanges.collectives.filter(~pl.col("alike"))
        if not table.height:
            return
        for group, backend, seq, times, exchange in self._patterns(table).iter_rows():
            known = self._groups.get(group)
            if known is not None:
                members = partial(self._members, exchange)
                yield Joined(known, backend, seq, times, members, self._raced)

    def misfits(self) -> Iterator[Misfit]:
        """As ``Past`` says."""
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

    def courses(self) -> Iterator[tuple[Stream, Mapping[int, Course]]]:
        """As ``Past`` says."""
        for group, backend in self._from_different_lines():
            of = self.exchanges.courses((group, backend))
            yield (
                (self._groups.get(group), backend),
                {process: self._course(numbers) for process, numbers in of.items()},
            )

    def course(self, process: int, stream: Stream) -> Course | None:
        """As ``Past`` says."""
        group = next((theirs for theirs, ours in self._groups.items() if ours == stream[0]), None)
        if group is None:
            return None
        return self._course(self.exchanges.course(process, (group, stream[1])))

    # -- in the terms of what is judged --------------------------------------------------------

    @cached_property
    def _groups(self) -> dict[int, int]:
        """The index of each group in the trace that is judged."""
        ours = self.judged.group_by_id
        return {g.index: ours[g.id].index for g in self.exchanges.trace.groups if g.id in ours}

    def _call(self, call: Call) -> Call:
        group = None if call.group is None else self._groups.get(call.group)
        return replace(call, group=group, store=None)

    def _course(self, numbers: Numbers) -> Course:
        trace = self.exchanges.trace
        calls = {call: self._call(trace.call(call)) for call in {call for _, call in numbers}}
        return [(seq, calls[call]) for seq, call in numbers]

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

    # -- of all operations ---------------------------------------------------------------------

    def _raced(self, op: Op) -> bool:
        """Whether another thread of the process called into the same group meanwhile."""
        trace = self.exchanges.trace
        group = trace.call(op.call.index).group
        calls = (
            trace.calls.lazy()
            .with_row_index("call")
            .filter(
                (pl.col("process") == op.process)
                & (pl.col("group") == group)
                & pl.col("backend").eq_missing(pl.lit(op.call.backend))
                & (pl.col("kind") == "collective")
            )
            .select("call", "async")
        )
        # An asynchronous call has left its thread once it is issued.
        left = pl.when(pl.col("async").fill_null(False)).then("issued_ns").otherwise("end_ns")
        mine = op.issued_ns if op.call.asynchronous else op.end_ns
        meanwhile = left.is_null() | (left > op.begin_ns)
        if mine is not None:
            meanwhile &= pl.col("begin_ns") < mine
        others = (
            trace.operations.lazy()
            .filter((pl.col("process") == op.process) & (pl.col("thread") != op.thread))
            .join(calls, on="call")
            .filter(meanwhile)
        )
        return bool(others.head(1).collect().height)

    def _from_different_lines(self) -> list[tuple[int, str | None]]:
        """Streams in which members of any collective came from different lines."""
        trace = self.exchanges.trace
        known = (
            trace.calls.with_row_index("call")
            .filter((pl.col("kind") == "collective") & pl.col("group").is_not_null())
            .select("call", "group", "backend", "op", "stack")
        )
        # Thousands of ranks call from a few stacks: each is asked once for its place.
        numbers: dict[Place, int] = {}
        sites = known.group_by("op", "stack").agg(pl.col("call").first())
        codes = [
            numbers.setdefault(place_of(trace.call(call)), len(numbers))
            for call in sites["call"].to_list()
        ]
        sites = sites.select("op", "stack", pl.Series("_place", codes, dtype=pl.UInt32))
        known = known.join(sites, on=["op", "stack"], nulls_equal=True)
        rows = (
            trace.operations.lazy()
            .filter(pl.col("seq").is_not_null())
            .join(known.lazy(), on="call")
            .group_by("group", "backend", "seq")
            .agg((pl.col("_place").min() != pl.col("_place").max()).alias("unlike"))
            .filter("unlike")
            .select("group", "backend")
            .unique()
            .sort("group", "backend")
            .collect()
        )
        return rows.rows()

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


def verdict_on(
    trace: Trace,
    exchanges: Exchanges | None = None,
    *,
    stall_ns: int = STALL_NS,
    look: Look = look,
) -> Verdict:
    """The verdict on the processes of a trace, which bear the same numbers in it; ``exchanges`` are
    those of the trace, where they are at hand.

    Raises:
        ViewerError: where the journals are not there any more.
    """
    ids = {p.id for p in trace.processes}
    found = looking_back(
        judged(trace.paths, only=ids, stall_ns=stall_ns, look=look), exchanges or Exchanges(trace)
    )
    if found is None:
        raise ViewerError(f"{', '.join(trace.paths)} changed while it was read.")
    return with_said(found)


def looking_back(found: Verdict, exchanges: Exchanges) -> Verdict | None:
    """The verdict with what is over looked at as well; None where others were read than judged."""
    trace = found.case.evidence.trace
    if [p.id for p in trace.processes] != [p.id for p in exchanges.trace.processes]:
        return None
    return found.looking_back(Read(exchanges, trace))
