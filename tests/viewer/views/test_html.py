"""The timeline as a page: what stands in it, and, where there is a browser, what it does."""

from __future__ import annotations

import base64
import gzip
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views import jsonl
from disttrace_viewer.views.timeline import content
from support.browser import Browser
from support.journals import MS, Journal, S, bulk, training, workers
from support.pages import Page, page
from support.scenes import alive

LOOKS = ("light", "light", "dark")
NASTY = "</script><script>alert(1)</script><!--"
NONE = (1 << 32) - 1


def data(text: str) -> dict[str, Any]:
    """What the page draws: the head, and its columns as lists under their names."""
    found = re.search(r'<script type="text/plain" id="trace">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    packed = gzip.decompress(base64.b64decode(found[1]))
    (size,) = struct.unpack_from("<I", packed)
    values: dict[str, Any] = orjson.loads(packed[4 : 4 + size])
    at = 4 + size
    for column in values.pop("columns"):
        rows = column["rows"]
        numbers = list(struct.unpack_from(f"<{rows}I", packed, at))
        at += 4 * rows
        if column["wide"]:
            high = struct.unpack_from(f"<{rows}i", packed, at)
            at += 4 * rows
            numbers = [(a << 32) + b for a, b in zip(high, numbers, strict=True)]
        if column["delta"]:
            for n in range(1, rows):
                numbers[n] += numbers[n - 1]
            if not column["wide"]:
                numbers = [number & NONE for number in numbers]
        values[column["name"]] = numbers
    assert at == len(packed)
    return values


@pytest.fixture
def hang(tmp_path: Path) -> Path:
    """Rank 1 is outside communication; rank 0 waits in a barrier, whose name is odd."""
    first, second = workers(tmp_path / "journals", 2)
    for journal in alive((first, second), 30):
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
            journal.stand(80 * MS, "loader.py", 7, "fetch")
    return tmp_path / "journals"


def test_it_holds_what_the_other_exports_hold(hang: Path) -> None:
    """Ids, times and what they share, of every operation; the finding, and where to look."""
    found = data(page(hang))
    trace = load([str(hang)])
    exported = map(orjson.loads, b"".join(jsonl.lines(trace)).splitlines())
    rows = {row["id"]: row for row in exported}
    ids = [
        f"{found['processes'][process]['id']}.{number}"
        for process, number in zip(found["process"], found["number"], strict=True)
    ]
    assert sorted(ids) == sorted(rows)
    for n, row in enumerate(rows[one] for one in ids):
        call = found["calls"][found["call"][n]]
        assert int(found["start_ns"]) + found["begin"][n] == row["begin_ns"]
        assert found["end"][n] == (-1 if row["end_ns"] is None else row["end_ns"] - row["begin_ns"])
        assert found["seq"][n] == (row["seq"] or NONE)
        assert (call["op"], call["kind"]) == (row["op"], found["calls"][found["call"][n]]["kind"])
        assert found["stacks"][call["stack"]][0] == row["stack"]
        assert found["processes"][found["process"][n]]["rank"] == row["rank"]
    (finding,) = found["findings"]
    assert (finding["kind"], finding["culprit_ranks"]) == ("missing_participant", [1])
    assert (finding["from"], finding["to"]) == (80 * MS, 30 * S)
    # The zero is that of the view, of Perfetto and of statistics: the launch.
    assert int(found["start_ns"]) == trace.launch_ns
    culprits = [found["processes"][one]["rank"] for one in finding["culprit_processes"]]
    assert (culprits, finding["operation"]) == ([1], None)
    # Rank 0 waits 1 ms for rank 1 in the first collective, and without an end in the second.
    ops = [found["calls"][call]["op"] for call in found["call"]]
    ranks = {NONE: None, **{n: one["rank"] for n, one in enumerate(found["processes"])}}
    told = [
        (ranks[found["process"][n]], found["until"][n], ranks[found["for"][n]])
        for n, op in enumerate(ops)
        if op != "annotate"
    ]
    assert sorted(told, key=str) == [(0, -1, 1), (0, MS, 1), (1, 0, None)]


def test_a_band_for_every_collective_an_arrow_for_every_message(tmp_path: Path) -> None:
    """Also where not all have arrived; a message with one end only has no arrow."""
    bulk(tmp_path, 800, world_size=4)
    one = Journal(tmp_path, pid=1, rank=9, world_size=1)
    one.begin(one.message(one.world(), "send", 0), t=MS, q=1)
    found = data(page(tmp_path))
    exchanges = Exchanges(load([str(tmp_path)]))
    both = exchanges.messages.drop_nulls(["send_process", "recv_process"])
    assert len(found["ex_last"]) == exchanges.collectives.height > 100
    assert len(found["msg_send"]) == both.height > 30
    members = exchanges.participants().height
    assert (len(found["member_op"]), len(set(found["member_op"]))) == (members, members)


def test_nothing_is_loaded_from_anywhere(hang: Path) -> None:
    """No address, and a policy that forbids it; strings of a program cannot end the script."""
    text = page(hang)
    tags: list[str] = []
    links: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            links.extend(name for name, _ in attrs if name in ("src", "href", "action", "style"))

    Tags().feed(text)
    assert (tags.count("script"), tags.count("style"), links) == (2, 1, [])
    assert "default-src 'none'; style-src 'sha256-" in text
    assert "unsafe" not in text
    assert "://" not in text
    assert NASTY not in text
    assert NASTY in {call.get("name") for call in data(text)["calls"]}
    # The panel beside the timeline is reached by Tab, under a name; paper does not scroll.
    assert '<aside id="side" tabindex="0" aria-label="Selection and statistics">' in text
    printed = text.partition("@media print {")[2].partition("\n}")[0]
    assert re.search(r"#view, aside, #tables \{[^}]*overflow: visible", printed)


def test_the_newest_and_what_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones that never ended stay; the number of all is told."""
    (journal,) = workers(tmp_path, 1)
    group = journal.world()
    journal.begin(journal.collective(group, "barrier", asynchronous=True), t=MS, q=1)
    call = journal.collective(group)
    for step in range(2, 12):
        journal.run(call, t=step * MS, d=1000, q=step)
    monkeypatch.setattr(content, "OPERATIONS", 4)
    found = data(page(tmp_path))
    assert found["seq"] == [1, 9, 10, 11]
    assert found["total"] == 11
    # An empty timeline, with the process.
    Journal(tmp_path / "empty", pid=1, role="main")
    found = data(page(tmp_path / "empty"))
    assert (found["begin"], len(found["processes"])) == ([], 1)


# -- in a browser --------------------------------------------------------------------------------


def test_a_healthy_job(chromium: Browser, tmp_path: Path) -> None:
    """All is drawn; few enough for bands and arrows; the start-up is cropped until asked for."""
    journals = workers(tmp_path / "journals", 2)
    for journal in journals:
        group, rank = journal.world(), journal.rank or 0
        init = journal.call("init_process_group", kind="composed", origin="python")
        journal.run(init, t=MS, d=5 * MS)
        call = journal.collective(group, asynchronous=True)
        for step in range(1, 5):
            number = journal.begin(call, t=20 * S + step * 20 * MS + rank * MS, q=step)
            journal.end(number, 8 * MS - rank * MS, u=MS)
        message = journal.message(group, "send" if rank == 0 else "recv", 1 - rank)
        journal.run(message, t=20 * S + 100 * MS + rank * MS, d=3 * MS, q=1)
        journal.define("exit", t=20 * S + 110 * MS, how="normal", code=0)
    view = Page(chromium, tmp_path / "journals")
    assert "Nothing wrong was found." in view.text("#findings")
    assert view.text("#counts") == "2 ranks, 12 operations, 20.1 s"
    told = view.dataset()
    assert (told["collectives"], told["bands"]) == ("4", "4")
    assert (told["messages"], told["arrows"]) == ("1", "1")
    assert told["drawn"] == "10"
    assert view.run("V.from") > 19 * S
    view.press("Home")
    assert (view.run("V.from < 0"), view.dataset()["drawn"]) == (True, "12")
    view.click("#all")
    assert view.run("V.from") > 19 * S
    view.press("?")
    assert "measure" in view.text("#keys")
    view.press("Escape")
    theme = "document.documentElement.dataset.theme + ' by ' + get('theme').textContent"
    seen = [view.run(theme)]
    for _ in range(2):
        view.click("#theme")
        seen.append(view.run(theme))
    assert seen == [
        f"{a} by Theme: {b}" for a, b in zip(LOOKS, ("system", *LOOKS[1:]), strict=True)
    ]
    names = [{"name": "all_gather_into_tensor", "group": f"group [{n}-7]"} for n in "04"]
    assert view.run(f"{names}.map(shortName)") == ["all_gath…or [0-7]", "all_gath…or [4-7]"]
    assert view.run("document.querySelectorAll('#canvas[aria-label], [aria-live]').length") >= 3
    view.close()


def test_a_straggler(chromium: Browser, tmp_path: Path) -> None:
    """A click on the finding selects its operation; tooltip and panel say who waited for whom.
    Rank 2 of 4 comes 40 ms late to each of 20 all_reduces, which then take 2 ms.
    """
    for journal in workers(tmp_path / "straggler", 4):
        rank = journal.rank or 0
        call = journal.collective(journal.world(), shapes=[[1000]], bytes=4000)
        for step in range(1, 21):
            late = 40 * MS if rank == 2 else rank * MS // 10
            journal.run(call, t=step * 50 * MS + late, d=42 * MS - late, q=step)
        journal.define("exit", t=2 * S, how="normal", code=0)
    view = Page(chromium, tmp_path / "straggler")
    view.click("#findings button")
    assert view.text("#detail h2").startswith("all_reduce #")
    assert view.text("#detail .lead") == "Arrived last of 4, 3 others waited up to 40.0 ms for it."
    chosen = view.run("T.processes[T.process[V.op]].rank")
    size = view.run("V.to - V.from")
    assert (chosen, 42 * MS <= size <= 100 * MS) == (2, True)
    view.point(view.operation(view.text("#detail h2"), 0))
    lines = view.text("#tip").splitlines()
    assert lines[0] == f"{view.text('#detail h2')}, rank 0"
    assert lines[1] == "waited 40.0 ms for rank 2; arrived first of 4"
    # 4,000 bytes in 2 ms by the formula of nccl-tests: 2 MB/s, times 2 (4 - 1) / 4.
    assert lines[2] == "42.0 ms, exchange 2.00 ms, 3.00 MB/s bus"
    assert lines[-1] == "train.py:10 main"
    assert "made others wait\nrank 2" in view.text("#visible").replace("\t", "\n")
    view.press("Home")
    assert "20 of 20" not in view.text("#visible")
    assert "rank 2 \u00d720" in view.text("#visible")
    assert re.search(r"rank 2\s+0\s+2\.39 s|rank 2\s+0\s+2\.40 s", view.text("#visible"))
    view.close()


@pytest.fixture
def hang64(tmp_path: Path) -> Path:
    """Rank 61 of 64 is in its loader; all others are in the sixth all_reduce."""
    for journal in alive(workers(tmp_path / "hang64", 64), 30):
        rank = journal.rank or 0
        call = journal.collective(journal.world())
        for step in range(1, 6):
            journal.run(call, t=step * 100 * MS + rank * MS // 10, d=20 * MS, q=step)
        if rank == 61:
            journal.stand(2 * S, "many.py", 8, "load_batch")
        else:
            journal.begin(call, t=600 * MS, q=6)
    return tmp_path / "hang64"


def test_a_hang_of_64_ranks(chromium: Browser, hang64: Path) -> None:
    """Two lanes, the culprit's on top with its line as a bar; a click selects that bar."""
    view = Page(chromium, hang64)
    lanes = "L.lanes.map((lane) => people(lane.processes))"
    assert view.run(lanes) == ["rank 61", "ranks 0-60, 62, 63"]
    view.click("#findings button")
    assert view.text("#detail h2") == "rank 61, outside communication"
    assert "many.py:8 load_batch" in view.text("#detail")
    assert view.run("V.gap.process === T.processes.findIndex((one) => one.rank === 61)")
    span = (view.run("V.from"), view.run("V.to"))
    assert span[0] <= 500 * MS
    assert span[1] >= 29 * S
    box = view.run("document.querySelector('#view').getBoundingClientRect().y")
    view.chromium.mouse("mouseMoved", 700.0, box + 26 + 21)
    view.chromium.settle()
    assert "at many.py:8 load_batch" in view.text("#tip")
    label = view.run("L.lanes[1].top + 10 - document.querySelector('#view').scrollTop")
    view.chromium.click(100.0, box + label)
    view.chromium.settle()
    assert len(view.run(lanes)) == 64
    view.press("g", "g", "1")
    assert len(view.run(lanes)) == 2
    view.press("ArrowDown", "k")
    assert view.run(lanes) == ["rank 61", "rank 0", "ranks 1-60, 62, 63"]
    view.press("k")
    assert len(view.run(lanes)) == 2
    view.point(view.operation("all_reduce #6", 0))
    assert "waiting 29.4 s for rank 61" in view.text("#tip")
    view.close()


def test_only_the_keyboard(chromium: Browser, hang64: Path) -> None:
    """Nothing was clicked: finding, moving, searching, measuring, letting go; all is spoken."""
    view = Page(chromium, hang64)
    view.press("1")
    assert view.text("#spoken").startswith("error: Rank 61")
    view.press("ArrowDown")
    assert view.text("#detail h2") == "all_reduce #6"
    assert "waiting 29.4 s for rank 61" in view.text("#spoken")
    view.press("ArrowLeft", "ArrowLeft")
    assert view.text("#detail h2") == "all_reduce #4"
    view.press("f")
    near = view.run("V.to - V.from")
    assert near < 40 * MS
    view.press("s")
    assert view.run("V.to - V.from") > near
    begin = view.run("V.from")
    view.press("d")
    assert view.run("V.from") > begin
    view.press("a", "w")
    assert view.run("Math.round(V.to - V.from)") == round(near)
    view.press("m")
    assert view.text("#visible h2") == "In the measured 20.0 ms"
    view.press("Escape", "Escape")
    assert view.text("#detail h2") == "Nothing is selected"
    view.press("/")
    view.type("rank:61 #3")
    assert view.text("#found") == "1 of 383"
    view.press("Enter")
    assert view.text("#detail h2") == "all_reduce #3"
    view.press("Escape", "x")
    assert view.dataset()["drawn"] == "1"
    view.press("Escape", "Escape")
    assert view.run("F.mask") is None
    view.close()


def test_the_address_holds_what_is_seen(chromium: Browser, hang64: Path) -> None:
    """Span, selection and search come back; so does the form that other exports' ids allow."""
    view = Page(chromium, hang64)
    view.press("/")
    view.type("#5")
    view.press("Enter", "Escape", "f")
    seen = "[Math.round(V.from), Math.round(V.to), idOf(V.op), F.text, F.hits.length]"
    before, fragment = view.run(seen), view.run("location.hash")
    assert before[3:] == ["#5", 64]
    view.open(fragment)
    assert view.run(seen) == before
    identity = view.operation("all_reduce #6", 3)
    view.open(f"#op={identity}")
    assert view.text("#detail h2") == "all_reduce #6"
    assert identity in view.text("#detail")
    view.close()


def test_200000_operations(chromium: Browser, tmp_path: Path) -> None:
    """All are there; zoomed, measured, searched and filtered."""
    bulk(tmp_path / "bulk", 200_000)
    view = Page(chromium, tmp_path / "bulk")
    assert view.run("T.n") == 200_000
    assert int(view.dataset()["drawn"]) == 200_000
    assert view.run("document.querySelector('#part').hidden")
    x, y = view.where(view.operation("all_reduce #9000", 3))
    for _ in range(40):
        view.chromium.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    view.chromium.settle()
    assert view.run("V.to - V.from") < 5 * MS
    view.chromium.drag((600.0, y), (900.0, y), shift=True)
    view.chromium.settle()
    measured = view.run("V.span[1] - V.span[0]")
    assert measured == pytest.approx(300 * view.run("(V.to - V.from) / (width - LABEL)"), rel=0.01)
    assert view.text("#visible h2") == f"In the measured {view.run(f'time({measured})')}"
    view.press("Escape", "/")
    view.type("send")
    assert view.text("#found") == "10,000 of 200,000"
    view.press("Escape", "x", "Home")
    assert int(view.dataset()["drawn"]) == 10_000
    view.close()


def test_it_says_that_it_shows_a_part(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training(tmp_path / "journals", steps=10)
    monkeypatch.setattr(content, "OPERATIONS", 7)
    view = Page(chromium, tmp_path / "journals")
    assert "shows only the last 7 of 20 operations" in view.text("#part")
    assert view.dataset()["drawn"] == "7"
    view.close()


def test_an_empty_job_and_odd_names(chromium: Browser, hang: Path, tmp_path: Path) -> None:
    """Nothing to draw is no error; a program's strings are text."""
    Journal(tmp_path / "empty", pid=1, role="main")
    Page(chromium, tmp_path / "empty").close()
    view = Page(chromium, hang)
    view.press("/")
    view.type("alert")
    view.press("Enter")
    assert view.text("#detail h2") == NASTY
    view.close()
