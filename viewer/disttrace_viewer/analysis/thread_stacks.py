"""Where main threads stand: what they noted of it, unless they have done something since."""

from __future__ import annotations

from collections.abc import Mapping

from disttrace_viewer.trace.model import StackSample, Trace

_MAIN = 0
"""The number of the thread that opened the journal."""


def latest_samples(
    trace: Trace, active: Mapping[tuple[int, int], int] | None = None
) -> Mapping[int, StackSample]:
    """By process: the latest note of its main thread, if it is newer than all that thread did.

    A process without a note of that thread shows any other's that holds by the same rule.
    ``active`` tells when each thread last did anything (default: asked from the trace's table).
    """
    if not any(process.latest_samples for process in trace.processes):
        return {}
    did = _activity(trace) if active is None else active
    found = {}
    for process in trace.processes:
        holding = {
            thread: sample
            for thread, sample in process.latest_samples.items()
            if sample.stack and sample.t_ns >= did.get((process.index, thread), 0)
        }
        if _MAIN in process.latest_samples:
            holding = {thread: one for thread, one in holding.items() if thread == _MAIN}
        if holding:
            found[process.index] = next(iter(holding.values()))
    return found


def _activity(trace: Trace) -> Mapping[tuple[int, int], int]:
    """When each thread last began, went on with or ended anything.

    Completion that somebody else observed says nothing about the thread.
    """
    import polars as pl  # here, for states are diagnosed where there is none

    ended = pl.col("complete_ns").is_null() | pl.col("wait_begin_ns").is_not_null()
    times = pl.max_horizontal(
        "begin_ns", "issued_ns", "wait_begin_ns", pl.when(ended).then(pl.col("end_ns"))
    )
    rows = (
        trace.operations.lazy()
        .group_by("process", pl.col("thread").fill_null(_MAIN))
        .agg(times.max().alias("t_ns"))
        .collect()
    )
    return {(process, thread): t_ns for process, thread, t_ns in rows.iter_rows()}
