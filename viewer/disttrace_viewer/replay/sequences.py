"""What each thread of a process issued and waited for, in order, from its journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.definitions import Definitions, completed
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import Record, json_object
from disttrace_viewer.trace.values import dataclass, field

Key = tuple[Any, ...]
"""What both ends, or all members, of an exchange call it."""
ISSUE, WAIT = "issue", "wait"
_AWAITED = ("store.get", "store.wait")
_SET = ("store.set", "store.add", "store.compare_set", "store.append", "store.multi_set")


@dataclass(slots=True, eq=False)
class Action:
    """One operation of a process that others take part in.

    ``key`` is None while it is not known (a receive from any source that found none); ``need`` is
    the number of those who take part, ``member`` which of them this one is.
    """

    process: int
    number: int
    thread: int
    call: Record
    key: Key | None
    need: int
    member: int
    stream: Key | None
    """On a device: operations of one stream run one after another."""
    at_ns: int
    """When it began, unix ns; of a reader of the store, when it had its answer."""
    batch: int | None
    """The ``batch_isend_irecv`` that it is of: on a device all of these run together."""
    refused: bool = False
    """Torch would not make the call: it takes no part in anything."""
    broken: bool = False
    """It ended in an error, for which no wait can follow."""


@dataclass(slots=True)
class Step:
    """A thread issues an operation, or waits for one, in a line of its journal."""

    what: str
    action: Action
    place: int


@dataclass(slots=True)
class Script:
    """A process as the replay sees it: what each of its threads issues and waits for."""

    index: int
    journal: Journal
    threads: dict[int, list[Step]] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By id: its rank in the group, and the group's size."""
    last_ns: int = 0
    """When it was last heard of, unix ns."""
    whole: bool = True
    """Its journal tells of all it did: nothing is lost, and it has ended by itself."""


class _ScriptReader:
    """Takes the records of one journal, in their order."""

    def __init__(self, found: Script, *, streams: bool) -> None:
        self.found = found
        self.definitions: Definitions = found.journal.definitions
        self.streams = streams
        self._zero_ns: int = self.definitions.process.get("unix_ns") or 0
        self._ops: dict[int, str] = {}
        self._newest: dict[int, int] = {}
        """By thread the line of its newest begin."""
        self._waits: dict[int, int] = {}
        """By operation the line of its wait."""
        self._stored: dict[int, list[Action]] = {}
        for number in self.definitions.numbered["group"]:
            self._group(number)

    def take(self, place: int, record: Record) -> None:
        if "b" in record:
            self._begin(place, record)
        elif "w" in record:
            self._waits[record["w"]] = place
        elif "e" in record:
            self._end(record)

    def settle(self) -> None:
        """Whatever is waited for at the end was so, too."""
        for number, place in self._waits.items():
            action = self.found.actions.get(number)
            if action is not None:
                self._step(WAIT, action, place)
        for steps in self.found.threads.values():
            steps.sort(key=lambda step: step.place)

    def _begin(self, place: int, record: Record) -> None:
        number = record["b"]
        if number in self._ops:
            return  # a copy at the head of a segment
        call = self.definitions.numbered["call"].get(record.get("s", 0)) or {}
        if "a" in record:
            call = completed(call, record["a"])
        gid = self._group(call.get("group"))
        op, thread = call.get("op") or "", record.get("h", 0)
        self.found.last_ns = max(self.found.last_ns, self._zero_ns + record["t"])
        self._ops[number] = op
        self._newest[thread] = place
        kind = call.get("kind")
        if kind in (fmt.COLLECTIVE, fmt.MESSAGE) and gid is not None:
            action = self._action(number, thread, call, gid, record)
            self._step(ISSUE, action, place)
            if call.get("async") is False:
                self._step(WAIT, action, place)
        elif kind == fmt.STORE and "k" in record and (op in _SET or op in _AWAITED):
            keys = self.definitions.full_key(call.get("store"), record["k"])
            where = self._where(call.get("store"))
            for key in [keys] if isinstance(keys, str) else keys or ():
                # Its setter is one side of an exchange, all readers are no side of it.
                stored = Action(
                    self.found.index, number, thread, call, ("store", where, key),
                    1, -1 if op in _AWAITED else 0, None, self._zero_ns + record["t"], None,
                )  # fmt: skip
                self._step(WAIT if op in _AWAITED else ISSUE, stored, place)
                self._stored.setdefault(number, []).append(stored)

    def _action(self, number: int, thread: int, call: Record, gid: str, record: Record) -> Action:
        own, size = self.found.groups[gid]
        device = fmt.ends_on_device(call.get("backend"), call.get("device")) or self.streams
        batch = None
        parent = record.get("p")
        if parent is not None and self._ops.get(parent) == "batch_isend_irecv":
            batch = parent
        key: Key | None = None
        member, need, stream = own, size, ("collectives", gid)
        if call.get("kind") == fmt.MESSAGE:
            member, need = int(call.get("op") == "recv"), 2
            key = message_key(call, gid, own, call.get("peer"), record.get("q"))
            if batch is None:
                pair = sorted((own, call.get("peer", -1)))
                stream = ("messages", gid, *pair)
        elif record.get("q") is not None:
            key = ("collective", gid, call.get("backend"), record["q"])
        action = Action(
            self.found.index, number, thread, call, key, need, member,
            stream if device else None, self._zero_ns + record["t"], batch,
        )  # fmt: skip
        self.found.actions[number] = action
        return action

    def _end(self, record: Record) -> None:
        number = record["e"]
        action = self.found.actions.get(number)
        waited = self._waits.pop(number, None)
        for one in self._stored.pop(number, ()) if action is None else (action,):
            one.refused |= "f" in record
            one.at_ns += record.get("d", 0) if one.member < 0 else 0
            one.broken |= "x" in record and "r" not in record
        if action is None or "r" in record or action.refused:
            return
        if action.key is None and "q" in record and action.call.get("kind") == fmt.MESSAGE:
            gid = self.definitions.group_id(action.call["group"]) or ""
            own = self.found.groups[gid][0]
            action.key = message_key(action.call, gid, own, record.get("y"), record["q"])
        # Whoever began something meanwhile was not the one that waited.
        if waited is not None and self._newest.get(action.thread, 0) < waited:
            self._step(WAIT, action, waited)

    def _step(self, what: str, action: Action, place: int) -> None:
        self.found.threads.setdefault(action.thread, []).append(Step(what, action, place))

    def _group(self, number: int | None) -> str | None:
        group = self.definitions.get("group", number)
        gid = None if number is None else self.definitions.group_id(number)
        if group is None or gid is None or group.get("rank") is None or not group.get("size"):
            return None
        self.found.groups.setdefault(gid, (group["rank"], group["size"]))
        return gid

    def _where(self, number: int | None) -> Key:
        store = self.definitions.get("store", number) or {}
        base = self.definitions.get("store", store.get("base")) or store
        for name in ("port", "path"):
            if base.get(name) is not None:
                return (name, base[name])
        return ("process", self.found.index)


def message_key(
    call: Mapping[str, Any], gid: str, own: int, peer: int | None, seq: int | None
) -> Key | None:
    """What both ends call a message; None where the other end is not known."""
    if peer is None or seq is None:
        return None
    tag = None if call.get("backend") in fmt.ON_DEVICE else call.get("tag") or 0
    ends = (own, peer) if call.get("op") == "send" else (peer, own)
    return ("message", gid, *ends, tag, seq)


def lines(journal: Journal, problems: Problems) -> Iterator[tuple[bytes, Record]]:
    """The lines of all segments, and the records in them."""
    for number in sorted(journal.files.segments):
        for line in texts.segment(journal.files.segments[number], problems).data.splitlines():
            yield line, json_object(line) or {}


def script(index: int, journal: Journal, *, streams: bool = False) -> Script:
    """What a process issued. ``streams``: as if it had been on a device."""
    problems = Problems()
    found = Script(index, journal)
    reader = _ScriptReader(found, streams=streams)
    for place, (_, record) in enumerate(lines(journal, problems)):
        reader.take(place, record)
    reader.settle()
    definitions = journal.definitions
    numbers = sorted(journal.files.segments)
    found.whole = (
        definitions.exit is not None
        and definitions.exit.get("how") != fmt.UNINSTALLED
        and not definitions.listed["dropped"]
        and numbers == list(range(1, len(numbers) + 1))
        and not problems.found()
        and not problems.cut_off
    )
    return found
