"""Runs the table of faults with `json,otlp` and bad collectors, and compares with `json` alone.

python tests/reliability/faults_otlp.py --jobs 2 --write   all rows (an hour), into docs/dev/otlp.md
python tests/reliability/faults_otlp.py --slice              the rows of `make test`
python tests/reliability/faults_otlp.py --rows 2,11 --match torchrun --collector killed --show

Rows that hang are ended by SIGKILL once the diagnosis stands, as in `faults.py` here. What
must not differ: what `diagnose` says after the end and whether it is right, the exit code, stdout,
the uncaught exceptions of every rank, what disttrace says besides. What must be counted: spans
that did not arrive. Where something differs, the row is run up to four times more with journals
alone: only what none of these runs shows is a difference.

`--keep FILE` appends every finished row there, and skips the rows that it has already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from benchmarks.report import Table, markdown, replaced  # noqa: E402
from disttrace_viewer.otlp.pipeline import Pipeline  # noqa: E402
from faults.expectation import Row  # noqa: E402
from faults.harness import run_row  # noqa: E402
from reliability.bad_collectors import COLLECTORS, Place  # noqa: E402
from reliability.faults import able, chosen, selecting  # noqa: E402
from reliability.outcomes import Facts, differences, facts  # noqa: E402
from support.collector import exporters  # noqa: E402

PAGE = REPOSITORY / "docs" / "dev" / "otlp.md"
SECTION = "faults"
LOST = re.compile(r"^(?:.* )?(\d+) of \d+ spans did not reach", re.MULTILINE)
PATIENCE_S = 90.0  # from the end of a row until its exporters must be gone
PLAIN_RUNS = 5


@dataclass(slots=True)
class Run:
    """A row with one collector: what differed, and what became of its spans."""

    different: list[str] = field(default_factory=list)
    after: int = 1  # runs with journals alone until one was the same in everything that differed
    seconds: float = 0.0
    made: int = 0  # spans of the journals, pending ones apart
    taken: int = 0
    lost: int = 0  # as the exporter counted them
    ended: bool = True  # the exporter is gone

    def accounted(self) -> bool:
        """Every span arrived or was counted as lost."""
        return self.ended and self.taken + self.lost >= self.made

    def good(self) -> bool:
        """As it must be."""
        return self.accounted() and not self.different


@dataclass(slots=True)
class Result:
    """A row with journals alone, and with every collector."""

    name: str
    number: int
    said: str
    code: str
    right: bool
    ends: bool
    seconds: float
    runs: dict[str, Run]

    @classmethod
    def read(cls, line: str) -> Result:
        """From a line of `--keep`."""
        found = cls(**json.loads(line))
        found.runs = {name: Run(**run) for name, run in found.runs.items()}  # type: ignore[arg-type]
        return found


class Bench:
    """Runs rows, one after another in each of its workers."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._names = names

    def compare(self, row: Row) -> Result:
        """Run the row with journals alone and with each collector, and look for differences."""
        first = run_row(row, self._new(), {"DISTTRACE_EXPORT": "json"})
        plain = [facts(first)]
        result = Result(
            row.name, row.number, plain[0]["diagnosis"], plain[0]["exit code"],
            first.right, row.ends == "ends", first.seconds, {},
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            waiting = []
            for name in self._names:
                place = stack.enter_context(COLLECTORS[name]())
                folder = self._new()
                run, seen = self._run(row, folder, place)
                run.different, run.after = self._differences(row, seen, plain)
                result.runs[name] = run
                waiting.append((run, folder, place))
            for run, folder, place in waiting:
                harvest(run, folder / "journals", place)
        return result

    def _run(self, row: Row, folder: Path, place: Place) -> tuple[Run, Facts]:
        outcome = run_row(
            row,
            folder,
            {"DISTTRACE_EXPORT": "json,otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": place.endpoint},
        )
        return Run(seconds=outcome.seconds), facts(outcome)

    def _differences(self, row: Row, seen: Facts, plain: list[Facts]) -> tuple[list[str], int]:
        """What no run with journals alone shows, and how many of them it took to know that."""
        looked = 1
        while different := differences(seen, plain[:looked]):
            if looked == PLAIN_RUNS:
                break
            if looked == len(plain):
                plain.append(facts(run_row(row, self._new(), {"DISTTRACE_EXPORT": "json"})))
            looked += 1
        return different, looked

    def _new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


def harvest(run: Run, journals: Path, place: Place) -> None:
    """Wait for the exporter, and read what became of the spans."""
    deadline = time.monotonic() + PATIENCE_S
    while exporters(journals) and time.monotonic() < deadline:
        time.sleep(0.5)
    run.ended = not exporters(journals)
    run.taken = place.taken()
    logs = (log.read_text() for log in journals.glob("*.log"))
    run.lost = sum(int(found[1]) for text in logs for found in LOST.finditer(text))
    run.made = spans_of(journals)


def spans_of(journals: Path) -> int:
    """How many spans the journals are worth when all of their processes have ended."""
    count: list[object] = []
    pipeline = Pipeline(count.append, pending_ns=1 << 62)
    for path in sorted(journals.glob("*.defs.jsonl")):
        pipeline.follow(str(journals), path.name.removesuffix(".defs.jsonl"))
    pipeline.finish()
    return len(count)


def table(results: list[Result], names: list[str]) -> Table:
    """A line per fault: how many of its programs' runs were the same, and what became of spans."""
    lines = []
    for number in sorted({one.number for one in results}, key=lambda n: n or 99):
        these = [one for one in results if one.number == number]
        cells = [_cell([one.runs[name] for one in these]) for name in names]
        lines.append((str(number or "healthy"), str(len(these)), *cells))
    lines.append(("all", str(len(results)), *(_cell([r.runs[n] for r in results]) for n in names)))
    return Table("Rows", ("row", "programs", *names), tuple(lines))


def _cell(runs: list[Run]) -> str:
    same = sum(run.good() for run in runs)
    taken, lost = sum(run.taken for run in runs), sum(run.lost for run in runs)
    return f"{same} same; {taken} taken, {lost} lost"


def remarks(results: list[Result], names: list[str]) -> Iterator[str]:
    """What was not the same, and what took more than one run to compare with."""
    pairs = [(one, name, one.runs[name]) for one in results for name in names]
    bad = [(one, name, run) for one, name, run in pairs if not run.good()]
    again = [(one, name, run) for one, name, run in pairs if run.good() and run.after > 1]
    yield f"{len(pairs) - len(bad)} of {len(pairs)} runs were the same."
    if wrong := [f"`{one.name}`" for one in results if not one.right]:
        yield f"With journals alone already, not all was said rightly of {', '.join(wrong)}."
    for one, name, run in bad:
        what = list(run.different)
        if not run.accounted():
            what.append(
                f"{run.taken} taken and {run.lost} lost of {run.made}"
                + ("" if run.ended else "; the exporter still ran")
            )
        yield f"* `{one.name}`, {name}: {'; '.join(what)}"
    if again:
        programs = sorted({f"`{one.name}`" for one, _, _ in again})
        most = max(run.after for _, _, run in again)
        yield (
            f"{len(again)} of them were the same as a later run with journals alone (of up to "
            f"{most}): these programs end in more ways than one, or by SIGKILL just before they "
            f"would. They are {', '.join(programs)}."
        )
    took = []
    for name in names:
        ratios = [one.runs[name].seconds / one.seconds for one in results if one.ends]
        if ratios:
            took.append(f"{statistics.median(ratios):.2f} ({name}, median of {len(ratios)})")
    if took:
        yield (
            "Rows that end by themselves took, diagnosis included and with other rows beside them, "
            f"as a ratio to journals alone: {', '.join(took)}."
        )


def page(results: list[Result], names: list[str], skipped: list[Row]) -> str:
    """The section of the documentation."""
    _, _, rows = markdown(table(results, names)).partition("\n\n")
    left = [f"{len(skipped)} rows need what is not here and were not run."] if skipped else []
    return "\n\n".join([rows.strip(), *remarks(results, names), *left])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = selecting(__doc__)
    parser.add_argument("--collector", default=",".join(COLLECTORS), help="some of the default")
    parser.add_argument("--keep", type=Path, help="a file for finished rows, to go on later")
    parser.add_argument("--show", action="store_true", help="print every row's facts")
    parser.add_argument(
        "--write", action="store_true", help="put the outcome into docs/dev/otlp.md"
    )
    options = parser.parse_args()
    options.names = options.collector.split(",")
    if unknown := set(options.names) - set(COLLECTORS):
        parser.error(f"no such collector: {', '.join(sorted(unknown))}")
    partial = options.rows or options.slice or options.match
    if options.write and (partial or options.names != list(COLLECTORS)):
        parser.error("--write takes a run of all rows with all collectors")
    return options


def main() -> int:
    """Run, print the table; exit code 1 if anything differed."""
    options = parse()
    wanted = chosen(options)
    here = [row for row in wanted if able(row)]
    done: dict[str, Result] = {}
    if options.keep and options.keep.exists():
        kept = map(Result.read, options.keep.read_text().splitlines())
        done = {one.name: one for one in kept}
    scratch = tempfile.TemporaryDirectory(
        prefix="disttrace-faults-otlp-", ignore_cleanup_errors=True
    )
    with scratch as folder, ThreadPoolExecutor(options.jobs) as pool:
        bench = Bench(Path(folder), options.names)
        for result in pool.map(bench.compare, [row for row in here if row.name not in done]):
            done[result.name] = result
            _tell(result, options)
    results = [done[row.name] for row in here]
    text = page(results, options.names, [row for row in wanted if row not in here])
    print(text, flush=True)
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), text, SECTION))
    good = all(run.good() for one in results for run in one.runs.values())
    return 0 if good else 1


def _tell(result: Result, options: argparse.Namespace) -> None:
    state = "same" if all(run.good() for run in result.runs.values()) else "DIFFERENT"
    print(f"{state}: {result.name}", flush=True)
    if options.show or state == "DIFFERENT":
        print(json.dumps(asdict(result), indent=1), flush=True)
    if options.keep:
        with options.keep.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
