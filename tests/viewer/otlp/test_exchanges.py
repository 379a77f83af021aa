"""When an exchange began, whatever was taken for a part of it meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from disttrace_viewer.otlp.journal import LiveOperation
from disttrace_viewer.otlp.pipeline import OpenExchanges
from disttrace_viewer.otlp.spans import Exchanged

BUILDER: Any = SimpleNamespace(
    trace=lambda journal: "0" * 32, top=lambda journal: None, of_job=lambda journal, span: None,
    unix=lambda journal, t: t,
)  # fmt: skip


class Definitions:
    """Those of a process in a group of two."""

    def get(self, kind: str, number: int) -> dict[str, Any]:
        return {"name": "default", "size": 2, "ranks": [0, 1], "backends": {"cpu": "gloo"}}

    def group_id(self, number: int) -> str:
        return "group"


def operation(op: str, begin: int, end: int | None = None) -> LiveOperation:
    call = {"op": op, "kind": "collective", "group": 1, "backend": "gloo"}
    record = {"b": 1, "t": begin, "q": 3}
    return LiveOperation(record if end is None else {**record, "end": end}, call, None, None)


def part(rank: int) -> Exchanged:
    return Exchanged("group", 1, "gloo", rank, 3)


def test_a_call_that_raised_on_issue_did_not_come_first() -> None:
    """It gave its number back, and the next collective took that one."""
    exchanges = OpenExchanges(BUILDER)
    journals: list[Any] = [SimpleNamespace(base=str(n), definitions=Definitions()) for n in (0, 1)]
    refused = operation("all_reduce", begin=100)
    exchanges.joined(journals[0], refused, part(0), now=0)
    exchanges.joined(journals[1], operation("barrier", begin=300, end=200), part(1), now=0)
    exchanges.forget(lambda _, member: member is refused)
    exchanges.joined(journals[0], operation("barrier", begin=250, end=250), part(0), now=0)
    *_, span = exchanges.poll([], 0, final=True)
    assert (span.name, span.start, span.end) == ("barrier", 250, 500)
    assert span.attributes["disttrace.exchange.imbalance_ns"] == 50
