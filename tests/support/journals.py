"""Writes journals in the documented format without torch: exact times, any size, any fault."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from disttrace.journal import format as fmt

T0 = 10**10
"""In ns; small, since verdicts on processes that live read the clock of a machine that may have
started a minute ago."""
UNIX_NS = 1_700_000_000_000_000_000
"""Unix time at the monotonic reading ``T0`` on a host whose clock is right."""

MS = 1_000_000
S = 1000 * MS
Frame = tuple[str, int, str]
PEER_GONE = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


@dataclass
class Journal:
    """One process's journal under construction; every record is in its file at once.

    ``t`` are nanoseconds after ``t0``, as in the format. ``offset_ns`` shifts the host's clock.
    """

    folder: Path
    pid: int
    role: str = "worker"
    rank: int | None = None
    world_size: int | None = None
    host: str = "host"
    boot_id: str = "boot"
    parent: str | None = None
    job: str = "job"
    job_source: str = "DISTTRACE_JOB"
    t0: int = T0
    offset_ns: int = UNIX_NS - T0
    process: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    """Further keys of the process record; None takes one out."""
    store_host: str = "127.0.0.1"
    """By which its stores are reached: each host has a loopback of its own."""

    def __post_init__(self) -> None:
        if not self.process:
            self.process = hashlib.md5(f"{self.host}/{self.pid}".encode()).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.base = self.folder / f"{self.job}-{self.host}-{self.pid}-{self.process[:12]}"
        self.definitions = Path(fmt.definitions_name(str(self.base)))
        self.segments: list[Path] = []
        self._numbers: dict[str, Iterator[int]] = {}
        self._operations = count(1)
        self._strings: dict[str, int] = {}
        self._define_process()
        self.segment()

    def _define_process(self) -> None:
        env = {} if self.rank is None else {"RANK": str(self.rank)}
        if self.world_size is not None:
            env["WORLD_SIZE"] = str(self.world_size)
        unix_ns = self.t0 + self.offset_ns
        record = {
            "format": fmt.FORMAT, "process": self.process, "parent": self.parent, "job": self.job,
            "job_source": self.job_source, "attempt": 0, "host": self.host, "boot_id": self.boot_id,
            "pid": self.pid, "ppid": 1, "start_ns": unix_ns, "role": self.role, "env": env,
            "argv": ["python", "train.py"], "cwd": "/work", "t0": self.t0, "unix_ns": unix_ns,
            "error_ns": 100, **self.keys,
        }  # fmt: skip
        self.define("process", **{k: v for k, v in record.items() if v is not None})
        if self.rank is not None:
            self.define("identity", t=1, rank=self.rank, world_size=self.world_size)

    def remove(self) -> None:
        """As if nobody had collected it."""
        for path in (self.definitions, *self.segments):
            path.unlink()

    # -- definitions -------------------------------------------------------------------------

    def define(self, what: str, /, **keys: Any) -> None:
        """A definition; a ``stack`` may be given as its only frame."""
        if isinstance(stack := keys.get("stack"), tuple):
            keys["stack"] = self.stack(stack)
        _append(self.definitions, {fmt.DEF: what, **keys})

    def numbered(self, what: str, /, **keys: Any) -> int:
        """A definition under the next number of its kind."""
        n = next(self._numbers.setdefault(what, count(1)))
        self.define(what, n=n, **keys)
        return n

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.numbered("string", v=text)
        return self._strings[text]

    def stack(self, *frames: Frame) -> int:
        """A stack, innermost frame first."""
        numbers = [[self.string(f), line, self.string(name)] for f, line, name in frames]
        return self.numbered("stack", frames=numbers)

    def tcp_store(self, port: int = 29500, host: str = "", **keys: Any) -> int:
        """A TCPStore; ``server=True`` where this process listens."""
        host = host or self.store_host
        return self.numbered(
            "store",
            **{
                "type": "TCPStore", "name": f"tcp://{host}:{port}", "base": None, "prefix": [],
                "host": host, "port": port, "server": False, **keys,
            },
        )  # fmt: skip

    def prefix_store(self, base: int, *prefix: str | None, **keys: Any) -> int:
        """A PrefixStore with its whole chain of prefixes."""
        return self.numbered(
            "store", **{"type": "PrefixStore", "base": base, "prefix": list(prefix), **keys}
        )

    def group(self, store: int | None = None, **keys: Any) -> int:
        """A process group; by default the default group of all ranks on gloo."""
        size = self.world_size or 1
        usual = {
            "name": "0", "type": "ProcessGroup", "backends": {"cpu": "gloo"},
            "ranks": list(range(size)), "rank": self.rank, "size": size, "store": store,
            "nth": None if store is None else 1, "default": True, "t": 10 * MS,
        }  # fmt: skip
        return self.numbered("group", **{**usual, **keys})

    def world(self, port: int = 29500) -> int:
        """The default group over a TCPStore that rank 0 serves, as ``env://`` makes it."""
        base = self.tcp_store(port, server=self.rank == 0)
        return self.group(self.prefix_store(base, "default_pg", "0/"))

    def collective(
        self, group: int, op: str = "all_reduce", *, asynchronous: bool = False, **keys: Any
    ) -> int:
        """A call of a collective of four floats."""
        usual = {
            "kind": fmt.COLLECTIVE, "group": group, "backend": "gloo", "device": "cpu",
            "async": asynchronous, "shapes": [[4]], "dtypes": ["float32"], "bytes": 16,
            "reduce_op": "SUM" if "reduce" in op else None,
            "origin": "python",
            "stack": self.stack(("train.py", 10, "main")),
        }  # fmt: skip
        return self.call(op, **{**usual, **keys})

    def message(self, group: int, op: str, peer: int | None, **keys: Any) -> int:
        """A call of ``send`` or ``recv``; no peer: from any source."""
        usual = {
            "kind": fmt.MESSAGE, "group": group, "backend": "gloo", "device": "cpu",
            "shapes": [[4]], "dtypes": ["float32"], "bytes": 16, "peer": peer, "tag": 0,
            "origin": "python",
            "stack": self.stack(("train.py", 20, "exchange")),
        }  # fmt: skip
        return self.call(op, **{**usual, **keys})

    def call(self, op: str, **keys: Any) -> int:
        """A call record; keys that are None are left out."""
        return self.numbered("call", op=op, **{k: v for k, v in keys.items() if v is not None})

    # -- operations --------------------------------------------------------------------------

    def record(self, **keys: Any) -> None:
        """A record in the newest segment as given; its first key names it."""
        _append(self.segments[-1], keys)

    def begin(self, call: int, t: int, **keys: Any) -> int:
        """A begin; returns the operation's number."""
        n = next(self._operations)
        self.record(b=n, t=t, s=call, **keys)
        return n

    def issue(self, call: int, t: int, *, d: int = MS // 10, **keys: Any) -> int:
        """A begin whose call has returned ``d`` ns later."""
        n = self.begin(call, t, **keys)
        self.record(i=n, d=d)
        return n

    def end(self, n: int, d: int, **keys: Any) -> None:
        self.record(e=n, d=d, **keys)

    def run(self, call: int, t: int, d: int, **keys: Any) -> int:
        """A synchronous operation from begin to end."""
        n = self.begin(call, t, **keys)
        self.end(n, d, u=d // 10)
        return n

    def raises(
        self, call: int, t: int, d: int, text: str, *, refused: bool = False, **keys: Any
    ) -> None:
        """An operation that ends with an exception; ``refused``: torch would not make the call."""
        n = self.begin(call, t, **keys)
        self.end(n, d, x=self.string(text), **({"f": 1} if refused else {}))

    def segment(self, t: int = 0, pending: Sequence[dict[str, Any]] = ()) -> Path:
        """Open the next segment with the begins still in flight."""
        path = Path(fmt.segment_name(str(self.base), len(self.segments) + 1))
        self.segments.append(path)
        self.record(seg=len(self.segments), process=self.process, format=fmt.FORMAT, t=t)
        for begin in pending:
            self.record(**begin, r=1)
        return path

    # -- what tests of findings are made of --------------------------------------------------

    def store_call(self, op: str, line: int, function: str = "main", **keys: Any) -> int:
        """A store operation under the prefix ``app``, at a line of its own."""
        store = self.prefix_store(1, "app", **keys)
        where = self.stack(("train.py", line, function))
        return self.call(f"store.{op}", kind="store", store=store, origin="python", stack=where)

    def beat(self, until_s: int, since_s: int = 0) -> None:
        """A heartbeat every two seconds."""
        for second in range(since_s, until_s + 1, 2):
            self.record(hb=second * S)

    def stand(self, t: int, file: str, line: int, function: str, thread: int = 0) -> None:
        """Where a thread, mostly the main one, stands from ``t`` on."""
        self.record(at=t, h=thread, k=self.stack((file, line, function)))

    def failure(
        self, t: int, kind: str, text: str, *frames: Frame, line: int = 30,
        thread: int = 0, **keys: Sequence[str],
    ) -> None:  # fmt: skip
        """An exception that nobody caught in a thread, at a line of "step" if not elsewhere."""
        stack = self.stack(*(frames or [("train.py", line, "step")]))
        self.define("failure", t=t, type=kind, text=text, stack=stack, h=thread, **keys)

    def fail(self, t: int, kind: str, text: str, *frames: Frame, **keys: Any) -> None:
        self.failure(t, kind, text, *frames, **keys)
        self.define("exit", t=t + MS, how="exception", code=1)

    def break_off(
        self, call: int, t: int, d: int, fails: int, text: str = PEER_GONE, **keys: Any
    ) -> None:
        """An operation that ends in an error, and its process by that."""
        line = keys.pop("line", 30)
        self.raises(call, t, d, text, **keys)
        kind, _, words = text.partition(": ")
        self.fail(fails, kind, words, line=line)

    def lose(
        self, group: int, t: int, d: int, text: str = PEER_GONE, *, fails: int | None = None
    ) -> None:
        """An all_reduce that ends in an error, by which the process ``fails`` then, if at all."""
        call = self.collective(group)
        if fails is None:
            self.raises(call, t, d, text, q=3)
        else:
            self.break_off(call, t, d, fails, text, q=3)

    def leave(self, t: int) -> None:
        self.define("exit", t=t, how="normal", code=None)

    def run_all(self, calls: Sequence[int], *, ends: bool = True) -> None:
        """These calls, numbered, a millisecond apart; the last one hangs unless it ``ends``."""
        for number, call in enumerate(calls, 1):
            if ends or number < len(calls):
                self.run(call, t=(100 + number) * MS, d=MS // 2, q=number)
            else:
                self.begin(call, (100 + number) * MS, q=number)

    def join(self, t: int, world_size: int, port: int = 29500) -> tuple[int, int, int]:
        """``init_process_group`` by ``env://`` up to the store: its operations, still in flight."""
        where = self.stack(("train.py", 5, "main"))
        init = self.call("init_process_group", kind="composed", origin="python", stack=where)
        meet = self.call("rendezvous", kind="composed", origin="python", stack=where)
        store = self.tcp_store(port, server=self.rank == 0)
        make = self.call(
            "TCPStore", kind="constructor", store=store, origin="python", stack=where,
            args={"host": "127.0.0.1", "port": port, "world_size": world_size},
        )  # fmt: skip
        one = self.begin(init, t)
        two = self.begin(meet, t + 1, p=one)
        return one, two, self.begin(make, t + 2, p=two)

    def mesh(self, t: int, parent: int, size: int, rank: int, *prefix: str) -> int:
        """Begin the constructor of a gloo group under a prefix; it stays in flight."""
        base = self.tcp_store(29500, server=self.rank == 0)
        make = self.call(
            "ProcessGroupGloo", kind="constructor", store=self.prefix_store(base, *prefix),
            origin="python", stack=self.stack(("train.py", 6, "main")),
            args={"rank": rank, "size": size},
        )  # fmt: skip
        return self.begin(make, t, p=parent)

    def create(self, t: int, members: list[int], *, wait: bool = True) -> None:
        """``new_group`` of these ranks; waiting in its mesh, or done."""
        where = self.stack(("train.py", 60 + len(members), "main"))
        args = {"ranks": members, "use_local_synchronization": False, "sort_ranks": True}
        call = self.call("new_group", kind="composed", origin="python", stack=where, args=args)
        outer, rank = self.begin(call, t), self.rank or 0
        if rank in members:
            place = members.index(rank)
            inner = self.mesh(t + 1, outer, len(members), place, "0/", "1/", "cpu/")
            if wait:
                return
            self.end(inner, MS)
        self.end(outer, 2 * MS)


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def workers(
    folder: Path, world_size: int, *, apart_ns: int | None = None, **keys: Any
) -> list[Journal]:
    """The journals of a job of ``world_size`` workers on one host; with ``apart_ns`` the odd ranks
    are on another one, whose clock is so much ahead.
    """

    def of(rank: int) -> dict[str, Any]:
        if apart_ns is None:
            return keys
        here = keys.get("host", "host")
        if rank % 2 == 0:
            return {"store_host": here, **keys}
        there = f"{here}-2"
        offset = keys.get("offset_ns", UNIX_NS - T0) + apart_ns
        apart = {"host": there, "boot_id": f"boot of {there}", "offset_ns": offset}
        return {"store_host": here, **keys, **apart}

    return [
        Journal(folder, pid=4000 + rank, rank=rank, world_size=world_size, **of(rank))
        for rank in range(world_size)
    ]


def training(folder: Path, world_size: int = 2, steps: int = 3) -> list[Journal]:
    """A healthy job: ``steps`` all_reduces of everybody, a millisecond apart, 0.1 ms long."""
    journals = workers(folder, world_size)
    for journal in journals:
        call = journal.collective(journal.world())
        for step in range(1, steps + 1):
            journal.run(call, t=step * MS + 1000 * (journal.rank or 0), d=MS // 10, q=step)
        journal.define("exit", t=(steps + 1) * MS, how="normal", code=0)
    return journals


def work_steps(folder: Path, works: Sequence[int], *, steps: int = 20, transfer: int = MS) -> int:
    """From 100 ms on, steps of some ms of work by rank and an all_reduce; the end of the last."""
    let_go = 100 * MS
    jobs = workers(folder, len(works))
    calls = [journal.collective(journal.world(), bytes=4000) for journal in jobs]
    for number in range(1, steps + 1):
        begins = [let_go + work * MS for work in works]
        let_go = max(begins) + transfer
        for journal, call, begin in zip(jobs, calls, begins, strict=True):
            journal.run(call, begin, let_go - begin, q=number)
    for journal in jobs:
        journal.leave(let_go)
    return let_go


def bulk(folder: Path, operations: int, world_size: int = 8, *, asynchronous: bool = False) -> None:
    """A healthy job of about so many operations: collectives, every tenth call a message pair.

    Written without going through ``Journal`` line by line, so that ten million take a minute.
    """
    each = operations // world_size
    for journal in workers(folder, world_size):
        group = journal.world()
        rank = journal.rank or 0
        calls = [journal.collective(group, shapes=[[n]], bytes=4 * n) for n in range(1, 19)]
        # Even ranks send to the next one, odd ones receive from the one before.
        message = journal.message(group, "recv", rank - 1)
        if rank % 2 == 0:
            message = journal.message(group, "send", (rank + 1) % world_size)
        number, seq, nth, t = 0, 0, 0, 10 * MS + rank * 700
        while number < each:
            lines = []
            for _ in range(min(200_000, each - number)):
                number += 1
                t += 90_000 + (number * 7919 + rank * 104_729) % 997
                if number % 10 == 0:
                    nth += 1
                    key, counted = message, nth
                else:
                    seq += 1
                    key, counted = calls[seq % len(calls)], seq
                lines.append(f'{{"b":{number},"t":{t},"s":{key},"q":{counted}}}\n')
                d = 50_000 + number % 977
                if asynchronous:
                    lines.append(f'{{"i":{number},"d":9000}}\n{{"w":{number},"d":{d - 900}}}\n')
                    lines.append(f'{{"e":{number},"d":{d}}}\n')
                else:
                    lines.append(f'{{"e":{number},"d":{d},"u":{9000 + number % 77}}}\n')
                if number % 20_000 == 0:
                    lines.append(f'{{"hb":{t}}}\n')
            with journal.segments[-1].open("a") as file:
                file.writelines(lines)
            journal.segment(t)
        journal.define("exit", t=t + MS, how="normal", code=0)
