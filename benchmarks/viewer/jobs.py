"""Makes journals of a simulated 3-D parallel job of any size, without torch.

    python benchmarks/viewer/jobs.py OUT --pp 8 --dp 128 --tp 8 --steps 15 --fault tp

Each rank is in 4 to 6 groups: default, tp, dp, pp, mp (tp x pp), emb (first and last stage). A step
has 20 operations: 12 all_reduces in tp, 4 messages along pp, 2 asynchronous ones in dp, 1 in mp, 1
of all. A collective ends when its last member has come (a clock per rank is simulated), so there
are stragglers and clocks can be aligned. With a fault one rank stops coming at three quarters, the
hang spreads by itself, and everybody is killed after 14 s of heartbeats (``--ends`` scattered:
over 10 s; raised: each by an exception of its own).

Records have the shapes of real ones of torch 2.13 on gloo.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

import disttrace.journal.format as fmt

T0 = 10**12
UNIX = 1_795_000_000_000_000_000
MS = 1_000_000
STORE = "tcp://node0000:29500"
STEP = [*(["tp"] * 3 + ["msg"]) * 4, "dp_scatter", "dp_gather", "mp", "world"]
NEVER = np.inf
Times = npt.NDArray[np.float64]
Record = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The job's size and what happens to it."""

    pp: int
    dp: int
    tp: int
    steps: int
    repeat: int = 1
    fault: str | None = None
    per_host: int = 8
    hosts_apart: bool = True
    ends: str = "together"
    """How all end after a fault: killed together, or one after the other, or each by an exception
    at a line of its own."""
    more: int = 0
    """So many groups more like that of tp, for every rank: made and not used."""
    parted: int = 0
    """One of so many ranks, the second first, calls another operation where all do one together."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp

    @cached_property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Kind and global ranks of every group."""
        ranks = np.arange(self.size).reshape(self.pp, self.dp, self.tp)
        pairs = [(d, t) for d in range(self.dp) for t in range(self.tp)]
        found = [("world", ranks.reshape(-1))]
        found += [("pp", ranks[:, d, t]) for d, t in pairs]
        found += [("dp", ranks[p, :, t]) for p in range(self.pp) for t in range(self.tp)]
        found += [("tp", ranks[p, d, :]) for p in range(self.pp) for d in range(self.dp)]
        found += [("mp", ranks[:, d, :].reshape(-1)) for d in range(self.dp)]
        if self.pp > 1:
            found += [("emb", ranks[[0, -1], d, t]) for d, t in pairs]
        found += [
            (f"more{n}", ranks[p, d, :])
            for n in range(self.more)
            for p in range(self.pp)
            for d in range(self.dp)
        ]
        return [(kind, [int(rank) for rank in members]) for kind, members in found]

    @cached_property
    def written(self) -> list[list[Any]]:
        """Members of every group as they stand in a journal."""
        return [fmt.ranges_of(tuple(ranks)) for _, ranks in self.groups]

    @cached_property
    def member(self) -> list[list[tuple[int, int]]]:
        """By rank the groups that it is in, and its rank in each."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        for group, (_, ranks) in enumerate(self.groups):
            for place, rank in enumerate(ranks):
                found[rank].append((group, place))
        return found

    @property
    def culprit(self) -> int:
        """The rank that stops coming."""
        return self.size // 3 + 1


@dataclass
class Run:
    """What happens when: ``begins`` and ``ends`` by operation and rank, ns from the job's start."""

    plan: list[str]
    begins: Times
    ends: Times

    @classmethod
    def of(cls, shape: Shape, *, fault: bool) -> Run:
        """Simulate one block of steps; with the fault in it or without."""
        drawn = np.random.default_rng(7)
        plan = ["tp" if w == "msg" and shape.pp == 1 else w for w in STEP] * shape.steps
        wanted = {"dp": "dp_scatter"}.get(shape.fault or "", shape.fault)
        place = (i for i in range(3 * len(plan) // 4, len(plan)) if plan[i] == wanted)
        at = next(place) if fault else len(plan)
        now = np.zeros(shape.size)
        begins = np.full((len(plan), shape.size), NEVER)
        ends = begins.copy()
        for i, what in enumerate(plan):
            now = now + drawn.integers(20_000, 120_000, shape.size)
            if i == at:
                now[shape.culprit] = NEVER
            begins[i] = now
            last = _last(what, now.reshape(shape.pp, shape.dp, shape.tp)).reshape(-1) + 60_000
            if i >= at:
                last[~np.isfinite(now)] = NEVER
            ends[i] = now = last
        return cls(plan, begins, ends)


def _last(what: str, now: Times) -> Times:
    """When the last member of everybody's group has come."""
    if what == "msg":  # even stages send to the next one, odd ones receive
        found: Times = now.copy()
        for stage in range(0, len(now) - 1, 2):
            found[stage] = found[stage + 1] = np.maximum(now[stage], now[stage + 1])
        return found
    axes: dict[str, tuple[int, ...]] = {
        "tp": (2,),
        "dp_scatter": (1,),
        "dp_gather": (1,),
        "mp": (0, 2),
    }
    axis = axes.get(what, (0, 1, 2))
    every: Times = np.empty_like(now)
    every[...] = np.max(now, axis=axis, keepdims=True)
    return every


@dataclass
class Definitions:
    """The definitions of one rank, as lines."""

    lines: list[bytes] = field(default_factory=list)
    count: dict[str, int] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)

    def define(self, record: str, /, **keys: Any) -> None:
        """One record."""
        self.lines.append(orjson.dumps({"def": record, **keys}))

    def number(self, record: str, /, **keys: Any) -> int:
        """One numbered record."""
        n = self.count[record] = self.count.get(record, 0) + 1
        self.define(record, n=n, **keys)
        return n

    def string(self, text: str) -> int:
        """An interned string."""
        if text not in self.strings:
            self.strings[text] = self.number("string", v=text)
        return self.strings[text]

    def stack(self, *frames: tuple[str, int, str]) -> int:
        """A stack, innermost frame first."""
        found = [[self.string(file), line, self.string(name)] for file, line, name in frames]
        return self.number("stack", frames=found)

    def call(self, op: str, kind: str, **keys: Any) -> int:
        """A call site."""
        return self.number("call", op=op, kind=kind, origin="python", **{"async": False} | keys)

    def collective(self, op: str, group: int, numel: int, stack: int, **keys: Any) -> int:
        """The call site of a collective of floats."""
        tensor: Record = {
            "device": "cpu",
            "shapes": [[numel]],
            "dtypes": ["float32"],
            "bytes": 4 * numel,
        }
        reduces = {"reduce_op": "SUM"} if "reduce" in op else {}
        return self.call(
            op, "collective", stack=stack, group=group, backend="gloo", **tensor, **reduces, **keys
        )


MAIN = ("/app/pretrain.py", 120, "main")
STEPPING = ("/app/pretrain.py", 61, "step")


@dataclass
class Rank:
    """One process: its definitions, and what it does when."""

    shape: Shape
    rank: int
    job: str
    skew: int
    definitions: Definitions = field(default_factory=Definitions)
    begun: list[tuple[int, int | None]] = field(default_factory=list)
    """Calls of the initialization, each with the place of the one around it."""
    calls: dict[str, list[int]] = field(default_factory=dict)
    lost: int = 0

    @property
    def host(self) -> str:
        """Its host's name."""
        return f"node{self.rank // self.shape.per_host:05d}"

    @cached_property
    def id(self) -> str:
        """The identity of the process."""
        return hashlib.md5(f"{self.job}/{self.rank}".encode(), usedforsecurity=False).hexdigest()

    def define(self) -> None:
        """All definitions."""
        shape, out = self.shape, self.definitions
        boot = f"boot-{self.rank // shape.per_host:05d}" if shape.hosts_apart else "boot-one"
        local = self.rank % shape.per_host
        names = {"RANK": self.rank, "LOCAL_RANK": local, "WORLD_SIZE": shape.size}
        out.define(
            "process",
            format=1,
            process=self.id,
            parent=None,
            job=self.job,
            attempt=0,
            job_source="SLURM_JOB_ID",
            host=self.host,
            boot_id=boot,
            ppid=1,
            pid=4000 + self.rank,
            start_ns=UNIX + self.skew,
            role="worker",
            env={k: str(v) for k, v in names.items()},
            t0=T0,
            error_ns=95,
            argv=["python", "/app/pretrain.py"],
            cwd="/app",
            python="3.11.7",
            unix_ns=UNIX + self.skew,
            disttrace="0.1.0",
            settings={},
        )
        out.define("thread", n=0, name="MainThread", native=4000 + self.rank)
        out.define("versions", t=1, torch="2.13.0", backends={"gloo": None})
        out.define(
            "identity", t=2, rank=self.rank, local_rank=local, world_size=shape.size, role="worker"
        )
        groups = self._groups()
        self._operations(groups)
        self.lost = out.stack(("/app/data.py", 33, "next_batch"), MAIN)

    def _groups(self) -> dict[str, int]:
        shape, out = self.shape, self.definitions
        begin = out.stack(("/app/parallel.py", 20, "setup"), MAIN)
        init = out.call("init_process_group", "composed", stack=begin, args={"backend": "gloo"})
        base = out.number(
            "store",
            name=STORE,
            prefix=[],
            type="TCPStore",
            host="node0000",
            port=29500,
            server=self.rank == 0,
            address="10.0.0.1:29500",
        )
        args = {"host": "node0000", "port": 29500, "world_size": shape.size}
        args["is_master"] = self.rank == 0
        made = out.call("TCPStore", "constructor", store=base, stack=begin, args=args)
        self.begun = [(init, None), (made, 0)]
        making = out.stack(("/app/parallel.py", 44, "groups"), MAIN)
        found: dict[str, int] = {}
        for group, own in shape.member[self.rank]:
            kind, ranks = shape.groups[group]
            prefix, around = ["default_pg", "0/"], 0
            if kind != "world":
                args = {"ranks": shape.written[group], "use_local_synchronization": True}
                new = out.call("new_group", "composed", stack=making, args=args)
                around = len(self.begun)
                self.begun.append((new, None))
                prefix = [*prefix, f"{group}/"]
            store = out.number("store", name=STORE, base=base, prefix=prefix, type="PrefixStore")
            number = found[kind] = out.number(
                "group",
                type="ProcessGroup",
                rank=own,
                size=len(ranks),
                nth=1,
                store=store,
                t=3 * MS + self.rank * 11 + len(self.begun) * 9000 - 1000,
            )
            prefix = [*prefix, "cpu/"]
            store = out.number("store", name=STORE, base=base, prefix=prefix, type="PrefixStore")
            args = {"rank": own, "size": len(ranks), "timeout": 1800.0}
            call = out.call("ProcessGroupGloo", "constructor", store=store, stack=making, args=args)
            self.begun.append((call, around))
            out.define("group", n=number, backends={"cpu": "gloo"}, name=str(group))
            out.define("group", n=number, desc="default_pg" if kind == "world" else kind)
            default = {"default": True} if kind == "world" else {}
            out.define("group", n=number, ranks=shape.written[group], **default)
        return found

    def _operations(self, groups: dict[str, int]) -> None:
        shape, out = self.shape, self.definitions
        layers = [
            out.stack((f"/app/layers/layer{n}.py", 30 + n, "forward"), STEPPING, MAIN)
            for n in range(12)
        ]
        self.calls["tp"] = [
            out.collective("all_reduce", groups["tp"], 4096 * (1 + n % 4), stack)
            for n, stack in enumerate(layers)
        ]
        stage, place = divmod(self.rank, shape.dp * shape.tp)
        if shape.pp > 1 and not (shape.pp % 2 and stage == shape.pp - 1):
            peer = (stage + 1 if stage % 2 == 0 else stage - 1) * shape.dp * shape.tp + place
            stack = out.stack(("/app/pipeline.py", 55, "exchange"), STEPPING, MAIN)
            self.calls["msg"] = [
                out.call(
                    "recv" if stage % 2 else "send",
                    "message",
                    stack=stack,
                    group=groups["world"],
                    backend="gloo",
                    peer=peer,
                    device="cpu",
                    shapes=[[2048]],
                    dtypes=["float32"],
                    bytes=8192,
                    tag=0,
                )
            ]
        reduce = out.stack(("/app/optim.py", 12, "reduce"), STEPPING, MAIN)
        clip = out.stack(("/app/optim.py", 40, "clip"), STEPPING, MAIN)
        dp, many = groups["dp"], {"async": True}
        self.calls["dp_scatter"] = [
            out.collective("reduce_scatter_tensor", dp, 65536, reduce, **many)
        ]
        self.calls["dp_gather"] = [
            out.collective("all_gather_into_tensor", dp, 8192, reduce, **many)
        ]
        self.calls["mp"] = [out.collective("all_reduce", groups["mp"], 1, clip)]
        everybody = out.stack(("/app/pretrain.py", 75, "step"), MAIN)
        parted = shape.parted and self.rank % shape.parted == 1
        operation = "all_gather" if parted else "all_reduce"
        self.calls["world"] = [out.collective(operation, groups["world"], 1, everybody)]

    def segment(self, run: Run, broken: Run | None) -> Iterator[str]:
        """The lines of its only segment; ``broken`` is the last block where there is a fault."""
        yield f'{{"seg":1,"format":1,"process":"{self.id}","t":1000}}\n'
        yield from self._initialization()
        number, origin, length = len(self.begun), 400 * MS, int(run.ends[-1].max()) + 1000
        count: dict[str, int] = {}
        for block in range(self.shape.repeat):
            now = broken if broken is not None and block == self.shape.repeat - 1 else run
            begins = now.begins[:, self.rank].tolist()
            ends = now.ends[:, self.rank].tolist()
            for place, what in enumerate(now.plan):
                calls = self.calls.get(what)
                if calls is None:
                    continue
                begin, end = begins[place], ends[place]
                if begin == NEVER:
                    break
                number += 1
                key = what.partition("_")[0]
                seq = count[key] = count.get(key, 0) + 1
                call = calls[(seq - 1) % len(calls)]
                yield f'{{"b":{number},"t":{int(begin) + origin},"s":{call},"q":{seq}}}\n'
                if key == "dp":
                    yield f'{{"i":{number},"d":9000}}\n{{"w":{number},"d":11000}}\n'
                if end == NEVER:
                    break
                after = "" if key == "dp" else ',"u":9100'
                yield f'{{"e":{number},"d":{int(end) - int(begin)}{after}}}\n'
            origin += length
        if broken is None:
            self.definitions.define("exit", t=origin + 5 * MS, how="normal", code=0)
            return
        for beat in range(1, 8 - (self.rank % 6 if self.shape.ends == "scattered" else 0)):
            yield f'{{"hb":{origin + beat * 2000 * MS}}}\n'
            if beat == 1 and self.rank == self.shape.culprit:
                yield f'{{"at":{origin + 2500 * MS},"h":0,"k":{self.lost}}}\n'
        if self.shape.ends == "raised":
            self._raise(origin + 15_000 * MS + self.rank)

    def _raise(self, now: int) -> None:
        line = self.definitions.stack(("/app/data.py", 1000 + self.rank, "check"), MAIN)
        self.definitions.define(
            "failure", t=now, type="ValueError", text="bad batch", stack=line, h=0
        )
        self.definitions.define("exit", t=now + MS, how="exception", code=1)

    def _initialization(self) -> Iterator[str]:
        now = 3 * MS + self.rank * 11
        for place, (call, around) in enumerate(self.begun):
            inside = "" if around is None else f',"p":{around + 1}'
            yield f'{{"b":{place + 1},"t":{now},"s":{call}{inside}}}\n'
            now += 9000
            if around is not None:
                yield f'{{"e":{place + 1},"d":7000}}\n'
                last = place + 1 == len(self.begun) or self.begun[place + 1][1] is None
                if last:
                    yield f'{{"e":{around + 1},"d":60000}}\n'


def make(out: Path, shape: Shape) -> dict[str, Any]:
    """Write the job, and say what it is."""
    out.mkdir(parents=True, exist_ok=True)
    run = Run.of(shape, fault=False)
    broken = Run.of(shape, fault=True) if shape.fault else None
    hosts = -(-shape.size // shape.per_host)
    skews = np.random.default_rng(11).integers(-2 * MS, 2 * MS, hosts)
    job = f"run{shape.size}"
    for number in range(shape.size):
        skew = int(skews[number // shape.per_host]) if shape.hosts_apart else 0
        rank = Rank(shape, number, job, skew)
        rank.define()
        base = str(out / f"{job}-{rank.host}-{4000 + number}-{rank.id[:12]}")
        with open(fmt.segment_name(base, 1), "w") as file:
            file.writelines(rank.segment(run, broken))
        with open(fmt.definitions_name(base), "wb") as definitions:
            definitions.write(b"\n".join(rank.definitions.lines) + b"\n")
    size = sum(path.stat().st_size for path in out.iterdir())
    found = {"ranks": shape.size, "hosts": hosts, "groups": len(shape.groups), "bytes": size}
    return {**found, "culprit": shape.culprit if shape.fault else None}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    for name in ("pp", "dp", "tp"):
        parser.add_argument(f"--{name}", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15, help="of 20 operations")
    parser.add_argument("--repeat", type=int, default=1, help="the steps so many times over")
    parser.add_argument("--fault", choices=("tp", "dp", "mp", "world"))
    parser.add_argument("--ends", choices=("together", "scattered", "raised"), default="together")
    parser.add_argument("--per-host", type=int, default=8, help="ranks of a host")
    parser.add_argument("--one-host", action="store_true", help="all under one clock")
    a = parser.parse_args()
    shape = Shape(a.pp, a.dp, a.tp, a.steps, a.repeat, a.fault, a.per_host, not a.one_host, a.ends)
    sys.stdout.write(json.dumps(make(a.out, shape)) + "\n")


if __name__ == "__main__":
    main()
