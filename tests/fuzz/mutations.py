"""Draws wrong journals: a small job in which records get other values, sizes and orders."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from hypothesis import strategies as st

from disttrace.journal.format import FIELDS
from disttrace_viewer.load.schema import json_object
from support.journals import MS, Journal, training

HURT = 0
"""Index of the journal that is changed; the others must be read whole."""
STEPS = 4

_TEXTS = st.sampled_from(
    [
        "", "x", "²", "--5", "9" * 400, "\x1b]0;x\x07", "\u202e", "\0x", "a\nb", "é" * 5000,
        "../..", "0",
    ]
)  # fmt: skip
_NUMBERS = st.one_of(
    st.integers(-3, 10),
    st.sampled_from(
        [2**15, 2**16, 2**31, 2**32, 2**53, 2**60, 2**61, 2**62, 2**63, 2**64, -(2**63), 10**11]
    ),
)
_SCALARS = st.one_of(_NUMBERS, _TEXTS, st.none(), st.booleans(), st.floats(-1e30, 1e30))
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(_TEXTS.filter(lambda t: len(t) < 20), inner, max_size=3),
        st.fixed_dictionaries(
            {"from": _NUMBERS, "to": _NUMBERS, "step": st.one_of(_NUMBERS, st.none())}
        ),
    ),
    max_leaves=4,
)
"""What a field may hold instead."""

NAMES = sorted({name for fields in FIELDS.values() for name in fields} | {"def", "new"})


@dataclass(frozen=True)
class Change:
    """One thing that is done to a record: ``do`` changes the list of lines in place."""

    file: int
    """0: definitions; others: the segment."""
    line: int
    how: str
    field: str
    value: Any

    def apply(self, lines: list[bytes]) -> None:
        if not lines:
            return
        place = self.line % len(lines)
        if self.how == "drop":
            del lines[place]
        elif self.how == "repeat":
            lines.insert(place, lines[place])
        elif self.how == "swap":
            other = (place * 7 + 3) % len(lines)
            lines[place], lines[other] = lines[other], lines[place]
        elif self.how == "cut":
            lines[place] = lines[place][: self.line % 40]
        elif self.how == "raw":
            lines[place] = _json(self.value)
        else:
            record = json_object(lines[place])
            if record is None:
                return  # changed before into what is no record
            keys = list(record)
            if self.how == "own" and keys:
                # A field that is there, or one inside of it.
                record[keys[self.line * 31 % len(keys)]] = self.value
            elif self.how == "lose" and keys:
                del record[keys[self.line * 31 % len(keys)]]
            else:
                record[self.field] = self.value
            lines[place] = _json(record)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        import json

        return json.dumps(value).encode()


CHANGES = st.lists(
    st.builds(
        Change,
        file=st.integers(0, 1),
        line=st.integers(0, 200),
        how=st.sampled_from(
            ["own", "own", "own", "own", "set", "lose", "drop", "repeat", "swap", "cut", "raw"]
        ),
        field=st.sampled_from(NAMES),
        value=VALUES,
    ),
    min_size=1,
    max_size=4,
)


def rich(folder: Path) -> list[Journal]:
    """A small job with a record of every kind in each of its two journals."""
    journals = training(folder, 2, STEPS)
    for journal in journals:
        rank = journal.rank or 0
        store = journal.tcp_store(server=rank == 0)
        group = journal.group(
            journal.prefix_store(store, "more"), name="1", desc="more", default=False, nth=2
        )
        journal.define("thread", n=0, name="MainThread", native=7)
        journal.define("versions", t=1, torch="2.13", backends={"gloo": None}, parts=["work"])
        journal.define("clock", t=2 * MS, unix_ns=journal.t0 + journal.offset_ns, error_ns=9)
        journal.define("note", t=3 * MS, text="left out")
        journal.define("dropped", t=4 * MS, segment=9)
        journal.define("rendezvous", t=5 * MS, event="next", state="INIT", rank=0, node="n")
        journal.define("worker", t=5 * MS, pid=5, event="failed", rank=1, code=1, error="bad")
        async_call = journal.collective(group, "all_gather", asynchronous=True, splits=[[1, 2]])
        keys: dict[str, Any] = {"args": {"timeout": 1.5}, "stack": 1, "name": "n"}
        sync = journal.call("store.get", kind="store", store=store, **keys)
        n = journal.issue(async_call, 20 * MS, q=1, h=0, n=16, d=1000)
        journal.record(w=n, d=2000)
        journal.record(c=n, d=3000, g=5, z=7)
        journal.end(n, 4000, v=9)
        journal.run(sync, 21 * MS, MS, k="key")
        journal.run(sync, 22 * MS, MS, k=["key", "two"], a={"name": "x", "args": {"a": [1]}})
        message = journal.message(group, "send" if rank == 0 else "recv", 1 - rank)
        journal.run(message, 24 * MS, MS, q=1)
        lost = journal.begin(async_call, 26 * MS, q=2)
        journal.record(o=lost, d=100, k="is_completed")
        journal.record(l=lost, d=200, o=1)
        journal.raises(sync, 27 * MS, MS, "RuntimeError: no", k="bad", p=1, refused=True)
        journal.record(hb=30 * MS)
        journal.record(at=31 * MS, h=0, k=1)
        if rank == 1:
            journal.begin(async_call, 40 * MS, q=3)
        stack = journal.stack(("a.py", 3, "f"), ("b.py", 4, "g"))
        journal.define("failure", t=50 * MS, type="ValueError", text="no", stack=stack, h=0)
        journal.define("exit", t=51 * MS, how="exception", code=1, stack=stack)
    return journals


@cache
def template(folder: Path) -> tuple[Path, tuple[str, str]]:
    """The job as written once, and the names of the files of the journal that is changed."""
    hurt = rich(folder / "template")[HURT]
    return folder / "template", (hurt.definitions.name, hurt.segments[0].name)


def write(scratch: Path, changes: list[Change]) -> Path:
    source, names = template(scratch)
    target = scratch / "case"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for number, name in enumerate(names):
        mine = [change for change in changes if change.file == number]
        if mine:
            path = target / name
            lines = path.read_bytes().splitlines()
            for change in mine:
                change.apply(lines)
            path.write_bytes(b"".join(line + b"\n" for line in lines))
    return target
