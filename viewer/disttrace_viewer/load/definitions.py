"""What one process defined: its records by kind and number, and what follows from them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from disttrace.journal.code_files import BUILT_IN, LOOP
from disttrace.journal.format import DEF, DEFINITIONS, DUMPED, FORMAT, MOST_MEMBERS, RESUMED
from disttrace_viewer.load import ids
from disttrace_viewer.load.problems import NEWER, Problems, plural
from disttrace_viewer.load.schema import Checker, Record, json_object
from disttrace_viewer.load.text import Text
from disttrace_viewer.trace.model import lead_of
from disttrace_viewer.trace.plain_text import plain, whole
from disttrace_viewer.trace.process import AGENT, Problem

NUMBERED = ("string", "stack", "thread", "store", "group", "call")
LISTED = (
    *("clock", "failure", "handling", "exit", "note", "dropped", "worker", "rendezvous"),
    *("seen", "trouble", "activity", "digest", "nonfinite", "unreduced"),
)
MOST_OF_A_KIND = 1 << 18
"""Definitions of one kind in one journal: each costs up to a hundred times its line in memory."""
BY_OTHERS = ("seen", "trouble", "activity")
"""What the companion writes of a process."""
_NO_SIGNS = ("group", "versions", *BY_OTHERS)
"""What is no sign of a process's life: what others wrote of it, and what a forked child repeats, by
older recorders with its parent's times. What a process makes itself it makes by operations.
"""
NONE: Record = {}
_OF_DUMPS = 1 << 40
"""From here strings and stacks are numbered that the process did not number itself."""
_ADDED = (BUILT_IN, LOOP)
"""Files of frames that samples have on top of a thread's own."""
ROLES = (AGENT, "worker", "child", "main")


class Definitions:
    """The definitions of one journal so far. A repeated number completes the earlier record.

    ``numbered[kind][n]`` and ``listed[kind]`` hold records whose fields are as the format has
    them; what was not is counted in ``checker``.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.checker = Checker()
        self.process: Record = {}
        self.identity: Record = {}
        self.versions: Record = {}
        self.source: Record = {}
        """Which other tool's evidence this was translated from, and what that lacks."""
        self.numbered: dict[str, dict[int, Record]] = {kind: {} for kind in NUMBERED}
        self.listed: dict[str, list[Record]] = {kind: [] for kind in LISTED}
        self.last_t = 0
        self.dumped: int | None = None
        """Stack of the main thread as it was dumped at the end, not by the process itself."""
        self._group_ids: dict[int, str] = {}
        self._like_named: dict[int, int] = {}

    def add(self, record: Record, line: bytes | None = None) -> bool:
        """Take one record; False if it is none of this format. Unknown kinds do no harm."""
        kind = record.get(DEF)
        if not isinstance(kind, str):
            return False
        if kind not in DEFINITIONS:
            return True
        if kind == "process":
            self.process.update(self.checker.fields(kind, record))
            return True
        before = self.checker.wrong, self.checker.cut
        found = self.checker.record(kind, record)
        if found is not None:
            self.admit(kind, found)
            whole = before == (self.checker.wrong, self.checker.cut)
            no_sign = kind in _NO_SIGNS or "t" not in found
            if line is not None and kind in NUMBERED and whole and no_sign:
                if len(_ALIKE) >= _MOST_ALIKE:
                    _ALIKE.clear()
                _ALIKE[line] = (kind, found)
        return True

    def admit(self, kind: str, found: Record) -> None:
        """Take a record whose fields are as the format has them; it may be others' as well."""
        if kind not in _NO_SIGNS:
            self.last_t = max(self.last_t, found.get("t") or 0)
        table = self.numbered[kind] if kind in NUMBERED else self.listed.get(kind, ())
        if len(table) >= MOST_OF_A_KIND and found.get("n") not in table:
            self.checker.limited(f"more than {MOST_OF_A_KIND:,} {kind} records")
            return
        if kind in NUMBERED:
            self._complete(kind, found)
        elif kind in LISTED:
            self.listed[kind].append(found)
        else:
            getattr(self, kind).update(found)

    def admit_dump(self, lines: Sequence[tuple[str, int, str]]) -> None:
        """Take where the main thread was when the process could not record it itself."""
        texts = list(dict.fromkeys(text for file, _, name in lines for text in (file, name)))
        numbers = {text: _OF_DUMPS + place for place, text in enumerate(texts)}
        for text, number in numbers.items():
            self.numbered["string"][number] = {"n": number, "v": text}
        frames = [[numbers[file], line, numbers[name]] for file, line, name in lines]
        self.numbered["stack"][_OF_DUMPS] = {"n": _OF_DUMPS, "frames": frames}
        self.dumped = _OF_DUMPS

    def stack_at_end(self, sampled: Iterable[int]) -> int | None:
        """The stack that was dumped: by the number that a sample of the same place has, which also
        has what the thread waits for. None where none was dumped."""
        if self.dumped is None:
            return None
        at = self.frames(self.dumped)
        same = (n for n in sampled if at == [f for f in self.frames(n) if f[0] not in _ADDED])
        return next(same, self.dumped)

    def _complete(self, kind: str, found: Record) -> None:
        known = self.numbered[kind].setdefault(found["n"], found)
        if known is not found:
            known = self.numbered[kind][found["n"]] = {**known, **found}
        if kind in ("group", "store"):
            self._group_ids.clear()
            self._like_named.clear()
        if kind == "group" and known.get("ranks") is not None:
            known["size"] = len(known["ranks"])

    def get(self, kind: str, number: int | None) -> Record | None:
        return None if number is None else self.numbered[kind].get(number)

    def string(self, number: int | None) -> str | None:
        """An interned string; None where it is not defined."""
        found = self.get("string", number)
        return None if found is None else found.get("v")

    def frames(self, number: int | None) -> list[tuple[str, int, str]]:
        """(file, line, function) of a stack, innermost first; empty where it is not defined."""
        found = None if number is None else self.numbered["stack"].get(number)
        if found is None:
            return []
        string = self.numbered["string"].get
        return [
            (
                string(file, NONE).get("v") or "?",
                line,
                string(function, NONE).get("v") or "?",
            )
            for file, line, function in found.get("frames") or ()
        ]

    def group_id(self, number: int) -> str | None:
        """The id of a group, the same in all of its members."""
        found = self._group_ids.get(number)
        group = self.get("group", number)
        if found is not None or group is None:
            return found
        store = self.get("store", group.get("store"))
        base = self.get("store", (store or {}).get("base"))
        self._group_ids[number] = found = ids.group_id(
            group, store, base, process=self.id, attempt=self.attempt,
            like_named=self._number_of_its_name(number),
        )  # fmt: skip
        return found

    def _number_of_its_name(self, number: int) -> int:
        """The how-manieth group of its name in this process a group is, from 1."""
        if not self._like_named:
            count: dict[str | None, int] = {}
            for n, group in sorted(self.numbered["group"].items()):
                name = group.get("name")
                self._like_named[n] = count[name] = count.get(name, 0) + 1
        return self._like_named[number]

    def full_key(self, store: int | None, key: str | list[str] | None) -> str | list[str] | None:
        """A key with every prefix, ``?`` for an unknown one."""
        lead = lead_of((self.get("store", store) or {}).get("prefix") or ())
        return [lead + k for k in key] if isinstance(key, list) else key and lead + key

    @property
    def id(self) -> str:
        return self.process.get("process") or ""

    @property
    def env(self) -> Mapping[str, str]:
        """Rank variables, and TRACEPARENT, as they were at the start."""
        return self.process.get("env") or {}

    @property
    def role(self) -> str | None:
        """``agent``, ``worker``, ``child`` or ``main``; None where it is not known."""
        role = self.identity.get("role") or self.process.get("role")
        return role if role in ROLES else None

    @property
    def is_agent(self) -> bool:
        return self.role == AGENT

    @property
    def rank(self) -> int | None:
        """The rank under which it joined or was launched; never one merely inherited."""
        return self._label("rank", "RANK")

    @property
    def local_rank(self) -> int | None:
        return self._label("local_rank", "LOCAL_RANK")

    @property
    def world_size(self) -> int | None:
        return self._label("world_size", "WORLD_SIZE")

    @property
    def attempt(self) -> int | None:
        return self.identity.get("attempt", self.process.get("attempt"))

    @property
    def exit(self) -> Record | None:
        """The last word of the process; it may take back one before."""
        last = self.listed["exit"][-1] if self.listed["exit"] else None
        return None if last is None or last.get("how") == RESUMED else last

    def _label(self, key: str, variable: str) -> int | None:
        found: int | None = self.identity.get(key)
        if found is None and self.role == "worker":
            return rank_in(self.env.get(variable))
        return found


def completed(call: Record, changes: Record) -> Record:
    """A call with the fields that one operation overrides; its arguments are put together."""
    changed = {**call, **changes}
    if "args" in call and "args" in changes:
        changed["args"] = {**call["args"], **changes["args"]}
    return changed


def rank_in(text: str | None) -> int | None:
    """The number in a text, where it may be one of ranks, or of a rank."""
    found = whole(text or "")
    return None if found is None or found > MOST_MEMBERS else found


def parse(text: Text, problems: Problems) -> Definitions:
    """The definitions in a file. Records of unknown kinds are passed over, as the format asks."""
    found = Definitions(text.path)
    dumped: Lines = []
    bad = first = 0
    for line_number, line in enumerate(map(bytes.rstrip, io.BytesIO(text.data)), 1):
        if (alike := _ALIKE.get(line)) is not None:
            kind, record = alike
            table = found.numbered[kind]
            if record["n"] in table or len(table) >= MOST_OF_A_KIND:
                found.admit(kind, record)
            else:  # all that there is to do, and of most of the lines of a large job
                table[record["n"]] = record
            continue
        read = json_object(line)
        if read is None or not found.add(read, line):
            if not _take_dumped(dumped, line):
                bad, first = bad + 1, first or line_number
        elif read.get(DEF) == DUMPED:
            dumped.clear()
    if dumped:
        found.admit_dump(dumped)
    if bad:
        problems.add(
            text.path,
            "noise",
            f"{plural(bad, 'line')} (first: line {first}) not readable as definitions;"
            " the others were used.",
        )
    name_newer(text.path, found.process.get("format"), problems)
    return found


def name_newer(path: str, version: int | None, problems: Problems) -> None:
    """Name a file that is of a format that was not known here."""
    if version is not None and version > FORMAT:
        folder = plain(os.path.dirname(path) or ".")  # one sentence, whatever the files
        what = f"journals of format {version}, of which this disttrace knows {FORMAT}; update it."
        problems.take(Problem(path, NEWER, f"{folder}: {what}"))


_ALIKE: dict[bytes, tuple[str, Record]] = {}
"""Checked records by their lines: the ranks of a job write most of them byte for byte alike."""
_MOST_ALIKE = 1 << 15


Lines = list[tuple[str, int, str]]

_THREAD = re.compile(
    rb"^(Stack|(Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])?) \(most recent call first\):$"
)
_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)')
_OTHER = re.compile(rb"^(Timeout \(.*\)!|  <no Python frame>|  File .*|  \.\.\.|\.\.\.)$")
_OURS = re.compile(r"[/\\]disttrace[/\\](capture|lifecycle|patching|recording)[/\\]")
_DEPTH = 16


def _take_dumped(main: Lines, line: bytes) -> bool:
    """Take a line of a dump of stacks into the frames of its last thread, innermost first; False
    for what is none. ``faulthandler`` wrote it while the process could not write (one of its
    threads held the GIL, or SIGTERM ended it). The text is that of CPython's ``traceback.c``;
    earlier versions wrote all threads, from the newest to the main one.
    """
    if found := _FRAME.match(line):
        file = found[1].decode("utf-8", "replace")
        if len(main) < _DEPTH and not _OURS.search(file):
            main.append((file, int(found[2][-9:]), found[3].decode("utf-8", "replace")))
    elif line == b"..." or _THREAD.match(line):
        main.clear()  # of more than a hundred threads the main one is not there
    else:
        return _OTHER.match(line) is not None
    return True
