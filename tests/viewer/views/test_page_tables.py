"""The page's tables in a browser: the numbers of ``stats``, sorted, saved, searched and printed."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

import disttrace
from disttrace_viewer.api import Stats
from support.browser import Browser
from support.journals import MS, UNIX_NS, bulk, workers
from support.pages import Page, page
from support.processes import wait_until

STEPS = 20
SUMS = """JSON.stringify(statistics(-Infinity, Infinity, true),
  (_, value) => (value instanceof Map || ArrayBuffer.isView(value) ? [...value] : value))"""


@pytest.fixture
def overlapping(tmp_path: Path) -> Path:
    """Four ranks: an all_reduce awaited late, two of C++'s that overlap, a message; 2 is late."""
    for journal in workers(tmp_path / "overlapping", 4):
        group, rank = journal.world(), journal.rank or 0
        late = 8 * MS if rank == 2 else 0
        call = journal.collective(group, asynchronous=True, bytes=4000, shapes=[[1000]])
        bucket = journal.collective(group, asynchronous=True, origin="c++", bytes=800)
        even = rank % 2 == 0
        message = journal.message(group, "send" if even else "recv", rank + 1 if even else rank - 1)
        for step in range(STEPS):
            t = (100 + 60 * step) * MS
            number = journal.begin(call, t=t + late, q=1 + step)
            whole = 18 * MS - late  # to 18 ms after t, where rank 2 comes at 8
            journal.record(i=number, d=MS // 10)
            journal.record(w=number, d=6 * MS)
            journal.end(number, whole)
            for nth in range(2):
                q = 1 + STEPS + 2 * step + nth
                number = journal.begin(bucket, t=t + (25 + 3 * nth) * MS, q=q)
                journal.record(i=number, d=MS // 10)
                journal.end(number, 5 * MS)
            journal.run(message, t=t + 40 * MS + rank * MS // 4, d=2 * MS, q=1 + step)
        journal.define("exit", t=(100 + 60 * STEPS) * MS, how="normal", code=0)
    return tmp_path / "overlapping"


def sums(view: Page) -> dict[str, Any]:
    """Over the whole run; what is of ranks is by rank."""
    found: dict[str, Any] = orjson.loads(view.run(SUMS))
    order = view.run("T.processes.map((_, n) => n).sort((a, b) => order(a) - order(b))")
    found["ranks"] = {name: [one[n] for n in order] for name, one in found["ranks"].items()}
    return found


def held_by_stats(found: dict[str, Any], stats: Stats) -> None:
    """What the page sums up over the whole run is what ``stats`` says."""
    names = {"blocked": "communicating_ns", "waiting": "waiting_ns", "held": "made_others_wait_ns"}
    for mine, theirs in names.items():
        assert found["ranks"][mine] == stats.ranks[theirs].to_list(), mine
    assert found["ranks"]["flying"] == stats.overlap["in_flight_ns"].to_list()
    hidden = [a - b for a, b in zip(found["ranks"]["flying"], found["ranks"]["holding"])]
    assert hidden == stats.overlap["overlapped_ns"].to_list()
    rows = {(row["op"], row["line"]): row for row in stats.operations.to_dicts()}
    assert len(found["ops"]) == len(rows)
    for one in found["ops"]:
        row, took = rows[one["name"], one["line"]], sorted(one["took"])
        for mine in ("calls", "bytes"):
            assert one[mine] == row[mine]
        assert (one["total"], one["waiting"]) == (row["total_ns"], row["waiting_ns"])
        assert took[-1] == row["max_ns"]
        speed = one["moved"] / (one["busy"] / 1e9) if one["busy"] else None
        assert speed == (None if row["busbw"] is None else pytest.approx(row["busbw"], rel=1e-6))
        last = [entry["count"] for entry in row["last_to_arrive"]]
        assert sorted((number for _, number in one["last"]), reverse=True) == last


def test_its_sums_are_those_of_stats(chromium: Browser, overlapping: Path, tmp_path: Path) -> None:
    """Also of what is under way while a rank computes, whether the wait for it is seen or not."""
    view = Page(chromium, overlapping)
    stats = disttrace.stats(overlapping)
    held_by_stats(sums(view), stats)
    # Of each step of rank 0: 5.9 ms behind its work, and 3 ms of the first bucket behind the second
    # one's making.
    by_rank = {row["rank"]: row for row in stats.overlap.to_dicts()}
    assert by_rank[0]["overlapped_ns"] == STEPS * (5_900_000 + 3 * MS)
    assert by_rank[0]["in_flight_ns"] == STEPS * (18 * MS + 8 * MS + 2 * MS)
    view.close()
    bulk(tmp_path / "bulk", 2000, world_size=4)
    view = Page(chromium, tmp_path / "bulk")
    held_by_stats(sums(view), disttrace.stats(tmp_path / "bulk"))
    view.close()


def cells(view: Page, name: str, column: int) -> list[str]:
    path = f"[aria-labelledby=of-{name}] tbody td:nth-child({column})"
    found: list[str] = view.run(f"[...document.querySelectorAll({path!r})].map((c) => c.innerText)")
    return found


def test_tables_in_the_place_of_the_timeline(chromium: Browser, overlapping: Path) -> None:
    """By a key; sorted by a click and by Enter; what is in the address comes back."""
    view = Page(chromium, overlapping)
    view.press("v")
    hidden = "['view', 'side', 'tables'].map((id) => get(id).hidden)"
    assert view.run(hidden) == [True, True, False]
    assert cells(view, "ranks", 1) == [f"rank {n}" for n in range(4)]
    heading = "[aria-labelledby=of-ranks] th:nth-child(5)"
    assert view.text(heading) == "made others wait"
    view.click(f"{heading} button")
    way = f"document.querySelector({heading!r}).getAttribute('aria-sort')"
    assert view.run(way) == "descending"
    assert cells(view, "ranks", 1)[0] == "rank 2"
    view.press("Enter")  # the heading has the focus
    assert view.run(way) == "ascending"
    assert cells(view, "ranks", 1)[-1] == "rank 2"
    # What is searched is summed up, and so is what is measured.
    view.press("/")
    view.type("rank:1 op:=send")
    assert view.text("#tables .dim").startswith("Of what the search finds: 0 operations")
    view.press("Escape", "Escape")
    answers = disttrace.stats(overlapping).to_dict()["what_if"]
    assert len(cells(view, "whatif", 1)) == len(answers) > 0
    assert "rank 2's excess (most of it before train.py:10)" in cells(view, "whatif", 1)
    shown = view.run("T.run.what_if.rows.map((row) => row.saved_ns)")
    assert shown == [one["saved_ns"] for one in answers]
    path = disttrace.stats(overlapping).critical_path
    assert view.run("T.run.path.rows.map((row) => row.time_ns)") == path["time_ns"].to_list()
    before = view.run("location.hash")
    assert "view=tables" in before
    view.open(before)
    assert view.run("get('tables').hidden") is False
    view.press("v")
    assert view.run("[get('view').hidden, get('tables').hidden]") == [False, True]
    assert view.run("canvas.width > 300")
    view.close()
    # Names come from programs, and a spreadsheet would run them.
    told = view.run("""['=1+1', '+a', 'a,"b"', 'plain', -5, null].map(cellOf)""")
    assert told == ["'=1+1", "'+a", '"a,""b"""', "plain", "-5", ""]


def test_a_bar_of_the_histogram_finds_its_operations(chromium: Browser, overlapping: Path) -> None:
    """40 steps between the fastest and the slowest; the search that a click asks has as many. And
    what the job said itself stands below the findings, as ``diagnose`` shows it.
    """
    summary = "Rank 2 never joined all_reduce #3."
    said = {"disttrace": 1, "kind": "stalled", "at": UNIX_NS / 1e9, "summary": summary}
    (overlapping / "job.verdicts.jsonl").write_bytes(orjson.dumps(said) + b"\n")
    view = Page(chromium, overlapping)
    words = view.text("#findings .said")
    assert words.startswith("Said by the job itself at ")
    assert words.endswith(f": {summary}")
    view.press("v")
    bar = "document.querySelector('.hist.large button:not([disabled])')"
    told = view.run(f"{bar}.getAttribute('aria-label')")
    view.run(f"{bar}.click()")
    view.chromium.settle()
    asked = view.run("get('query').value")
    assert asked.startswith('op:"=all_reduce" line:"train.py:10 " took>0ns took<')
    assert view.text("#found").split()[0] == told.split()[0]
    view.close()


def test_what_is_in_view_is_saved(chromium: Browser, overlapping: Path, tmp_path: Path) -> None:
    """As the browser writes it: a table of the operations found, and one of the ranks."""
    view = Page(chromium, overlapping)
    folder = tmp_path / "saved"
    folder.mkdir()
    chromium.save_to(folder)
    view.press("/")
    view.type("rank:2 op:send")
    view.press("Escape", "v")
    for button in ("#tables > .top .save", "#of-ranks ~ .save"):
        view.run(f"document.querySelector({button!r}).click()")
    paths = {name: folder / f"disttrace-{name}.csv" for name in ("operations", "by-rank")}
    # A browser takes the name before it writes.
    wait_until(lambda: all(p.exists() and p.stat().st_size for p in paths.values()), 10)
    files = {}
    for name, path in paths.items():
        with path.open(newline="", encoding="utf-8") as file:
            files[name] = list(csv.DictReader(file))
    rows = disttrace.load(overlapping).operations.filter(op="send", rank=2)
    saved = files["operations"]
    assert [row["id"] for row in saved] == rows["id"].to_list()
    assert [int(row["begin_ns"]) for row in saved] == rows["begin_ns"].to_list()
    told = {(row["op"], row["rank"], row["line"]) for row in saved}
    assert told == {("send", "2", "train.py:20 exchange")}
    assert len(files["by-rank"]) == 4
    view.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file older than the run, with a secret in its second line."""
    path = tmp_path / "train.py"
    path.write_text("import torch\nlogin(hf_token='hf_abcdefghijklmnopqrstuvwx12')\nstep()\n")
    os.utime(path, ns=(UNIX_NS - 10**12, UNIX_NS - 10**12))
    (journal,) = workers(tmp_path / "journals", 1)
    group = journal.world()
    for n, line in enumerate((2, 3), 1):
        stack = journal.stack((str(path), line, "main"))
        journal.run(journal.collective(group, stack=stack), t=n * 50 * MS, d=MS, q=n)
    journal.define("exit", t=200 * MS, how="normal", code=0)
    return path


def test_the_line_itself_stands_beside_its_number(chromium: Browser, program: Path) -> None:
    """Masked; not of a file that was changed since, nor where it is left out."""
    view = Page(chromium, program.parent / "journals")
    for name, text in (("all_reduce #1", "login(hf_token='***')"), ("all_reduce #2", "step()")):
        view.run(f"choose(withId({view.operation(name, 0)!r}), false)")
        assert view.text("#detail .source") == text
    view.close()
    assert [len(frame) for frame in frames_of(view, program, source=False)] == [3, 3]
    os.utime(program, ns=(UNIX_NS + 10**12, UNIX_NS + 10**12))
    assert [len(frame) for frame in frames_of(view, program)] == [3, 3]


def frames_of(view: Page, program: Path, **options: bool) -> list[list[Any]]:
    view.file.write_text(page(program.parent / "journals", **options), encoding="utf-8")
    view.open()
    found: list[list[Any]] = view.run("T.stacks.flatMap(([frames]) => frames)")
    return found


def test_matches_in_a_folded_lane_are_lit_and_unfold(chromium: Browser, tmp_path: Path) -> None:
    """The lane that stands for 64 says how many it hides."""
    for journal in workers(tmp_path / "many", 64):
        call = journal.collective(journal.world())
        for step in range(1, 4):
            journal.run(call, t=step * 100 * MS, d=20 * MS, q=step)
        journal.define("exit", t=1000 * MS, how="normal", code=0)
    view = Page(chromium, tmp_path / "many")
    assert view.run("L.lanes.length") == 1
    lit = "[hiddenMatches(L.lanes[0]).begins.length, hiddenMatches(L.lanes[0]).processes.size]"
    # Of the strip on top of the lane, where the second step begins.
    at = "[...pen.getImageData(Math.round(x(200e6)) - 1, L.lanes[0].top + 3, 1, 1).data].join()"
    view.press("/")
    view.type("rank:33,34")
    assert view.run(lit) == [6, 2]
    assert view.run(at) == "51,103,214,255"  # the accent's colour
    view.press("Enter")
    assert view.run("L.lanes.length") == 64
    assert view.run("T.processes[T.process[V.op]].rank") == 33
    view.close()


def test_it_is_printed_light_and_whole(chromium: Browser, overlapping: Path) -> None:
    """From the dark as well; on paper is no button."""
    view = Page(chromium, overlapping)
    view.run("store('dark'); paintTheme()")
    sizes = chromium.printed("[height === L.height, width === PAPER.width, shift]")
    assert sizes == [True, True, 0]
    assert view.run("height === get('view').clientHeight")
    view.press("v")
    seen = chromium.printed(
        "['body', 'nav'].map((one) => getComputedStyle(document.querySelector(one)))"
        ".map((one, n) => (n ? one.display : one.backgroundColor)).join(' ')"
    )
    assert seen == "rgb(255, 255, 255) none"
    # Browsers repeat no head on the next sheet that has a button in it.
    head = (
        "[getComputedStyle(one.querySelector('button')).display,"
        " getComputedStyle(one, '::after').content]"
    )
    seen = chromium.printed(f"((one) => {head})(document.querySelector('th[aria-sort]'))")
    assert seen == ["none", '"total ▾"']
    assert view.run("document.documentElement.dataset.theme") == "dark"
    view.run("store('system'); paintTheme()")
    view.close()
