"""Drawn programs of DDP and FSDP2 in which one rank lacks, ignores, freezes or does not use some
parameters: are these named, and no other?

    python tests/reliability/parameters.py [--programs 20] [--seed 0]

Each program is ranks that this process forks, with gloo: torch is imported once. In ``moe`` the odd
rank has no use for a module from some step on, as for an expert that gets no tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.processes import free_port

FAULTS = ("unused", "ignored", "frozen", "missing", "moe")


@dataclass(frozen=True)
class Program:
    """One job: what its odd rank does otherwise."""

    library: str
    fault: str
    ranks: int
    odd: int
    layer: int
    step: int
    end: str

    @property
    def names(self) -> set[str]:
        """Of the parameters that it is about."""
        names = {f"layers.{self.layer}.down.weight", f"layers.{self.layer}.down.bias"}
        if self.fault == "moe":
            names |= {name.replace("down", "up") for name in names}
        return names


def drawn(seed: int, count: int) -> list[Program]:
    draw = random.Random(seed)
    return [
        Program(
            ("ddp", "fsdp")[number % 2], FAULTS[number // 2 % len(FAULTS)],
            ranks := 2 + number % 3 // 2,
            draw.randrange(ranks), draw.randrange(3), draw.randrange(3),
            draw.choice(("barrier", "exit", "goes on")),
        )
        for number in range(count)
    ]  # fmt: skip


def run(program: Program, rank: int, folder: str) -> None:
    import disttrace

    disttrace.install(dir=folder)
    odd, fault, linear = rank == program.odd, program.fault, torch.nn.Linear
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Layer(torch.nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.mine = odd and at == program.layer
            self.up = linear(8, 8)
            self.down = None if self.mine and fault == "missing" else linear(8, 8)

        def forward(self, x: Any, step: int) -> Any:
            off = self.mine and step >= program.step
            if off and fault == "moe":
                return x
            x = x + self.up(x)
            return x if self.down is None or (off and fault == "unused") else x + self.down(x)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer(at) for at in range(3))
            self.head = linear(8, 2)

        def forward(self, x: Any, step: int) -> Any:
            for layer in self.layers:
                if (
                    program.library == "fsdp"
                    and fault == "moe"
                    and layer.mine
                    and step >= program.step
                ):
                    continue  # its hooks gather
                x = layer(x, step)
            return self.head(x)

    dist.init_process_group("gloo")
    model: Any = Model()
    theirs = {name for name, _ in model.named_parameters()} & program.names
    apart = {p for name, p in model.named_parameters() if name in theirs and odd}
    if fault == "frozen":
        for parameter in apart:
            parameter.requires_grad_(False)
    ignored = apart if fault == "ignored" else set()
    if program.library == "fsdp":
        for layer in model.layers:
            fully_shard(layer, ignored_params=ignored)
        fully_shard(model, ignored_params=ignored)
    else:
        if ignored:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [*theirs])
        model = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    more = 1 if program.end != "goes on" else 3
    for step in range(program.step + more):
        optimizer.zero_grad()
        model(torch.ones(2, 8) * (step + rank), step).square().sum().backward()
        optimizer.step()
    if program.end == "barrier":
        dist.barrier()


def job(program: Program, folder: str, limit_s: float) -> int | None:
    """Fork all ranks, which return theirs and end as interpreters do; kill who hangs."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(program.ranks), "LOCAL_WORLD_SIZE": str(program.ranks),
    }  # fmt: skip
    left = set[int]()
    for rank in range(program.ranks):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.dup2(os.open(os.path.join(folder, f"{rank}.log"), os.O_CREAT | os.O_WRONLY), 2)
            return rank
        left.add(pid)
    until = time.monotonic() + limit_s
    while left and time.monotonic() < until:
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def judged(program: Program, folder: str) -> bool | None:
    """Whether parameters were named, and the right ones; None: none."""
    from disttrace_viewer.api.verdict import diagnose

    findings = diagnose(folder).found
    text = " ".join(one.summary for one in findings if one.severity == "error")
    named = {name for one in findings for _, names in one.parameters for name in names}
    modules = set(re.findall(r"of (layers\.\d)", text))
    print(f"{program}\n  {sorted(named)}\n  {text}", flush=True)
    if program.fault == "moe" and not named and modules:
        return f"layers.{program.layer}" in modules
    return named <= program.names if named else None


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--programs", type=int, default=20)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--limit", type=float, default=20.0, help="seconds of each program")
    given.add_argument("--only", type=int, help="the program of this number")
    options = given.parse_args()
    programs = drawn(options.seed, options.programs)
    programs = programs if options.only is None else [programs[options.only]]
    folders = [tempfile.mkdtemp(prefix="disttrace-parameters-") for _ in programs]
    for program, folder in zip(programs, folders, strict=True):
        rank = job(program, folder, options.limit)
        if rank is not None:
            return run(program, rank, folder)
    results = [judged(*one) for one in zip(programs, folders, strict=True)]
    for folder in folders:
        shutil.rmtree(folder)
    right, wrong = results.count(True), results.count(False)
    print(f"{right} of {len(results)} named, {wrong} wrongly")
    sys.exit(wrong > 0 or right < 0.9 * len(results))


if __name__ == "__main__":
    main()
