"""Who waits while all others get on: a note, and an error as soon as one of these stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.diagnosis.report import healthy
from support.journals import MS, Journal
from support.scenes import S, beat, findings, only, ranks, steps, store_call

UNTIL_S = 30


def with_spare(folder: Path, *, waits_in: str, stops_s: int | None = None) -> None:
    """Ranks 0 and 1 go round in a group of their own; rank 2 waits to be needed.

    From ``stops_s`` on rank 1 is in its loop no more, and rank 0 waits for it.
    """
    for journal, group in steps(folder, 3):
        if journal.rank == 2:
            waits(journal, group, waits_in)
        else:
            goes_round(journal, stops_s)
        beat(journal, UNTIL_S)


def waits(journal: Journal, group: int, how: str) -> None:
    """The last rank's call, which is over when it is called."""
    keys: dict[str, object]
    if how == "barrier":
        call, keys = journal.collective(group, "barrier", shapes=None), {"q": 3}
    elif how == "recv":
        call, keys = journal.message(group, "recv", 0), {"q": 1}
    else:
        call, keys = store_call(journal, "get", 50), {"k": "promoted"}
    number = journal.begin(call, 200 * MS, **keys)
    if how == "recv":
        journal.record(v=number, d=MS)


def goes_round(journal: Journal, stops_s: int | None) -> None:
    """All_reduces of the active ones, ten a second."""
    active = journal.group(store=journal.prefix_store(1, "active"), name="active", ranks=[0, 1])
    call = journal.collective(active)
    end_s = UNTIL_S if stops_s is None else stops_s
    last = end_s * 10
    for n in range(3, last):
        journal.run(call, t=n * S // 10, d=MS, q=n - 2)
    if stops_s is not None and journal.rank == 0:
        journal.begin(call, last * S // 10, q=last - 2)


@pytest.mark.parametrize("waits_in", ["barrier", "recv", "key"])
def test_a_wait_while_all_others_get_on_is_a_note(tmp_path: Path, waits_in: str) -> None:
    """Nothing stands still, so nobody is to blame."""
    with_spare(tmp_path, waits_in=waits_in)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits) == ("note", ())
    assert ranks(tmp_path, found.waiting) == [2]
    assert "gets on" in (found.hint or "")
    assert healthy([found])


@pytest.mark.parametrize("waits_in", ["barrier", "recv"])
def test_it_is_a_fault_when_one_of_them_stops(tmp_path: Path, waits_in: str) -> None:
    """Then the job stands still, and rank 1 is missing."""
    with_spare(tmp_path, waits_in=waits_in, stops_s=10)
    found = [f for f in findings(tmp_path) if f.severity == "error"]
    assert [f.kind for f in found][:1] == ["missing_participant"]
    assert 1 in ranks(tmp_path, found[0].culprits)
