"""One rank of one scenario. Started by prove.py; prints facts as `KIT {json}` lines."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any

SLEEP = 600.0  # a rank that "never comes" sleeps so long; prove.py ends it
_MODULES = ("healthy", "parallel", "hangs", "ends", "graphs", "communicators", "measured", "probe")


def say(**facts: object) -> None:
    print("KIT " + json.dumps(facts), flush=True)


class Ticker(threading.Thread):
    """Whether Python goes on: the longest gap between two ticks, told once a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gap = 0.0
        self.start()

    def run(self) -> None:
        last = told = time.perf_counter()
        while True:
            time.sleep(0.005)
            now = time.perf_counter()
            self.gap = max(self.gap, now - last)
            last = now
            if now - told > 1:
                told = now
                say(tick=round(time.time(), 3), gap=round(self.gap, 4))


class Rank:
    """A process of a job; ``fault``: whether what is wrong with the scenario is done, else not."""

    def __init__(self, backend: str, timeout: float, warm: bool) -> None:
        self.traced = os.environ.get("KIT_TRACE", "-") != "-"
        self.fault = os.environ["KIT_FAULT"] == "1"
        if self.traced:
            import disttrace

            disttrace.install(dir=os.environ["KIT_TRACE"])
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.peer = self.world - 1 - self.rank
        self.cuda = "STANDIN" not in os.environ
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        if self.cuda:
            number = self.rank if os.environ.get("KIT_DEVICES") == "each" else 0
            self.device = torch.device("cuda", number)
            torch.cuda.set_device(self.device)
        bound = self.cuda and os.environ.get("KIT_COMMUNICATORS") == "eager"
        dist.init_process_group(
            backend, timeout=datetime.timedelta(seconds=timeout), rank=self.rank,
            world_size=self.world, **({"device_id": self.device} if bound else {}),
        )  # fmt: skip
        self.x = torch.ones(1024, device=self.device)
        if not warm:
            return
        for _ in range(3):  # loads every kernel used later: loading one behind a hung one may hang
            dist.all_reduce(self.x)
            self.x.fill_(1.0)
            self.x.sum().item()
        out = [torch.empty_like(self.x) for _ in range(self.world)]
        dist.all_gather(out, self.x)
        self.sync()

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()
        else:
            self.x[0].item()  # which the stand-in waits in

    def block(self) -> None:
        """Where the host finds out: `.item()`."""
        say(blocks="item")
        self.x.sum().item()  # <- BLOCK

    def never_come(self) -> None:
        """What rank 1 does instead of taking part."""
        say(sleeps=True)
        time.sleep(SLEEP)

    def absent(self) -> bool:
        """Whether this rank is the one that does not come."""
        return self.fault and self.rank == 1

    def end(self) -> None:
        """Wait until everything is seen finished, and leave."""
        self.sync()
        time.sleep(1.2)  # the poller looks every 20 ms, or less often if asking is slow
        self.dist.destroy_process_group()
        say(ended=True)

    def end_well(self) -> None:
        """The end of a healthy scenario. Its counter-test leaves one operation in flight: one that
        rank 1 never joins or, of a rank alone, whose end nobody has the time to see."""
        if not self.fault:
            self.end()
            return
        self.sync()
        if self.rank == 0:
            self.kept = self.dist.all_reduce(self.x.clone(), async_op=True)
        if self.world > 1:
            time.sleep(5)
        say(ended=True)
        os._exit(0)

    def leave(self) -> None:
        """As ``end_well``, without destroying groups: NCCL would wait for graphs that hold them."""
        if self.fault:
            self.end_well()
        self.sync()
        time.sleep(1.2)
        say(ended=True)
        os._exit(0)

    def graph(self) -> Any:
        return self.torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def captured(self, graph: Any) -> Iterator[None]:
        """Into ``graph`` goes what is issued meanwhile."""
        if self.cuda:
            with self.torch.cuda.graph(graph):
                yield
        else:
            graph.capture_begin()
            yield
            graph.capture_end()


def exchange(rank: Rank) -> None:
    dist, x = rank.dist, rank.x
    batch = [
        dist.P2POp(dist.isend, x, rank.peer),
        dist.P2POp(dist.irecv, rank.torch.empty_like(x), rank.peer),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def programs() -> dict[str, Callable[[Rank], None]]:
    """By name, of all files of ``programs``."""
    found: dict[str, Callable[[Rank], None]] = {}
    for name in _MODULES:
        module = importlib.import_module(f"gpu.proof.programs.{name}")
        own = (each for each in vars(module).values() if isfunction(each))
        own = (each for each in own if each.__module__ == module.__name__)
        found.update({each.__name__: each for each in own if each.__name__[0] != "_"})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--timeout", type=float, default=1800.0)
    chosen = parser.parse_args()
    signal.alarm(240)  # nothing of ours outlives this
    program = programs()[chosen.program]
    rank = Rank(
        chosen.backend, chosen.timeout, warm=chosen.program not in ("communicators", "first_call")
    )
    say(ready=True)
    program(rank)


if __name__ == "__main__":
    main()
