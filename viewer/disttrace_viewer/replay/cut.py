"""The journals of a job as they would be, had it stood where a replay stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.load import files
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.replay.sequences import Script, lines
from disttrace_viewer.replay.strict import Standing

_OVER = ("exit", "failure", "handling", "rendezvous")
_LATER_NS = 3_600_000_000_000
"""So long everybody has stood: nobody is on the way any more."""


def cut(
    scripts: Sequence[Script], standing: Mapping[int, Standing]
) -> tuple[list[Files], set[str]]:
    """The journals, in memory, and the ids of those processes that stand or wait for such."""
    stuck = {scripts[index].journal.id for index in standing}
    parents = {one.journal.id: one.journal.definitions.process.get("parent") for one in scripts}
    above = {parent for one in stuck for parent in _above(one, parents)}
    at_ns = _LATER_NS + max(script.last_ns for script in scripts)
    found = []
    for script in scripts:
        if script.journal.id in stuck or script.journal.id in above:
            found.append(_held(script.journal, _shortened(script, standing, at_ns)))
        else:
            found.append(script.journal.files)
    return found, stuck | above


def _above(process: str, parents: Mapping[str, str | None]) -> list[str]:
    found: list[str] = []
    while (one := parents.get(process)) is not None and one in parents and one not in found:
        found.append(one)
        process = one
    return found


def _shortened(
    script: Script, standing: Mapping[int, Standing], at_ns: int
) -> dict[int, list[bytes]]:
    """The lines of each segment up to where the process stands, and a sign of life after them."""
    stands = standing.get(script.index, Standing({}, frozenset()))
    limits = {thread: step.place for thread, step in stands.at.items()}
    found: dict[int, list[bytes]] = {number: [] for number in script.journal.files.segments}
    threads: dict[int, int] = {}
    begun: dict[int, int] = {}
    newest = max(found, default=1)
    for segment, place, line in lines(script.journal, Problems()):
        record = json_object(line)
        if record is None or "hb" in record:
            continue
        number, thread = _of(record, threads)
        limit = limits.get(thread)
        if limit is not None and place > limit and "seg" not in record:
            continue
        if "b" in record:
            begun.setdefault(number, record["t"])
        if number >= 0 and (number not in begun or number in stands.queued):
            continue
        if number in stands.pending and not {"b", "i", "w"} & record.keys():
            continue
        found[segment].append(line)
    at = at_ns - (script.journal.definitions.process.get("unix_ns") or 0)
    for action in stands.awaited:
        found[newest].append(
            orjson.dumps({"w": action.number, "d": at - _LATER_NS - begun[action.number]})
        )
    found.setdefault(newest, []).append(orjson.dumps({"hb": at}))
    return found


def _of(record: Mapping[str, Any], threads: dict[int, int]) -> tuple[int, int]:
    """The operation and the thread of a record; -1 for what is of none."""
    if "b" in record:
        threads[record["b"]] = record.get("h", 0)
        return record["b"], record.get("h", 0)
    if "at" in record:
        return -1, record.get("h", 0)
    number = next((record[key] for key in ("e", "i", "w", "c", "o", "l") if key in record), -1)
    return number, threads.get(number, -1)


def _held(journal: Journal, segments: Mapping[int, list[bytes]]) -> Files:
    """A journal in memory, with the definitions of what has not ended."""
    base = f"{journal.files.base}#replayed"
    definitions = []
    if journal.files.definitions is not None:
        data = texts.read(journal.files.definitions, Problems()).data
        for line in data.splitlines():
            record = json_object(line) or {}
            kind = record.get("def")
            if kind in _OVER or (kind == "worker" and record.get("event") != "started"):
                continue
            definitions.append(line)
    found = Files(base, f"{base}.definitions")
    files.hold(found.definitions or "", b"\n".join((*definitions, b"")), journal.modified_ns)
    for number, kept in segments.items():
        path = f"{base}.{number}"
        files.hold(path, b"\n".join((*kept, b"")), journal.modified_ns)
        found.segments[number] = path
    return found
