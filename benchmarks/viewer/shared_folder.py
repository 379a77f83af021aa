"""What one host of a job reads of a folder that all hosts share, while the job stands still.

python benchmarks/viewer/shared_folder.py --hosts 64 --ranks 8 --old 20000

A verdict by the companion of this host, which serves no other: files that it opened of
its own host and of others, and processor seconds. ``--old`` journals of other jobs, and ``--tries``
earlier tries of this job on this host, lie there as well. With ``--by-host`` each host has a folder
in it, as in a job over hosts that has a name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from disttrace.journal import proc  # noqa: E402
from disttrace_viewer.companion.endpoint import CLIENT, SERVER  # noqa: E402
from disttrace_viewer.companion.verdict import Judge  # noqa: E402
from support.journals import MS, Journal  # noqa: E402
from support.orders import order  # noqa: E402

STALL_S = 10.0
DAY_S = 86_400


def of_host(folder: Path, host: int, apart: Container[int]) -> Path:
    """Where the journals of a host lie, if those of the hosts ``apart`` have folders of theirs."""
    return folder / "job" / f"host{host}" if host in apart else folder


def write(
    folder: Path, hosts: int, ranks: int, tries: int, old: int, apart: Container[int] = ()
) -> None:
    """A job in which all but the last rank wait, and what lies beside it."""
    here, own = proc.here(), proc.own()
    now = time.perf_counter_ns() - round(30e9)
    offset = time.time_ns() - time.perf_counter_ns()
    world = hosts * ranks

    def one(rank: int, pid: int, host: int, began_ns: int, **keys: Any) -> Journal:
        boot = here.boot_id if host == 0 else f"boot of {host}"
        journal = Journal(
            of_host(folder, host, apart), pid, rank=rank, world_size=world, host=f"host{host}",
            boot_id=str(boot), offset_ns=offset, t0=began_ns, keys={**own, **keys},
        )  # fmt: skip
        store = journal.tcp_store(29500, host="node0", server=rank == 0)
        world_group = journal.group(journal.prefix_store(store, "default_pg", "0/"))
        call = journal.collective(world_group)
        for number in range(3):
            journal.run(call, t=number * MS, d=MS, q=number + 1)
        if rank < world - 1:
            journal.begin(call, t=5 * MS, q=4)
        return journal

    for rank in range(world):
        one(rank, os.getpid() if rank == 0 else 4_000_000 + rank, rank // ranks, now)
    for attempt in range(tries):
        for rank in range(ranks):
            past = 5_000_000 + attempt * ranks + rank
            journal = one(rank, past, 0, now - DAY_S * 10**9 + attempt)
            for path in (journal.definitions, *journal.segments):
                os.utime(path, (time.time() - DAY_S,) * 2)
    template = next(folder.rglob("*.defs.jsonl"))
    for number in range(old):  # of a day ago
        name = f"old{number // 100}-host0-{6_000_000 + number}-{number:012x}"
        shutil.copyfile(template, folder / f"{name}.defs.jsonl")
        os.utime(folder / f"{name}.defs.jsonl", (time.time() - DAY_S,) * 2)
        (folder / f"{name}.000001.ops.jsonl").touch()


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tries", type=int, default=0)
    parser.add_argument("--old", type=int, default=0)
    parser.add_argument("--by-host", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        apart = range(options.hosts if options.by_host else 0)
        write(folder, options.hosts, options.ranks, options.tries, options.old, apart)
        opened = {"own": 0, "others": 0, "listings": 0}

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in ("os.listdir", "os.scandir"):
                opened["listings"] += str(arguments[0]).startswith(made)
            elif event == "open" and str(arguments[0]).startswith(made):
                opened["own" if "-host0-" in str(arguments[0]) else "others"] += 1

        own = str(of_host(folder, 0, apart))
        judge = Judge(order(own, stall_s=STALL_S, host="host0", root=made))
        roles = [SERVER, CLIENT]
        judge.peers.join = lambda *_: True  # type: ignore[method-assign]
        judge.peers.settled = roles.pop  # type: ignore[method-assign]
        judge.peers.speaks = lambda **_: None  # type: ignore[method-assign]
        sys.addaudithook(audit)
        for what in ("another host serves", "none answers, and we do"):
            opened.update(dict.fromkeys(opened, 0))
            began = time.process_time()
            found = judge.verdict()
            seconds = time.process_time() - began
            print(f"{what}: {opened}, {seconds:.2f} CPU s, {found['lines'][:1]}")
        judge.peers.close()


if __name__ == "__main__":
    main()
