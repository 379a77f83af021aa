"""The rows of the merged order, made of the few exchanges and steps that are shown; how processes
ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.process_ends import FAILED, KILLED, UNKNOWN
from disttrace_viewer.analysis.sample import together
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.views.terminal import BAD, DIM, HOLD, NUMBER, WAIT
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
    """What is drawn on a lane."""

    DONE = "done"
    LAST = "last"
    """The one that arrived last."""
    FLYING = "flying"
    """Begun and not over."""
    MISSING = "missing"
    """Expected, and did not arrive."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Begun; its completion was not seen."""
    PART = "part"
    """A lane of several, of which some arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An exchange, a step, a repetition, a gap or an end of processes."""

    at_ns: int | None
    """From the start of the job on; None: of a repetition, into which nothing is put."""
    text: Text
    below: tuple[Text, ...] = ()
    """Further lines."""
    marks: tuple[tuple[int, Mark], ...] = ()
    """(lane, mark), by lane."""
    joined: bool = False
    """A line joins the marks."""
    arrow: tuple[int, int] | None = None
    """From lane to lane."""
    place: str | None = None
    """Where it was called from, when shown."""
    between: bool = False
    """It stands between rows: a repetition or a gap."""


def endings_of(evidence: Evidence, names: Names, lanes: Sequence[Lane]) -> list[tuple[int, Row]]:
    """Processes that did not end well, or of which nothing was heard any more, by time (from the
    start of the job on): one row for those that are alike.
    """

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
        marks = tuple((lane, Mark.FAILED) for lane in hit)
        at_ns = those[0][0] - names.trace.launch_ns
        rows.append((at_ns, Row(at_ns=at_ns, text=text, marks=marks)))
    return sorted(rows, key=lambda row: row[0])


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

    def collectives(self, exchanges: Exchanges, items: pl.Series) -> dict[int, Row]:
        """Rows by exchange."""
        table = exchanges.collectives[items].to_dicts()
        rows = exchanges.participants(items).iter_rows(named=True)
        members = together((one["exchange"], one) for one in rows)
        within = self._parents(o for found in members.values() for o in found)
        return {
            row["exchange"]: self._collective(row, members[row["exchange"]], within)
            for row in table
        }

    def _collective(
        self, row: Operation, arrived: Sequence[Operation], within: Mapping[tuple[int, int], str]
    ) -> Row:
        call = self.trace.call(row["call"])
        group = self.trace.groups[row["group"]]
        here = {one["group_rank"] for one in arrived}
        absent = [r for r in range(group.size or 0) if r not in here]
        missing_lanes = [
            self._lane[m.process]
            for m in group.members
            if m.rank in absent and m.process in self._lane
        ]
        over = not row["pending"]
        ops = {} if row["alike"] else dict.fromkeys(self.trace.call(o["call"]).op for o in arrived)
        text = Text.assemble((f"#{row['seq']} ", NUMBER))
        text.append(" / ".join(ops) or call.op, _loud(arrived))
        for part in (call.reduce_op, tensors(call.dtypes, call.shapes)):
            text.append(f" {part}" if part else "")
        if call.root is not None:
            text.append(f" root {self.names.member(group.index, call.root)}")
        text.append_text(self._within(group.index, arrived[0], within))
        if ops:
            text.append(f" {'operations' if len(ops) > 1 else 'arguments'} differ", WAIT)
        if over and row["end_ns"]:
            text.append(f"  {duration(row['end_ns'] - row['first_ns'])}", DIM)
        if len(arrived) > 1:
            text.append_text(self._arrivals(arrived, missing=bool(absent)))
        below = [*self._below(arrived), *self._places(arrived)]
        if absent:
            names = [self.names.member(group.index, r) for r in absent]
            below.append(Text.assemble(("missing: ", BAD), few(names, 6)))
        return Row(
            at_ns=row["first_ns"] - self.trace.launch_ns,
            text=text,
            below=tuple(below),
            marks=self._marks(arrived, missing_lanes, mark_last=over and len(arrived) > 1),
            joined=True,
            place=self._place(arrived, row["call"]),
        )

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

    def _places(self, arrived: Sequence[Operation]) -> Sequence[Text]:
        """Where its members called it from; nothing where all did alike."""
        found = together(
            (place(self.trace.stack(one["call"])) or "an unknown line", one["process"])
            for one in arrived
        )
        if len(found) < 2:
            return ()
        return [
            Text.assemble((f"{self.names.processes(processes)} at {where}", WAIT))
            for where, processes in found.items()
        ]

    def messages(self, exchanges: Exchanges, items: pl.Series) -> dict[int, Row]:
        """Rows by message."""
        table = exchanges.messages[items].to_dicts()
        wanted = [
            (row[f"{side}_process"], row[f"{side}_number"])
            for row in table
            for side in ("send", "recv")
            if row[f"{side}_number"] is not None
        ]
        found = {(o["process"], o["number"]): o for o in self._operations(wanted)}
        within = self._parents(found.values())
        return {row["message"]: self._message(row, found, within) for row in table}

    def _message(
        self,
        row: Operation,
        found: Mapping[tuple[int, int], Operation],
        within: Mapping[tuple[int, int], str],
    ) -> Row:
        send = found.get((row["send_process"], row["send_number"]))
        recv = found.get((row["recv_process"], row["recv_number"]))
        ends_of = [one for one in (send, recv) if one is not None]
        call = self.trace.call(ends_of[0]["call"])
        group = row["group"]
        source, destination = (self.names.member(group, row[s]) for s in ("source", "destination"))
        members = {m.rank: m.process for m in reversed(self.trace.groups[group].members)}
        lanes = [self._lane.get(members.get(row[end], -1)) for end in ("source", "destination")]
        missing = [lane for lane, end in zip(lanes, (send, recv), strict=True) if end is None]
        over = [o["end_ns"] for o in ends_of if o["end_ns"] is not None]
        sent = call.bytes if ends_of[0]["bytes"] is None else ends_of[0]["bytes"]
        text = Text.assemble((f"#{row['seq']} ", NUMBER))
        text.append("recv" if send is None else "send", _loud(ends_of))
        text.append(f" {_bare(source)} → {_bare(destination)}")
        text.append("" if sent is None else f" {size(sent)}", DIM)
        text.append("" if row["tag"] is None else f" tag {row['tag']}", DIM)
        text.append_text(self._within(group, ends_of[0], within))
        if len(over) == len(ends_of) == 2:
            text.append(f"  {duration(max(over) - row['first_ns'])}", DIM)
        waiter, waited = _waited(send, recv)
        if waiter is not None and waited >= NOTABLE_NS:
            who = _bare(self.names.process(waiter["process"]))
            text.append(f"; {who} waited {duration(waited)}", WAIT)
        below = self._below(ends_of)
        if send is None or recv is None:
            which = f"no send by {source}" if send is None else f"no recv by {destination}"
            below.append(Text.assemble((which, BAD)))
        return Row(
            at_ns=row["first_ns"] - self.trace.launch_ns,
            text=text,
            below=tuple(below),
            marks=self._marks(
                ends_of, [lane for lane in missing if lane is not None], mark_last=False
            ),
            joined=lanes[0] is not None and lanes[1] is not None,
            arrow=(lanes[0], lanes[1]) if lanes[0] is not None and lanes[1] is not None else None,
            place=self._place(ends_of, ends_of[0]["call"]),
        )

    def steps(self, operations: pl.DataFrame) -> dict[int, Row]:
        """Rows by ``item`` for local operations."""
        found = together((one["item"], one) for one in operations.iter_rows(named=True))
        return {item: self._step(those) for item, those in found.items()}

    def _step(self, together: Sequence[Operation]) -> Row:
        call = self.trace.call(together[0]["call"])
        what = common([self.names.what(self.trace.call(o["call"]), o) for o in together])
        ended = [o["end_ns"] for o in together if o["end_ns"] is not None]
        first = min(o["begin_ns"] for o in together)
        sizes = {o["bytes"] for o in together}
        sent = sizes.pop() if len(sizes) == 1 else None
        text = Text.assemble((call.op, _loud(together)))
        text.append(f" {what}" if what else "")
        text.append("" if sent is None else f" {size(sent)}", DIM)
        if len(ended) == len(together):
            text.append(f"  {duration(max(ended) - first)}", DIM)
        return Row(
            at_ns=first - self.trace.launch_ns,
            text=text,
            below=tuple(self._below(together)),
            marks=self._marks(together, [], mark_last=False),
            place=self._place(together, together[0]["call"]),
        )

    # -- what several kinds of rows need -----------------------------------------------------

    def _marks(
        self, arrived: Sequence[Operation], missing: Sequence[int], *, mark_last: bool
    ) -> tuple[tuple[int, Mark], ...]:
        marks: dict[int, set[Mark]] = {}
        last = max(arrived, key=lambda o: o["begin_ns"]) if mark_last else None
        for one in arrived:
            lane = self._lane.get(one["process"])
            if lane is not None:
                marks.setdefault(lane, set()).add(_mark(one, is_last=one is last))
        for lane in missing:
            marks.setdefault(lane, set()).add(Mark.MISSING)
        return tuple((lane, _shared(found)) for lane, found in sorted(marks.items()))

    def _below(self, arrived: Sequence[Operation]) -> list[Text]:
        """Which of them are in flight, and which failed, each kind with its line."""
        flying: dict[str | None, list[Operation]] = {}
        failed: dict[tuple[str, str | None], list[int]] = {}
        for one in arrived:
            where = place(self.trace.stack(one["call"]))
            if _flying(one):
                flying.setdefault(where, []).append(one)
            elif one["error"] is not None:
                key = (brief(self.trace.errors[one["error"]]), where)
                failed.setdefault(key, []).append(one["process"])
        found = [text for where, ops in flying.items() for text in self._flying(ops, where)]
        for (error, where), processes in failed.items():
            text = Text.assemble((f"{self.names.processes(sorted(processes))}: {error}", BAD))
            found.append(text.append(f" at {where}" if where else ""))
        return found

    def _flying(self, ops: Sequence[Operation], where: str | None) -> Iterator[Text]:
        """``rank 0 in flight for 12.3 s at train.py:42 step``: processes that run, those that are
        over and those of which it is not known apart.
        """
        by_end: dict[tuple[bool, bool], list[Operation]] = {}
        for one in ops:
            end = self.evidence.ends[one["process"]]
            by_end.setdefault((not end.runs, end.state == UNKNOWN), []).append(one)
        for (gone, silent), those in by_end.items():
            processes = sorted({one["process"] for one in those})
            state, many = "in flight for", len(processes) > 1
            if gone:
                last = "last heard of" if silent else "they ended" if many else "it ended"
                state = f"{'were' if many else 'was'} in flight when {last}, for"
            ages = (self.evidence.until_ns(o["process"]) - o["begin_ns"] for o in those)
            text = f"{self.names.processes(processes)} {state} {duration(max(0, *ages))}"
            yield Text.assemble((text, "bold yellow"), f" at {where}" if where else "")

    def _place(self, arrived: Sequence[Operation], call: int) -> str | None:
        """The line of a call; what is in flight has it below."""
        return None if any(map(_flying, arrived)) else place(self.trace.stack(call))

    def _operations(self, wanted: Sequence[tuple[int, int]]) -> Iterable[dict[str, Any]]:
        keys = pl.DataFrame(
            wanted, schema={"process": pl.UInt32, "number": pl.UInt32}, orient="row"
        )
        rows = self.trace.operations.join(keys, on=["process", "number"], how="semi")
        return rows.iter_rows(named=True)

    def _parents(self, operations: Iterable[Operation]) -> Mapping[tuple[int, int], str]:
        """Names of the composed operations that issued these."""
        wanted = {(o["process"], o["parent"]) for o in operations if o["parent"] is not None}
        found = {}
        for one in self._operations(sorted(wanted)):
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


_LOUDEST = (Mark.FAILED, Mark.FLYING, Mark.LAST, Mark.UNKNOWN, Mark.DONE)


def _shared(found: set[Mark]) -> Mark:
    """One mark for a lane of several processes: the loudest, a part if some did not come."""
    if Mark.MISSING in found:
        return Mark.MISSING if found == {Mark.MISSING} else Mark.PART
    return next(mark for mark in _LOUDEST if mark in found)


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
