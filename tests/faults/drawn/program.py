"""A drawn program as a value, and the Python source that it stands for.

A program is a loop of acts. Each act is a line of its own in the source, so call sites are told
apart as in programs that people write. A fault is a change of one act, for one rank in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

COLLECTIVE, SEND, RECV, SET, GET, COMPUTE = "collective", "send", "recv", "set", "get", "compute"
EXCHANGE, COUNT, LOCK, UNLOCK = "exchange", "count", "lock", "unlock"
CREATE = "create"
BARE, SPAWN, TORCHRUN, STANDALONE = "bare", "mp.spawn", "torchrun", "torchrun --standalone"

ENDING = ("dist.barrier()", "dist.destroy_process_group()")

IMPORTS = {
    "functional.": "import torch.distributed._functional_collectives as functional",
    "ThreadPoolExecutor(": "from concurrent.futures import ThreadPoolExecutor",
    "fully_shard(": "from torch.distributed.fsdp import fully_shard",
    "init_device_mesh(": "from torch.distributed.device_mesh import init_device_mesh",
}
"""What is imported only where it is used: name in a program's lines to its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A line of the loop: ``template`` with ``fields``; ``members``: who takes part, by rank."""

    kind: str
    template: str
    fields: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[int, tuple[int, ...]]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.members))

    def code(self, **changed: str) -> str:
        """The line itself, with other fields where they are given."""
        return self.template.format(**{**self.fields, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one rank does otherwise at one act of one step; ``instead`` None leaves the act."""

    act: int
    rank: int
    step: int
    every: int | None = None
    """In every so many steps instead."""
    before: tuple[str, ...] = ()
    instead: tuple[str, ...] | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a run is made of."""

    world: int
    steps: int
    launch: str = BARE
    setup: tuple[str, ...] = ()
    body: tuple[Act, ...] = ()
    ending: tuple[str, ...] = ENDING
    timeout_s: float | None = None
    late: Mapping[int, float] = field(default_factory=dict)
    """Seconds by which a rank comes late to ``init_process_group``."""
    imports_s: Mapping[int, float] = field(default_factory=dict)
    """Seconds that a rank's imports take."""
    restarts: int = 0
    """How often torchrun tries again."""
    change: Change | None = None
    environ: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Variables of one process that differ from what its place says (bare processes)."""
    absent: tuple[int, ...] = ()
    """Ranks that are never started (bare processes)."""
    lost: tuple[int, ...] = ()
    """Ranks whose journals are taken away before anybody reads them."""

    def but(self, **changed: object) -> Program:
        return replace(self, **changed)  # type: ignore[arg-type]


def source(program: Program) -> str:
    """The program as Python, to be run by every rank."""
    limit = f", timeout=timedelta(seconds={program.timeout_s})" if program.timeout_s else ""
    body = [f"if rank == {rank}: time.sleep({seconds})" for rank, seconds in program.late.items()]
    if program.restarts:  # torch leaves the addresses of the first attempt in the agent's store
        body += [
            "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']",
            "port = int(os.environ['MASTER_PORT'])",
            "served = dist.TCPStore(os.environ['MASTER_ADDR'], port, is_master=False)",
            "own = {'store': dist.PrefixStore(attempt, served), 'rank': rank}",
            f"own['world_size'] = {program.world}",
        ]
        limit += ", **own"
    body += [f'dist.init_process_group("gloo"{limit})', "world = dist.group.WORLD", *program.setup]
    body.append(f"for step in range({program.steps}):")
    for index, act in enumerate(program.body):
        body += [f"    {line}" for line in _act(program, index, act)]
    body += program.ending
    used = "\n".join(body)
    lines = [
        "import os, re, signal, subprocess, sys, threading, time",
        *(
            f"if os.environ.get('RANK') == '{rank}': time.sleep({seconds})"
            for rank, seconds in program.imports_s.items()
        ),
        "from datetime import timedelta",
        "import torch",
        "import torch.distributed as dist",
        *(line for name, line in IMPORTS.items() if name in used),
        "", "", "def main(rank):", *(f"    {line}" for line in body),
    ]  # fmt: skip
    lines += ["", "", *_start(program)]
    return "\n".join(lines) + "\n"


def _act(program: Program, index: int, act: Act) -> list[str]:
    """One act, with the branch by rank and step that the change is."""
    change = program.change
    lines = [act.code()]
    if change is not None and change.act == index:
        now = f"step == {change.step}"
        if change.every is not None:
            now = f"step % {change.every} == {change.step % change.every}"
        here = f"rank == {change.rank} and {now}"
        if change.instead is not None:
            lines = [
                f"if {here}:", *(f"    {line}" for line in (*change.instead, "pass")), "else:",
                f"    {act.code()}",
            ]  # fmt: skip
        if change.before:
            lines = [f"if {here}:", *(f"    {line}" for line in change.before), *lines]
        if change.after:
            lines += [f"if {here}:", *(f"    {line}" for line in change.after)]
    if len(act.ranks) < program.world:
        lines = [f"if rank in {act.ranks!r}:", *(f"    {line}" for line in lines)]
    return lines


def _start(program: Program) -> list[str]:
    if program.launch != SPAWN:
        return ['if __name__ == "__main__":', '    main(int(os.environ["RANK"]))']
    return [
        "def started(rank):", '    os.environ["RANK"] = str(rank)', "    main(rank)", "", "",
        'if __name__ == "__main__":', "    import torch.multiprocessing as mp",
        f"    mp.spawn(started, nprocs={program.world})",
    ]  # fmt: skip
