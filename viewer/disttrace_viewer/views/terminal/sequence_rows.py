"""Makes rows out of the few exchanges and steps that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.views.terminal import in_flight
from disttrace_viewer.views.terminal.rows import (
    Arrival,
    CollectiveRow,
    Failed,
    Flight,
    LocalRow,
    Mark,
    MessageRow,
)
from disttrace_viewer.wording.names import Lane, Names, place
from disttrace_viewer.wording.operations import Describer, brief
from disttrace_viewer.wording.quantities import tensors

Operation = Mapping[str, Any]


class Maker:
    """Rows for one trace under one set of lanes."""

    def __init__(
        self, evidence: Evidence, names: Names, lanes: Sequence[Lane], origin_ns: int
    ) -> None:
        self.evidence, self.names, self.origin_ns = evidence, names, origin_ns
        self.trace = names.trace
        self.describer = Describer(self.trace, names)
        self._lane = {p: i for i, lane in enumerate(lanes) for p in lane.processes}

    def collectives(self, exchanges: Exchanges, items: pl.Series) -> dict[int, CollectiveRow]:
        """Rows by exchange."""
        if not len(items):
            return {}
        table = exchanges.collectives[items].to_dicts()
        members: dict[int, list[dict[str, Any]]] = {}
        for one in exchanges.participants(items).iter_rows(named=True):
            members.setdefault(one["exchange"], []).append(one)
        within = self._parents(o for found in members.values() for o in found)
        return {
            row["exchange"]: self._collective(row, members[row["exchange"]], within)
            for row in table
        }

    def _collective(
        self, row: Operation, arrived: Sequence[Operation], within: Mapping[tuple[int, int], str]
    ) -> CollectiveRow:
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
        return CollectiveRow(
            at_ns=row["first_ns"] - self.origin_ns,
            marks=self._marks(arrived, missing_lanes, mark_last=over and len(arrived) > 1),
            flights=self._flights(arrived),
            failures=self._failures(arrived),
            op=" / ".join(ops) or call.op,
            seq=row["seq"],
            group=self.names.group(row["group"]),
            reduce_op=call.reduce_op,
            tensors=tensors(call.dtypes, call.shapes),
            root=self.describer.root(call),
            arrivals=tuple(
                Arrival(one["process"], one["begin_ns"] - row["first_ns"]) for one in arrived
            ),
            missing=tuple(self.names.member(group.index, r) for r in absent),
            took_ns=row["end_ns"] - row["first_ns"] if over and row["end_ns"] else None,
            differs="operations" if len(ops) > 1 else "arguments" if ops else None,
            within=self._within(arrived[0], within),
            place=place(self.trace.stack(row["call"])),
            places=self._places(arrived),
        )

    def _places(self, arrived: Sequence[Operation]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        found: dict[str, list[int]] = {}
        for one in arrived:
            where = place(self.trace.stack(one["call"])) or "an unknown line"
            found.setdefault(where, []).append(one["process"])
        if len(found) < 2:
            return ()
        return tuple((where, tuple(processes)) for where, processes in found.items())

    def messages(self, exchanges: Exchanges, items: pl.Series) -> dict[int, MessageRow]:
        """Rows by message."""
        if not len(items):
            return {}
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
    ) -> MessageRow:
        send = found.get((row["send_process"], row["send_number"]))
        recv = found.get((row["recv_process"], row["recv_number"]))
        ends_of = [one for one in (send, recv) if one is not None]
        call = self.trace.call(ends_of[0]["call"])
        group = row["group"]
        lanes = [self._member_lane(group, row[side]) for side in ("source", "destination")]
        missing = [lane for lane, end in zip(lanes, (send, recv), strict=True) if end is None]
        waiter, waited = _waited(send, recv)
        over = [o["end_ns"] for o in ends_of if o["end_ns"] is not None]
        size = call.bytes
        return MessageRow(
            at_ns=row["first_ns"] - self.origin_ns,
            marks=self._marks(
                ends_of, [lane for lane in missing if lane is not None], mark_last=False
            ),
            flights=self._flights(ends_of),
            failures=self._failures(ends_of),
            source=self.names.member(group, row["source"]),
            destination=self.names.member(group, row["destination"]),
            arrow=(lanes[0], lanes[1]) if lanes[0] is not None and lanes[1] is not None else None,
            seq=row["seq"],
            group=self.names.group(group),
            bytes=size if ends_of[0]["bytes"] is None else ends_of[0]["bytes"],
            tag=row["tag"],
            missing=None if send and recv else "send" if recv else "recv",
            waiter=None if waiter is None else self.names.process(waiter["process"]),
            waited_ns=waited,
            took_ns=max(over) - row["first_ns"] if len(over) == len(ends_of) == 2 else None,
            within=self._within(ends_of[0], within),
            place=place(self.trace.stack(ends_of[0]["call"])),
        )

    def steps(self, operations: pl.DataFrame) -> dict[int, LocalRow]:
        """Rows by ``item`` for local operations."""
        found: dict[int, list[dict[str, Any]]] = {}
        for one in operations.iter_rows(named=True):
            found.setdefault(one["item"], []).append(one)
        return {item: self._step(together) for item, together in found.items()}

    def _step(self, together: Sequence[Operation]) -> LocalRow:
        call = self.trace.call(together[0]["call"])
        words = [self.describer.what(self.trace.call(o["call"]), o) for o in together]
        ended = [o["end_ns"] for o in together if o["end_ns"] is not None]
        first = min(o["begin_ns"] for o in together)
        sizes = {o["bytes"] for o in together}
        return LocalRow(
            at_ns=first - self.origin_ns,
            marks=self._marks(together, [], mark_last=False),
            flights=self._flights(together),
            failures=self._failures(together),
            op=call.op,
            what=common(words),
            bytes=sizes.pop() if len(sizes) == 1 else None,
            processes=tuple(dict.fromkeys(o["process"] for o in together)),
            took_ns=max(ended) - first if len(ended) == len(together) else None,
            place=place(self.trace.stack(together[0]["call"])),
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

    def _flights(self, arrived: Sequence[Operation]) -> tuple[Flight, ...]:
        grouped: dict[str | None, list[Operation]] = {}
        for one in arrived:
            if _flying(one):
                grouped.setdefault(place(self.trace.stack(one["call"])), []).append(one)
        return tuple(
            flight
            for where, found in grouped.items()
            for flight in in_flight.flight(
                self.evidence,
                self.describer.title(found[0]),
                where,
                [(self._age(o), o["process"]) for o in found],
            )
        )

    def _age(self, one: Operation) -> int:
        return self.evidence.until_ns(one["process"]) - int(one["begin_ns"])

    def _failures(self, arrived: Sequence[Operation]) -> tuple[Failed, ...]:
        grouped: dict[tuple[str, str | None], list[int]] = {}
        for one in arrived:
            if one["error"] is not None:
                where = place(self.trace.stack(one["call"]))
                key = (brief(self.trace.errors[one["error"]]), where)
                grouped.setdefault(key, []).append(one["process"])
        return tuple(
            Failed(tuple(sorted(found)), error, where) for (error, where), found in grouped.items()
        )

    def _member_lane(self, group: int, rank: int) -> int | None:
        for member in self.trace.groups[group].members:
            if member.rank == rank:
                return self._lane.get(member.process)
        return None

    def _operations(self, wanted: Sequence[tuple[int, int]]) -> Iterable[dict[str, Any]]:
        keys = pl.DataFrame(
            wanted, schema={"process": pl.UInt32, "number": pl.UInt32}, orient="row"
        )
        rows = self.trace.operations.join(keys, on=["process", "number"], how="semi")
        return rows.iter_rows(named=True)

    def _parents(self, operations: Iterable[Operation]) -> Mapping[tuple[int, int], str]:
        """Names of the composed operations that issued these."""
        wanted = {(o["process"], o["parent"]) for o in operations if o["parent"] is not None}
        if not wanted:
            return {}
        found = {}
        for one in self._operations(sorted(wanted)):
            call = self.trace.call(one["call"])
            found[one["process"], one["number"]] = call.name or call.op
        return found

    def _within(self, one: Operation, names: Mapping[tuple[int, int], str]) -> str | None:
        return None if one["parent"] is None else names.get((one["process"], one["parent"]))


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
    """What all say; where they differ, what they share around a ``*``."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) == 1:
        return distinct[0]
    low, high = min(distinct), max(distinct)
    lead = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    tails = [w[lead:][::-1] for w in distinct]
    low, high = min(tails), max(tails)
    tail = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return f"{distinct[0][:lead]}*{distinct[0][len(distinct[0]) - tail :] if tail else ''}"
