"""What a command of DISTTRACE_ON_STALL gets is whole, however large the job."""

from __future__ import annotations

import json

import pytest

from disttrace_viewer.companion import command

FIRST = {"disttrace": 1, "kind": "stalled", "summary": "Rank 1 never joined."}
LONG = "x" * command.MOST_BYTES


@pytest.mark.parametrize(
    ("long", "left"),
    [
        ([], ["report", "also", "finding", "processes"]),
        (["report"], ["also", "finding", "processes"]),
        (["also"], ["finding", "processes"]),
        (["report", "also", "finding"], ["processes"]),
        (["processes"], []),
    ],
)
def test_what_is_long_goes_first(long: list[str], left: list[str]) -> None:
    """The sentence stays, and what is left can be read."""
    said = [{**FIRST, "finding": {"op": LONG if "finding" in long else ""}}]
    said.append({**FIRST, "finding": LONG if "also" in long else ""})
    one = {"host": LONG if "processes" in long else ""}
    more = {"processes": [one], "report": LONG if "report" in long else "it hangs"}
    text = command.line(said, more)
    assert text.endswith("\n")
    assert len(text.encode()) <= command.MOST_BYTES
    found = json.loads(text)
    assert found["summary"] == FIRST["summary"]
    assert [key for key in ("report", "also", "finding", "processes") if found[key]] == left
