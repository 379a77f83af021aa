"""NCCL: an operation is over when the device has finished it, not when its call returned."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from support.processes import Outcome, clean_environ, run_program
from support.raw import RawJournal, read_journals

PROGRAMS = Path(__file__).parent / "programs"
LATE = 3.0
TIMEOUT = 5.0
SECOND = 1_000_000_000

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    """Without one there is nothing to test here."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("needs a CUDA device and a torch with NCCL")


def both_ranks(program: str, folder: Path, out: Path | None, seconds: float) -> list[Outcome]:
    """How the ranks of a program ended that share the device; None: not traced."""

    def rank(number: int) -> Outcome:
        env = clean_environ(NCCL_HOSTID=str(number), TORCH_NCCL_TRACE_BUFFER_SIZE="2000")
        arguments = [number, folder / "store", out or "-", seconds]
        return run_program(
            [sys.executable, str(PROGRAMS / program), *map(str, arguments)], env, 120
        )

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))


def by_rank(out: Path) -> list[RawJournal]:
    """The journals, in order of rank."""
    return sorted(read_journals(out), key=lambda journal: str(journal.of("identity")))


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[RawJournal]:
    """Journals of both ranks, of which the second comes late."""
    folder = tmp_path_factory.mktemp("nccl")
    for outcome in both_ranks("late.py", folder, folder / "out", LATE):
        outcome.check()
    return by_rank(folder / "out")


def test_every_operation_is_seen_finished(journals: list[RawJournal]) -> None:
    """Synchronous, asynchronous, coalesced, batched and captured ones."""
    for journal in journals:
        kinds = {n: call["kind"] for n, call in journal.calls().items()}
        over = {r[key] for r in journal.records for key in ("c", "e") if key in r}
        begun = [r for r in journal.records if "b" in r and "r" not in r]
        ours = [r["b"] for r in begun if kinds[r["s"]] in ("collective", "message")]
        assert len(ours) >= 9
        assert [n for n in ours if n not in over] == []


def test_in_flight_while_the_other_rank_does_not_come(journals: list[RawJournal]) -> None:
    """The waiting rank's host went on at once; its device finished when the other had come."""
    waits = []
    for journal in journals:
        issued = {r["i"]: r["d"] for r in journal.records if "i" in r}
        finished = {r["c"]: r["d"] for r in journal.records if "c" in r}
        hung = [n for n, d in finished.items() if d > (LATE - 1) * SECOND]
        waits.append(len(hung))
        assert [n for n in hung if issued[n] > SECOND] == []
    assert sorted(waits) == [0, 1]


def test_nothing_waits_for_the_device(tmp_path: Path) -> None:
    """Issuing behind a long kernel takes the host a small share of the device's time."""

    def share(folder: str) -> float:
        command = [sys.executable, str(PROGRAMS / "behind.py"), folder, "1"]
        outcome = run_program(command, clean_environ(), 120).check()
        return median(map(float, outcome.stdout.split()))

    untraced, traced = share("-"), share(str(tmp_path))
    assert untraced < 0.3, "torch itself waits here: this shows nothing"
    assert traced < untraced + 0.1
    (journal,) = read_journals(tmp_path)
    reduces = [over for op, _, over in journal.operations() if op == "all_reduce"]
    assert len(reduces) > 200
    assert reduces == [True] * len(reduces)


def test_the_watchdog_ends_a_process_as_without_tracing(tmp_path: Path) -> None:
    """Its operation stays in flight on record: the one that the other rank never came to."""
    plain = both_ranks("abandoned.py", tmp_path / "plain", None, TIMEOUT)
    traced = both_ranks("abandoned.py", tmp_path / "traced", tmp_path / "out", TIMEOUT)
    assert [outcome.code for outcome in traced] == [outcome.code for outcome in plain]
    assert traced[0].code != 0
    assert not traced[0].hung
    first, _ = by_rank(tmp_path / "out")
    reduces = [(seq, over) for op, seq, over in first.operations() if op == "all_reduce"]
    assert reduces == [(1, True), (2, False)]
