"""What a job printed itself while it ran, kept beside its journals: less may be known later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from disttrace.journal.format import VERDICTS_SUFFIX, opened_own
from disttrace_viewer.load import files
from disttrace_viewer.load.journals import in_name
from disttrace_viewer.trace.plain_text import plain

MOST = 100
"""Of more verdicts the newest."""
SHOWN = 3
"""Of these the newest is shown in reports."""
MOST_BYTES = 4 << 20
_LATEST = 1 << 33
"""Unix seconds: what comes later has no date."""


def path_of(directory: str, job: str, root: str = "") -> str:
    """The file of a job's verdicts, in the folder of its journals. Where that is of one host, below
    ``root``, it is in the job's, so that all hosts have one.
    """
    folder = directory if root in ("", directory) else os.path.dirname(directory)
    return os.path.join(folder, in_name(job) + VERDICTS_SUFFIX)


def paths_of(directory: str, job: str) -> Iterator[str]:
    """The files in which verdicts of a job may be, by the folder of a journal of it."""
    yield path_of(directory, job)
    above = os.path.dirname(os.path.abspath(directory))
    if os.path.basename(above) == in_name(job):
        yield path_of(above, job)


def announced(directories: Iterable[str], jobs: Iterable[str]) -> tuple[dict[str, Any], ...]:
    """The announcements that were kept of some jobs, by folders of journals, oldest first."""
    places = [one for one in {*directories} if not files.is_remote(one)]
    paths = {path for one in places for job in {*jobs} for path in paths_of(one, job)}
    found = [one for path in sorted(paths) for one in _read(path)]
    return tuple(sorted(found, key=lambda one: float(one["at"]))[-MOST:])


def _read(path: str) -> Iterable[dict[str, Any]]:
    try:
        data, _ = files.read(path, MOST_BYTES)
    except OSError:  # a job that had nothing to say
        return
    for line in data.split(b"\n"):
        try:
            one = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # torn, or nothing of ours
        if not isinstance(one, dict) or one.get("disttrace") != 1:
            continue
        at, summary = one.get("at"), one.get("summary")
        if isinstance(at, (int, float)) and 0 <= at < _LATEST and type(summary) is str:
            yield {**one, "summary": plain(summary)}


def subject(finding: object) -> object:
    """What a finding (``diagnose --json``) is about, in whatever words; None: it is none."""
    if not isinstance(finding, dict) or "kind" not in finding:
        return None
    return repr([finding.get(name) for name in ("kind", "culprit_ranks", "group", "seq")])


def keep(
    path: str, objects: Sequence[dict[str, Any]], is_said: Callable[[], bool] | None = None
) -> bool:
    """Append to a job's verdicts (``path_of``), unless ``is_said``, under one lock with that;
    whether it was kept. Raises OSError."""
    with opened_own(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) as file:
        if is_said is not None:
            import fcntl  # not where journals are only read

            fcntl.flock(file, fcntl.LOCK_EX)
            if is_said():
                return False
        os.write(file, b"".join(orjson.dumps(one) + b"\n" for one in objects))
    return True
