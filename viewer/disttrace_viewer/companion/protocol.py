"""How companions of a job find each other and talk: addresses, greeting and proof, messages.

They meet on the host that serves the job's store, at ports that follow from it. The listener speaks
first, so that nothing is ever sent to another program that happens to listen there. The proof is of
the job's secret, which comes from the environment: it is never written, never sent, and in no
store. What is sent behind it anyone may know.

A value that came may be from any program: it is checked by its form, as records of journals are,
and whatever is wrong with it is one exception, and costs only its sender.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.load import schema
from disttrace_viewer.load.definitions import LISTED
from disttrace_viewer.load.schema import Check, Checker, Wrong, maybe, number, numbers, one_of
from disttrace_viewer.states.state import MOST_BYTES, OpRow, State, checked, inflated
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.values import dataclass, field

Address = tuple[str, int]

PORTS = 4
"""Of which the first one is taken that no other program has."""
_LOWEST, _HIGHEST = 10_240, 32_767
"""Above what services have, below what Linux hands out by itself (32,768 and up)."""


def job_of(store_port: int, about: str = "") -> str:
    """What companions of one job have in common: their names of it may differ."""
    return hashlib.sha256(b"disttrace job at %d%b" % (store_port, about.encode())).hexdigest()[:16]


def ports(store_port: int, about: str = "") -> list[int]:
    """The ports at which companions of the job with its store at ``store_port`` meet; what they
    meet ``about`` has ports of its own."""
    found: list[int] = []
    number = 0
    while len(found) < PORTS:
        words = b"disttrace port %d of %d%b" % (number, store_port, about.encode())
        digest = hashlib.sha256(words).digest()
        port = _LOWEST + int.from_bytes(digest[:4], "big") % (_HIGHEST - _LOWEST + 1)
        if port != store_port and port not in found:
            found.append(port)
        number += 1
    return found


def resolved(host: str) -> list[str]:
    """Numeric addresses of a host, a few at most; none where it is not known."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(one[4][0]) for one in found))[:4]


def is_here(address: str) -> bool:
    """Whether an address is of this host: what the kernel sends there, it takes itself."""
    family, version = (socket.AF_INET6, "6") if ":" in address else (socket.AF_INET, "4")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            if probe.getsockname()[0] == address:
                return True
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return not ipaddress.ip_address(address).is_unspecified and _only_own(version)
    except (OSError, ValueError):
        return False


def _only_own(version: str) -> bool:
    """Whether the kernel refuses addresses that are not of this host."""
    try:
        with open(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind", encoding="ascii") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def to_listen_at(host: str, numeric: Sequence[str]) -> str | None:
    """Our address at which ``host`` is reached from everywhere; None: it is another host. A host's
    own name may be 127.0.1.1 on itself, and another address elsewhere."""
    here = [address for address in numeric if is_here(address)]
    outside = [address for address in here if not ipaddress.ip_address(address).is_loopback]
    if outside:
        return outside[0]
    if not here:
        return None
    return here[0] if host == "localhost" or host in here else ""


Tables = Mapping[str, Mapping[Any, Mapping[str, Any]]]
"""Numbered definitions by kind and number."""


def stores(processes: Iterable[tuple[Tables, Mapping[str, str], bool]]) -> list[Address]:
    """TCPStores of processes, of which come definitions, environment, and whether it is an agent;
    in an order on which all hosts agree, or they would wait apart.

    That of the default group is the job's own; else the one that workers expect, and before there
    are workers that of the launchers' rendezvous.
    """
    found: dict[Address, None] = {}
    rows = list(processes)
    for numbered, _, _ in rows:
        known = numbered.get("store", {})
        groups = numbered.get("group", {}).values()
        _offer(found, [_base(known, g.get("store")) for g in groups if g.get("default")])
    for _, env, is_agent in rows:
        host, port = env.get("MASTER_ADDR"), whole(env.get("MASTER_PORT", ""))
        if host and port is not None and not is_agent:
            found.setdefault((host, port))
    for numbered, _, _ in rows:
        _offer(found, numbered.get("store", {}).values())
    return list(found)[:4]


def _offer(found: dict[Address, None], known: Iterable[Mapping[str, Any] | None]) -> None:
    for store in known:
        if store and store.get("base") is None and store.get("host") and store.get("port"):
            found.setdefault((str(store["host"]), int(store["port"])))


def _base(known: Mapping[Any, Mapping[str, Any]], number: Any) -> Mapping[str, Any] | None:
    for _ in range(8):
        store = known.get(number)
        if store is None or store.get("base") is None:
            return store
        number = store["base"]
    return None


VARIABLE = "DISTTRACE_SECRET"


def secret_of_job() -> bytes | None:
    """The job's secret; None where there is none."""
    text = os.environ.get(VARIABLE, "")
    return os.fsencode(text) if text.strip() else None


# -- values and their forms ----------------------------------------------------------------------

WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading a stranger's JSON by a form may raise."""
_MOST_ROWS = 4_096
_MOST_NUMBER = (1 << 63) - 1
_N = number()


def packed(value: Any) -> bytes:
    """A value of JSON as it is sent."""
    return zlib.compress(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), 6)


def opened(data: bytes, form: Check) -> Any | None:
    """The value that was sent; None where it is not of its form."""
    try:
        return value_of(inflated(data), form)
    except WRONG:
        return None


def value_of(data: bytes, form: Check) -> Any:
    """The value in some JSON, as its form has it. Raises ``WRONG``."""
    return form(Checker(), orjson.loads(data))


def rows(form: Check, most: int = _MOST_ROWS) -> Check:
    """At most so many of these."""
    return schema.list_of(form, most)


def text(kind: str) -> Check:
    """A text as the journal's format has one of this kind."""
    return lambda checker, value: checker.value(kind, value)


def word(most: int, *, least: int = 0) -> Check:
    """A text of so many characters, as it is."""

    def check(_checker: Checker, value: Any) -> str:
        if type(value) is not str or not least <= len(value) <= most:
            raise Wrong("a word")
        return value

    return check


def row(*forms: Check) -> Check:
    """One of each, in this order."""
    return lambda checker, value: [
        form(checker, one) for form, one in zip(forms, schema.typed(list, value), strict=True)
    ]


def table(key: Check, form: Check) -> Check:
    """Values by key."""

    def check(checker: Checker, value: Any) -> dict[Any, Any]:
        if len(schema.typed(dict, value)) > _MOST_ROWS:
            raise Wrong("a table")
        return {key(checker, name): form(checker, one) for name, one in value.items()}

    return check


def fields(**forms: Check) -> Check:
    """A value for each of these names, whatever else there is."""
    return lambda checker, value: {
        name: form(checker, schema.typed(dict, value)[name]) for name, form in forms.items()
    }


# -- messages ------------------------------------------------------------------------------------

VERSION = 3
MOST_HEAD, MOST_WORDS = 12 << 10, 80
"""Bytes of the head of a message, and words of a request."""
LENGTHS = struct.Struct("!II")


class Garbled(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """Bytes that are none of this protocol; the text completes a sentence."""


@dataclass(frozen=True, slots=True)
class Message:
    """A kind, the fields of its kind, and a body."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""


_TEXT = word(256)
_KINDS: dict[str, Check] = {
    "disttrace": fields(v=one_of(VERSION), drawn=_TEXT, secret=one_of(True, False)),
    "hello": fields(job=_TEXT, drawn=_TEXT, proof=_TEXT),
    "welcome": fields(proof=_TEXT),
    "join": fields(id=word(64, least=1), order=_N),
    "beat": fields(ms=_N),
    "ask": fields(n=_N, of=rows(word(128), MOST_WORDS)),
    "answer": fields(n=_N),
    **dict.fromkeys(("call", "mute", "word"), fields()),
}


def to_bytes(message: Message) -> bytes:
    """A message as it travels."""
    head = orjson.dumps({"is": message.kind, **message.fields})
    return LENGTHS.pack(len(head), len(message.body)) + head + message.body


def message_of(head: bytes, body: bytes = b"") -> Message:
    """The message with this head. Raises Garbled."""
    try:
        found = orjson.loads(head)
        return Message(found["is"], _KINDS[found["is"]](Checker(), found), body)
    except WRONG as error:
        raise Garbled("a head that is none") from error


# -- the state of a process --------------------------------------------------------------------


def _record(kind: str) -> Check:
    def check(checker: Checker, value: Any) -> dict[str, Any]:
        found = checker.record(kind, schema.typed(dict, value))
        if found is None:
            raise Wrong(kind)
        return found

    return check


def _numbered(kind: str) -> Check:
    """Definitions by number; ranks of groups as ranges, for a hundred thousand may be."""

    def check(checker: Checker, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = _record(kind)(checker, {**schema.typed(dict, value), "n": 0})
        del found["n"]
        if kind == "group" and found.get("ranks") is not None:
            names = ("from", "to", "step")
            found["ranks"] = [
                {k: one.get(k, 1) for k in names} if type(one) is dict else one
                for one in value["ranks"]
            ]
        return found

    return table(_N, check)


def _listed(checker: Checker, value: Any) -> dict[str, Any]:
    known = {kind: found for kind, found in schema.typed(dict, value).items() if kind in LISTED}
    return {kind: rows(_record(kind))(checker, found) for kind, found in known.items()}


def _op(checker: Checker, value: Any) -> list[Any]:
    if not OpRow.T < len(schema.typed(list, value)) <= OpRow.COUNT:
        raise Wrong("a row")
    return [form(checker, one) for form, one in zip(_OP, value, strict=False)]


def _course(checker: Checker, value: Any) -> list[Any]:
    """Of a stream of collectives: its calls, and the number of the first of them or none."""
    return [
        *row(_N, maybe(_NAME), maybe(word(MOST_BYTES)))(checker, value[:3]),
        *numbers(0, _MOST_NUMBER, 1)(checker, value[3:]),
    ]


_NAME, _ROW, _SIGNED = text("name"), number(-(1 << 31)), number(-(1 << 63))
_OP = [_ROW] * (OpRow.T + 1) + [maybe(_ROW)] * (OpRow.COUNT - OpRow.T - 1)
_OP[OpRow.KEY] = maybe(text("keys"))
_PAIRS = rows(row(_N, _N))
_STATE: dict[str, Check] = {
    **dict.fromkeys(("modified_ns", "read", "size", "count", "last_t"), _N),
    "id": text("id"),
    "base": text("text"),
    "named": table(lambda _, name: name, _NAME),
    "process": lambda checker, value: checker.fields("process", schema.typed(dict, value)),
    "identity": _record("identity"),
    "versions": _record("versions"),
    "listed": _listed,
    "ops": rows(_op),
    "longest": _PAIRS,
    "active": _PAIRS,
    "queues": rows(row(_N, text("key"), _N, _N)),
    "courses": rows(row(_N, maybe(_NAME), _N, _N, _N)),
    "met": rows(
        row(
            one_of(None, "send", "recv"),
            _N,
            lambda checker, of: (_NAME if type(of) is str else maybe(_SIGNED))(checker, of),
            maybe(_SIGNED),
            rows(row(_N, _N, _N)),
        )
    ),
    "beat": maybe(_N),
    "stands": rows(numbers(0, _MOST_NUMBER, _MOST_ROWS)),
    "history": maybe(rows(_course)),
}
_DEFINED: dict[str, Check] = {
    "string": table(_N, text("text")),
    "stack": table(_N, rows(row(text("text"), _N, _NAME))),
    **{kind: _numbered(kind) for kind in ("thread", "store", "group", "call")},
}


def state(_checker: Checker, value: Any) -> State:
    """A state whose every value is as it should be; what of it names files is left out."""
    checker = Checker()  # which bounds the ranks of one process's groups together
    found, nothing = checked(value), dict[str, Any]()
    of = {name: form(checker, getattr(found, name)) for name, form in _STATE.items()}
    known = schema.typed(dict, found.numbered)
    of["numbered"] = {
        kind: form(checker, known.get(kind, nothing)) for kind, form in _DEFINED.items()
    }
    if of["process"].get("process", of["id"]) != of["id"] or any(len(s) < 3 for s in of["stands"]):
        raise Wrong("a state")
    return State(**of, problems=[])
