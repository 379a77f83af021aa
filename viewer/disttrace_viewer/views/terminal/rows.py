"""The rows of the merged order, made of the few exchanges and steps that are shown; how processes
ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.process_ends import FAILED, KILLED, UNKNOWN
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.values import together
from disttrace_viewer.views.terminal import BAD, DIM, HOLD, NUMBER, WAIT
from disttrace_viewer.views.terminal.plan import COLLECTIVE, LOCAL, MESSAGE, Plan
from disttrace_viewer.wording.names import (
    Lane,
    Names,
    brief,
    duration,
    few,
    place,
    size,
    tensors,
)
from disttrace_viewer.wording.sentences import ended, state


class Mark(Enum):
    """What is drawn on a lane: a sign, its style, and its words in the legend."""

    DONE = "●", "", "arrived"
    LAST = "◆", WAIT, "arrived last"
    FLYING = "◐", "bold yellow", "in flight"
    MISSING = "○", BAD, "missing"
    """Expected, and did not arrive."""
    FAILED = "✗", BAD, "failed"
    UNKNOWN = "◌", DIM, "end not seen"
    """Begun; its completion was not seen."""


class Row(NamedTuple):
    """An exchange, a step, a repetition, a gap or an end of processes."""

    at_ns: int
    """From the start of the job on."""
    text: Text
    below: tuple[Text, ...] = ()
    """Further lines."""
    marks: Mapping[int, Mark] = {}
    """By lane."""
    joined: bool = False
    """A line joins the marks."""
    arrow: tuple[int, int] | None = None
    """From lane to lane."""
    place: str | None = None
    """Where it was called from, when shown."""
    between: bool = False
    """It stands between rows: a repetition or a gap."""


def endings_of(evidence: Evidence, names: Names, lanes: Sequence[Lane]) -> list[Row]:
    """Processes that did not end well, or fell silent: one row for those that are alike."""

    def words(index: int, *, many: bool = False) -> str:
        end = end_of(evidence, index)
        if end.state == UNKNOWN:
            return state(end)
        return ended(end, many=many) if end.failure is None else brief(ended(end))

    found: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for index, end in enumerate(evidence.ends):
        if end.state not in (FAILED, KILLED, UNKNOWN):
            continue
        stack = end.asked_at if end.failure is None else end.failure.stack
        heard_ns = evidence.trace.processes[index].last_ns
        when = end.t_ns if end.silent_ns is None else heard_ns
        found.setdefault((words(index), place(stack)), []).append((when, index))
    rows = []
    for (_, where), those in found.items():
        those.sort()
        processes = tuple(index for _, index in those)
        what = words(processes[0], many=len(processes) > 1)
        hit = [n for n, lane in enumerate(lanes) if not {*processes}.isdisjoint(lane.processes)]
        text = Text.assemble((names.processes(processes), BAD), f" {what}")
        text.append(f"  {where}" if where else "", DIM)
        marks = dict.fromkeys(hit, Mark.FAILED)
        rows.append(Row(those[0][0] - names.trace.launch_ns, text, marks=marks))
    return rows


ARRIVALS = 6
"""Arrivals shown one by one; of more, the first and the last ones."""
NOTABLE_NS = 1_000
"""A shorter wait is none."""

Operation = Mapping[str, Any]


class Maker:
    """Rows for one trace under one set of lanes."""

    def __init__(self, evidence: Evidence, names: Names, lanes: Sequence[Lane]) -> None:
        self.evidence, self.names, self.trace = evidence, names, names.trace
        self._lane = {p: i for i, lane in enumerate(lanes) for p in lane.processes}

    def rows(self, exchanges: Exchanges, plan: Plan, wanted: Sequence[int]) -> dict[int, Row]:
        """By their places in the plan."""
        chosen = plan.rows[wanted].select("kind", "item")
        collectives, messages, steps = (
            chosen.filter(kind=kind)["item"] for kind in (COLLECTIVE, MESSAGE, LOCAL)
        )
        ends = exchanges.message_ends().filter(pl.col("exchange").is_in(messages.implode()))
        tables = {
            COLLECTIVE: exchanges.participants(collectives).with_columns(item="exchange"),
            # The send comes first.
            MESSAGE: ends.sort("side", descending=True).with_columns(item="exchange").collect(),
            LOCAL: plan.locals.filter(pl.col("item").is_in(steps.implode())),
        }
        ops = together(
            ((kind, one["item"]), one)
            for kind, table in tables.items()
            for one in table.iter_rows(named=True)
        )
        within = self._parents(one for those in ops.values() for one in those)
        rows: dict[tuple[int, int], Row] = {}
        for row in exchanges.collectives[collectives].iter_rows(named=True):
            key = COLLECTIVE, row["exchange"]
            rows[key] = self._collective(row, ops[key], within)
        for row in exchanges.messages[messages].iter_rows(named=True):
            key = MESSAGE, row["message"]
            rows[key] = self._message(row, ops[key], within)
        rows |= {key: self._step(those) for key, those in ops.items() if key[0] == LOCAL}
        return dict(zip(wanted, (rows[key] for key in chosen.iter_rows()), strict=True))

    def _collective(
        self, row: Operation, arrived: Sequence[Operation], within: Mapping[tuple[int, int], str]
    ) -> Row:
        call = self.trace.call(row["call"])
        group = self.trace.groups[row["group"]]
        here = {one["group_rank"] for one in arrived}
        absent = [r for r in range(group.size or 0) if r not in here]
        ops = {} if row["alike"] else dict.fromkeys(self.trace.call(o["call"]).op for o in arrived)
        text = Text.assemble(
            (f"#{row['seq']} ", NUMBER), (" / ".join(ops) or call.op, _loud(arrived))
        )
        for part in (call.reduce_op, tensors(call.dtypes, call.shapes)):
            text.append(f" {part}" if part else "")
        if call.root is not None:
            text.append(f" root {self.names.member(group.index, call.root)}")
        text.append_text(self._within(group.index, arrived[0], within))
        if ops:
            text.append(f" {'operations' if len(ops) > 1 else 'arguments'} differ", WAIT)
        text.append(_lasted(arrived), DIM)
        if len(arrived) > 1:
            text.append_text(self._arrivals(arrived, missing=bool(absent)))
        below = self._places(arrived)
        if absent:
            names = [self.names.member(group.index, r) for r in absent]
            below.append(Text.assemble(("missing: ", BAD), few(names, 6)))
        row_of = self._row(
            arrived,
            text,
            below,
            missing=(m.process for m in group.members if m.rank in absent),
            last=None if row["pending"] or len(arrived) < 2 else arrived[-1],
        )
        return row_of._replace(joined=True)

    def _arrivals(self, arrived: Sequence[Operation], *, missing: bool) -> Text:
        """``; 0, 2 +2.00 ms, 1 +7.00 ms last``: in the order of arrival."""
        first, last = arrived[0], arrived[-1]
        if last["begin_ns"] - first["begin_ns"] < NOTABLE_NS and not missing:
            return Text("; all at once", style=DIM)
        shown = list(arrived[1:]) if len(arrived) <= ARRIVALS else [last]
        text = Text.assemble((f"; {self.names.short[first['process']]}", DIM))
        if len(arrived) > ARRIVALS:
            text.append(f", {len(arrived) - 2:,} others", DIM)
        for one in shown:
            late = one is last and not missing
            after = duration(one["begin_ns"] - first["begin_ns"])
            text.append(
                f", {self.names.short[one['process']]}{HOLD}+{after}", WAIT if late else DIM
            )
            text.append(" last" if late else "", WAIT)
        return text

    def _places(self, arrived: Sequence[Operation]) -> list[Text]:
        """Where its members called it from; nothing where all did alike."""
        found = together(
            (place(self.trace.call(one["call"]).stack) or "an unknown line", one["process"])
            for one in arrived
        )
        if len(found) < 2:
            return []
        return [
            Text(f"{self.names.processes(processes)} at {where}", WAIT)
            for where, processes in found.items()
        ]

    def _message(
        self, row: Operation, ends_of: Sequence[Operation], within: Mapping[tuple[int, int], str]
    ) -> Row:
        send = None if row["send_number"] is None else ends_of[0]
        recv = None if row["recv_number"] is None else ends_of[-1]
        call = self.trace.call(ends_of[0]["call"])
        group = row["group"]
        source, destination = (self.names.member(group, row[s]) for s in ("source", "destination"))
        members = {m.rank: m.process for m in reversed(self.trace.groups[group].members)}
        processes = [members.get(row[end], -1) for end in ("source", "destination")]
        sent = call.bytes if ends_of[0]["bytes"] is None else ends_of[0]["bytes"]
        text = Text.assemble(
            (f"#{row['seq']} ", NUMBER), ("recv" if send is None else "send", _loud(ends_of))
        )
        text.append(f" {_bare(source)} → {_bare(destination)}")
        text.append("" if sent is None else f" {size(sent)}", DIM)
        text.append("" if row["tag"] is None else f" tag {row['tag']}", DIM)
        text.append_text(self._within(group, ends_of[0], within))
        text.append(_lasted(ends_of), DIM)
        waiter, waited = _waited(send, recv)
        if waiter is not None and waited >= NOTABLE_NS:
            who = _bare(self.names.process(waiter["process"]))
            text.append(f"; {who} waited {duration(waited)}", WAIT)
        below = []
        if send is None or recv is None:
            which = f"no send by {source}" if send is None else f"no recv by {destination}"
            below.append(Text(which, BAD))
        missing = [p for p, end in zip(processes, (send, recv), strict=True) if end is None]
        row_of = self._row(ends_of, text, below, missing=missing)
        lanes = [self._lane[p] for p in processes if p in self._lane]
        return row_of._replace(joined=True, arrow=(lanes[0], lanes[1])) if lanes[1:] else row_of

    def _step(self, those: Sequence[Operation]) -> Row:
        call = self.trace.call(those[0]["call"])
        what = common([self.names.what(self.trace.call(o["call"]), o) for o in those])
        sizes = {o["bytes"] for o in those}
        sent = sizes.pop() if len(sizes) == 1 else None
        text = Text.assemble((call.op, _loud(those)), f" {what}" if what else "")
        text.append("" if sent is None else f" {size(sent)}", DIM)
        text.append(_lasted(those), DIM)
        return self._row(those, text)

    # -- what several kinds of rows need -----------------------------------------------------

    def _row(
        self,
        ops: Sequence[Operation],
        text: Text,
        below: Iterable[Text] = (),
        *,
        missing: Iterable[int] = (),
        last: Operation | None = None,
    ) -> Row:
        """``missing``: processes that did not come; ``last``: the one that came last."""
        marks = [(one["process"], _mark(one, is_last=one is last)) for one in ops]
        marks += [(process, Mark.MISSING) for process in missing]
        lanes = together((self._lane[p], mark) for p, mark in marks if p in self._lane)
        return Row(
            min(one["begin_ns"] for one in ops) - self.trace.launch_ns,
            text,
            (*self._below(ops), *below),
            {lane: min(found, key=_LOUDEST.index) for lane, found in lanes.items()},
            # What is in flight has its line below.
            place=None if any(map(_flying, ops)) else place(self.trace.call(ops[0]["call"]).stack),
        )

    def _below(self, arrived: Sequence[Operation]) -> Iterator[Text]:
        """Which of them are in flight, and which failed, each kind with its line: ``rank 0 in
        flight for 12.3 s at train.py:42 step``."""

        def at(one: Operation) -> str:
            where = place(self.trace.call(one["call"]).stack)
            return f" at {where}" if where else ""

        def fate(one: Operation) -> tuple[bool, bool]:
            end = self.evidence.ends[one["process"]]
            return not end.runs, end.state == UNKNOWN

        flying = together(((at(one), *fate(one)), one) for one in arrived if _flying(one))
        for (where, gone, silent), those in flying.items():
            processes = sorted({one["process"] for one in those})
            state, many = "in flight for", len(processes) > 1
            if gone:
                last = "last heard of" if silent else "they ended" if many else "it ended"
                state = f"{'were' if many else 'was'} in flight when {last}, for"
            ages = (self.evidence.until_ns(o["process"]) - o["begin_ns"] for o in those)
            text = f"{self.names.processes(processes)} {state} {duration(max(0, *ages))}"
            yield Text.assemble((text, "bold yellow"), where)
        failed = together(
            ((brief(self.trace.errors[one["error"]]), at(one)), one["process"])
            for one in arrived
            if one["error"] is not None
        )
        for (error, where), processes in failed.items():
            text = f"{self.names.processes(sorted(processes))}: {error}"
            yield Text.assemble((text, BAD), where)

    def _parents(self, operations: Iterable[Operation]) -> Mapping[tuple[int, int], str]:
        """Names of the composed operations that issued these."""
        wanted = {(o["process"], o["parent"]) for o in operations if o["parent"] is not None}
        schema = {"process": pl.UInt32, "number": pl.UInt32}
        keys = pl.DataFrame(sorted(wanted), schema, orient="row")
        rows = self.trace.operations.join(keys, on=["process", "number"], how="semi")
        found = {}
        for one in rows.iter_rows(named=True):
            call = self.trace.call(one["call"])
            found[one["process"], one["number"]] = call.name or call.op
        return found

    def _within(self, group: int, one: Operation, parents: Mapping[tuple[int, int], str]) -> Text:
        """A group that is not the default one, and the composed operation that issued it."""
        name = self.names.group(group)
        text = Text("" if name.startswith("default group") else f" in {name}")
        outer = parents.get((one["process"], one["parent"]))
        return text.append(f" ({outer})" if outer else "", DIM)


def _loud(operations: Sequence[Operation]) -> str:
    if any(one["error"] is not None for one in operations):
        return BAD
    return "bold yellow" if any(map(_flying, operations)) else "bold"


def _lasted(operations: Sequence[Operation]) -> str:
    """From the first begin to the last end, once none is in flight."""
    ends = [one["end_ns"] for one in operations if one["end_ns"] is not None]
    if not ends or any(map(_flying, operations)):
        return ""
    return f"  {duration(max(ends) - min(one['begin_ns'] for one in operations))}"


def _bare(name: str) -> str:
    return name.removeprefix("rank ")


def _flying(one: Operation) -> bool:
    return one["end_ns"] is None and one["error"] is None and not one["lost"]


def _mark(one: Operation, *, is_last: bool) -> Mark:
    if one["error"] is not None:
        return Mark.FAILED
    if one["end_ns"] is None:
        return Mark.UNKNOWN if one["lost"] else Mark.FLYING
    return Mark.LAST if is_last else Mark.DONE


_LOUDEST = (Mark.MISSING, Mark.FAILED, Mark.FLYING, Mark.LAST, Mark.UNKNOWN, Mark.DONE)
"""A lane of several processes has the first of theirs."""


def _waited(send: Operation | None, recv: Operation | None) -> tuple[Operation | None, int]:
    """Who blocked for the other end to begin, and how long."""
    if send is None or recv is None:
        return None, 0
    for one, other in ((recv, send), (send, recv)):
        since = one["wait_begin_ns"]
        if since is None or one["end_ns"] is None or one["end_ns"] <= other["begin_ns"]:
            continue
        if other["begin_ns"] > since:
            return one, other["begin_ns"] - since
    return None, 0


def common(words: Sequence[str]) -> str:
    """What all have in common; where they differ, what they share around a ``*``."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) == 1:
        return distinct[0]
    lead = _lead(distinct)
    tail = _lead([word[len(lead) :][::-1] for word in distinct])
    return f"{lead}*{tail[::-1]}"


def _lead(words: Sequence[str]) -> str:
    """What all begin with."""
    low, high = min(words), max(words)
    pairs = enumerate(zip(low, high, strict=False))
    return next((low[:place] for place, (one, other) in pairs if one != other), low)
