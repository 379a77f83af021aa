"""Ranks that replay other graphs, or another number of times, are told as by any other call."""

from __future__ import annotations

from pathlib import Path

from support.journals import MS, workers
from support.scenes import S, beat, findings, only, ranks


def replaying(folder: Path, *graphs: list[str]) -> None:
    """A rank for each list of what it replays; no device is through the last of the longest."""
    most = max(map(len, graphs))
    for journal, names in zip(workers(folder, len(graphs)), graphs, strict=True):
        group = journal.world()
        for number, name in enumerate(names, 1):
            call = journal.collective(
                group, f"graph_replay({name})", backend="graph", device="cuda",
                asynchronous=True, shapes=None, dtypes=None, bytes=None,
            )  # fmt: skip
            one = journal.begin(call, number * S, q=number)
            journal.record(i=one, d=MS)
            if number < most:
                journal.record(c=one, d=2 * MS)
        beat(journal, 40)


def test_one_replay_less(tmp_path: Path) -> None:
    """Rank 2 has replayed twice, the others wait in their third."""
    three = ["2 all_reduce"] * 3
    replaying(tmp_path, three, three, three[:2])
    found = findings(tmp_path)[0]
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [2])


def test_another_graph(tmp_path: Path) -> None:
    """It holds one all_reduce more."""
    replaying(tmp_path, ["2 all_reduce"], ["2 all_reduce"], ["3 all_reduce"])
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("op_mismatch", [2])


def test_a_replay_that_hangs(tmp_path: Path) -> None:
    """All have replayed the same, and no device gets on."""
    replaying(tmp_path, ["2 all_reduce"], ["2 all_reduce"])
    assert only(findings(tmp_path)).kind == "no_progress"
