"""What trainers get of a trace, by what `disttrace.live` says (with trainers: make frameworks)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import disttrace
from disttrace import integrations

SLOW = {"rank": 5, "share": 0.2, "since": 1.0, "line": "a.py:1", "others": 7, "rank_hours": 0.1}
LIVE: dict[str, Any] = {
    "rank": 3, "begun": 40, "in_flight": 1, "oldest_op": "all_reduce", "oldest_age_s": 2.5,
    "oldest_line": "train.py:7", "waiting_share": None, "slow": [], "said": None,
}  # fmt: skip


OTHERS = ("going on", "starting", "slow")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    values = dict(LIVE)
    monkeypatch.setattr(disttrace, "live", lambda: dict(values))
    return values


def test_a_logger_gets_numbers(live: dict[str, Any]) -> None:
    """No text, nothing that is unknown, and of slow ranks the worst."""
    usual = {"disttrace/begun": 40, "disttrace/in_flight": 1, "disttrace/oldest_age_s": 2.5}
    assert integrations.numbers() == {**usual, "disttrace/slow_ranks": 0}
    live.update(waiting_share=0.25, slow=[SLOW, {**SLOW, "rank": 6, "share": 0.1}])
    assert integrations.numbers() == {
        **usual, "disttrace/waiting_share": 0.25, "disttrace/slow_ranks": 2,
        "disttrace/slowest_rank": 5, "disttrace/slowest_share": 0.2,
    }  # fmt: skip


def test_without_tracing_there_is_nothing() -> None:
    error = RuntimeError("lost")
    integrations.explain(error)
    assert integrations.numbers() == {}
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    ("kind", "told"),
    [(kind, kind in ("stalled", "failed")) for kind in ("stalled", "failed", *OTHERS)],
)
def test_what_the_job_said_is_below_the_error(live: dict[str, Any], kind: str, told: bool) -> None:
    """Once, however often it passes; what explains no failure is not there."""
    live["said"] = {"kind": kind, "summary": "Rank 1 never joined."}
    error = RuntimeError("timed out")
    integrations.explain(error)
    integrations.explain(error)
    shown = told and sys.version_info >= (3, 11)
    assert getattr(error, "__notes__", []) == [f"disttrace: {kind}: Rank 1 never joined."] * shown
