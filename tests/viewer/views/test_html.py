"""The timeline as a page: what stands in it, and, where there is a browser, what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views import jsonl
from disttrace_viewer.views.timeline import html
from support.journals import MS, Journal, training, workers
from support.scenes import beat, stand

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
NASTY = "</script><script>alert(1)</script><!--"


def page(folder: Path) -> str:
    """The whole page."""
    return b"".join(html.lines(load([str(folder)]))).decode()


def data(text: str) -> dict[str, Any]:
    """What the page draws."""
    found = re.search(r"^const trace = (.*);$", text, re.MULTILINE)
    assert found is not None
    values: dict[str, Any] = orjson.loads(found[1])
    return values


@pytest.fixture
def hang(tmp_path: Path) -> Path:
    """Rank 1 stands outside communication; rank 0 waits in a barrier, whose name is odd."""
    first, second = workers(tmp_path / "journals", 2)
    for journal in (first, second):
        group = journal.world()
        rank = journal.rank or 0
        step = journal.call("annotate", kind="composed", name=NASTY, origin="python")
        outer = journal.begin(step, t=20 * MS)
        reduce = journal.collective(group)
        journal.run(reduce, t=21 * MS + rank * MS, d=5 * MS, q=1, p=outer)
        journal.end(outer, 10 * MS)
        if rank == 0:
            journal.begin(journal.collective(group, "barrier"), t=80 * MS, q=2)
        else:
            stand(journal, 80 * MS, "loader.py", 7, "fetch")
        beat(journal, 30)
    return tmp_path / "journals"


def test_it_holds_what_the_other_exports_hold(hang: Path) -> None:
    """Ids, times and status of every operation; arrows and findings."""
    found = data(page(hang))
    trace = load([str(hang)])
    rows = {row["id"]: row for row in jsonl.rows(trace, trace.operations)}
    assert {op["id"] for op in found["operations"]} == set(rows)
    for op in found["operations"]:
        row = rows[op["id"]]
        assert round(op["begin"] * 1000) == row["begin_ns"] - found["start"]
        assert op["status"] == row["status"]
        assert (op["duration"] is None) is (row["end_ns"] is None)
        assert found["calls"][op["call"]]["op"] == row["op"]
        assert found["processes"][op["process"]]["rank"] == row["rank"]
    ((source, target, begin, end),) = found["arrows"]
    ends = [found["operations"][index] for index in (source, target)]
    assert [found["processes"][op["process"]]["rank"] for op in ends] == [1, 0]
    assert begin < end
    (finding,) = found["findings"]
    assert (finding["kind"], finding["culprit_ranks"]) == ("missing_participant", [1])


def test_nothing_is_loaded_from_anywhere(hang: Path) -> None:
    """No address, and a policy that forbids it; strings of a program cannot end the script."""
    text = page(hang)
    tags: list[str] = []
    links: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            links.extend(name for name, _ in attrs if name in ("src", "href", "action"))

    Tags().feed(text)
    assert (tags.count("script"), links) == (1, [])
    assert "default-src 'none'" in text
    assert "://" not in text.replace("tcp://", "")
    assert NASTY not in text
    assert NASTY in {call.get("name") for call in data(text)["calls"]}


def test_a_part_is_the_newest_and_what_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old ones that never ended stay; the number of all is told."""
    (journal,) = workers(tmp_path, 1)
    group = journal.world()
    journal.begin(journal.collective(group, "barrier", asynchronous=True), t=MS, q=1)
    call = journal.collective(group)
    for step in range(2, 12):
        journal.run(call, t=step * MS, d=1000, q=step)
    monkeypatch.setattr(html, "OPERATIONS", 4)
    found = data(page(tmp_path))
    assert [op["seq"] for op in found["operations"]] == [1, 9, 10, 11]
    assert found["total"] == 11


def test_a_job_without_operations(tmp_path: Path) -> None:
    """An empty timeline, with the process."""
    Journal(tmp_path, pid=1, role="main")
    found = data(page(tmp_path))
    assert (found["operations"], len(found["processes"])) == ([], 1)


def shown(text: str, folder: Path, fragment: str = "") -> str:
    """The document after a browser ran it, as HTML."""
    if BROWSER is None:
        pytest.skip("no Chromium here")
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [*command, f"{file.as_uri()}{fragment}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )
    assert 'data-ready="yes"' in done.stdout, (done.returncode, done.stderr[-2000:])
    return done.stdout


def test_a_browser_draws_it_all(hang: Path, tmp_path: Path) -> None:
    """Operations and arrows are drawn, the finding stands on top, nothing of it is markup."""
    document = shown(page(hang), tmp_path)
    assert 'data-drawn="5"' in document
    assert 'data-arrows="1"' in document
    line = r'<li class="error"><button type="button">error: Rank 1 never joined'
    assert re.search(line, document)
    assert "5 operations of 2 processes" in document
    assert '<p id="part" hidden="">' in document


def test_a_browser_shows_the_details_of_an_operation(hang: Path, tmp_path: Path) -> None:
    """Chosen by the id that the other exports and ``diagnose`` give."""
    text = page(hang)
    (hung,) = [op for op in data(text)["operations"] if op["status"] == "in_flight"]
    document = shown(text, tmp_path, f"#op={hung['id']}")
    cells = dict(re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", document))
    assert cells["operation"] == "barrier #2"
    assert cells["process"] == "rank 0 (host, 4000), thread 0"
    assert cells["status"] == "in flight, it has no end"
    assert cells["duration"] == "at least 29.920 s"
    assert cells["called from"] == "train.py:10 main"
    assert cells["id"] == hung["id"]


def test_a_browser_says_that_it_shows_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the whole is to be had."""
    training(tmp_path / "journals", steps=10)
    monkeypatch.setattr(html, "OPERATIONS", 7)
    document = shown(page(tmp_path / "journals"), tmp_path)
    assert "shows only the last 7 of 20 operations" in document
    assert 'data-drawn="7"' in document
