"""The states of a host's processes as it sends them, and what is believed of those that came.

Public is what any program on the network may know: where each process is (operation, group, number,
shapes, file and line), which process it is, and how it ended. Of keys, prefixes and names a hash: a
host that has the same word reads it in its place; no other learns one from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from disttrace.journal.code_files import public as public_path
from disttrace_viewer.analysis.liveness import Look, Observation, look
from disttrace_viewer.analysis.process_ends import quotes
from disttrace_viewer.companion import protocol
from disttrace_viewer.companion.endpoint import PeerReply
from disttrace_viewer.load.schema import maybe, number, one_of
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.reading import is_creation
from disttrace_viewer.states.state import Merged, OpRow, State, WaitsWith, inflated
from disttrace_viewer.trace.operation import phrases
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, field, replace

MOST_STATE = 8 << 10
"""Bytes of a packed state; of a longer one half of the operations are sent, and so on."""
MOST_WHOLE = 64 << 10
"""Of one that was requested by itself, with the order of its collectives."""
MOST_TEXT, MOST_TEXT_OF_ALL = 16 << 20, 64 << 20
"""Bytes of what one host sent, unpacked, and of what all did."""


@dataclass(frozen=True, slots=True)
class Received:
    """What other hosts sent: states, and what their kernels say of each process by its id."""

    states: tuple[State, ...] = ()
    seen: Mapping[str, Observation] = field(default_factory=dict)
    senders: Mapping[str, str] = field(default_factory=dict)
    """By process whose companion sent its state."""
    reported: tuple[WaitsWith, ...] = ()
    """Ranks of further hosts, by these hosts' summaries."""
    elsewhere: frozenset[int] = frozenset()
    """All ranks of those."""

    def look(self, process: Process) -> Observation:
        """What is known of a process: by its own host, else by this one."""
        found = self.seen.get(process.id)
        return look(process) if found is None else found

    @property
    def merged(self) -> Merged:
        states = {state.id: state for state in self.states}
        return Merged(states, reported=self.reported, elsewhere=self.elsewhere)


def packed(merged: Merged, see: Look = look, *, most: int = MOST_STATE) -> bytes:
    """The states of our processes, and whether these live; ``most`` bytes of each."""
    trace, _ = trace_of(merged)
    seen = {p.id: see(p) for p in trace.processes}
    found = {
        "states": [public(_bounded(state, most)).values() for state in merged.states.values()],
        "seen": {one: (kernel.alive, kernel.code, kernel.state) for one, kernel in seen.items()},
    }
    return protocol.packed(found)


def unpacked(answers: Iterable[PeerReply], local: Merged, *, proved: bool = False) -> Received:
    """All answers in one. What is sent of processes of this host is not believed, nor what two send
    of one process, unless all have ``proved`` to be of the job: then the newer state counts."""
    words = known_words(local.states.values())
    files = known_files(local.states.values())
    found: dict[str, list[tuple[State, Observation | None, str]]] = {}
    rest = MOST_TEXT_OF_ALL
    for answer in answers:
        try:
            text = inflated(answer.data, min(MOST_TEXT, rest)) if answer.data else b""
            sent = protocol.value_of(text, _ANSWER) if text else {"states": [], "seen": {}}
        except protocol.WRONG:
            continue  # of another version, or no answer at all: its ranks are not known then
        rest -= len(text)
        for state in sent["states"]:
            if state.id not in local.states:
                seen = sent["seen"].get(state.id)
                row = (state, seen and Observation(*seen), answer.sender)
                found.setdefault(state.id, []).append(row)
    believed = {
        one: max(rows, key=lambda row: row[0].rating)
        for one, rows in found.items()
        if proved or len(rows) == 1
    }
    return Received(
        tuple(revealed(state, words, files) for state, _, _ in believed.values()),
        {one: kernel for one, (_, kernel, _) in believed.items() if kernel is not None},
        {one: sender for one, (_, _, sender) in believed.items()},
    )


def joined(answers: Sequence[PeerReply], summaries: Sequence[PeerReply]) -> bytes:
    """Answers of several hosts as one, to be handed on."""
    return protocol.packed(
        [[[one.sender, one.data.hex()] for one in of] for of in (answers, summaries)]
    )


def parted(data: bytes) -> tuple[list[PeerReply], list[PeerReply]]:
    """The same again; none where it is no such thing."""
    answers, summaries = protocol.opened(data, protocol.row(_REPLIES, _REPLIES)) or ([], [])
    return answers, summaries


_REPLIES = protocol.rows(
    lambda _, pair: PeerReply(str(pair[0])[:64], bytes.fromhex(pair[1])), most=1 << 14
)
_SEEN = protocol.row(
    one_of(True, False, None),
    maybe(number(-(1 << 31))),
    maybe(protocol.text("id")),
)
_ANSWER = protocol.fields(
    states=protocol.rows(protocol.state), seen=protocol.table(protocol.text("id"), _SEEN)
)


def _bounded(state: State, most: int) -> State:
    if state.history and _size(state) > most:
        state = replace(state, history=[])
    made = {n for n, call in state.numbered.get("call", {}).items() if is_creation(call)}
    rest = [row[OpRow.NUMBER] for row in state.ops if row[OpRow.CALL] not in made]
    while _size(state) > most and len(rest) > 1:
        gone, rest = {*rest[: -(len(rest) // 2)]}, rest[-(len(rest) // 2) :]
        kept = [row for row in state.ops if row[OpRow.NUMBER] not in gone]
        calls = {row[OpRow.CALL] for row in kept}
        numbered = state.numbered
        table = {n: c for n, c in numbered["call"].items() if n in calls}
        state = replace(
            state,
            ops=kept,
            numbered={**numbered, "call": table},
            read=min(state.read, state.size - 1),  # not in full: nothing is certain by it
        )
    return state


def _size(state: State) -> int:
    return len(protocol.packed(state.values()))


_MARK, _MARKED = "~", re.compile(r"~[0-9a-f]{16}")
_PROCESS = ("process", "job", "job_source", "run", "host", "boot_id", "role")
_ENV = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
)
_LISTED = {
    "clock": ("t", "unix_ns", "error_ns"),
    "failure": ("t", "type", "stack", "h"),
    "handling": ("t", "type", "stack", "h"),
    "exit": ("t", "how", "code", "stack"),
    "seen": ("t", "state", "code", "others"),
    "trouble": ("t", "ago", "by", "where", "name", "code", "mine"),
    "activity": (
        *("t", "over", "cpu", "busy", "beside", "others", "failed"),
        *("read", "written", "received", "faults"),
    ),
    "dropped": ("t", "segment"),
    "worker": ("t", "pid", "event", "local_rank", "rank", "attempt", "code", "signal", "journal"),
    "rendezvous": ("t", "event", "state", "rank"),
}
_CALL = (
    *("op", "kind", "group", "backend", "device", "async", "shapes", "dtypes", "bytes", "splits"),
    *("reduce_op", "root", "peer", "tag", "store", "origin", "stack"),
)
_ARGS = (
    *("ranks", "src", "dst", "group_src", "group_dst", "timeout"),
    *("use_local_synchronization", "sort_ranks", "size", "world_size", "rank"),
)


def public(state: State) -> State:
    """That part of a state."""
    numbered, env = state.numbered, state.process.get("env") or {}
    errors = [*numbered.get("string", {}).values()]
    host, pid = state.named.get("host", ""), state.named.get("pid", "")
    process = {k: v for k, v in state.process.items() if isinstance(v, int) or k in _PROCESS}
    process["env"] = {n: env[n] for n in _ENV if str(env.get(n, "")).isdecimal()}
    identity = {
        k: v for k, v in state.identity.items() if isinstance(v, int) or k in ("role", "run")
    }
    return replace(
        state,
        base=f"{host}-{pid}-{state.id[:12]}",
        named=_hide(state.named, "job"),
        process=_hide(process, "job", "run"),
        identity=_hide(identity, "run"),
        versions={},
        listed={
            kind: [_record(one, _LISTED[kind], errors) for one in found]
            for kind, found in state.listed.items()
            if kind in _LISTED
        },
        numbered={
            **numbered,
            "string": {n: _error(text) for n, text in _table(state, "string")},
            "stack": {
                n: [[public_path(file), line, name] for file, line, name in frames]
                for n, frames in _table(state, "stack")
            },
            "thread": {n: {} for n, _ in _table(state, "thread")},
            "call": {n: _call(call) for n, call in _table(state, "call")},
            "store": {n: _hide(one, *_of_store(one)) for n, one in _table(state, "store")},
            "group": {n: _hide(one, "name", "desc") for n, one in _table(state, "group")},
        },
        ops=mapped(state.ops, hidden),
        queues=mapped(state.queues, hidden),
        problems=[],
    )


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with what ``change`` makes of its texts in their places."""
    if type(value) is str:
        return change(value)
    if type(value) is dict:
        return {key: mapped(one, change) for key, one in value.items()}
    if type(value) is list:
        return [mapped(one, change) if type(one) in (str, list, dict) else one for one in value]
    return value


_WORDS, _TABLES = ("named", "process", "identity", "ops", "queues"), ("string", "store", "group")
"""Where a state has words, besides its failures."""


def revealed(state: State, words: Mapping[str, str], files: Mapping[str, str]) -> State:
    """What another host sent, with the words and files that are known here by their own names."""

    def known(text: str) -> str:
        found = _MARKED.search(text) if _MARK in text else None
        return text if found is None else words.get(found[0], text)

    numbered = {kind: mapped(state.numbered.get(kind, {}), known) for kind in _TABLES}
    numbered["stack"] = {
        n: [[files.get(file, file), line, name] for file, line, name in frames]
        for n, frames in _table(state, "stack")
    }
    for one in _failures(state):
        one |= {name: mapped(one[name], known) for name in ("text", "causes") if name in one}
        if "text" in one:
            one["text"] = one["text"].removeprefix(f"{one.get('type')}: ")
    found = {name: mapped(getattr(state, name), known) for name in _WORDS}
    return replace(state, **found, numbered={**state.numbered, **numbered})


def _failures(state: State) -> Iterator[dict[str, Any]]:
    return (one for kind in ("failure", "handling", "exit") for one in state.listed.get(kind, ()))


def _table(state: State, kind: str) -> Iterable[tuple[int, Any]]:
    return state.numbered.get(kind, {}).items()


def _hide(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """With hashes of the words of these names."""
    return {key: mapped(one, hidden) if key in names else one for key, one in record.items()}


def _of_store(store: Mapping[str, Any]) -> tuple[str, ...]:
    return ("path", "prefix") if store.get("host") else ("path", "prefix", "name")


def known_files(states: Iterable[State]) -> dict[str, str]:
    """Files in stacks by what others are sent of their paths, where one alone has that."""
    found: dict[str, set[str]] = {}
    for state in states:
        for frames in state.numbered.get("stack", {}).values():
            for file, _, _ in frames:
                found.setdefault(public_path(file), set()).add(file)
    return {name: next(iter(paths)) for name, paths in found.items() if len(paths) == 1}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    found = _only(call, _CALL)
    args = call.get("args")
    if isinstance(args, dict) and (numbers := _only(args, _ARGS)):
        found["args"] = numbers
    return found


def _record(one: Mapping[str, Any], names: Iterable[str], errors: Iterable[str]) -> dict[str, Any]:
    found = _only(one, names)
    if isinstance(text := one.get("text"), str) and "type" in found:
        quoted = (_public_text(error) for error in errors if quotes(text, error))
        found["text"] = "; ".join([_public_text(_whole(one)), *quoted])
    if isinstance(causes := one.get("causes"), list):
        found["causes"] = [_error(text) for text in causes if isinstance(text, str)]
    return found


def _whole(failure: Mapping[str, Any]) -> str:
    """As the error of an operation has it, so that both are known to be one."""
    return f"{failure.get('type')}: {failure.get('text')}"


def _error(text: str) -> str:
    name = text.partition(":")[0].strip()
    kind = name if name.replace(".", "_").isidentifier() else "an exception"
    return f"{kind}: {_public_text(text)}"


def _public_text(text: str) -> str:
    """What stands for the text of an exception, and torch's own words in it."""
    return ": ".join([hidden(text), *filter(None, [", ".join(phrases(text))])])


def _only(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def hidden(word: str) -> str:
    """What stands for a word; numbers and what torch itself calls groups stand for themselves."""
    if word.isdecimal() or word.startswith(_MARK) or word in ("", "undefined", "default_pg"):
        return word
    digest = hashlib.sha256(b"disttrace word\0" + word.encode("utf-8", "replace")).hexdigest()
    return _MARK + digest[:16]


def known_words(states: Iterable[State]) -> dict[str, str]:
    """The words of states by what stands for them."""
    found: dict[str, str] = {}

    def note(word: str) -> str:
        found[hidden(word)] = word
        return word

    for state in states:
        mapped([getattr(state, name) for name in _WORDS], note)
        mapped([state.numbered.get(kind, {}) for kind in _TABLES], note)
        for one in _failures(state):
            mapped([*(one.get("causes") or ()), _whole(one)], note)
    return found
