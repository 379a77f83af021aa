"""torch's Flight Recorder (2.4 and later): what each rank had enqueued, as its journal.

An entry is a begin with the wall clock of its enqueue; its state shows whether it is over.
What it holds nothing of is named in ``lacks``, and rules ask for that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign import dump_set
from disttrace_viewer.load.foreign.dump import Dump, DumpEntry
from disttrace_viewer.load.foreign.dump import read as read_dump
from disttrace_viewer.load.foreign.records import Records, public_name
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.process import DUMPED

_MARKS = (b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version", b"nccl_comm_state")
_ENTRY = (b"record_id", b"collective_seq_id", b"profiling_name")
_ON_HOST = ("gloo", "mpi", "ucc")
MESSAGE = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9}|\?)")
_LIBRARY = re.compile(
    r"[/\\](torch|torchvision)[/\\]|^<frozen|^<string>|\.(c|cc|cpp|h|hpp|cu)$|^\?\?"
)
RELATIVE = 1 << 20
"""Messages are counted from here where rings have lost the first: both ends know the last."""


def recognises(path: str, head: bytes) -> bool:
    """By the keys that every dump bears."""
    if head[:1] != b"\x80" and not head.lstrip().startswith(b"{"):
        return False
    return any(m in head for m in _MARKS) or all(m in head for m in _ENTRY)


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """One process per rank that left a dump."""
    found = [dump for path in paths if (dump := read_dump(path, problems)) is not None]
    for one in dump_set.sets_of(found, problems):
        for rank, dump in one.dumps.items():
            yield Translating(one, rank, dump).done()


class Translating:
    """One dump on its way to being a journal."""

    kind = DUMPED

    def __init__(self, of: dump_set.DumpSet, rank: int, dump: Dump) -> None:
        self.of, self.rank, self.dump = of, rank, dump
        folder = min(of.folders)
        # What they hold is all that is known of how long it lasted: files are copied.
        self.cut_ns = of.asked_ns or of.newest_ns or dump.modified_ns
        self.records = Records(
            self.kind, os.path.abspath(dump.path), rank, world=of.world, base_ns=of.base_ns,
            lacks=self.lacks(), job=os.path.basename(os.path.abspath(folder)) or "dumps",
            clock=sorted(of.folders), lost=dump.lost,
        )  # fmt: skip
        self.groups: dict[tuple[str, str], int] = {}
        self.threads: dict[str, int] = {}
        self.sent: dict[tuple[object, ...], int] = {}

    def lacks(self) -> Iterator[str]:
        """What the dump does not hold."""
        yield from ("root", "reduce_op", "position", "store")
        known = any(entry.p2p for one in self.of.dumps.values() for entry in one.entries)
        if not known and all(e.backend in _ON_HOST for e in self.dump.entries):
            yield "messages"
        if not self.dump.ends_recorded:
            yield "ends"
        if not self.dump.stacks:
            yield "stack"
        if self.dump.wrapped:
            yield "older"
        if self.of.asked_ns is None:
            yield "time"
            quiet_ns = self.of.quiet_ns
            if quiet_ns is None or quiet_ns < dump_set.STOOD_NS:
                yield "stood"
            if quiet_ns is not None and quiet_ns < dump_set.STOOD_NS:
                yield "occasion"
        if not self.dump.entries:
            yield "arguments"

    def done(self) -> Files:
        """The journal."""
        of, records = self.of, self.records
        backends = {e.backend: self.dump.library or None for e in self.dump.entries if e.backend}
        records.define("versions", t=0, backends=backends)
        for number, ((name, desc), (ranks, whole)) in enumerate(sorted(of.members.items()), 1):
            if self.rank not in ranks:
                continue
            self.groups[name, desc] = number
            backend = next((e.backend for e in self.dump.entries if e.group == name), "")
            device = "cpu" if backend in _ON_HOST else "cuda"
            records.group(
                number, name, ranks, desc=desc, backends={device: backend} if backend else None,
                default=name == of.default_name or desc == dump_set.DEFAULT, partial=not whole,
            )  # fmt: skip
        for launch in self._launches:
            self._write(launch)
        self.rest()
        return records.done(self.dump.path, self.cut_ns)

    @cached_property
    def _launches(self) -> list[list[DumpEntry]]:
        """What was launched together: equal numbers in a row, of which the last has the state."""

        def is_known(entry: DumpEntry) -> bool:
            start = self.of.starts.get(entry.group, 0)
            # Others do not know what they did before.
            return entry.p2p or entry.seq >= start or dump_set.in_flight(self.dump, entry)

        kept = filter(is_known, self.dump.entries)
        return [[*entries] for _, entries in groupby(kept, key=lambda entry: entry.launch)]

    def _write(self, launch: Sequence[DumpEntry]) -> None:
        newest = launch[-1]
        messages = [e for e in launch if MESSAGE.fullmatch(e.name)]
        if not newest.p2p or len(launch) == 1:
            self._operation(newest, newest, None)
            return
        if not messages:
            return
        call = self.records.call(
            op="batch_isend_irecv", kind="composed",
            group=self.groups.get((newest.group, newest.desc)), stack=self.stack(messages[0]),
            args={},
        )  # fmt: skip
        first = messages[0].created_ns
        around = self.records.begin(call, first, h=self._thread(newest) or None)
        for message in messages:
            self._operation(message, newest, around)
        if not dump_set.in_flight(self.dump, newest):
            self.records.after("e", around, newest.created_ns - first)

    def _operation(self, entry: DumpEntry, bears: DumpEntry, parent: int | None) -> None:
        """One operation; ``bears`` is the entry that has its launch's state."""
        of_message = MESSAGE.fullmatch(entry.name) if entry.p2p else None
        if entry.p2p and of_message is None:
            return
        group = self.groups.get((entry.group, entry.desc))
        shapes = entry.inputs or entry.outputs
        args: dict[str, Any] = {}
        if entry.outputs and entry.inputs:
            args["output_shapes"] = [list(shape) for shape in entry.outputs]
        if bears.state == "started" and dump_set.in_flight(self.dump, bears):
            args["started"] = True
        fields = {
            "kind": "message" if of_message else "collective",
            "op": of_message[1] if of_message else op_of(entry),
            "peer": int(of_message[4]) if of_message and of_message[4] != "?" else None,
            "group": group,
            "backend": entry.backend or None,
            "device": "cpu" if entry.backend in _ON_HOST else "cuda",
            "shapes": [list(shape) for shape in shapes] or None,
            "dtypes": list(entry.input_dtypes) or None,
            "args": args or None,
            "stack": self.stack(entry),
            "origin": "python",
        }
        number = self.records.begin(
            self.records.call(**fields),
            entry.created_ns,
            h=self._thread(entry) or None,
            q=self._count(entry, fields) if of_message else entry.seq or None,
            p=parent,
        )
        self._end(number, entry, bears)

    def _count(self, entry: DumpEntry, fields: dict[str, object]) -> int:
        """The number of a message among those from one rank to another."""
        key = (fields["group"], fields["op"], fields["peer"])
        if key not in self.sent and any(dump.wrapped for dump in self.of.dumps.values()):
            ended = [each for each in self._launches if not dump_set.in_flight(self.dump, each[-1])]
            like = (entry.group, entry.name)
            over = sum((one.group, one.name) == like for each in ended for one in each)
            self.sent[key] = RELATIVE - over
        self.sent[key] = self.sent.get(key, 0) + 1
        return self.sent[key]

    def _end(self, number: int, entry: DumpEntry, bears: DumpEntry) -> None:
        records, device = self.records, entry.backend not in _ON_HOST
        if not dump_set.in_flight(self.dump, bears):
            if self.dump.ends_recorded:
                d = (bears.completed_ns or entry.created_ns) - entry.created_ns
                records.after("i", number, 0)
                records.after("c", number, d, g=d or None, z=bears.duration_ns)
            else:
                # It was over when its thread began something else, if it was waited for.
                until = self._later.get(entry.id, entry.created_ns)
                records.after("e", number, until - entry.created_ns)
            return
        records.after("i", number, 0)
        of_thread = (e for e in self.dump.entries if e.thread == entry.thread)
        oldest = next((e.id for e in of_thread if dump_set.in_flight(self.dump, e)), None)
        if not device and entry.id == oldest:  # which holds its thread up, sooner or later
            records.after("w", number, 0)

    @cached_property
    def _later(self) -> dict[int, int]:
        """By entry when its thread began the next one, unix ns."""
        found: dict[int, int] = {}
        newest: dict[str, int] = {}
        for entry in reversed(self.dump.entries):
            if entry.thread in newest:
                found[entry.id] = newest[entry.thread]
            newest[entry.thread] = entry.created_ns
        return found

    def rest(self) -> None:
        """Where only counts were dumped: who is behind whom, and nothing of what they called."""
        if self.dump.entries:
            return
        names = {str(number): key for key, number in self.groups.items()}
        if len(self.dump.status) == 1 == len(self.groups):
            (number,), (key,) = self.dump.status, self.groups
            names = {number: key}
        elif self.of.default_name is not None:
            names = {"0": (self.of.default_name, dump_set.DEFAULT)}
        for number, (enqueued, completed) in self.dump.status.items():
            group = self.groups.get(names.get(number, ("", "")))
            if group is None or enqueued < 1:
                continue
            call = self.records.call(op=UNKNOWN_OP, kind="collective", group=group, origin="python")
            over = enqueued <= completed
            # When it began is not known: that it is there is no progress.
            at_ns = self.of.base_ns if over else self.of.newest_ns or self.cut_ns
            begun = self.records.begin(call, at_ns, q=enqueued)
            for what in "e" if over else "iw":
                self.records.after(what, begun, 0)

    def stack(self, entry: DumpEntry) -> int | None:
        """Where an operation was called."""
        frames = entry.frames
        first = next((i for i, f in enumerate(frames) if not _LIBRARY.search(f[0])), None)
        return None if first is None else self.records.stack(frames[first:])

    def _thread(self, entry: DumpEntry) -> int:
        if entry.thread not in self.threads:
            self.threads[entry.thread] = number = len(self.threads)
            self.records.define("thread", n=number, name=entry.thread or "?")
        return self.threads[entry.thread]


def op_of(entry: DumpEntry) -> str:
    """The public function of an entry's name."""
    if entry.name == "all_to_all" and len(entry.inputs) == len(entry.outputs) == 1:
        return "all_to_all_single"
    name = entry.name.lower() if entry.name.isupper() else entry.name
    base = name.removesuffix("_coalesced")
    return public_name(base) + name.removeprefix(base)
