"""One rank of one scenario of the NCCL proof. Started by prove.py; prints facts as `KIT {json}` lines.

Without a GPU: --backend gloo runs the scenarios that make sense there.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

REPLY = 600.0  # a rank that "never comes" sleeps so long; prove.py ends it


def say(**facts: object) -> None:
    print("KIT " + json.dumps(facts), flush=True)


class Ticker(threading.Thread):
    """Whether Python goes on: the longest gap between two ticks, written once a second."""

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
    def __init__(self, backend: str, timeout: float) -> None:
        trace = os.environ.get("KIT_TRACE", "-")
        if trace != "-":
            import disttrace

            disttrace.install(dir=trace)
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.backend = torch, dist, backend
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.peer = self.world - 1 - self.rank
        self.cuda = backend.startswith("nccl")
        torch.set_num_threads(1)
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            backend,
            timeout=datetime.timedelta(seconds=timeout),
            rank=self.rank,
            world_size=self.world,
        )
        self.x = torch.ones(1024, device=self.device)
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

    def block(self) -> None:
        """Where the host finds out: `.item()`."""
        say(blocks="item")
        self.x.sum().item()  # <- BLOCK

    def end(self) -> None:
        self.sync()
        time.sleep(1.2)  # the poller looks every 20 ms, or less often if asking is slow
        self.dist.destroy_process_group()
        say(ended=True)

    # -- healthy ---------------------------------------------------------------------------------

    def healthy(self) -> None:
        torch, dist, x = self.torch, self.dist, self.x
        for _ in range(20):
            dist.all_reduce(x)
            x.fill_(1.0)
        works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(4)]
        for work in works:
            work.wait()
        dist.broadcast(x, 0)
        if self.cuda:
            wide = torch.empty(1024 * self.world, device=self.device)
            dist.all_gather_into_tensor(wide, x)
            dist.reduce_scatter_tensor(torch.empty_like(x), wide)
            dist.all_to_all_single(torch.empty_like(x), x)
            with dist._coalescing_manager(device=self.device, async_ops=True) as manager:
                dist.all_reduce(x)
                dist.all_reduce(x.clone())
            manager.wait()
            with dist._coalescing_manager():
                dist.all_reduce(x)
                dist.all_reduce(x.clone())
        dist.barrier()
        objects = [{"a": 1}]
        dist.broadcast_object_list(objects, 0)
        dist.all_gather_object([None] * self.world, {"rank": self.rank})
        for _ in range(20):
            batch = [
                dist.P2POp(dist.isend, x, self.peer),
                dist.P2POp(dist.irecv, torch.empty_like(x), self.peer),
            ]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
        if self.rank == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        from torch.distributed import _functional_collectives as functional

        functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        self.end()

    def uneven(self) -> None:
        """all_gather and reduce_scatter with different sizes: several flight-recorder entries."""
        torch, dist = self.torch, self.dist
        mine = torch.ones(100 * (self.rank + 1), device=self.device)
        outs = [torch.empty(100 * (r + 1), device=self.device) for r in range(self.world)]
        dist.all_gather(outs, mine)
        dist.reduce_scatter(torch.empty_like(mine), [torch.ones_like(o) for o in outs])
        self.end()

    def ddp(self) -> None:
        torch = self.torch
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(self.device)
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
        for _ in range(5):
            model(torch.ones(8, 64, device=self.device)).sum().backward()
        # From here on disttrace's kernels stand in the dispatcher: a synchronous call has no Work.
        self.dist.all_reduce(self.x)
        self.dist.barrier()
        self.dist.all_reduce(self.x, async_op=True).wait()
        self.end()

    def fsdp2(self) -> None:
        torch = self.torch
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            from torch.distributed._composable.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(self.device.type, (self.world,))
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).to(self.device)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for _ in range(3):
            model(torch.ones(8, 64, device=self.device)).sum().backward()
        self.end()

    def late(self) -> None:
        if self.rank == 1:
            time.sleep(3)
        begin = time.perf_counter()
        self.dist.all_reduce(self.x)
        say(returned=time.perf_counter() - begin)
        self.block()
        self.end()

    def graph(self) -> None:
        """Captures while operations are in flight, in the strictest mode; then captured collectives."""
        torch, dist = self.torch, self.dist
        y, side = torch.ones(16, device=self.device), torch.cuda.Stream()
        if self.rank == 0:  # communicators cannot be made while a graph is captured
            dist.send(self.x, 1)
        else:
            dist.recv(self.x, 0)
        with dist._coalescing_manager():
            dist.all_reduce(self.x)
            dist.all_reduce(y)
        with torch.cuda.stream(side):
            y.add_(1)
        self.sync()
        failed = 0
        for _ in range(3):
            torch.cuda._sleep(2_000_000_000)
            dist.all_reduce(self.x)  # in flight behind about a second of sleep
            for _ in range(20):
                graph = torch.cuda.CUDAGraph()
                try:
                    with torch.cuda.stream(side):
                        graph.capture_begin()
                        for _ in range(50):
                            y.add_(1)
                            time.sleep(0.0002)  # lets other Python threads run within the capture
                        graph.capture_end()
                except RuntimeError as error:
                    failed += 1
                    say(capture_failed=str(error)[:300])
            self.sync()
        say(captures_failed=failed)
        for how in ("single", "coalesced", "send"):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    if how == "single":
                        dist.all_reduce(self.x)
                    elif how == "coalesced":
                        with dist._coalescing_manager():
                            dist.all_reduce(self.x)
                            dist.all_reduce(y)
                    elif self.rank == 0:
                        dist.send(self.x, 1)
                    else:
                        dist.recv(self.x, 0)
                for _ in range(3):
                    graph.replay()
                self.sync()
                say(captured=how)
            except RuntimeError as error:
                say(not_captured=how, error=str(error)[:300])
        time.sleep(2)  # what is not over by now never is
        say(looked=True)
        os._exit(0)  # destroying a group with live graphs is another matter

    # -- faults ----------------------------------------------------------------------------------

    def missing(self) -> None:
        Ticker()
        if self.rank == 1:
            say(sleeps=True)
            time.sleep(REPLY)  # <- SLEEP
        self.dist.all_reduce(self.x)  # <- REDUCE
        say(returned=True)
        self.block()

    def missing_sync(self) -> None:
        Ticker()
        if self.rank == 1:
            say(sleeps=True)
            time.sleep(REPLY)
        self.dist.all_reduce(self.x)
        say(returned=True, blocks="synchronize")
        self.torch.cuda.synchronize()

    def missing_free(self) -> None:
        """The host blocks in cudaFree, which holds the driver's lock."""
        Ticker()
        big = self.torch.empty(256 << 20, dtype=self.torch.uint8, device=self.device)
        if self.rank == 1:
            say(sleeps=True)
            time.sleep(REPLY)
        self.dist.all_reduce(self.x)
        del big
        say(returned=True, blocks="empty_cache")
        self.torch.cuda.empty_cache()
        say(freed=True)
        self.block()

    def order(self) -> None:
        groups = [self.dist.new_group([0, 1]) for _ in range(2)]
        for group in groups:
            self.dist.all_reduce(self.x, group=group)
        self.sync()
        first, second = groups if self.rank == 0 else groups[::-1]
        self.dist.all_reduce(self.x, group=first)
        self.block()
        self.dist.all_reduce(self.x, group=second)

    def other_op(self) -> None:
        if self.rank == 1:
            self.dist.all_gather([self.torch.zeros_like(self.x) for _ in range(2)], self.x)
        else:
            self.dist.all_reduce(self.x)
        self.block()

    def never_waited(self) -> None:
        """Asynchronous, never waited for, on a group of its own; the host goes on with its life."""
        group = self.dist.new_group([0, 1])
        self.dist.all_reduce(self.x, group=group)
        self.sync()
        if self.rank == 1:
            say(sleeps=True)
            time.sleep(REPLY)
        self.kept = self.dist.all_reduce(self.x.clone(), group=group, async_op=True)
        say(returned=True)
        y = self.torch.ones(256, 256, device=self.device)
        while True:
            (y @ y).sum()
            time.sleep(0.01)

    def send(self) -> None:
        """A warm pair, then a send that nobody receives."""
        if self.rank == 0:
            self.dist.send(self.x, 1)
            self.sync()
            self.dist.send(self.torch.ones(1 << 22, device=self.device), 1)
            say(returned=True)
            self.block_stream()
        else:
            self.dist.recv(self.x, 0)
            self.sync()
            say(sleeps=True)
            time.sleep(REPLY)

    def block_stream(self) -> None:
        say(blocks="item")
        self.x.sum().item()
        self.sync()

    def killed(self) -> None:
        if self.rank == 1:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        self.dist.all_reduce(self.x)
        say(returned=True)
        self.block()

    def watchdog(self) -> None:
        """The group's time-out ends the process, as without tracing."""
        if self.rank == 1:
            time.sleep(REPLY)
        self.dist.all_reduce(self.x)
        say(returned=True)
        self.block()

    def blocking(self) -> None:
        """TORCH_NCCL_BLOCKING_WAIT=1: the wait raises, here in Python."""
        if self.rank == 1:
            time.sleep(REPLY)
        work = self.dist.all_reduce(self.x, async_op=True)
        try:
            work.wait()
        except Exception as error:
            say(raised=type(error).__name__, text=str(error)[:200])
        time.sleep(1.5)
        say(looked=True)
        os._exit(3)

    def evicted(self) -> None:
        """A hung operation, and more newer entries than the flight recorder keeps (50 here)."""
        group = self.dist.new_group([0, 1])
        other = self.dist.new_group([0, 1])
        for one in (group, other):
            self.dist.all_reduce(self.x, group=one)
        self.sync()
        y = self.x.clone()
        if self.rank == 0:
            self.kept = self.dist.all_reduce(self.x, group=group, async_op=True)
            say(hung=True)
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side):
            for _ in range(120):
                self.dist.all_reduce(y, group=other)
                side.synchronize()
                time.sleep(0.01)
        say(looked=True)
        time.sleep(REPLY)

    def threads(self) -> None:
        """A thread's hung operation begins during the long first call of another, which ends well."""
        hung, fresh = (self.dist.new_group([0, 1]) for _ in range(2))
        self.dist.all_reduce(self.x, group=hung)
        self.sync()
        y = self.x.clone()

        def hang() -> None:
            self.torch.cuda.set_device(self.device)
            time.sleep(0.05)
            self.kept = self.dist.all_reduce(y, group=hung, async_op=True)

        if self.rank == 0:
            thread = threading.Thread(target=hang)
            thread.start()
        begin = time.perf_counter()
        side = self.torch.cuda.Stream()
        with self.torch.cuda.stream(side):
            self.dist.all_reduce(self.x, group=fresh)  # makes its communicator: takes long
            took = time.perf_counter() - begin
            side.synchronize()
        say(first_call_s=took, looked=True)
        time.sleep(REPLY)

    # -- measurements, one rank ------------------------------------------------------------------

    def behind(self) -> None:
        """Issuing behind a long kernel: whoever synchronises gets a share near one."""
        torch, dist, x = self.torch, self.dist, self.x
        cycles = int(10_000_000 * 2.0 / self._slept(10_000_000))
        shares = []
        for _ in range(4):
            self.sync()
            begin = time.perf_counter()
            torch.cuda._sleep(cycles)
            for _ in range(20):
                dist.all_reduce(x)
                dist.all_reduce(x, async_op=True).wait()
            issued = time.perf_counter() - begin
            self.sync()
            shares.append(round(issued / (time.perf_counter() - begin), 5))
        say(shares=shares, issued_ms=round(issued * 1e3, 2))
        each = []
        for _ in range(5):
            self.sync()
            begin = time.perf_counter()
            for _ in range(200):
                dist.all_reduce(x)
            each.append((time.perf_counter() - begin) / 200 * 1e6)
        say(call_us=round(sorted(each)[2], 2))
        self.end()

    def _slept(self, cycles: int) -> float:
        self.torch.cuda._sleep(cycles)
        self.sync()
        begin = time.perf_counter()
        self.torch.cuda._sleep(cycles)
        self.sync()
        return time.perf_counter() - begin

    def probe(self) -> None:
        """What the flight recorder of this torch says and costs, and what asking it does to a thread."""
        import ctypes
        import pickle

        import torch._C._distributed_c10d as c10d

        torch, dist = self.torch, self.dist
        version = torch.cuda.nccl.version() if self.cuda else None
        say(torch=torch.__version__, nccl=version, python=sys.version.split()[0])
        backend = self.dist.group.WORLD._get_backend(self.device)
        say(backend_type=type(backend).__name__)
        dumps = {
            n: getattr(c10d, n) for n in dir(c10d) if n in ("_dump_nccl_trace", "_dump_fr_trace")
        }
        for name, dump in dumps.items():
            variants: list[dict[str, str]] = [{}]
            if name == "_dump_fr_trace" and "backend" in (dump.__doc__ or ""):
                variants = [{"backend": b} for b in ("gloo", "nccl", "nccl2", "nccl-lazy")]
            for more in variants:
                told = pickle.loads(
                    dump(
                        includeCollectives=True, includeStackTraces=False, onlyActive=False, **more
                    )
                )
                entries = told.get("entries", [])
                say(
                    dump=name,
                    **more,
                    version=told.get("version"),
                    entries=len(entries),
                    last={k: str(v) for k, v in entries[-1].items()} if entries else None,
                )
        dump = dumps.get("_dump_nccl_trace") or dumps["_dump_fr_trace"]
        for _ in range(2100):
            dist.all_reduce(self.x)
        self.sync()
        time.sleep(0.5)
        for active in (False, True):
            ticker_gap, took = self._gap(
                functools.partial(
                    dump, includeCollectives=True, includeStackTraces=False, onlyActive=active
                )
            )
            say(
                only_active=active,
                dump_ms=round(took * 1e3, 2),
                other_thread_gap_ms=round(ticker_gap * 1e3, 2),
            )
        if self.cuda:
            torch.cuda._sleep(4_000_000_000)
            dist.all_reduce(self.x)
            found: list[object] = []

            def ask() -> None:
                cuda = ctypes.CDLL("libcuda.so.1")
                context = ctypes.c_void_p()
                cuda.cuCtxGetCurrent(ctypes.byref(context))
                before = context.value
                begin = time.perf_counter()
                dump(includeCollectives=True, includeStackTraces=False, onlyActive=True)
                took = time.perf_counter() - begin
                cuda.cuCtxGetCurrent(ctypes.byref(context))
                found.extend([before is not None, context.value is not None, round(took * 1e3, 2)])

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            say(context_before=found[0], context_after=found[1], ask_in_flight_ms=found[2])
        self.end()

    def _gap(self, call: Callable[[], object]) -> tuple[float, float]:
        gap, stop = [0.0], [False]

        def spin() -> None:
            last = time.perf_counter()
            while not stop[0]:
                now = time.perf_counter()
                gap[0] = max(gap[0], now - last)
                last = now

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        thread = threading.Thread(target=spin)
        thread.start()
        time.sleep(0.05)
        gap[0] = 0.0
        begin = time.perf_counter()
        for _ in range(5):
            call()
        took = (time.perf_counter() - begin) / 5
        stop[0] = True
        thread.join()
        sys.setswitchinterval(before)
        return gap[0], took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--timeout", type=float, default=1800.0)
    chosen = parser.parse_args()
    signal.alarm(180)  # nothing of ours outlives this
    rank = Rank(chosen.backend, chosen.timeout)
    say(ready=True)
    getattr(rank, chosen.scenario)()


if __name__ == "__main__":
    main()
