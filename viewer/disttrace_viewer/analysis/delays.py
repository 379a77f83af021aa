"""How late each one came by its own doing: delays of collectives and of messages, in columns.

The own delay in an exchange is the smaller of two: how much later it came than the median member
(the lower one of two), and how much longer it was away since it was last released than the median.
Lateness that was inherited from another one makes both differ, so it vanishes by itself; and
several equally slow members, fewer than half, are all found.

Of a message the other end's absence counts, and that of others who send from the same line: a
server takes from one worker after the other, so the first of equal ones would look late.

Asynchronous work holds its process up only from the begin of its waiting on: what came before that
was hidden behind something else, and the one that came late within it held up no rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from disttrace.journal.format import ON_DEVICE
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.past import FEW_TIMES, LEAST_NS, LONG_NS, TIMES, Late
from disttrace_viewer.trace.model import JobTrace

SHARE_OF_SPAN = 0.05
SHARE_OF_SITE = 0.7
NOTABLE = 0.15
"""Of the whole time: who is late now and then only is reported from here on."""
COSTLY = 0.25
"""``FEW_TIMES`` count where they took a quarter of the time from the first exchange to the last."""
STARTING = 0.1
"""What is lost in so much of a process's exchanges is start-up; of a habit at least half is lost
after that, and it lasts for half of those that the line is called in.
"""
MANY = 3_000_000
"""Of more exchanges than this only the late ones are looked at."""


def late(exchanges: Exchanges) -> Iterator[Late]:
    """Processes whose own delay holds up collectives, or receivers, at one line in most of the
    cases, for a part of the time between the first exchange and the last.
    """
    trace = exchanges.trace
    for kind, delays in _delays(exchanges, LEAST_NS):
        for one in _sites(trace, delays):
            clocks = {trace.processes[p].clock for p in (one.process, *one.others)}
            apart = len(clocks) > 1
            yield one._replace(
                kind=kind,
                group=trace.group_id(one.call),
                stacks=tuple(s.stack for s in trace.processes[one.process].samples if s.stack),
                apart=apart,
                error_ns=sum(trace.clocks[c].error_ns for c in clocks) if apart else 0,
            )


def own_delays(exchanges: Exchanges) -> pl.LazyFrame:
    """One row per exchange and process that came to it later by its own doing: ``process``,
    ``call``, ``begin_ns``, ``delay_ns``, and ``caused_ns``: what others waited for that, summed.
    """
    names = {"first_ns": "begin_ns", "delay": "delay_ns"}
    rows = [one.with_columns(pl.col("delay").cast(pl.Int64)) for _, one in _delays(exchanges, 1)]
    late = pl.concat([one.select("process", "call", *names, caused_ns=_CAUSED) for one in rows])
    return late.lazy().filter(pl.col("delay") > 0).rename(names)


def _delays(exchanges: Exchanges, least_ns: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """The own delays by kind: ``process call first_ns delay``, and ``others`` that came in time."""
    yield "straggler", _of_collectives(exchanges, least_ns)
    if exchanges.messages.height:
        yield "late_sender", _of_messages(exchanges, least_ns)


_CAUSED = pl.col("delay") * pl.col("others").list.len()
"""What the others waited for it; how long for it alone is not known where several are late."""


def _of_collectives(exchanges: Exchanges, least_ns: int) -> pl.DataFrame:
    """By exchange and process that came later than the others, by ``least_ns`` or more."""
    table = exchanges.collectives
    late = table.filter(
        (pl.col("arrived") > 1) & (pl.col("last_ns") - pl.col("first_ns") >= least_ns)
    )
    chosen = table if table.height <= MANY else late
    rows = exchanges.participants(None if chosen is table else late["exchange"]).lazy()
    parts = rows.join(chosen.lazy().select("exchange", "last_ns"), on="exchange")
    parts = _held(exchanges.trace, parts)
    released = parts.select(
        "process", "number", pl.max_horizontal("last_ns", "held_ns").alias("_met")
    )
    parts = parts.join(late.lazy().select("exchange"), on="exchange", how="semi")
    # Of unix times a quantile, which is a float, is off by some hundred nanoseconds.
    middle = pl.col("held_ns").sort().get((pl.len() - 1) // 2)
    gap = pl.col("_gap").quantile(0.5, "lower").cast(pl.Int64)
    return _own(_with_gaps(exchanges, parts, released), least_ns, middle, gap)


def _of_messages(exchanges: Exchanges, least_ns: int) -> pl.DataFrame:
    """The same of messages that were sent later than their receivers began to wait for them."""
    receives = pl.col("side") == "recv"
    later = pl.col("begin_ns") - pl.col("other_ns")
    ends = (
        exchanges.message_ends()
        .filter(pl.when(receives).then(-later).otherwise(later) >= least_ns)
        .with_columns(last_ns=pl.max_horizontal("begin_ns", "other_ns"))
    )
    parts = _with_gaps(exchanges, _held(exchanges.trace, ends), _NOBODY)
    usual = pl.col("_usual_gap").filter(~receives).first().fill_null(0)
    gap = pl.max_horizontal(pl.col("_gap").filter(receives).first(), usual)
    return _own(
        parts.join(_usual_gaps(exchanges, ends), on="call", how="left"),
        least_ns,
        pl.col("held_ns").filter(receives).first(),
        gap,
    )


def _own(parts: pl.LazyFrame, least_ns: int, usual_ns: pl.Expr, gap_ns: pl.Expr) -> pl.DataFrame:
    """The own delays of processes in exchanges of which it is usual to come at ``usual_ns`` and to
    be away for ``gap_ns`` before.
    """
    parts = parts.collect().lazy()  # once for the three that follow
    usual = parts.group_by("exchange").agg(_usual_ns=usual_ns, _usual_gap_ns=gap_ns)
    behind = pl.col("begin_ns") - pl.col("_usual_ns")
    parts = parts.join(usual, on="exchange")
    in_time = parts.filter(behind < least_ns).group_by("exchange").agg(others="process")
    delays = (
        parts.filter(behind >= least_ns)
        .join(in_time, on="exchange")
        .select(
            "process",
            "call",
            "others",
            first_ns="begin_ns",
            delay=pl.min_horizontal(behind, pl.col("_gap") - pl.col("_usual_gap_ns")),
        )
        .drop_nulls("delay")
    )
    return delays.collect()


def _usual_gaps(exchanges: Exchanges, ends: pl.LazyFrame) -> pl.LazyFrame:
    """By ``call`` of a send: how long the lower median of all who send from its line is away before
    it. Null where one process alone sends from there.
    """
    sends = pl.col("side") == "send"
    lines = exchanges.trace.calls.lazy().with_row_index("call").select("call", "stack")
    here = lines.join(ends.filter(sends), on="call", how="semi").select("stack").unique()
    lines = lines.join(here, on="stack", how="semi")
    every = exchanges.message_ends().filter(sends).join(lines, on="call")
    usual = (
        _with_gaps(exchanges, every, _NOBODY)
        .group_by("stack", "process")
        .agg(pl.col("_gap").median())
        .group_by("stack")
        .agg(pl.when(pl.len() > 1).then(pl.col("_gap").quantile(0.5, "lower")).alias("_usual_gap"))
    )
    return lines.join(usual, on="stack").select("call", "_usual_gap")


def _held(trace: JobTrace, parts: pl.LazyFrame) -> pl.LazyFrame:
    """``held_ns``: from when on an operation holds its process up; ``last_ns`` where it does not.

    That is its begin, later by what the process did between issuing and waiting for it. C++ code
    and devices wait unseen: from the begin on, and so does who polls.
    """
    calls = trace.calls.lazy().with_row_index("call")
    unseen = (pl.col("origin") == "c++") | pl.col("backend").is_in(sorted(ON_DEVICE))
    blocks = pl.col("issued_ns").is_null() | unseen.fill_null(value=False) | pl.col("asked")
    return (
        parts.join(calls.select("call", "origin", "backend"), on="call", how="left")
        .with_columns(
            held_ns=pl.when(pl.col("wait_begin_ns").is_not_null())
            .then(pl.col("begin_ns") + pl.col("wait_begin_ns") - pl.col("issued_ns"))
            .when(blocks)
            .then("begin_ns")
            .otherwise("last_ns")
        )
        .drop("origin", "backend")
    )


_NOBODY = pl.LazyFrame(schema={"process": pl.UInt32, "number": pl.UInt32, "_met": pl.Int64})
"""No process is known to have been released earlier than its operation was over."""


def _with_gaps(exchanges: Exchanges, ends: pl.LazyFrame, released: pl.LazyFrame) -> pl.LazyFrame:
    """``_gap``: how long a process was away since its operation before this one let it go.

    A collective lets go when the last one has come, as ``released`` states by its number: when its
    end was noticed counts for less; and work that is still under way when the next operation begins
    has let go when it was issued. Null for the first operation of a process, and for one that began
    before the last had let go.
    """
    gap = pl.col("begin_ns") - pl.coalesce("_met", "_before_end")
    beside = pl.col("begin_ns") - pl.col("_before_issued")
    return (
        ends.join(exchanges.previous.lazy(), on=["process", "number"], how="left")
        .join(released.rename({"number": "_before"}), on=["process", "_before"], how="left")
        .with_columns(pl.when(gap >= 0).then(gap).when(beside >= 0).then(beside).alias("_gap"))
    )


def _sites(trace: JobTrace, delays: pl.DataFrame) -> list[Late]:
    """Lates summed up per process and line; where a line makes several calls in a row (the buckets
    of a reducer, the layers of a sharded model), of which only the first can be late, also of calls
    with one signature, and of those that come equally far into the row.
    """
    numbered = trace.operations.filter(pl.col("seq").is_not_null())
    first, last = numbered["begin_ns"].min(), numbered["end_ns"].max()
    span = trace.end_ns - min(p.start_ns for p in trace.processes)
    between = last - first if isinstance(first, int) and isinstance(last, int) else span
    calls = trace.calls.lazy().with_row_index("call").select("call", "stack")
    late = delays.lazy().filter(pl.col("delay") >= LEAST_NS)
    lost = late.join(calls, on="call").group_by("process", "stack").agg(pl.col("delay"))
    often = pl.col("delay").list.len() >= FEW_TIMES
    enough = pl.col("delay").list.sum() >= SHARE_OF_SPAN * between
    if not lost.filter(often & enough).collect().height:
        return []
    every = (
        numbered.lazy()
        .select("process", "number", "call", "begin_ns")
        .join(calls, on="call")
        .sort("process", "number")
        .with_columns(pl.col("stack").rle_id().over("process").alias("_row"))
        .with_columns(
            pl.col("number").cum_count().over("process", "_row").alias("_turn"),
            (pl.col("number").cum_count() / pl.len()).over("process").alias("_part"),
        )
        .collect()
    )
    of = every.lazy().rename({"begin_ns": "first_ns"}).drop("number", "_row")
    late = late.join(of, on=["process", "call", "first_ns"])
    found: dict[tuple[int, int | None], Late] = {}
    tables = [_of_line(late, every.lazy(), by, span) for by in (["stack"], ["call"], _IN_A_ROW)]
    for table in pl.collect_all([*tables, _costly(late, every.lazy(), between)]):
        for stack, call, others, *values in table.select(*_LATE).iter_rows():
            delay = Late(trace.call(call), tuple(others), *values)
            key = (delay.process, stack)
            if delay.total_ns < SHARE_OF_SPAN * between:
                continue
            if key not in found or (_usual(delay) and not _usual(found[key])):
                found[key] = delay
    return list(found.values())


_LATE = (
    *("stack", "call", "others", "process", "first_ns", "times", "of"),
    *("median_ns", "total_ns", "waited_ns"),
)
_IN_A_ROW = ["stack", "_turn"]


def _usual(delay: Late) -> bool:
    return delay.times >= SHARE_OF_SITE * delay.of


def _of_line(late: pl.LazyFrame, every: pl.LazyFrame, by: list[str], span: int) -> pl.LazyFrame:
    """Lates of each process that count, by columns that tell which calls belong together."""
    times, total = pl.col("times"), pl.col("total_ns")
    of_line = pl.lit(by == ["stack"])
    # Of a line: a call is of one process only, and any other that is late is late at the line.
    alone = of_line & (times >= SHARE_OF_SITE * times.sum().over(by))
    now_and_then = alone & (times >= TIMES) & (total >= NOTABLE * span)
    usual = (times >= TIMES) & (times >= SHARE_OF_SITE * pl.col("of"))
    return _summed(late, every, by).filter(usual | now_and_then)


def _costly(late: pl.LazyFrame, every: pl.LazyFrame, between: int) -> pl.LazyFrame:
    """Long delays of each process at a line, where almost all that was lost there was lost by them:
    a busy machine makes the others late now and then too, but not for as long.
    """
    times, total = pl.col("times"), pl.col("total_ns")
    long = late.filter(pl.col("delay") >= LONG_NS)
    lost = late.group_by("stack").agg(pl.col("delay").sum().alias("_lost"))
    return (
        _summed(long, every, ["stack"])
        .join(lost, on="stack", nulls_equal=True, maintain_order="left")
        .filter(
            (times >= FEW_TIMES)
            & (total >= COSTLY * between)
            & (total >= SHARE_OF_SITE * pl.col("_lost"))
        )
    )


def _summed(late: pl.LazyFrame, every: pl.LazyFrame, by: list[str]) -> pl.LazyFrame:
    """Those that last: what happened once, or while the job started, is no habit."""
    part = pl.col("_part")
    return (
        late.group_by("process", *by)
        .agg(
            # The earliest, whatever order rows come in: one trace gives one sentence.
            *(
                pl.col(other).sort_by("first_ns", "call").first()
                for other in ("call", "stack")
                if other not in by
            ),
            pl.col("first_ns").min(),
            pl.col("delay").filter(part > STARTING).sum().alias("_later"),
            (part.max() - part.min()).alias("_lasting"),
            pl.len().alias("times"),
            pl.col("delay").median().alias("median_ns"),
            pl.col("delay").sum().alias("total_ns"),
            _CAUSED.sum().alias("waited_ns"),
            pl.col("others").explode().unique().sort(),
        )
        .join(
            every.group_by("process", *by).agg(
                pl.len().alias("of"),
                (part.max() - part.min()).alias("_whole"),
            ),
            on=["process", *by],
            nulls_equal=True,
        )
        .filter(
            (2 * pl.col("_later") >= pl.col("total_ns"))
            & (2 * pl.col("_lasting") >= pl.col("_whole"))
        )
        .sort("total_ns", "process", *by, descending=[True, False, *(False for _ in by)])
    )
