"""What a job said itself is kept beside its journals, and shown by whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

import disttrace
from disttrace.cli import main
from disttrace.journal import format as fmt
from disttrace_viewer.companion.service import CompanionLog
from disttrace_viewer.companion.watch import Watch, _objects
from disttrace_viewer.load.announcements import path_of
from support.journals import T0, UNIX_NS, Journal, S
from support.orders import order
from support.states import hang

TOLD: dict[str, object] = {
    "certainty": "certain", "summary": "Rank 3 never came", "culprit_ranks": [3], "finding": {},
}  # fmt: skip


def keep(folder: Path, *said: dict[str, object], root: Path | None = None) -> None:
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    watch = Watch(order(folder, in_names="job-", root=str(root or folder)), CompanionLog(log))
    for one in said:
        watch._keep(_objects("stalled", [one]))
    os.close(log)


def test_it_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The newest in the text, all of it in the JSON; a torn line and a stranger's are left out."""
    hang(tmp_path)
    keep(tmp_path, TOLD, {**TOLD, "summary": "Rank 3 is \x1b[31mstill not there"})
    path = Path(path_of(str(tmp_path), "job"))
    with path.open("a") as file:
        file.write('{"disttrace": 1, "at": "noon", "summary": 4}\n["other"]\n{"torn')
    assert main(["diagnose", str(tmp_path)]) == 1
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("Said by")]
    assert [line.partition(": ")[2] for line in said] == [
        "Rank 3 never came", "Rank 3 is \\x1b[31mstill not there",
    ]  # fmt: skip
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    told = orjson.loads(capfd.readouterr().out)["said"]
    assert [(one["kind"], one["culprit_ranks"]) for one in told] == [("stalled", [3])] * 2
    assert main(["view", str(tmp_path)]) == 0
    assert "Rank 3 never came" in capfd.readouterr().out
    assert disttrace.load(tmp_path).problems == ()


def test_what_has_no_time_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Seconds that no calendar has end no command; the others are shown."""
    Journal(tmp_path, 1, job="job", rank=0, world_size=1).world()
    keep(tmp_path, TOLD)
    path = Path(path_of(str(tmp_path), "job"))
    known = orjson.loads(path.read_bytes())
    odd = [{**known, "at": at, "summary": "undated"} for at in (1e308, -1e300, 2**62, 2**33)]
    path.write_bytes(b"\n".join(map(orjson.dumps, [known, *odd])))
    for command in ("diagnose", "view"):
        assert main([command, str(tmp_path)]) in (0, 1, 2)
        shown = capfd.readouterr().out
        assert "Rank 3 never came" in shown
        assert "undated" not in shown


def test_all_hosts_keep_it_in_one_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where each has a folder, in that of the job: found from the folder of all and from theirs."""
    for number in range(2):
        own = tmp_path / "all" / "job" / f"host{number}"
        Journal(own, number + 1, host=own.name, rank=number, world_size=2).world()
        keep(own, TOLD, root=tmp_path / "all")
    (path,) = tmp_path.rglob(f"*{fmt.VERDICTS_SUFFIX}")
    assert path.parent == tmp_path / "all" / "job"
    for folder in (tmp_path / "all", path.parent, own):
        main(["diagnose", str(folder), "--json"])
        told = orjson.loads(capfd.readouterr().out)["said"]
        assert [one["summary"] for one in told] == [TOLD["summary"]] * 2


def test_nobody_else_may_read_it_and_no_link_is_followed(tmp_path: Path) -> None:
    """A name that anybody can foretell, in a folder where others may write."""
    keep(tmp_path, TOLD)
    path = Path(path_of(str(tmp_path), "job"))
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("mine")
    os.symlink(elsewhere, path)
    keep(tmp_path, TOLD)
    assert elsewhere.read_text() == "mine"
    assert fmt.VERDICTS_SUFFIX in path.name


def test_each_try_of_a_name_has_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both write into the file of their name, which is the id of the first alone."""
    tries = []
    for start in (0, 100):
        named: Any = {"job": "nightly", "rank": 0, "world_size": 1}
        journal = Journal(tmp_path, pid=100 + start, t0=T0 + start * S, **named)
        journal.world()
        journal.leave(50 * S)
        tries.append(journal)
    second = Path(path_of(str(tmp_path), "nightly"))
    at = UNIX_NS / 1e9
    first = {**TOLD, "disttrace": 1, "kind": "stalled", "at": at + 20, "summary": "in the first"}
    late = {**first, "at": at + 120, "summary": "of the first, found late",
            "finding": {"culprits": [tries[0].process]}}  # fmt: skip
    again = {**first, "at": at + 130, "summary": "in the second"}
    second.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in (first, late, again)))

    def shown(*options: str) -> tuple[set[str], list[str], list[str]]:
        assert main(["diagnose", str(tmp_path), "--json", *options]) == 0
        found = orjson.loads(capfd.readouterr().out)
        jobs = {one["job"] for one in found["processes"]}
        told = [one["summary"] for one in found["said"]]
        return jobs, told, found["coverage"]["other_jobs"]

    assert shown() == ({"nightly.2"}, ["in the second"], ["nightly"])
    oldest = ["in the first", "of the first, found late"]
    assert shown("--job", "nightly") == ({"nightly"}, oldest, ["nightly.2"])


def test_each_of_two_namesakes_has_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They run at once and write into one file: a line names a process that it is of."""
    one, two = (
        Journal(tmp_path, pid=pid, job="sweep", rank=0, world_size=1, t0=T0 + pid * S)
        for pid in (1, 2)
    )
    for journal in (one, two):
        journal.world()
        journal.leave(60 * S)
    at = UNIX_NS / 1e9 + 30
    lines = [
        {**TOLD, "disttrace": 1, "kind": "stalled", "at": at, "summary": "first", **whose}
        for whose in ({"process": one.process}, {"process": 7})
    ]
    lines[1]["summary"] = "of the newest then"
    Path(path_of(str(tmp_path), "sweep")).write_bytes(b"\n".join(map(orjson.dumps, lines)))
    shown = {}
    for job in ("sweep", "sweep.2"):
        assert main(["diagnose", str(tmp_path), "--json", "--job", job]) == 0
        shown[job] = [each["summary"] for each in orjson.loads(capfd.readouterr().out)["said"]]
    assert shown == {"sweep": ["first"], "sweep.2": ["of the newest then"]}


def test_more_evidence_comes_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A node's own folder: its ranks wait, and the culprit's journal lies on the other node."""
    whole, node = tmp_path / "whole", tmp_path / "node"
    hang(whole)

    def report(folder: Path) -> dict[str, Any]:
        main(["diagnose", str(folder), "--json"])
        found: dict[str, Any] = orjson.loads(capfd.readouterr().out)
        return found

    (live,) = report(whole)["findings"]
    node.mkdir()
    absent = next(one for one in report(whole)["processes"] if one["rank"] == 3)["id"]
    for path in whole.iterdir():
        if absent[:12] not in path.name:
            path.rename(node / path.name)
    assert report(node)["findings"][0]["certainty"] == "likely"
    keep(node, {**{key: live[key] for key in TOLD if key != "finding"}, "finding": live})
    first, *others = report(node)["findings"]
    at = first.pop("said_at")
    assert (first, others, at == report(node)["said"][0]["at"]) == (live, [], True)
    assert main(["diagnose", str(node)]) == 1
    text = capfd.readouterr().out
    assert "ERROR missing_participant, by the job itself at " in text
    assert text.count(live["summary"]) == 1
    # Not what was taken back, got through, or is no finding.
    path = Path(path_of(str(node), "job"))
    said = orjson.loads(path.read_bytes())
    for more in (
        {**said, "kind": "going on"},
        {**said, "finding": {**live, "culprit_ranks": ["3"]}},
        {**said, "finding": {**live, "seq": live["seq"] - 1}},
        {**said, "finding": 3},
    ):
        lines = [said, more] if more["kind"] == "going on" else [more]
        path.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))
        assert "said_at" not in report(node)["findings"][0]
