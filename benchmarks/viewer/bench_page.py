"""How fast the page of a job is there and is drawn again, in a headless Chromium without a GPU.

    python benchmarks/viewer/bench_page.py [--operations 200000] [--ranks 64] [--axe FILE] [DIR]

Prints the size of the page, the time from its opening until it is ready and the CPU time of the
browser's process for that, and the median and the
longest of 15 redraws: of the whole trace with lanes folded and unfolded, of half of it, from near,
and of the whole while something is searched; and the time until the tables are there. Without DIR
journals are generated. With --axe (axe.min.js, of the package axe-core) it also prints what axe
finds in the timeline and in the tables, light and dark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "viewer"), str(ROOT / "tests")]

from disttrace_viewer.merge.reader import load  # noqa: E402
from disttrace_viewer.views.timeline import content  # noqa: E402
from support.browser import PATH, Browser, browser  # noqa: E402
from support.journals import bulk  # noqa: E402

REDRAWS = """(() => {
  const of = () => {
    const times = [];
    for (let n = 0; n < 15; n += 1) { draw(); times.push(timing.draw); }
    times.sort((a, b) => a - b);
    return [times[7], times[14]];
  };
  const found = {};
  home(); found.folded = of();
  foldAll(); found.unfolded = of();
  zoom(0.5, middle()); found.half = of();
  zoom(0.01, middle()); found.near = of();
  home(); search("all_reduce"); found.searched = of();
  return JSON.stringify(found);
})()"""


TABLES = """(() => {
  const begin = performance.now(); tables(true); clearTimeout(summing); fillVisible();
  document.body.offsetHeight;
  return performance.now() - begin;
})()"""
AXE = """axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map(
  (one) => `${one.impact}: ${one.id}, ${one.nodes.length}x: ${one.nodes[0].html.slice(0, 99)}`))"""


STATES = {
    "timeline": "tables(false)",
    "selection": "find('a'); match(1); T.findings.length && showFinding(0)",
    "tables": "tables(true)",
    "keys": "tables(false); get('help').click()",
}


def accessible(chromium: Browser, page: Path, axe: str) -> None:
    """What axe finds, in the states of the page, in both themes."""
    for dark in (False, True):
        chromium.open(page.as_uri(), width=1400, height=860, dark=dark)
        chromium.run(axe + ";0")
        for state, script in STATES.items():
            chromium.run(f"{script};0")
            chromium.settle()
            found = chromium.run(AXE)
            print(f"axe, {state}, {'dark' if dark else 'light'}: {found or 'nothing'}")


def main() -> None:
    """Generate, export, open, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--axe", type=Path, metavar="FILE")
    parser.add_argument("dir", nargs="?", metavar="DIR")
    chosen = parser.parse_args()
    if PATH is None:
        sys.exit("no Chromium here")
    with tempfile.TemporaryDirectory() as scratch:
        journals = Path(chosen.dir or f"{scratch}/journals")
        if chosen.dir is None:
            bulk(journals, chosen.operations, world_size=chosen.ranks)
        trace = load([str(journals)])
        page = Path(scratch) / "page.html"
        begin = time.perf_counter()
        page.write_bytes(b"".join(content.lines(trace)))
        print(f"{trace.operations.height:,} operations of {len(trace.processes)} processes")
        print(f"written in {time.perf_counter() - begin:.1f} s, {page.stat().st_size / 1e6:.1f} MB")
        with browser(Path(scratch) / "profile") as chromium:
            chromium.open(page.as_uri(), width=1400, height=860)
            cpu = chromium.cpu_s()  # with the start of the process, 0.1 to 0.2 s
            chromium.settle()
            print(f"ready after {chromium.run('timing.ready'):.0f} ms, {cpu:.2f} s of CPU time,")
            print(f"{chromium.cpu_s():.2f} s when all is summed up")
            for view, (median, longest) in json.loads(chromium.run(REDRAWS)).items():
                print(f"redraw, {view:9} {median:6.1f} ms, longest {longest:6.1f} ms")
            chromium.run("find('')")
            print(f"tables  {chromium.run(TABLES):6.1f} ms, {chromium.run(TABLES):6.1f} ms again")
            if chosen.axe:
                accessible(chromium, page, chosen.axe.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
