"""One dump of torch's Flight Recorder as values, whatever its version and form.

Written by ``FlightRecorder.hpp`` and ``FlightRecorderDetail.hpp`` of torch: a pickle or JSON of one
dictionary. What is not of the expected type is left out and counted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import orjson

from disttrace_viewer.load import files
from disttrace_viewer.load.foreign import pickles
from disttrace_viewer.load.problems import Problems, plural
from disttrace_viewer.trace.values import dataclass, replace

MOST_BYTES = 64 << 20
_COALESCED = "coalesced"  # the name of what bears the state of a launch
_NUMBER = re.compile(r"\d+")
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """What the recorder kept of one operation."""

    id: int
    pg: int
    """A number of this process only."""
    group: str
    desc: str
    seq: int
    p2p_seq: int
    p2p: bool
    """Of a message, or the one that bears the state of a launch of messages."""
    backend: str
    name: str
    created_ns: int
    inputs: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    outputs: tuple[tuple[int, ...], ...]
    frames: tuple[tuple[str, int, str], ...]
    thread: str
    state: str
    retired: bool
    timeout_ms: int
    completed_ns: int | None
    started: bool
    duration_ns: int | None

    @property
    def launch(self) -> tuple[int, bool, int, int]:
        """Equal for what was launched together (coalesced)."""
        return (self.pg, self.p2p, self.seq, self.p2p_seq)


@dataclass
class Dump:
    """One file."""

    path: str
    library: str
    entries: list[DumpEntry]
    ranks: dict[str, tuple[int, ...]]
    """Global ranks of groups by their name; empty names hold those of whichever recorded last."""
    descs: dict[str, str]
    status: dict[str, tuple[int, int]]
    """Counts of a group's collectives, enqueued and completed (-1: none), by its number in this
    process."""
    modified_ns: int
    stacks: bool = True
    lost: str | None = None
    """What of it could not be read, to follow its name."""

    @property
    def newest_ns(self) -> int:
        """When its newest operation began; 0 without one."""
        return max((entry.created_ns for entry in self.entries), default=0)

    @property
    def wrapped(self) -> bool:
        """Whether older entries were overwritten."""
        return min((entry.id for entry in self.entries), default=0) > 0

    @cached_property
    def ends_recorded(self) -> bool:
        """Whether completion is recorded; else ``retired`` is the only end."""
        return any(
            e.backend == "nccl" or e.state in ("started", "completed") or e.started
            for e in self.entries
        )


def read(path: str, problems: Problems) -> Dump | None:
    """A file as a dump; None, and a sentence, where it is none."""
    try:
        data, beyond = files.read(path, MOST_BYTES)
    except OSError as error:
        problems.add(path, "unreadable", f"cannot be read ({error.strerror}); left out.")
        return None
    value, lost = _value(path, data, problems)
    if value is None:
        return None
    if beyond:
        lost = f"is larger than {MOST_BYTES >> 20} MB; its end was not read."
    listed = _listed(value.get("entries"))
    found = [entry for one in listed if (entry := _entry(one)) is not None]
    found = list(_with_messages(found))
    if len(found) < len(listed) and lost is None:
        lost = f"holds {plural(len(listed) - len(found), 'operation')} of no known form; left out."
    config = _tables(value.get("pg_config"))
    enqueued, completed = "last_enqueued_collective", "last_completed_collective"
    counts = _tables(value.get("pg_status")).items()
    status = {key: (_whole(one.get(enqueued)), _whole(one.get(completed))) for key, one in counts}
    if not (found or config or status):
        problems.add(path, "foreign", "is a Flight Recorder dump without groups or operations.")
        return None
    found.sort(key=lambda entry: entry.id)
    return Dump(
        path=path,
        library=_text(value.get("comm_lib_version") or value.get("nccl_version"), 64),
        entries=found,
        ranks={key: _ranks(one.get("ranks")) for key, one in config.items()},
        descs={key: _text(one.get("desc"), 300) for key, one in config.items()},
        status=status,
        modified_ns=files.modified_ns(path),
        stacks=any(entry.frames for entry in found),
        lost=lost,
    )


def empty(path: str, at_ns: int) -> Dump:
    """Of a recorder that holds nothing."""
    return Dump(path, "", [], {}, {}, {}, modified_ns=at_ns, stacks=False)


def rank_in(path: str) -> int | None:
    """The rank that a file's name bears: the last number of its stem (``nccl_trace_rank_3``)."""
    stem = os.path.basename(path).partition(".")[0]
    numbers = _NUMBER.findall(stem)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 8 else None


def _value(path: str, data: bytes, problems: Problems) -> tuple[dict[str, Any] | None, str | None]:
    """The dictionary, and what is lost of it."""
    damage = None
    form = "a pickle" if data[:1] == b"\x80" else "JSON"
    try:
        try:
            value = orjson.loads(data) if form == "JSON" else pickles.loads(data)
        except pickles.Torn:
            value, damage = pickles.salvaged(data), "ends within a value"
    except orjson.JSONDecodeError:
        value = {"entries": [*_whole_entries(data.decode("utf-8", "replace"))]}
        damage = "is damaged JSON"
        if not value["entries"]:
            begins = f"begins like a Flight Recorder dump, but {damage}; left out."
            problems.add(path, "unreadable", begins)
            return None, None
    except pickles.Refused as error:
        problems.add(path, "unreadable", f"{error}, which no dump does; it was not read further.")
        return None, None
    if not isinstance(value, dict):
        problems.add(path, "foreign", f"is {form}, but no Flight Recorder dump.")
        return None, None
    count = len(_listed(value.get("entries")))
    return value, damage and f"{damage}; {count:,} of its operations were whole and used."


def _whole_entries(text: str) -> Iterator[Any]:
    start = text.find('"entries"')
    place = text.find("[", start) + 1
    decoder = json.JSONDecoder()
    while start >= 0 and place > 0:
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        yield value
        while text[place : place + 1] in (",", " ", "\n", "\r", "\t"):
            place += 1


def _with_messages(entries: Iterable[DumpEntry]) -> Iterator[DumpEntry]:
    """What bears the state of a launch of messages counts as one: NCCL's recorder tells that of
    each message, and not of the last entry, which has their numbers.
    """
    launched = set()
    for entry in entries:
        numbers = (entry.pg, entry.seq, entry.p2p_seq)
        if entry.p2p:
            launched.add(numbers)
        elif entry.name == _COALESCED and numbers in launched:
            entry = replace(entry, p2p=True)
        yield entry


def _entry(value: Any) -> DumpEntry | None:
    """An entry; None for what is none."""
    try:
        named = value.get("process_group") or ("", "")
        group, desc = _text(named[0], 300), _text(named[1], 300)
        backend, _, name = _text(value["profiling_name"], 300).partition(":")
        duration = value.get("duration_ms")
        entry = DumpEntry(
            id=_counted(value["record_id"]), pg=_counted(value.get("pg_id", 0)), group=group,
            desc=desc, backend=backend, name=name,
            seq=_counted(value.get("collective_seq_id", value.get("seq_id", 0))),
            p2p_seq=_counted(value.get("p2p_seq_id") or 0), p2p=value.get("is_p2p") is True,
            created_ns=_counted(value["time_created_ns"]),
            inputs=_sizes(value.get("input_sizes")),
            input_dtypes=tuple(_text(n, 64) for n in _listed(value.get("input_dtypes"))),
            outputs=_sizes(value.get("output_sizes")),
            frames=_frames(value.get("frames")),
            thread=" ".join(_text(value.get(k), 150) for k in ("thread_name", "thread_id")).strip(),
            state=_text(value.get("state"), 32),
            retired=value.get("retired") is True,
            timeout_ms=min(_counted(value.get("timeout_ms") or 0), 1 << 40),
            completed_ns=_counted(value.get("time_discovered_completed_ns") or 0) or None,
            started=bool(value.get("time_discovered_started_ns")),
            duration_ns=int(duration * 1e6)
            if isinstance(duration, (int, float)) and 0 <= duration < 1e10
            else None,
        )  # fmt: skip
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        return None
    return entry if name and entry.created_ns else None


def _text(value: object, most: int) -> str:
    """A string or number as text; empty of all else, which may hold itself or a million others."""
    return str(value)[:most] if type(value) in (str, int, float) else ""


def _counted(value: object) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError
    return value


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(_counted, one)) for one in _listed(value))


def _frames(value: object) -> tuple[tuple[str, int, str], ...]:
    return tuple(
        (
            _text(one["filename"], 1000),
            max(0, int(one["line"])) % (1 << 31),
            _text(one["name"], 300),
        )
        for one in _listed(value)
        if isinstance(one, dict)
    )


def _whole(value: object) -> int:
    """A count of ``pg_status``, which JSON has as a string; -1 for one that was never set."""
    try:
        found = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return -1
    return found if 0 <= found < 1 << 40 else -1


def _tables(value: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, dict):
        return {}
    return {str(key)[:300]: one for key, one in value.items() if isinstance(one, dict)}


def _ranks(value: object) -> tuple[int, ...]:
    """Ranks as torch writes them, ``[0, 1, 2]`` in a string."""
    if isinstance(value, list):
        found = tuple(n for n in value if type(n) is int and 0 <= n < 10**7)
    else:
        found = tuple(int(n) for n in _NUMBER.findall(_text(value, 1 << 23)) if len(n) < 8)
    return found if len(set(found)) == len(found) else ()
