"""NCCL: an operation is over when the device has finished it, not when its call returned."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.processes import Outcome, clean_environ, run_program
from support.raw import RawJournal, read_journals

PROGRAM = Path(__file__).parent / "programs" / "late.py"
LATE = 3.0
SECOND = 1_000_000_000

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[RawJournal]:
    """Journals of both ranks, in order of rank."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("needs a CUDA device and a torch with NCCL")
    folder = tmp_path_factory.mktemp("nccl")
    out = folder / "out"

    def rank(number: int) -> Outcome:
        env = clean_environ(NCCL_HOSTID=str(number), TORCH_NCCL_TRACE_BUFFER_SIZE="2000")
        command = [sys.executable, str(PROGRAM), str(number), str(folder / "store"), str(out)]
        return run_program([*command, str(LATE)], env, 120)

    with ThreadPoolExecutor(2) as pool:
        for outcome in pool.map(rank, range(2)):
            outcome.check()
    return sorted(read_journals(out), key=lambda journal: str(journal.of("identity")))


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
