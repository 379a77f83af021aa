"""The recorder numbers, interns, and keeps a journal within its bound."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disttrace.capture.objects.works import Works
from disttrace.journal import originals
from disttrace.journal.writer import JournalWriter
from disttrace.recording.recorder import Recorder
from support.cores import CORES, EACH_CORE, recorder
from support.raw import RawJournal, read_journals


class Bench:
    """A recorder over a folder, and what it said when it failed."""

    def __init__(self, folder: Path, core: str, *, max_bytes: int = 2**20) -> None:
        self.folder = folder
        self.failures: list[BaseException] = []
        self.recorder = recorder(folder, core, self.failures, max_bytes=max_bytes)

    def journal(self) -> RawJournal:
        (journal,) = read_journals(self.folder)
        return journal


@pytest.fixture(params=CORES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path / "out", request.param)


def call(recorder: Recorder, op: str = "all_reduce", **keys: Any) -> Any:
    fixed: dict[str, Any] = {"synchronous": False, "counter": recorder.core.new_counter()}
    return recorder.call(op, **fixed | keys)[0]


def test_writes_nothing_before_the_first_record(bench: Bench) -> None:
    """A process that never uses c10d leaves no file."""
    bench.recorder.threads.state  # noqa: B018
    bench.recorder.close()
    assert not bench.folder.exists()


def test_one_thread_opens_the_journal_on_a_slow_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening takes longer than another thread waits for a lock whose owner stands still."""
    monkeypatch.setattr(originals, "PATIENCE_S", 0.05)
    recorder, opened = bench.recorder, list[JournalWriter]()
    opens = recorder._open_journal

    def slowly() -> JournalWriter:
        time.sleep(0.5)
        opened.append(opens())
        return opened[-1]

    recorder._open_journal = slowly
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: recorder.begin(recorder.threads.state, call(recorder)), range(3)))
    recorder.close()
    assert (len(opened), bench.failures) == (1, [])
    assert sum("b" in record for record in bench.journal().records) == 3


def test_questions_to_a_store_are_not_counted(bench: Bench) -> None:
    """Whoever polls begins them all the time, and does not get on."""
    recorder = bench.recorder
    thread = recorder.threads.state
    recorder.begin(thread, call(recorder))
    assert recorder.core.begun == 1
    for op, kind in (("store.check", "store"), ("barrier", "collective")):
        recorder.begin(thread, call(recorder, op, kind=kind))
    assert recorder.core.begun == 2


def test_begin_and_end_are_joined_by_the_number(bench: Bench) -> None:
    """One synchronous and one asynchronous operation, record by record."""
    recorder = bench.recorder
    thread = recorder.threads.state
    synchronous, asynchronous = call(recorder, synchronous=True), call(recorder)
    first = recorder.begin(thread, synchronous)
    first.issued = 5
    recorder.end_synchronous(first)
    second = recorder.begin(thread, asynchronous, b',"n":7')
    recorder.issued(second)
    recorder.wait_begins(second)
    recorder.end(second)
    recorder.close()
    records = [{k: v for k, v in r.items() if k not in "td"} for r in bench.journal().records]
    assert records == [
        {"seg": 1, "format": 2, "process": "p"}, {"b": 1, "s": 1, "q": 1}, {"e": 1, "u": 5},
        {"b": 2, "s": 2, "q": 1, "n": 7}, {"i": 2}, {"w": 2}, {"e": 2},
    ]  # fmt: skip


def test_a_definition_comes_before_what_refers_to_it(bench: Bench) -> None:
    """Strings and stacks are written once, and before the first record with their number."""
    recorder = bench.recorder
    frames = [("a.py", 3, "f"), ("a.py", 9, "main")]
    assert recorder.stack(frames) == recorder.stack(list(frames)) == 1
    recorder.close()
    assert [r for r in bench.journal().definitions if r["def"] in ("string", "stack")] == [
        {"def": "string", "n": 1, "v": "a.py"},
        {"def": "string", "n": 2, "v": "f"},
        {"def": "string", "n": 3, "v": "main"},
        {"def": "stack", "n": 1, "frames": [[1, 3, 2], [1, 9, 3]]},
    ]


def test_a_call_that_raises_on_issue_takes_no_number(bench: Bench) -> None:
    """The sequence number goes to the next call."""
    recorder = bench.recorder
    thread = recorder.threads.state
    made = call(recorder)
    failing = recorder.begin(thread, made)
    recorder.failed(failing, ValueError("no\nsuch"), on_issue=True)
    assert recorder.begin(thread, made).seq == failing.seq == 1
    recorder.close()
    journal = bench.journal()
    assert journal.only("string")["v"] == "ValueError: no"
    assert [(r["x"], r["f"]) for r in journal.records if "x" in r] == [(1, 1)]


def test_a_gap_stays_where_another_number_was_taken(bench: Bench) -> None:
    """Giving back what is no longer the newest must not repeat a number."""
    counter = bench.recorder.core.new_counter()
    first = counter.next()
    counter.next()
    counter.give_back(first)
    assert counter.next() == 3


@EACH_CORE
def test_the_bound_holds_and_what_is_in_flight_survives(tmp_path: Path, core: str) -> None:
    """Old segments go, the drop is recorded, and every segment opens with the pending begins."""
    bench = Bench(tmp_path, core, max_bytes=8 * 65_536)
    recorder = bench.recorder
    thread = recorder.threads.state
    made = call(recorder, synchronous=True)
    pending = recorder.begin(thread, made)
    for _ in range(20_000):
        operation = recorder.begin(thread, made)
        operation.issued = 1
        recorder.end_synchronous(operation)
    recorder.close()
    segments = sorted(tmp_path.glob("*.ops.jsonl"))
    assert sum(os.path.getsize(s) for s in segments) <= 8 * 65_536
    journal = bench.journal()
    dropped = [r["segment"] for r in journal.of("dropped")]
    assert dropped == list(range(1, len(dropped) + 1))
    opened = [r["seg"] for r in journal.records if "seg" in r]
    assert opened == list(range(len(dropped) + 1, len(dropped) + 1 + len(segments)))
    copies = [r for r in journal.records if r.get("b") == pending.n]
    assert [r["r"] for r in copies] == [1] * len(segments)
    begins = {r["b"] for r in journal.records if "b" in r} - {pending.n}
    assert max(begins) == 20_001
    assert begins == set(range(min(begins), 20_002))


def test_a_deleted_folder_is_noticed(bench: Bench, tmp_path: Path) -> None:
    """What is written to a deleted file reaches nobody: the check says so."""
    recorder = bench.recorder
    recorder.end(recorder.begin(recorder.threads.state, call(recorder)))
    recorder.check()
    assert not bench.failures
    for file in bench.folder.iterdir():
        file.unlink()
    recorder.check()
    assert [str(failure) for failure in bench.failures] == ["its journal was deleted"]


def test_progress_ignores_heartbeats(bench: Bench) -> None:
    """A stalled process goes on beating, and that is no progress."""
    recorder = bench.recorder
    recorder.core.wake = lambda: None
    operation = recorder.begin(recorder.threads.state, call(recorder))
    before = recorder.progress()
    recorder.heartbeat()
    assert recorder.progress() == before
    recorder.end(operation)
    assert recorder.progress() > before
    recorder.close()


def test_strange_text_is_still_json(bench: Bench) -> None:
    """Lone surrogates and huge integers come from real file names and real arguments."""
    recorder = bench.recorder
    recorder.note("note", text="caf\udce9", number=2**80)
    recorder.close()
    assert bench.journal().only("note")["number"] == 2**80


def test_drops_are_on_record_before_they_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of a deletion, a journal has no hole that nothing explains."""
    known: list[tuple[int, list[int]]] = []

    def unlink(path: str) -> None:
        number = int(path.split(".")[-3])
        dropped = [d["segment"] for d in bench.journal().definitions if d["def"] == "dropped"]
        known.append((number, dropped))
        os.remove(path)

    monkeypatch.setattr(os, "unlink", unlink)
    recorder = bench.recorder
    each = call(recorder)
    while len(known) < 3:
        recorder.end(recorder.begin(recorder.threads.state, each))
    recorder.close()
    # Whether one of them or two go at once depends on how many digits the times have.
    assert known[:3] == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]


@pytest.mark.parametrize(("mode", "folder"), [(0o600, 0o700), (0o640, 0o750), (0o666, 0o777)])
def test_files_have_the_permissions_asked_for(tmp_path: Path, mode: int, folder: int) -> None:
    """Whatever the umask: by default nobody but the owner reads a journal."""
    before = os.umask(0o022 if mode == 0o600 else 0o077)
    try:
        journal = JournalWriter(str(tmp_path / "out"), "j", max_bytes=2**20, mode=mode)
        journal.open_segment([b"{}\n"], lambda number: None)
    finally:
        os.umask(before)
    journal.close()
    files = list((tmp_path / "out").iterdir())
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}
    assert (tmp_path / "out").stat().st_mode & 0o777 == folder


class _Work:
    def is_completed(self) -> bool:
        return False


@pytest.mark.parametrize("at_the_end", [True, False])
def test_what_cxx_issued_is_in_flight_when_it_ends(bench: Bench, *, at_the_end: bool) -> None:
    """It was lost if its Work went away before."""
    recorder = bench.recorder
    works = Works(recorder)
    recorder.core.wake = lambda: None
    operation = recorder.begin(recorder.threads.state, call(recorder))
    recorder.issued(operation)
    works.hold(_Work(), operation)
    works.poll(everything=True)
    if at_the_end:
        works.release()
    else:
        works._held.clear()
    recorder.close()
    lost = [r for r in bench.journal().records if "l" in r]
    assert bool(lost) is not at_the_end
