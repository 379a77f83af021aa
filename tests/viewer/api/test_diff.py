"""``disttrace diff``: two journals' runs in a few lines, folded over ranks, with an exit code."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import disttrace
from disttrace import cli
from disttrace_viewer.api import diff
from support.journals import MS, workers

STEPS = 20


def run(folder: Path, *names: str, moved: int = 0, late: int = 0, world_size: int = 4) -> Path:
    """Ranks call these in each step, each from its line; ``+``: twice the size; ``:``: a dtype."""
    lines = {"all_reduce": 10, "barrier": 12, "broadcast": 14, "all_gather": 16}
    jobs = workers(folder, world_size, job=folder.name, host=folder.name)
    for journal in jobs:
        group = journal.world()
        calls = [
            journal.collective(
                group,
                op,
                stack=("train.py", lines[op] + moved, "main"),
                dtypes=[dtype or "float32"],
                shapes=[[8 if name.endswith("+") else 4]],
                bytes=32 if name.endswith("+") else 16,
            )
            for name in names
            for op, _, dtype in [name.rstrip("+").partition(":")]
        ]
        t, q = 100 * MS, 0
        for _ in range(STEPS):
            for nth, call in enumerate(calls, 1):
                q += 1
                t += 10 * MS
                own = late if nth == len(calls) and journal.rank == 2 else 0
                last = late if nth == len(calls) else 0
                journal.run(call, t + own, MS + last - own, q=q)
            t += late
        journal.define("exit", t=t + 20 * MS, how="normal", code=0)
    return folder


def told(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, list[str]]:
    code = cli.main(["diff", *map(str, args)])
    return code, capsys.readouterr().out.splitlines()


def test_equal_runs_are_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from another host, with other ids, and with all lines moved."""
    a = run(tmp_path / "a", "all_reduce", "barrier")
    b = run(tmp_path / "b", "all_reduce", "barrier", moved=7)
    assert told(capsys, a, b) == (0, ["Both runs communicate alike."])
    assert disttrace.diff(a, b).alike


def test_what_is_gone_is_told_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The divergence first, then the call with its times per step."""
    a = run(tmp_path / "a", "all_reduce", "barrier", "broadcast")
    b = run(tmp_path / "b", "all_reduce", "broadcast")
    code, lines = told(capsys, a, b)
    assert code == 1
    assert lines == [
        (
            "Ranks 0-3, the default group: first divergence at call 2: barrier (train.py:12) in A,"
            " broadcast (train.py:14) in B."
        ),
        (
            "Ranks 0-3, the default group: vanished: barrier (train.py:12): 20 times (1 per step,"
            " 16 B each) in A, never in B."
        ),
    ]
    assert [one.ranks for one in diff(a, b, ranks="1").differences] == [(1,), (1,)]


def test_another_size_is_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same call, wherever its line lies now; ``--json`` has it as fields."""
    a, b = run(tmp_path / "a", "all_reduce"), run(tmp_path / "b", "all_reduce+", moved=2)
    assert cli.main(["diff", str(a), str(b), "--json"]) == 1
    values = orjson.loads(capsys.readouterr().out)
    changed = values["differences"][1]
    assert (changed["kind"], changed["ranks"]) == ("changed", [0, 1, 2, 3])
    assert (changed["a"], changed["b"], changed["count_a"]) == ("train.py:10", "train.py:12", 20)
    assert "float32[4]) in A" in changed["summary"]
    assert (values["format"], values["alike"], values["incomplete"]) == (1, False, [])


@pytest.mark.parametrize(
    ("calls", "line"),
    [(("barrier", "all_reduce"), 10), (("all_gather:int64", "all_gather:uint8"), 16)],
    ids=["a line", "a half of all_gather_object, which tells sizes first"],
)
def test_slower_says_who_is_waited_for(tmp_path: Path, calls: list[str], line: int) -> None:
    """The ranks that wait are told, and for whom."""
    a, b = run(tmp_path / "a", *calls), run(tmp_path / "b", *calls, late=20 * MS)
    (only,) = disttrace.diff(a, b).differences
    assert (only.kind, only.ranks, only.b) == ("slower", (0, 1, 3), f"train.py:{line}")
    assert (only.a_ns, only.b_ns) == (MS, 21 * MS)
    assert "20.0 ms of that waiting for rank 2" in only.summary


def test_ranks_of_one_run_alone_are_told(tmp_path: Path) -> None:
    """Those that both have are compared."""
    a, b = run(tmp_path / "a", "barrier"), run(tmp_path / "b", "barrier", world_size=2)
    assert [one.summary for one in disttrace.diff(a, b).differences] == ["Only A has ranks 2, 3."]


def test_nothing_to_read_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As diff(1) has it, with the folder in the sentence."""
    a = run(tmp_path / "a", "barrier")
    assert told(capsys, a, tmp_path / "none")[0] == 2


def test_what_journals_lack_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alike as far as it goes is no 0."""
    a, b = run(tmp_path / "a", "barrier"), run(tmp_path / "b", "barrier")
    segment = next(b.glob("*.1.jsonl"), None) or min(
        (path for path in b.iterdir()), key=lambda path: path.stat().st_size
    )
    with segment.open("ab") as file:
        file.write(b'{"what": is this}\n')
    code, lines = told(capsys, a, b)
    assert code == 2
    assert lines[1].startswith("Incomplete: B")
