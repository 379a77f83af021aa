"""Loses parts of journals one by one: what a copy, a full disk or a permission may take away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import orjson

from disttrace_viewer.analysis.liveness import Look
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.report import healthy, report
from disttrace_viewer.merge.jobs import closure, newest
from disttrace_viewer.merge.reader import load
from support.scenes import nobody_knows


def forbid(path: Path) -> None:
    """Nobody may read it. Root may read everything: then a link to itself cannot be opened."""
    if os.geteuid():
        path.chmod(0)
        return
    path.unlink()
    path.symlink_to(path)


def cut(keep: Callable[[int], int]) -> Callable[[Path], None]:
    """It ends early, and within a line: a cut between two looks like a process that froze there."""

    def do(path: Path) -> None:
        data = path.read_bytes().rstrip(b"\0")
        size = max(0, min(len(data), keep(len(data))))
        if data[size - 1 : size + 1].count(b"\n") and size > 2:
            size -= 3
        os.truncate(path, size)

    return do


LOSSES: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink, "unreadable": forbid, "empty": cut(lambda _: 0),
    "50 bytes": cut(lambda _: 50), "half": cut(lambda size: size // 2),
    "nearly whole": cut(lambda size: size - 5),
}  # fmt: skip


FEW = ("removed", "unreadable", "half")
"""One of each sort, where there are many journals to lose."""


def each_loss(
    folder: Path, scratch: Path, ways: Collection[str] = tuple(LOSSES)
) -> Iterator[tuple[str, Path]]:
    """What was lost, and a copy of the folder without it: for every file of it and every way."""
    for number, path in enumerate(sorted(folder.rglob("*.jsonl"))):
        for name, do in ((name, LOSSES[name]) for name in ways):
            copy = scratch / f"{number}-{name.replace(' ', '-')}"
            shutil.copytree(folder, copy, symlinks=True, copy_function=_copied)
            do(copy / path.relative_to(folder))
            yield f"{path.name}: {name}", copy
            shutil.rmtree(copy)


def _copied(path: str, copy: str) -> None:
    """With its times; a companion that ends may have removed it by now."""
    with suppress(FileNotFoundError):
        shutil.copy2(path, copy, follow_symlinks=False)


def outcome(folder: Path, look: Look = nobody_knows) -> tuple[int, set[int], dict[str, object]]:
    """Exit code, ranks that are blamed, and the report, of the newest job."""
    trace = load([str(folder)], choose=lambda of: [j.id for j in closure(of, [newest(of).id])])
    if not trace.processes:
        return 2, set(), {}
    verdict = verdict_on(trace, look=look)
    case, findings = verdict.case, verdict.findings
    found = orjson.loads(orjson.dumps(report(case, findings)))
    serious = [one["culprit_ranks"] for one in found["findings"] if one["severity"] != "note"]
    blamed = {rank for ranks in serious for rank in ranks}
    return 1 if not healthy(findings) else 2 if case.incomplete else 0, blamed, found


def wrong_verdicts(
    folder: Path, scratch: Path, look: Look = nobody_knows, ways: Collection[str] = tuple(LOSSES)
) -> list[str]:
    """Losses after which somebody else is blamed, or a fault is said to be none."""
    code, blamed, _ = outcome(folder, look)
    wrong = []
    for name, damaged in each_loss(folder, scratch, ways):
        now, named, found = outcome(damaged, look)
        kinds = [f["kind"] for f in found.get("findings", ())]  # type: ignore[attr-defined]
        if named - blamed:
            wrong.append(f"{name}: blames {sorted(named)} instead of {sorted(blamed)} for {kinds}")
        if now == 0 and code == 1:
            wrong.append(f"{name}: a fault is said to be none")
        if now == 1 and code == 0:
            wrong.append(f"{name}: {kinds} where nothing is wrong")
    return wrong
