"""What the host that leads computes for a live verdict, by hosts: from bytes to words.

python benchmarks/viewer/live_judge.py --hosts 32,128,1024

Each host has a folder with the journals of its eight ranks and tells of them what it would tell; 32
answers at a time become one, as on their way, until there are no more than 32. Counted is the
processor time of the first host's verdict, less what the others did for it, the least of
``--rounds``; and that of one host that makes one answer of 32, where it takes longest.
``tests/reliability/hosts_in_virtual_time.py`` reckons with these figures.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "viewer")]

from benchmarks.viewer.jobs import Shape, make  # noqa: E402
from disttrace_viewer.analysis.liveness import Seen  # noqa: E402
from disttrace_viewer.companion.channel.rounds import Answer  # noqa: E402
from disttrace_viewer.companion.channel.tree import FAN  # noqa: E402
from disttrace_viewer.companion.told import packed, together  # noqa: E402
from disttrace_viewer.companion.verdict import Judge  # noqa: E402
from disttrace_viewer.trace.process import Process  # noqa: E402

STALL_S = 10.0
PER_HOST = 8


def living(_: Process) -> Seen:
    """What the kernel of a host says of its ranks while they wait."""
    return Seen(True, None, "S")


class Hosts:
    """The folders of a job's hosts, and what they tell."""

    def __init__(self, made: Path, hosts: int, fault: str, parted: int) -> None:
        shape = Shape(8, hosts // 8, PER_HOST, 3, fault=fault, per_host=PER_HOST, parted=parted)
        make(made, shape)
        self._job = f"run{shape.size}"
        self._folders = [made / f"host{number}" for number in range(hosts)]
        for folder in self._folders:
            folder.mkdir()
        for path in [*made.glob("*.jsonl")]:
            number = int(path.name.split("-")[1].removeprefix("node"))
            path.rename(self._folders[number] / path.name)
        self.folding_s: list[float] = []
        """What one host did by folding, from the leaves of the tree up."""
        self.answers = self._told(())
        self.others_s = 0.0

    def judge(self, number: int) -> Judge:
        """The one of a host."""
        return Judge(str(self._folders[number]), self._job, self._job, STALL_S)

    def gather(self, wanted: Sequence[str] = ()) -> list[Answer]:
        """What all but the first tell, folded."""
        if not wanted:
            return self.answers
        began = time.process_time()
        answers = self._told(tuple(wanted))
        gc.collect()  # what they leave is theirs
        self.others_s += time.process_time() - began
        return answers

    def _told(self, wanted: tuple[str, ...]) -> list[Answer]:
        told = []
        for number in range(1, len(self._folders)):
            judge = self.judge(number)
            if data := judge._answer(wanted, True) if wanted else packed(judge._local(), living):
                told.append(Answer(f"host{number}", True, data))
            judge.close()
            for end in (
                judge.exchange._ear,
                judge.exchange._mouth,
            ):  # of one that goes on they stay
                os.close(end)
        if wanted:
            return told
        while len(told) > FAN or len(told) == len(self._folders) - 1:
            parts = [told[n : n + FAN] for n in range(0, len(told), FAN)]
            began = time.process_time()
            told = [Answer(part[0].sender, True, together(part)) for part in parts]
            self.folding_s.append((time.process_time() - began) / len(parts))
        return told


def measured(hosts: int, rounds: int, fault: str, parted: int = 0) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as made:
        job = Hosts(Path(made), hosts, fault, parted)
        least = float("inf")
        for _ in range(rounds):
            judge = job.judge(0)
            judge.exchange.join = lambda *_: True  # type: ignore[method-assign]
            judge.exchange.gather = job.gather  # type: ignore[method-assign]
            judge.exchange.confirm = lambda: True  # type: ignore[method-assign]
            job.others_s = 0.0
            gc.collect()
            gc.freeze()  # a companion holds no other host's journals
            began = time.process_time()
            found = judge.verdict()
            least = min(least, time.process_time() - began - job.others_s)
            judge.close()
    size = sum(len(answer.data) for answer in job.answers)
    first = next(iter(found["lines"]), "nothing")
    told = f"{len(job.answers)}, {size / 1e3:,.0f} kB"
    folding = f"{max(job.folding_s):.2f}"
    return f"| {hosts:,} | {told} | {folding} | {least:.2f} | {first} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="32,128,1024", help="multiples of eight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--fault", default="tp", help="the kind of group in which one rank stays away"
    )
    parser.add_argument(
        "--parted", type=int, default=0, help="one of so many ranks calls something else in `world`"
    )
    options = parser.parse_args()
    print("| hosts | answers | CPU s of a fold | CPU s | told |", "|---|---|---|---|---|", sep="\n")
    for hosts in map(int, options.hosts.split(",")):
        print(measured(hosts, options.rounds, options.fault, options.parted), flush=True)


if __name__ == "__main__":
    main()
