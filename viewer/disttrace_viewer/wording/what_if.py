"""What a run would have taken without something, and what its length is made of, in words."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from disttrace_viewer.analysis.timing.critical_path import OUTSIDE, TRANSFER
from disttrace_viewer.analysis.timing.what_if import Outcome, WhatIf
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording.names import names_of
from disttrace_viewer.wording.quantities import duration, file_name

WHAT_IF = "the run's times once more, without what others did not need"


def sentence(what_if: WhatIf, answer: Outcome, trace: Trace) -> str:
    """``Without rank 2's excess the run would have taken 41.2 s instead of 58.9 s (-30 %).``"""
    without = f"Without {left_out(what_if, answer, trace)} the run would have taken"
    if not answer.saved_ns:
        return f"{without} as long."
    less, whole = duration(answer.wall_ns), duration(what_if.wall_ns)
    if less == whole:
        return f"{without} {duration(answer.saved_ns)} less than {whole}."
    return f"{without} {less} instead of {whole} (-{answer.saved_share:.0%})."


def left_out(what_if: WhatIf, answer: Outcome, trace: Trace) -> str:
    """``rank 2's excess (most of it before loader.py:34)``."""
    without = answer.without
    if without.group is not None:
        text = f"the transfers of the {names_of(trace).group(without.group)}"
    else:
        who = [] if without.rank is None else [f"rank {without.rank}'s excess"]
        who += [] if without.host is None else [f"the excess on {without.host}"]
        text = " and ".join(who) or "the excess"
    if without.line is not None:
        return f"{text} before {file_name(without.line)}"
    if without.rank is not None and (line := _most(what_if, without.rank, trace)) is not None:
        return f"{text} (most of it before {file_name(line)})"
    return text


def path_note(whole_ns: int) -> str:
    """What a critical path is, in half a sentence."""
    return f"what made the run {duration(whole_ns)} long from its first operation on"


def stretch(row: Mapping[str, object]) -> str:
    """``before all_reduce at train.py:28``: a row of the critical path."""
    op, line = row["op"], row["line"]
    at = file_name(line) if isinstance(line, str) else "?"
    if row["kind"] == OUTSIDE:
        return "after its last operation" if op is None else f"before {op} at {at}"
    return f"{'transfer' if row['kind'] == TRANSFER else 'call'} of {op} at {at}"


def _most(what_if: WhatIf, rank: int, trace: Trace) -> str | None:
    """The line before which most of a rank's excess is, if half of it and more."""
    mine = [p.index for p in trace.processes if p.rank == rank]
    lines = what_if.excess.filter(pl.col("process").is_in(mine)).group_by("line")
    sums = lines.agg(pl.col("excess_ns").sum()).sort("excess_ns", "line", descending=[True, False])
    if not sums.height or 2 * sums["excess_ns"][0] < sums["excess_ns"].sum():
        return None
    line = sums["line"][0]
    return line if isinstance(line, str) else None
