"""Where the time of communication goes: who waited, how long, for which, in which wait state.

An operation blocks its process from begin to issue and from the begin of its waiting to its end
(where C++ waits unseen, or a device, from begin to end). What of that lies before the partner that
it needs began is waiting. The states are those of Scalasca's patterns (scalasca.org): late sender,
late receiver, late broadcast, early reduce, and wait at a collective for all others. Time in which
a process is blocked in several operations at once counts once, for the one that began first.

An exchange that lacks members, or whose members disagree or ended in an error, never completed:
from the last arrival on it is waiting for what never came, and nothing was exchanged.
"""

from __future__ import annotations

from functools import cached_property

import polars as pl

from disttrace.journal.format import ON_DEVICE
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.trace.model import NOT_KNOWN, Blame
from disttrace_viewer.trace.values import dataclass

LATE_SENDER, LATE_RECEIVER = "late sender", "late receiver"
LATE_BROADCAST, EARLY_REDUCE = "late broadcast", "early reduce"
AT_COLLECTIVE = "wait at collective"
STATES = (AT_COLLECTIVE, LATE_BROADCAST, EARLY_REDUCE, LATE_SENDER, LATE_RECEIVER)

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
REMARKABLE = 0.05
"""Own delays below this part of their weighted mean are the jitter beside what matters."""

_KEPT = (
    *("exchange", "process", "number", "call", "begin_ns", "end_ns", "issued_ns", "wait_begin_ns"),
    *("in_flight", "unseen", "op", "group", "expected", "arrived", "bytes", "_bytes", "backend"),
)


@dataclass(frozen=True)
class WaitStates:
    """The parts that processes take in exchanges, within a window of unix nanoseconds."""

    exchanges: Exchanges
    from_ns: int | None = None
    to_ns: int | None = None
    blame: Blame = NOT_KNOWN

    @cached_property
    def never(self) -> dict[int | None, int]:
        """Waits in what never completed, by culprit, longest first; None: no culprit is known."""
        found: dict[int | None, int] = {}
        rows = self.parts.filter("never").group_by("process").agg(pl.col("wait_ns").sum())
        for process, waited in rows.sort("process").iter_rows():
            for culprit in self.blame.of.get(process, (None,)):
                if waited and culprit != process:
                    found[culprit] = found.get(culprit, 0) + waited
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def is_complete(self) -> bool:
        """Whether no process ended, or stands, in what never completed."""
        last = self.parts.group_by("process", maintain_order=True).last()
        return not last["never"].any()

    @cached_property
    def parts(self) -> pl.DataFrame:
        """One row per operation of a collective or message, by process, then begin.

        ``kind``, ``exchange`` (row of the table of its kind), ``process number call begin_ns
        issued_ns wait_begin_ns end_ns`` (in flight: the last sign of life of its process),
        ``in_flight unseen`` (C++ or a device waits for it) ``op group expected arrived is_root
        bytes``, ``came_ns`` (when the last one began), ``is_last`` (of several this one was it),
        ``until_ns`` (when the partner began for which it waited; null where it waited for none),
        ``by`` (that process; null where it is not known), ``state``, ``busy_ns`` (from the last
        arrival to its end; null in flight, and where it never completed), ``never`` (whether it
        did not, for this member), ``blocked_ns``, ``wait_ns`` (its share of its process's time)
        and ``never_ns`` (the part of that since the last came).
        """
        later = pl.col("until_ns") > pl.col("begin_ns")
        last = pl.max_horizontal(pl.col("end_ns") - pl.col("came_ns"), pl.lit(0))
        on_device = pl.col("backend").is_in(sorted(ON_DEVICE)).fill_null(value=False)
        every = pl.concat([self._collectives(), self._messages()]).with_columns(
            pl.when(later).then(pl.col("until_ns", "by", "state")),
            pl.col("expected", "arrived").cast(pl.UInt32),
            unseen=pl.col("unseen") | on_device,
            bytes=pl.coalesce("bytes", "_bytes"),
            busy_ns=pl.when(~pl.col("in_flight") & ~pl.col("broken")).then(last),
        )
        every = every.drop("backend", "broken", "_bytes")
        if self.from_ns is not None:
            every = every.filter(pl.col("end_ns") > self.from_ns)
        if self.to_ns is not None:
            every = every.filter(pl.col("begin_ns") < self.to_ns)
        rows = every.collect().with_row_index("_row")
        pieces = stretches(rows, self.lives)
        waiting = pieces.filter(pl.col("until_ns").is_not_null()).with_columns(
            stop=pl.min_horizontal("stop", "until_ns")
        )
        never = waiting.filter("never").with_columns(start=pl.max_horizontal("start", "came_ns"))
        return (
            rows.join(exclusive(pieces, "blocked_ns"), on="_row", how="left")
            .join(exclusive(waiting, "wait_ns"), on="_row", how="left")
            .join(exclusive(never, "never_ns"), on="_row", how="left")
            .with_columns(pl.col("blocked_ns", "wait_ns", "never_ns").fill_null(0))
            .with_columns(never_ns=pl.min_horizontal("never_ns", "wait_ns"))
            .drop("_row")
            .sort("process", "begin_ns", "number")
        )

    @cached_property
    def lives(self) -> pl.DataFrame:
        """``process``, ``from_ns``, ``to_ns``: the life of each process, within the window."""
        found = pl.DataFrame(
            [
                (p.index, p.start_ns, p.last_ns if p.exit is None else p.exit.t_ns)
                for p in self.exchanges.trace.processes
            ],
            schema={"process": pl.UInt32, "from_ns": pl.Int64, "to_ns": pl.Int64},
            orient="row",
        )
        low, high = pl.lit(self.from_ns, pl.Int64), pl.lit(self.to_ns, pl.Int64)
        clipped = found.with_columns(
            pl.max_horizontal("from_ns", low), pl.min_horizontal("to_ns", high)
        )
        return clipped.with_columns(to_ns=pl.max_horizontal("from_ns", "to_ns"))

    # -- the parts of each kind, with when the one came for which they waited ------------------

    def _collectives(self) -> pl.LazyFrame:
        names = ["exchange", "group", "expected", "arrived", "last_ns", "last_process"]
        names += ["errors", "pending", "alike"]
        joined = self.exchanges.collectives.lazy().select(names)
        rows = self._over(self.exchanges.participants().lazy().join(joined, on="exchange"))
        rows = rows.with_columns(
            is_root=(pl.col("group_rank") == pl.col("root")).fill_null(value=False)
        ).with_columns(
            _root_ns=pl.col("begin_ns").filter("is_root").min().over("exchange"),
            _root=pl.col("process").filter("is_root").first().over("exchange"),
        )
        end, last, root = pl.col("end_ns"), pl.col("last_ns"), pl.col("_root_ns")
        short = pl.col("arrived") < pl.col("expected")
        from_root = pl.col("op").is_in(FROM_ROOT) & ~pl.col("is_root")
        to_root = pl.col("op").is_in(TO_ROOT) & ~pl.col("is_root")
        broken = (pl.col("errors") > 0) | (pl.col("pending") & (short | ~pl.col("alike")))
        never = broken & (pl.col("in_flight") | pl.col("error").is_not_null())
        # A rank that is not there yet is waited for to the end of what was seen.
        early = end < last
        until = (
            pl.when(never)
            .then(end)
            .when(from_root & early)
            .then(root)
            .when(pl.col("op").is_in(FROM_ROOT) & early)
            .then(None)  # what a root has sent, others may fetch late
            .when(to_root & early)
            .then(pl.when(end >= root).then(root))
            .otherwise(last)
        )
        by = (
            pl.when(never & ~early)
            .then(pl.lit(None, pl.UInt32))
            .when((from_root | to_root) & early)
            .then("_root")
            .otherwise("last_process")
        )
        state = (
            pl.when(from_root)
            .then(pl.lit(LATE_BROADCAST))
            .when(pl.col("op").is_in(TO_ROOT) & pl.col("is_root"))
            .then(pl.lit(EARLY_REDUCE))
            .otherwise(pl.lit(AT_COLLECTIVE))
        )
        newest = (pl.col("process") == pl.col("last_process")) & (pl.col("arrived") > 1)
        return rows.select(
            *_KEPT, kind=pl.lit("collective"), is_root="is_root", is_last=newest, until_ns=until,
            by=by, state=state, came_ns=last, never=never, broken=broken,
        )  # fmt: skip

    def _messages(self) -> pl.LazyFrame:
        rows = self._over(self.exchanges.message_ends()).with_columns(
            expected=pl.lit(2, pl.UInt32),
            arrived=pl.lit(1, pl.UInt32) + pl.col("other").is_not_null().cast(pl.UInt32),
        )
        end, partner = pl.col("end_ns"), pl.col("other_ns")
        sends = pl.col("side") == "send"
        # A send that was over before its receive began did not wait for it.
        never = (pl.col("in_flight") & partner.is_null()) | pl.col("error").is_not_null()
        until = pl.when(never).then(end).when(~sends | (end >= partner)).then(partner)
        state = pl.when(sends).then(pl.lit(LATE_RECEIVER)).otherwise(pl.lit(LATE_SENDER))
        last = pl.max_horizontal("begin_ns", partner)
        begin, tied = pl.col("begin_ns"), pl.col("process") > pl.col("other")
        newest = (begin > partner) | ((begin == partner) & tied)
        return rows.select(
            *_KEPT, kind=pl.lit("message"), is_root=pl.lit(value=False),
            is_last=newest.fill_null(value=False), until_ns=until, by="other", state=state,
            came_ns=last, never=never, broken=never,
        )  # fmt: skip

    def _over(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """With what their calls tell; ``end_ns`` of what is in flight is when its process was last
        heard of.
        """
        calls = self.exchanges.trace.calls.lazy().with_row_index("call")
        rows = rows.join(
            calls.select("call", "op", "root", "origin", "backend", _bytes="bytes"), on="call"
        )
        ends = self.lives.lazy().select("process", pl.col("to_ns").alias("_to"))
        unknown = pl.coalesce("issued_ns", "begin_ns")
        lost = pl.col("lost").fill_null(value=False)
        flying = pl.col("end_ns").is_null() & pl.col("error").is_null() & ~lost
        return rows.join(ends, on="process", how="left").with_columns(
            in_flight=flying,
            unseen=pl.col("origin").fill_null("") == "c++",
            end_ns=pl.coalesce(
                "end_ns",
                pl.when(flying).then(pl.max_horizontal("_to", "begin_ns")).otherwise(unknown),
            ),
        )


def stretches(rows: pl.DataFrame, lives: pl.DataFrame) -> pl.DataFrame:
    """The stretches in which operations hold their processes up, within ``lives``: ``_row`` (as in
    ``rows``), ``process until_ns never came_ns``, ``start``, ``stop``.
    """
    columns = ["_row", "process", "until_ns", "never", "came_ns"]
    whole = pl.col("issued_ns").is_null() | (pl.col("wait_begin_ns").is_null() & pl.col("unseen"))
    first = rows.select(
        *columns,
        pl.col("begin_ns").alias("start"),
        pl.when(whole).then("end_ns").otherwise("issued_ns").alias("stop"),
    )
    second = rows.filter(~whole & pl.col("wait_begin_ns").is_not_null()).select(
        *columns, pl.col("wait_begin_ns").alias("start"), pl.col("end_ns").alias("stop")
    )
    return (
        pl.concat([first, second])
        .join(lives, on="process")
        .with_columns(
            start=pl.max_horizontal("start", "from_ns"), stop=pl.min_horizontal("stop", "to_ns")
        )
        .drop("from_ns", "to_ns")
    )


def exclusive(pieces: pl.DataFrame, name: str) -> pl.DataFrame:
    """The length of each row's pieces without what earlier pieces of its process cover."""
    covered = pl.col("stop").cum_max().shift(1).over("process")
    return (
        pieces.lazy()
        .filter(pl.col("stop") > pl.col("start"))
        .sort("process", "start", "_row")
        .with_columns(_free=pl.max_horizontal("start", covered))
        .group_by("_row")
        .agg(pl.max_horizontal(pl.col("stop") - pl.col("_free"), pl.lit(0)).sum().alias(name))
        .collect()
    )


def weighted_mean(delays: pl.Expr) -> pl.Expr:
    """The mean of delays, each weighted by itself: what matters, whatever the jitter beside it."""
    return (delays.cast(pl.Float64) ** 2).sum() / delays.sum()
