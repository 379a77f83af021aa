"""The verdict on folders of any size: where processes are by states, and what is over by tables.

States need nothing but orjson. What nobody waits in any more (a straggler, work never waited for,
arguments that differed in a call that returned) takes a table of all operations, and Polars.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from disttrace_viewer.api.report import Report, report_of, settled, stall_ns
from disttrace_viewer.load.files import is_remote
from disttrace_viewer.merge.choice import chooser, folders
from disttrace_viewer.states import folder, job
from disttrace_viewer.states.engines import engine_of

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths

Progress = Callable[[int, int], None]
"""Called with journals done so far, and of how many."""


def diagnose(
    path: Paths = None,
    job: str | None = None,
    *,
    stall_s: float | None = None,
    engine: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """What is wrong in a job (see ``load`` for ``path`` and ``job``). ``stall_s``: while processes
    live, waiting is a fault from so many seconds on (default: DISTTRACE_STALL, else 10).

    ``path`` may also lead to files of states, and to object stores; ``engine`` names a cluster
    that reads. Of these, of jobs that are too large for a table, and where Polars is not installed
    only where processes are is judged, and the report says so.

    Raises:
        ViewerError: when there are no journals, or no such job, or no such engine.
    """
    return settled(lambda: _read(path, job, stall_s, engine, progress))


def _read(
    path: Paths,
    wanted: str | None,
    stall_s: float | None,
    engine: str | None,
    progress: Progress | None,
) -> Report:
    where = folders(path)
    found = job.judged(
        where,
        choose=chooser(wanted),
        stall_ns=stall_ns(stall_s),
        engine=engine_of(engine),
        progress=progress,
    )
    # Reading these as a whole would move them all.
    apart = engine is not None or any(map(is_remote, where)) or any(map(folder.holds_states, where))
    if apart or importlib.util.find_spec("polars") is None:
        return report_of(found)
    if not found.healthy and not job.fits_a_table(where):
        return report_of(found)
    from disttrace_viewer.analysis.exchanges import Exchanges
    from disttrace_viewer.api.reading import read
    from disttrace_viewer.history.verdict import looking_back, verdict_on

    exchanges = Exchanges(read(path, wanted))
    whole = looking_back(found, exchanges)
    if whole is None:  # a process came in between
        whole = verdict_on(exchanges.trace, exchanges, stall_ns=stall_ns(stall_s))
    return report_of(whole)
