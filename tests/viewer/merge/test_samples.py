"""Stack samples: all of the main thread stay, by time and under aligned clocks."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.merge.reader import load
from support.journals import MS, UNIX_NS, workers
from support.scenes import S, stand


def test_every_sample_of_the_main_thread_is_kept(tmp_path: Path) -> None:
    """In the order of time; other threads' samples are not among them."""
    (journal,) = workers(tmp_path, 1)
    stand(journal, 3 * S, "loader.py", 9, "wait")
    stand(journal, S, "loader.py", 7, "fetch")
    journal.record(at=2 * S, h=3, k=journal.stack(("pool.py", 1, "run")))
    (process,) = load([str(tmp_path)]).processes
    assert [(s.t_ns - UNIX_NS, s.stack[0].line) for s in process.samples] == [
        (1000 * MS, 7),
        (3000 * MS, 9),
    ]
