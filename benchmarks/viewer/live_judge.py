"""What the server computes for a live verdict, by hosts: from bytes to words.

python benchmarks/viewer/live_judge.py --hosts 32,128,1024

Each host has a folder with the journals of its eight ranks and sends of them what it would send.
Counted is the processor time of the first host's verdict, less what the others did for it, the
least of ``--rounds``, and the most memory that this process had.
``tests/reliability/hosts_in_virtual_time.py`` reckons with these figures.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / name) for name in ("", "tests", "viewer")]

from benchmarks.viewer.jobs import Shape, make  # noqa: E402
from disttrace_viewer.analysis.liveness import Observation  # noqa: E402
from disttrace_viewer.companion import summary, words  # noqa: E402
from disttrace_viewer.companion.endpoint import SERVER, PeerReply  # noqa: E402
from disttrace_viewer.companion.peers import Peers  # noqa: E402
from disttrace_viewer.companion.reports import packed  # noqa: E402
from disttrace_viewer.companion.verdict import Judge  # noqa: E402
from disttrace_viewer.trace.process import Process  # noqa: E402
from support.orders import order  # noqa: E402

STALL_S = 10.0
PER_HOST = 8


def living(_: Process) -> Observation:
    """What the kernel of a host says of its ranks while they wait."""
    return Observation(True, None, "S")


class Hosts:
    """The folders of a job's hosts, and what they send."""

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
        self.clients = [f"host{number}" for number in range(1, hosts)]
        self._summaries = [PeerReply(one, self._sent(one, "summary")) for one in self.clients]
        self.bytes = 0
        self.others_s = 0.0

    def judge(self, number: int) -> Judge:
        """The one of a host."""
        return Judge(order(self._folders[number], self._job, stall_s=STALL_S))

    def request(
        self, words: Sequence[str] = (), *, of: Collection[str] | None = None, **_: object
    ) -> list[PeerReply]:
        """What all but the first send."""
        began = time.process_time()
        if words[0] == "summary":
            answers = self._summaries
        else:
            asked = self.clients if of is None else sorted(of)
            answers = [PeerReply(one, self._sent(one, *words)) for one in asked]
        gc.collect()  # what they leave is theirs
        self.others_s += time.process_time() - began
        self.bytes += sum(len(answer.data) for answer in answers)
        return answers

    def _sent(self, one: str, *words: str) -> bytes:
        judge = self.judge(int(one.removeprefix("host")))
        try:
            if words[0] == "whole":
                return judge._answer(words)
            local = judge._local()
            form = summary.packed if words[0] == "summary" else packed
            return form(local, living)
        finally:
            judge.peers.close()


def measured(hosts: int, rounds: int, fault: str, parted: int = 0) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as made:
        job = Hosts(Path(made), hosts, fault, parted)
        least = float("inf")
        for _ in range(rounds):
            judge = job.judge(0)
            vars(words)["announcers"] = lambda *_, **__: ["of host0"]  # its ranks do not run here
            peers = judge.peers
            peers.join = lambda *_: True  # type: ignore[method-assign]
            peers.settled = lambda: SERVER  # type: ignore[method-assign]
            peers.request = job.request  # type: ignore[method-assign]
            Peers.clients = job.clients  # type: ignore[method-assign, assignment]
            job.others_s, job.bytes = 0.0, 0
            gc.collect()
            gc.freeze()  # a companion holds no other host's journals
            began = time.process_time()
            found = judge.verdict()
            least = min(least, time.process_time() - began - job.others_s)
            judge.peers.close()
    first = next(iter(found["lines"]), "nothing")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"| {hosts:,} | {job.bytes / 1e3:,.0f} kB | {least:.2f} | {most} MB | {first} |"


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
    print("| hosts | answers | CPU s | memory | said |", "|---|---|---|---|---|", sep="\n")
    for hosts in map(int, options.hosts.split(",")):
        print(measured(hosts, options.rounds, options.fault, options.parted), flush=True)


if __name__ == "__main__":
    main()
