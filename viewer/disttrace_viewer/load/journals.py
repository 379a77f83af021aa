"""One journal per process: its files found, its definitions read, copies of it merged."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice

from disttrace.journal.format import DEFS_SUFFIX, SEGMENT
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.definitions import BY_OTHERS, Definitions, name_newer, parse
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.files import MOST_DEFINITIONS, modified_ns, size
from disttrace_viewer.load.files import part as read_part
from disttrace_viewer.load.problems import LOSSES, Problems, plural
from disttrace_viewer.load.schema import Checker, Record, json_object
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.values import dataclass, field

_NAME = re.compile(r"^(?P<job>.*)-(?P<host>[^-]*)-(?P<pid>\d+)-(?P<random>[0-9A-Za-z]+)$")
_HEAD_BYTES = 1 << 10
"""The head is a line of a hundred bytes."""


@dataclass(slots=True)
class Journal:
    """What is known of a process before its segments are read."""

    id: str
    files: Files
    definitions: Definitions
    from_name: dict[str, str] = field(default_factory=dict)
    """Job, host and pid as the file's name has them, for want of a definition."""
    modified_ns: int = 0
    """Newest modification of its files: the process was alive then or later."""

    @property
    def orphaned(self) -> bool:
        """Whether the definition of the process is lost: then nothing of the journal was read."""
        return "process" not in self.definitions.process

    @property
    def reported_files(self) -> tuple[str, ...]:
        """The files of which problems may tell: also one that is not there."""
        return (self.definitions.path, *self.files.paths)


def in_name(part: str) -> str:
    """A job's id or a host as names of files have it."""
    return re.sub(r"[^A-Za-z0-9._]", "_", part)[:60]


def gather(found: Sequence[Files], problems: Problems) -> list[Journal]:
    """The journals in these files, oldest process first; what is none is named and left out."""
    journals: dict[str, Journal] = {}
    for files in found:
        journal = open_journal(files, problems)
        if journal is None:
            continue
        other = journals.get(journal.id)
        journals[journal.id] = journal if other is None else _merge(other, journal, problems)
    for journal in journals.values():
        name_gaps(journal, problems)
    return sorted(
        journals.values(),
        key=lambda j: (j.definitions.process.get("start_ns", j.modified_ns), j.id),
    )


def open_journal(files: Files, problems: Problems) -> Journal | None:
    """What these files hold of their process; None if nothing, and why is in ``problems``."""
    head = _head(files, problems)
    own = Problems()
    if files.definitions is None:
        definitions = Definitions(files.base + DEFS_SUFFIX)
    else:
        text = texts.read(files.definitions, problems, MOST_DEFINITIONS)
        definitions = parse(text, own) if text.data else Definitions(files.definitions)
    match = _NAME.match(os.path.basename(files.base))
    from_name = {k: plain(v) for k, v in match.groupdict().items()} if match else {}
    if lost := definitions.source.get("lost"):
        own.add(definitions.path, "noise", lost)
    identity: str | None = definitions.process.get("process") or None
    if identity is None and head is None:
        foreign = _name_stranger(files, problems)
        if foreign or not from_name:
            return None
    problems.extend(own)
    for kind, what in definitions.checker.sentences():
        problems.add(definitions.path, kind, what)
    named = (head or {}).get("process") or from_name.get("random") or plain(files.base)
    if identity and head and head.get("process") not in (None, identity):
        problems.add(
            files.paths[-1],
            "mixed",
            f"was written by process {named[:8]}, and is named as of {identity[:8]}; read as"
            f" {identity[:8]}'s: do not rename journals.",
        )
    written_ns = max(map(modified_ns, _own(files, definitions)))
    if identity is None:
        if head is not None:
            why = "does not say which process wrote it" if files.definitions else "is not there"
            what = f"{why}: nothing of its journal was read. Collect that file too."
            problems.add(definitions.path, "no definitions", what)
        definitions = Definitions(definitions.path)
    return Journal(identity or named, files, definitions, from_name, written_ns)


def _own(files: Files, definitions: Definitions) -> tuple[str, ...]:
    """The files to which only the process has written."""
    if files.segments and any(definitions.listed[kind] for kind in BY_OTHERS):
        return tuple(files.segments.values())
    return files.paths


def _name_stranger(files: Files, problems: Problems) -> bool:
    """Name why there is no record in these files; whether they are of another tool."""
    if any(p.path in files.paths and p.kind in LOSSES for p in problems.found()):
        return False
    if not any(map(size, files.paths)):
        problems.add(files.paths[0], "empty", "is empty; nothing to read in it.")
        return False
    problems.add(
        files.paths[0],
        "foreign",
        "has the name of a journal but holds no record of one; left out.",
    )
    return True


def _head(files: Files, problems: Problems) -> Record | None:
    """The first readable head of a segment: it names the process when no definition does."""
    for number in sorted(files.segments):
        path = files.segments[number]
        try:
            data = read_part(path, 0, _HEAD_BYTES)
        except OSError:
            continue
        line = data.lstrip(b"\r\n").split(b"\n", 1)[0]  # what follows is cut anywhere
        record = json_object(texts.clean(path, line, Problems()).data) or {}
        head = Checker().record(SEGMENT, record) if SEGMENT in record else None
        if head is not None:
            name_newer(path, head.get("format"), problems)
            return head
    return None


def _merge(one: Journal, two: Journal, problems: Problems) -> Journal:
    """Of two copies of a journal, perhaps taken at different times, the longer one."""
    what = f"is another copy of {one.files.base}; the longer one was read."
    problems.add(two.files.base, "copy", what)
    return max((one, two), key=lambda j: (not j.orphaned, sum(map(size, j.files.paths))))


def name_gaps(journal: Journal, problems: Problems) -> None:
    """Name segments that should be there: neither present nor recorded as dropped."""
    numbers = set(journal.files.segments)
    dropped = {record.get("segment") for record in journal.definitions.listed["dropped"]}
    if not numbers:
        if journal.definitions.numbered["call"] and not dropped:
            problems.add(
                journal.files.paths[0],
                "no segments",
                "has no segments (*.ops.jsonl) beside it: the process is known, its operations are"
                " not; collect those files too.",
            )
        return
    known = sorted(numbers | {n for n in dropped if n is not None and n < max(numbers)})
    holes = [
        (before + 1, after)
        for before, after in zip([0, *known], known)
        if after > before + 1 and after > 1
    ]
    if holes:
        count = sum(after - first for first, after in holes)
        first = list(islice((n for hole in holes for n in range(*hole)), 5))
        names = ", ".join(map(str, first)) + (", ..." if count > 5 else "")
        problems.add(
            journal.files.paths[0],
            "missing segment",
            f"{plural(count, 'segment')} of it not found (number {names}); operations in"
            " them are unknown, all others were read.",
        )
