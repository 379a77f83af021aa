"""Is disttrace right on NCCL? Runs every scenario of rank.py, judges journals and verdicts, prints a table.

    python prove.py                          # one GPU: both ranks share it, each its own NCCL_HOSTID
    python prove.py --backend gloo           # without a GPU: what makes sense there
    python prove.py --backend standin        # the same on a stand-in that enqueues, as NCCL does
    python prove.py --only missing,order     # some; --list names them

Needs disttrace and disttrace_viewer importable (PYTHONPATH) with orjson, polars, rich. Exit code: the
number of failed checks. Ends only processes that it started. Everything it saw goes to --out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parents[1] / "support" / "standin"
STALL = 3.0
Check = tuple["bool | None", str]  # None: only reported


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# -- what one run left ---------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes().rstrip(b"\0")
    return [json.loads(one) for one in content[: content.rfind(b"\n") + 1].splitlines()]


class Journal:
    """One process's journal, read without disttrace's own reader."""

    def __init__(self, folder: Path, name: str) -> None:
        self.definitions = lines(folder / f"{name}.defs.jsonl")
        self.records = [r for p in sorted(folder.glob(f"{name}.*.ops.jsonl")) for r in lines(p)]
        self.calls = {d["n"]: d for d in self.definitions if d["def"] == "call"}
        found = re.search(
            r'"rank": ?(\d+)', json.dumps([d for d in self.definitions if d["def"] == "identity"])
        )
        self.rank = int(found[1]) if found else -1
        self.notes = [d["text"] for d in self.definitions if d["def"] == "note"]
        self.ends: dict[int, list[dict[str, Any]]] = {}
        self.issued: dict[int, int] = {}
        self.begun: list[dict[str, Any]] = []
        for r in self.records:
            for key in ("e", "c", "l"):
                if key in r:
                    self.ends.setdefault(r[key], []).append(r)
            if "i" in r:
                self.issued[r["i"]] = r["d"]
            if "b" in r and "r" not in r:
                self.begun.append(r)

    def operations(
        self, kinds: tuple[str, ...] = ("collective", "message")
    ) -> list[tuple[int, str]]:
        return [
            (r["b"], self.calls[r["s"]]["op"])
            for r in self.begun
            if self.calls[r["s"]]["kind"] in kinds
        ]

    def open(self) -> list[tuple[int, str]]:
        return [(n, op) for n, op in self.operations() if n not in self.ends]

    def twice(self) -> list[int]:
        """Operations seen complete by the poller after their end was on record (the other order is usual)."""
        orders = {
            n: "".join(next(k for k in "ecl" if k in r) for r in ends)
            for n, ends in self.ends.items()
        }
        return [n for n, order in orders.items() if order not in ("e", "c", "l", "ce")]

    def heartbeats(self) -> list[float]:
        return [r["hb"] / 1e9 for r in self.records if "hb" in r]


@dataclass
class Run:
    codes: list[int | None]
    facts: list[list[dict[str, Any]]]
    stderr: list[str]
    live: dict[str, Any] | None = None
    dead: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    seconds: float = 0.0

    def fact(self, rank: int, key: str) -> Any:
        return next((f[key] for f in reversed(self.facts[rank]) if key in f), None)

    def journal(self, rank: int) -> Journal | None:
        return next((j for j in self.journals if j.rank == rank), None)


def serious(report: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [f for f in (report or {}).get("findings", []) if f["severity"] in ("error", "warning")]


def brief(report: dict[str, Any] | None) -> str:
    if report is None:
        return "no report"
    return (
        ", ".join(f"{f['kind']}{sorted(f['culprit_ranks'])}" for f in serious(report)) or "nothing"
    )


# -- checks --------------------------------------------------------------------------------------


def verdict(
    *kinds: str, culprits: tuple[list[int], ...]
) -> Callable[[Run, Run | None], list[Check]]:
    def check(run: Run, plain: Run | None) -> list[Check]:
        found: list[Check] = []
        for when, report in (("live", run.live), ("dead", run.dead)):
            good = any(
                f["kind"] in kinds and sorted(f["culprit_ranks"]) in list(culprits)
                for f in serious(report)
            )
            blamed = {r for f in serious(report) for r in f["culprit_ranks"]} - {
                r for c in culprits for r in c
            }
            found.append((good and not blamed, f"{when}: {brief(report)}"))
        return found

    return check


def quiet(run: Run, plain: Run | None) -> list[Check]:
    return [(not serious(run.dead) and run.dead is not None, f"verdict: {brief(run.dead)}")]


def all_over(run: Run, plain: Run | None) -> list[Check]:
    found: list[Check] = []
    for j in run.journals:
        total, left = len(j.operations()), j.open()
        found.append(
            (
                total > 0 and not left,
                f"rank {j.rank}: {total - len(left)}/{total} over"
                + (f", not {left[:4]}" if left else ""),
            )
        )
    return found or [(False, "no journals")]


def one_open(op: str, rank: int = 0) -> Callable[[Run, Run | None], list[Check]]:
    """Exactly one operation of that kind is in flight at the end, and it is the last begun of its call's group."""

    def check(run: Run, plain: Run | None) -> list[Check]:
        j = run.journal(rank)
        left = j.open() if j else None
        return [
            (
                left is not None and len(left) == 1 and left[0][1] == op,
                f"in flight on rank {rank}: {left}",
            )
        ]

    return check


def still_open(rank: int = 0) -> Callable[[Run, Run | None], list[Check]]:
    def check(run: Run, plain: Run | None) -> list[Check]:
        j = run.journal(rank)
        return [(bool(j and j.open()), f"in flight on rank {rank}: {j and j.open()}")]

    return check


def returned_at_once(run: Run, plain: Run | None) -> list[Check]:
    """NCCL: the call of the operation that hangs was issued within a second (the device, not the host, hangs)."""
    j = run.journal(0)
    took = [j.issued.get(n) for n, _ in j.open()] if j else []
    good = bool(took) and all(t is not None and t < 1e9 for t in took)
    return [(good, f"issued after {[t and round(t / 1e6, 1) for t in took]} ms")]


def no_note(run: Run, plain: Run | None) -> list[Check]:
    notes = [n for j in run.journals for n in j.notes]
    return [(not notes, "no notes" if not notes else f"note: {notes[0][:90]}")]


def ends_once(run: Run, plain: Run | None) -> list[Check]:
    twice = {j.rank: j.twice() for j in run.journals if j.twice()}
    return [(not twice, "each operation ended once" if not twice else f"ended twice: {twice}")]


def alive(run: Run, plain: Run | None) -> list[Check]:
    """Python and the heartbeat went on while the host was blocked in CUDA."""
    gap, base = run.fact(0, "gap"), plain.fact(0, "gap") if plain else None
    # The untraced gap says how long CUDA itself kept the GIL; tracing must not add half a second.
    good = gap is not None and gap < (base or 0) + 0.5
    j = run.journal(0)
    beats = j.heartbeats() if j else []
    widest = max((b - a for a, b in itertools.pairwise(beats)), default=0.0)
    return [
        (good, f"longest silence of a Python thread {gap} s (untraced {base} s)"),
        (len(beats) >= 3 and widest < 5, f"{len(beats)} heartbeats, widest gap {widest:.1f} s"),
    ]


def late_by_three(run: Run, plain: Run | None) -> list[Check]:
    j = run.journal(0)
    if j is None:
        return [(False, "no journal")]
    waits = [
        (e["d"] / 1e9, j.issued.get(n, 0) / 1e9)
        for n, ends in j.ends.items()
        for e in ends
        if "c" in e and e["d"] > 2e9
    ]
    good = len(waits) == 1 and 2.0 < waits[0][0] < 5.0 and waits[0][1] < 0.5
    return [(good, f"device took, host took (s): {[(round(a, 2), round(b, 4)) for a, b in waits]}")]


def shares(run: Run, plain: Run | None) -> list[Check]:
    mine, base = run.fact(0, "shares"), plain.fact(0, "shares") if plain else None
    if not mine or not base:
        return [(False, f"traced {mine}, untraced {base}")]
    a, b = sorted(mine)[len(mine) // 2], sorted(base)[len(base) // 2]
    us, them = run.fact(0, "call_us"), plain.fact(0, "call_us") if plain else None
    return [
        (
            b < 0.3,
            f"untraced share of the device's time {b:.4f} (must be small, else this shows nothing)",
        ),
        (
            a < b + 0.05,
            f"traced {a:.4f}: 40 calls behind 2 s of kernel issued in {run.fact(0, 'issued_ms')} ms",
        ),
        (None, f"a call costs {us} us traced, {them} us untraced"),
    ]


def same_end(run: Run, plain: Run | None) -> list[Check]:
    a, b = run.codes[0], plain.codes[0] if plain else None
    return [(a == b and a not in (0, None), f"rank 0 ended with {a} (untraced {b})")]


def captures(run: Run, plain: Run | None) -> list[Check]:
    mine = [run.fact(r, "captures_failed") for r in (0, 1)]
    base = [plain.fact(r, "captures_failed") for r in (0, 1)] if plain else None
    done = [[f["captured"] for f in run.facts[r] if "captured" in f] for r in (0, 1)]
    want = (
        [[f["captured"] for f in plain.facts[r] if "captured" in f] for r in (0, 1)]
        if plain
        else done
    )
    spam = sum(text.count("Failed to update state") for text in run.stderr)
    return [
        (mine == [0, 0], f"captures failed traced {mine}, untraced {base} (of 60 each)"),
        (done == want, f"captured {done[0]}, untraced {want[0]}"),
        (spam == 0, f"{spam} lines «Failed to update state» on stderr"),
    ]


def raised(run: Run, plain: Run | None) -> list[Check]:
    a, b = run.fact(0, "raised"), plain.fact(0, "raised") if plain else None
    return [(a is not None and a == b, f"the wait raised {a} (untraced {b})")]


def blamed_only_hung(run: Run, plain: Run | None) -> list[Check]:
    took = run.fact(0, "first_call_s")
    journal = run.journal(0)
    left = journal.open() if journal else None
    return [
        (None, f"the first call on a new group took {took and round(took, 2)} s"),
        (left is not None and len(left) == 1, f"in flight on rank 0: {left} (one thread's only)"),
    ]


def told(run: Run, plain: Run | None) -> list[Check]:
    found: list[Check] = []
    for f in run.facts[0]:
        if "backend_type" in f or "torch" in f or "dump_ms" in f:
            found.append((None, json.dumps(f)))
        elif "context_after" in f:
            # A context that becomes current in a fresh thread is that of device 0: on rank 3 of a
            # host it would be made there, half a gigabyte of GPU 0 for every rank.
            found.append(
                (
                    not f["context_after"] or f["context_before"],
                    f"asking binds a CUDA context to the thread: {f}",
                )
            )
        elif "dump" in f:
            found.append(
                (
                    None,
                    f"{f['dump']} {f.get('backend', '')}: version {f['version']}, {f['entries']} entries",
                )
            )
    return found


# -- scenarios -----------------------------------------------------------------------------------


@dataclass
class Scenario:
    name: str
    end: str  # hang: observed, then ended from outside; ends: by itself
    checks: tuple[Callable[[Run, Run | None], list[Check]], ...]
    world: int = 2
    gloo: bool = True
    nccl_checks: tuple[Callable[[Run, Run | None], list[Check]], ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    timeout: float = 1800.0
    ready: tuple[str, ...] = ("blocks", "hung", "looked", "sleeps", "returned")
    observe: float = 7.0
    baseline: bool = False
    alone: bool = False  # timings: nothing else runs meanwhile


MISSING = verdict("missing_participant", culprits=([1],))
SCENARIOS = [
    Scenario("probe", "ends", (told,), world=1, alone=True),
    Scenario(
        "behind",
        "ends",
        (quiet,),
        world=1,
        gloo=False,
        nccl_checks=(shares, all_over, no_note),
        baseline=True,
        alone=True,
    ),
    Scenario("healthy", "ends", (quiet, all_over, ends_once, no_note)),
    Scenario("uneven", "ends", (quiet, all_over), gloo=False),
    Scenario("ddp", "ends", (quiet, all_over)),
    Scenario("fsdp2", "ends", (quiet, all_over)),
    Scenario("late", "ends", (all_over,), nccl_checks=(late_by_three,)),
    Scenario("graph", "ends", (captures, all_over), gloo=False, baseline=True),
    Scenario(
        "missing",
        "hang",
        (MISSING, still_open(), alive),
        nccl_checks=(returned_at_once, one_open("all_reduce")),
        baseline=True,
    ),
    Scenario("missing_sync", "hang", (MISSING, alive, returned_at_once), gloo=False, baseline=True),
    Scenario("missing_free", "hang", (MISSING, alive, returned_at_once), gloo=False, baseline=True),
    Scenario("order", "hang", (verdict("deadlock", culprits=([],)),)),
    Scenario("other_op", "hang", (verdict("op_mismatch", culprits=([],)),)),
    Scenario(
        "never_waited",
        "hang",
        (still_open(),),
        nccl_checks=(verdict("missing_participant", "unwaited_work", culprits=([1], [0])),),
    ),
    Scenario(
        "send",
        "hang",
        (verdict("unmatched_send", culprits=([1], [])),),
        nccl_checks=(one_open("send"),),
    ),
    Scenario(
        "killed",
        "hang",
        (verdict("process_failed", culprits=([1],)),),
        ready=("blocks", "returned"),
        observe=6.0,
    ),
    Scenario(
        "watchdog",
        "ends",
        (same_end, still_open()),
        gloo=False,
        timeout=8.0,
        baseline=True,
        env={"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "200", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    ),
    Scenario(
        "blocking",
        "ends",
        (raised, same_end, ends_once),
        gloo=False,
        timeout=8.0,
        baseline=True,
        env={"TORCH_NCCL_BLOCKING_WAIT": "1"},
    ),
    Scenario(
        "evicted",
        "hang",
        (still_open(), MISSING),
        gloo=False,
        ready=("looked",),
        observe=5.0,
        env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "50", "TORCH_FR_BUFFER_SIZE": "50"},
    ),
    Scenario("threads", "hang", (blamed_only_hung,), gloo=False, ready=("looked",), observe=4.0),
]


# -- running -------------------------------------------------------------------------------------


class Prover:
    def __init__(self, options: argparse.Namespace) -> None:
        self.o = options
        self.begun = time.monotonic()
        self.diagnosed = "polars" in sys.modules or _importable("polars")

    def environment(
        self, scenario: Scenario, rank: int, port: int, trace: Path | None
    ) -> dict[str, str]:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("DISTTRACE", "TORCHELASTIC_", "TORCH_NCCL_", "NCCL_"))
        }
        kept.pop(
            "CUDA_LAUNCH_BLOCKING", None
        )  # it makes the host wait: everything here would be void
        nccl = {
            "NCCL_HOSTID": f"kit-host-{rank}",  # else: «Duplicate GPU detected»
            "NCCL_NET": "Socket",
            "NCCL_NET_PLUGIN": "none",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_RAS_ENABLE": "0",
            "NCCL_MAX_NCHANNELS": "2",
            "NCCL_DEBUG": "WARN",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_FR_BUFFER_SIZE": "2000",
        }
        standin = {
            "STANDIN": str(self.o.sockets),
            "STANDIN_TORCH": os.environ.get("STANDIN_TORCH", "2.13"),
            "PYTHONPATH": os.pathsep.join(filter(None, (kept.get("PYTHONPATH"), str(STANDIN)))),
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        }
        return {
            **kept,
            **(nccl if self.o.backend.startswith("nccl") else {}),
            **(standin if self.o.backend == "standin" else {}),
            **scenario.env,
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(scenario.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            "KIT_TRACE": str(trace) if trace else "-",
        }

    def run(self, scenario: Scenario, traced: bool) -> Run:
        begun = time.monotonic()
        folder = self.o.out / scenario.name / ("traced" if traced else "plain")
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / "journals" if traced else None
        port = free_port()
        processes, files = [], []
        command = [
            sys.executable,
            str(HERE / "rank.py"),
            scenario.name,
            "--backend",
            "gloo" if self.o.backend == "standin" else self.o.backend,
            "--timeout",
            str(scenario.timeout),
        ]
        for rank in range(scenario.world):
            out, err = (folder / f"{rank}.out").open("wb"), (folder / f"{rank}.err").open("wb")
            files += [out, err]
            processes.append(
                subprocess.Popen(
                    command,
                    env=self.environment(scenario, rank, port, trace),
                    stdout=out,
                    stderr=err,
                    cwd=folder,
                )
            )
        run = Run([None] * scenario.world, [[] for _ in processes], [])
        try:
            limit = time.monotonic() + self.o.limit
            if scenario.end == "hang":
                while time.monotonic() < limit:
                    facts = self._facts(folder, scenario.world)
                    if any(set(f) & set(scenario.ready) - {"sleeps"} for f in facts[0]) or (
                        not self.o.backend.startswith("nccl")
                        and any("ready" in f for f in facts[0])
                    ):
                        break
                    if all(p.poll() is not None for p in processes):
                        run.problems.append(
                            f"ended before it hung: {[p.poll() for p in processes]}"
                        )
                        break
                    time.sleep(0.1)
                else:
                    run.problems.append("never got to where it hangs")
                time.sleep(scenario.observe)
                if trace and self.diagnosed:
                    run.live = self.diagnose(trace, folder / "live.json")
            else:
                while time.monotonic() < limit and any(p.poll() is None for p in processes):
                    # The rank that others wait for in vain is ended with them.
                    if (
                        scenario.name in ("watchdog", "blocking")
                        and processes[0].poll() is not None
                    ):
                        break
                    time.sleep(0.1)
                if any(p.poll() is None for p in processes) and scenario.name not in (
                    "watchdog",
                    "blocking",
                ):
                    run.problems.append(f"did not end within {self.o.limit} s")
            run.codes = [p.poll() for p in processes]
        finally:
            for p in processes:
                if p.poll() is None:
                    p.send_signal(signal.SIGKILL)
            for p in processes:
                p.wait()
            for f in files:
                f.close()
        run.facts = self._facts(folder, scenario.world)
        run.stderr = [
            (folder / f"{r}.err").read_text(errors="replace") for r in range(scenario.world)
        ]
        if trace and trace.is_dir():
            names = sorted(p.name.removesuffix(".defs.jsonl") for p in trace.glob("*.defs.jsonl"))
            run.journals = [Journal(trace, name) for name in names]
            if self.diagnosed:
                run.dead = self.diagnose(trace, folder / "dead.json")
        if (
            scenario.end == "ends"
            and scenario.name not in ("watchdog", "blocking", "graph")
            and any(run.codes)
        ):
            run.problems.append(f"exit codes {run.codes}: {run.stderr[0][-200:]!r}")
        run.seconds = time.monotonic() - begun
        return run

    def _facts(self, folder: Path, world: int) -> list[list[dict[str, Any]]]:
        found = []
        for rank in range(world):
            text = (folder / f"{rank}.out").read_text(errors="replace")
            found.append(
                [
                    json.loads(line[4:])
                    for line in text.splitlines()
                    if line.startswith("KIT {") and line.endswith("}")
                ]
            )
        return found

    def diagnose(self, journals: Path, keep: Path) -> dict[str, Any] | None:
        environ = {k: v for k, v in os.environ.items() if k != "DISTTRACE"}
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "disttrace",
                "diagnose",
                str(journals),
                "--json",
                "--stall",
                str(STALL),
            ],
            capture_output=True,
            text=True,
            timeout=90,
            env=environ,
            check=False,
        )
        keep.write_text(done.stdout or done.stderr)
        try:
            report: dict[str, Any] = json.loads(done.stdout)
            return report
        except json.JSONDecodeError:
            return None

    def prove(self, scenario: Scenario) -> tuple[str, list[Check], float]:
        if time.monotonic() - self.begun > self.o.total:
            return scenario.name, [(False, "not run: out of time")], 0.0
        nccl = self.o.backend.startswith("nccl")
        if not nccl and not scenario.gloo:
            return scenario.name, [(None, "needs a GPU")], 0.0
        begun = time.monotonic()
        try:
            plain = (
                self.run(scenario, traced=False)
                if scenario.baseline and (nccl or scenario.gloo)
                else None
            )
            run = self.run(scenario, traced=True)
            checks: list[Check] = [(False, text) for text in run.problems]
            checks += [(None, f"untraced: {text}") for text in (plain.problems if plain else [])]
            enqueues = nccl or self.o.backend == "standin"
            for check in scenario.checks + (scenario.nccl_checks if enqueues else ()):
                checks += check(run, plain)
        except Exception as error:
            checks = [(False, f"the kit itself: {type(error).__name__}: {error}")]
        return scenario.name, checks, time.monotonic() - begun


def _importable(name: str) -> bool:
    return (
        subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, check=False
        ).returncode
        == 0
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "proof")
    parser.add_argument(
        "--jobs", type=int, default=3, help="scenarios at a time, except the timed ones"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one run")
    parser.add_argument(
        "--total", type=float, default=430.0, help="seconds after which none is begun"
    )
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.sockets = tempfile.mkdtemp(prefix="standin-")  # paths of sockets are short
    wanted = [s for s in SCENARIOS if not options.only or s.name in options.only.split(",")]
    if options.list:
        print("\n".join(s.name for s in wanted))
        return 0
    prover = Prover(options)
    if not prover.diagnosed:
        print("polars is missing: journals only, no verdicts")
    results = [prover.prove(s) for s in wanted if s.alone]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results += pool.map(prover.prove, [s for s in wanted if not s.alone])
    failed = 0
    table = []
    for name, checks, seconds in results:
        for n, (good, text) in enumerate(checks):
            failed += good is False
            mark = {True: "ok", False: "FAIL", None: "--"}[good]
            table.append(
                f"{name if n == 0 else '':14} {mark:5} {text}"
                + (f"   [{seconds:.0f} s]" if n == 0 and seconds else "")
            )
    table.append(
        f"{failed} checks failed, {sum(1 for _, c, _ in results for g, _ in c if g)} right, {time.monotonic() - prover.begun:.0f} s in all"
    )
    text = "\n".join(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.txt").write_text(text + "\n")
    with tarfile.open(options.out.parent / "proof.tar.gz", "w:gz") as archive:
        archive.add(options.out, "proof")
    print(text)
    return min(failed, 100)


if __name__ == "__main__":
    raise SystemExit(main())
