"""Runs rows of the table of faults with `json,otlp` and bad collectors, and compares with `json`.

python benchmarks/faults_otlp.py                all rows, all collectors (more than an hour)
python benchmarks/faults_otlp.py --slice        the rows of `make test`
python benchmarks/faults_otlp.py --rows 2,11 --match torchrun --collector killed --jobs 2

Rows that hang are ended by SIGKILL once the diagnosis stands, as in `benchmarks/faults.py`. What
must not differ: what `diagnose` says, the exit code, stdout. What must be counted: lost spans.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from faults.expectation import Row  # noqa: E402
from faults.harness import Outcome, run_row  # noqa: E402
from faults.table import ROWS  # noqa: E402
from support.collector import Collector, exporters, serve_grpc  # noqa: E402

LOST = re.compile(r"^(?:.* )?(\d+) of (\d+) spans did not reach", re.MULTILINE)
PATIENCE_S = 90.0  # from the end of the last row until its exporters must be gone
SLOW_S = 5.0
ANSWERED_S = 0.5  # a request was counted, now let its answer out
START_S = 60.0


@dataclass(slots=True)
class Place:
    """Where spans go, and how many came in when it is asked."""

    endpoint: str
    taken: Callable[[], int]


@contextlib.contextmanager
def unreachable() -> Iterator[Place]:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield Place(f"http://127.0.0.1:{probe.getsockname()[1]}", lambda: 0)


@contextlib.contextmanager
def slow() -> Iterator[Place]:
    """Every request is answered after five seconds."""
    with serve_grpc(Collector(delay=SLOW_S)) as collector:
        yield Place(collector.endpoint, lambda: len(collector.spans))


def _serve(pipe: Connection) -> None:
    """The process of a collector, which reports the number of its spans whenever it grows."""
    collector = serve_grpc(Collector())
    pipe.send(collector.endpoint)
    count = 0
    while True:
        if len(collector.spans) > count:
            count = len(collector.spans)
            pipe.send(count)
        time.sleep(0.02)


@contextlib.contextmanager
def killed() -> Iterator[Place]:
    """A process of its own that works, and gets SIGKILL half a second after its first spans."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    counts: list[int] = [0]

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            counts.append(ours.recv())
            time.sleep(ANSWERED_S)
            process.kill()
            while True:
                counts.append(ours.recv())

    try:
        if not ours.poll(START_S):
            raise TimeoutError("the collector does not start")
        place = Place(ours.recv(), lambda: counts[-1])
        threading.Thread(target=watch, daemon=True).start()
        yield place
    finally:
        process.kill()
        process.join()


COLLECTORS: dict[str, Callable[[], contextlib.AbstractContextManager[Place]]] = {
    "unreachable": unreachable,
    "slow": slow,
    "killed": killed,
}


@dataclass(slots=True)
class Run:
    """One run of a row with one collector; the counts come after its exporter ended."""

    outcome: Outcome
    folder: Path
    place: Place
    lost: int | None = None  # what the exporter's log says; None where it still ran
    taken: int = 0

    @property
    def said(self) -> str:
        """What the diagnosis said at the end."""
        return self.outcome.verdicts[-1].said

    def harvest(self) -> None:
        """Read the counts."""
        self.taken = self.place.taken()
        if not exporters(self.folder / "journals"):
            logs = (log.read_text() for log in (self.folder / "journals").glob("*.log"))
            self.lost = sum(int(found[1]) for text in logs for found in LOST.finditer(text))

    def differs(self, plain: Outcome) -> list[str]:
        """In what this run differs from one that only writes journals."""
        facts = {
            "said": (plain.verdicts[-1].said, self.said),
            "right": (plain.right, self.outcome.right),
            "exit code": (plain.code, self.outcome.code),
            "stdout": tuple(sorted(one.stdout.splitlines()) for one in (plain, self.outcome)),
        }
        return [f"{name}: {was} -> {now}" for name, (was, now) in facts.items() if was != now]


@dataclass(slots=True)
class Comparison:
    """A row with journals alone, and with every collector."""

    row: Row
    plain: Outcome
    runs: dict[str, Run]


class Bench:
    """Runs rows; collectors stay until the exporters of all rows have ended."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, names: list[str]) -> None:
        self._folder = folder
        self._stack = stack
        self._names = names

    def compare(self, row: Row) -> Comparison:
        """Run the row with journals alone and with each collector, one after another."""
        plain = run_row(row, self._new(), DISTTRACE_EXPORT="json")
        runs = {}
        for name in self._names:
            place = self._stack.enter_context(COLLECTORS[name]())
            folder = self._new()
            outcome = run_row(
                row,
                folder,
                DISTTRACE_EXPORT="json,otlp",
                OTEL_EXPORTER_OTLP_ENDPOINT=place.endpoint,
            )
            runs[name] = Run(outcome, folder, place)
        sys.stderr.write(f"{row.name}\n")
        return Comparison(row, plain, runs)

    def _new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


def harvest(runs: list[Run]) -> None:
    """Wait for the exporters, and read what became of the spans."""
    deadline = time.monotonic() + PATIENCE_S
    left = list(runs)
    while left and time.monotonic() < deadline:
        left = [run for run in left if exporters(run.folder / "journals")]
        time.sleep(0.5)
    for run in runs:
        run.harvest()


def _cell(run: Run, plain: Outcome) -> str:
    lost = "exporter still runs" if run.lost is None else f"{run.lost} lost"
    return f"{'; '.join(run.differs(plain)) or 'same'}; {run.taken} taken, {lost}"


def table(comparisons: list[Comparison], names: list[str]) -> Iterator[str]:
    """The table in Markdown, and a line per collector."""
    yield f"| program | journals alone: said; exit code | {' | '.join(names)} |"
    yield "|---" * (2 + len(names)) + "|"
    for one in comparisons:
        code = "SIGKILL" if one.plain.code is None else str(one.plain.code)
        wrong = "" if one.plain.right else " (WRONG)"
        cells = [_cell(run, one.plain) for run in one.runs.values()]
        plain = f"{one.plain.verdicts[-1].said}{wrong}; {code}"
        yield f"| {' | '.join((f'`{one.row.name}`', plain, *cells))} |"
    yield ""
    for name in names:
        same = sum(not one.runs[name].differs(one.plain) for one in comparisons)
        yield f"{name}: {same} of {len(comparisons)} the same"


def durations(comparisons: list[Comparison], names: list[str]) -> Iterator[str]:
    """How much longer rows took that end by themselves; rough, `bench_otlp.py` measures calls."""
    ended = [one for one in comparisons if one.row.ends == "ends"]
    for name in names if ended else ():
        ratios = [one.runs[name].outcome.seconds / one.plain.seconds for one in ended]
        yield (
            f"{name}: {statistics.median(ratios):.2f} times the duration "
            f"(median of the {len(ended)} rows that end by themselves)"
        )


def main() -> int:
    """Run, print the table; exit code 1 if anything differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="numbers in the list of faults; 0: healthy")
    parser.add_argument("--slice", action="store_true", help="only those of `make test`")
    parser.add_argument("--match", default="", help="only rows whose name contains this")
    parser.add_argument("--collector", default=",".join(COLLECTORS), help="some of the default")
    parser.add_argument("--jobs", type=int, default=1, help="rows at the same time")
    options = parser.parse_args()
    names = options.collector.split(",")
    if unknown := set(names) - set(COLLECTORS):
        parser.error(f"no such collector: {', '.join(sorted(unknown))}")
    numbers = {int(one) for one in options.rows.split(",") if one}
    rows = [
        row
        for row in ROWS
        if (not numbers or row.number in numbers)
        and (not options.slice or row.fixed_slice)
        and options.match in row.name
        and row.needs is None
    ]
    scratch = tempfile.TemporaryDirectory(
        prefix="disttrace-faults-otlp-", ignore_cleanup_errors=True
    )
    with scratch as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), stack, names)
        with ThreadPoolExecutor(options.jobs) as pool:
            comparisons = list(pool.map(bench.compare, rows))
        harvest([run for one in comparisons for run in one.runs.values()])
        print("\n".join(table(comparisons, names)), flush=True)
        if options.jobs == 1:  # rows beside each other disturb each other
            print("\n".join(durations(comparisons, names)), flush=True)
    same = not any(run.differs(one.plain) for one in comparisons for run in one.runs.values())
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
