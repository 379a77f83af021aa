"""Companions of many hosts for real: a network namespace each, and the process that judges.

python tests/reliability/hosts_in_namespaces.py --hosts 40 --load 0,20

Journals are made by hand, the ranks they are of sleep, and all but the last wait in a collective;
the store is a TCPStore of torch's, which has to hold the same keys afterwards. Judges are driven
as by ``watch.py``: told to be ready at half of the limit, asked from the limit on. Who speaks and
when, and of whom nothing is known then, is printed as a table; the exit code is 1 if there is not
one voice with the whole verdict in time, and one of each host that has no server. Namespaces need
root.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from disttrace.journal import proc  # noqa: E402
from support import networks  # noqa: E402
from support.campaigns import options  # noqa: E402
from support.journals import MS, Journal  # noqa: E402
from support.orders import order  # noqa: E402
from support.processes import busy  # noqa: E402

LIMIT_S = 10.0
SEEN_S = 45.0
WITHIN_S = 15.0
ALONE_S = 20.0
"""The same where each host has to speak for itself."""
PORT = 29500
STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), 1, True, wait_for_workers=False)
store.set("theirs", "1")
print(store.num_keys(), flush=True)
for line in sys.stdin:
    print(store.num_keys(), flush=True)
"""


@dataclass
class Judge:
    """The judging process of a host, and the rank that sleeps there."""

    host: networks.Host
    process: subprocess.Popen[bytes]
    sleeper: subprocess.Popen[bytes]
    due: float
    asked: bool = False
    answer: bytes = b""
    signature: object = None
    alive: bool = True
    said: list[tuple[float, str, str]] = field(default_factory=list)
    """When, of whom nothing was known, and the first line."""

    def ask(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except OSError:
            self.alive = False

    def read(self, begun: float) -> None:
        """Take all that has come."""
        assert self.process.stdout is not None
        piece = os.read(self.process.stdout.fileno(), 1 << 20)
        self.alive = bool(piece)
        *lines, self.answer = (self.answer + piece).split(b"\n")
        for line in lines:
            self.take(json.loads(line), begun)

    def take(self, verdict: dict[str, Any], begun: float) -> None:
        """As ``watch.py`` does: a new picture is told, a picture that stays is looked at again."""
        if "called" in verdict:  # on another host a process has waited for the limit
            self.due = min(self.due, time.monotonic())
            return
        self.asked = False
        now = time.monotonic()
        if not verdict:  # another host prints
            self.due = now + 1.0
            return
        signature = verdict["announcers"] and verdict["signature"]
        if signature and signature != self.signature:
            lacks = [line for line in verdict["lines"] if "nothing is known" in line]
            self.said.append((now - begun, "".join(lacks)[:70], verdict["lines"][0]))
        self.signature = verdict["signature"] or self.signature
        self.due = now + (verdict["next_s"] if not verdict["signature"] else 1.0)


def judges(hosts: Sequence[networks.Host], folder: Path, begun: float) -> list[Judge]:
    """A rank and the judge of its host in each namespace."""
    made = []
    here = proc.own()
    offset = time.time_ns() - time.perf_counter_ns()
    t0 = time.perf_counter_ns()
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "viewer")}
    for rank, host in enumerate(hosts):
        journals = folder / host.name
        sleeper = subprocess.Popen(["sleep", "600"])
        name = host.name.replace("-", "_")
        keys = {**here, "ticks": proc.stat(sleeper.pid).ticks}
        journal = Journal(
            journals, sleeper.pid, rank=rank, world_size=len(hosts), host=name, t0=t0,
            boot_id=str(proc.boot_id()), offset_ns=offset, keys=keys,
        )  # fmt: skip
        store = journal.tcp_store(PORT, host=hosts[0].address, server=rank == 0)
        group = journal.group(journal.prefix_store(store, "default_pg", "0/"))
        call = journal.collective(group)
        journal.run(call, t=MS, d=MS, q=1)
        if rank < len(hosts) - 1:
            ago_ns = round((time.monotonic() - begun) * 1e9)
            journal.begin(call, t=time.perf_counter_ns() - ago_ns - t0, q=2)
        asked = json.dumps(asdict(order(journals, stall_s=LIMIT_S, host=name)))
        words = [sys.executable, "-m", "disttrace_viewer.companion.verdict", asked]
        command = host.command(*words)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ,
            start_new_session=True,
        )  # fmt: skip
        made.append(Judge(host, process, sleeper, begun + LIMIT_S + random.random() / 10))
    return made


def ordered(judge: Judge, number: signal.Signals) -> None:
    """A signal to the judge, and to the shell around it."""
    os.killpg(judge.process.pid, number)
    judge.alive = judge.alive and number not in (signal.SIGKILL, signal.SIGSTOP)


def disturb(case: str, all_of: Sequence[Judge], at_s: float, done: set[str]) -> None:
    """What happens to the hosts while they meet."""
    if case in ("server dies", "server stops") and at_s >= LIMIT_S - 2 and case not in done:
        done.add(case)
        ordered(all_of[0], signal.SIGKILL if case == "server dies" else signal.SIGSTOP)
    if case == "a tenth silent" and at_s >= LIMIT_S / 2 + 2 and "silent" not in done:
        done.add("silent")
        for judge in random.sample(list(all_of[1:-1]), max(1, len(all_of) // 10)):
            ordered(judge, signal.SIGSTOP)
    if case == "partition":
        bridge = "br1" if LIMIT_S - 2 <= at_s < LIMIT_S + 15 else "br0"
        if bridge not in done and (bridge == "br1" or "br1" in done):
            done.add(bridge)
            networks.split([judge.host for judge in all_of[len(all_of) // 2 :]], bridge)


def stall(
    hosts: Sequence[networks.Host], case: str, folder: Path, start_s: float
) -> tuple[str, bool]:
    """One stall; a row, and whether it is as it should be. ``start_s``: till all judges run."""
    words = hosts[0].command(sys.executable, "-c", STORE, hosts[0].address, str(PORT))
    store = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert store.stdin is not None
    assert store.stdout is not None
    before = store.stdout.readline()
    begun = time.monotonic() + start_s
    all_of = judges(hosts, folder, begun)
    ready, done = False, set[str]()
    try:
        while (at_s := time.monotonic() - begun) < SEEN_S:
            disturb(case, all_of, at_s, done)
            if not ready and at_s >= LIMIT_S / 2:
                ready = True
                for judge in all_of:
                    judge.ask(b"ready\n")
            for judge in all_of:
                if judge.alive and not judge.asked and time.monotonic() >= judge.due:
                    judge.asked = True
                    judge.ask(b"\n")
            pipes = ((one.process.stdout, one) for one in all_of if one.alive)
            open_ones = {pipe.fileno(): one for pipe, one in pipes if pipe}
            readable, _, _ = select.select([*open_ones], [], [], 0.05)
            for one in readable:
                open_ones[one].read(begun)
            if case == "normal" and at_s > 25:
                break
        print(file=store.stdin, flush=True)
        after = store.stdout.readline()
    finally:
        for judge in all_of:
            os.killpg(judge.process.pid, signal.SIGKILL)
            judge.process.wait()
            judge.sleeper.kill()
            judge.sleeper.wait()
        store.kill()
        store.wait()
    return row(case, all_of, same_keys=before == after)


def row(case: str, all_of: Sequence[Judge], *, same_keys: bool) -> tuple[str, bool]:
    count = len(all_of)
    said = sorted((at, n, lacks, line) for n, j in enumerate(all_of) for at, lacks, line in j.said)
    served = [(at, lacks, line) for at, n, lacks, line in said if n == 0]
    alone = {number: at for at, number, *_ in reversed(said) if number > 0}
    has_server = case not in ("server dies", "server stops")
    without = {"server dies": range(1, count - 1), "server stops": range(1, count - 1),
               "partition": range(count // 2, count - 1)}.get(case, range(0))  # fmt: skip
    good = same_keys and sorted(alone) == [*without]
    good = good and max(alone.values(), default=0.0) <= ALONE_S
    if has_server:
        good = good and bool(served) and served[0][0] <= WITHIN_S
        good = good and (case != "normal" or not served[0][1])
        last = f"Rank {count - 1} never joined"
        good = good and (case != "normal" or all(last in line for *_, line in served))
    when = [f"{at:.1f} s{f' ({lacks})' if lacks else ''}" for at, lacks, _ in served]
    times = sorted(alone.values())
    cells = [
        f"{count}", case, "; ".join(when) or "not",
        f"{len(times)} at {times[0]:.1f} to {times[-1]:.1f} s" if times else "none",
        "same" if same_keys else "OTHERS",
    ]  # fmt: skip
    return f"| {' | '.join([*cells, 'yes' if good else 'NO'])} |", good


def main() -> int:
    cases = "normal,server dies,server stops,a tenth silent,partition"
    chosen = options(__doc__, hosts=40, load="0,20", cases=cases)
    failed = 0
    print("| load | hosts | case | the server spoke | others for themselves | keys | right |")
    print("|---|---|---|---|---|---|---|")
    for load in map(int, chosen.load.split(",")):
        for case in chosen.cases.split(","):
            with (
                tempfile.TemporaryDirectory() as made,
                networks.hosts(chosen.hosts) as hosts,
                busy(load),
            ):
                start_s = chosen.hosts * (0.5 + load / 20)
                line, good = stall(hosts, case, Path(made), start_s)
                print(f"| {load} {line}", flush=True)
                failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
