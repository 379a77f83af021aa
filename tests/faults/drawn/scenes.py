"""Programs that are made for one fault, or for what only looks like one."""

from __future__ import annotations

import random
from dataclasses import replace

from faults.drawn.layers import collective
from faults.drawn.mutations import UnfitError, out_of_step
from faults.drawn.program import COLLECTIVE, COMPUTE, ENDING, Act, Change, Program
from faults.drawn.truth import FOREVER, MISSED, SLOWNESS, Faulty, Truth

_IDLE_STEPS = 260
"""At 50 ms each they last for longer than the first look comes late."""


def idle_by_design(draw: random.Random, program: Program) -> Faulty:
    """A spare waits for its promotion, work, or all; or one of the others stops: that is told."""
    world = draw.choice((3, 4))
    spare = draw.randrange(world)
    members = tuple(rank for rank in range(world) if rank != spare)
    first = members[0]
    wait, relief = draw.choice(
        (
            ("app.wait(['promoted'], timedelta(minutes=9))", "app.set('promoted', '')"),
            (f"dist.recv(torch.empty(4), {first})", f"dist.send(torch.ones(4), {spare})"),
            ("pass", "pass"),
        )
    )
    act = collective(draw, dict.fromkeys(members, members), "some")
    alone = {rank: (rank,) for rank in members}
    pause = Act(kind=COMPUTE, template="time.sleep(0.05)", members=alone)
    idle = program.but(
        world=world,
        steps=_IDLE_STEPS,
        setup=(
            f"some = dist.new_group({list(members)})",
            "app = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",
            f"if rank == {spare}: {wait}",
        ),
        body=(act, pause),
        ending=(f"if rank == {first}: {relief}", *ENDING),
    )
    if draw.random() < 0.5:
        return Faulty(idle, Truth(name="idle by design"))
    rank = draw.choice(members)
    line = f"time.sleep({FOREVER})"
    change = Change(act=0, rank=rank, step=draw.randrange(40), before=(line,))
    return Faulty(
        idle.but(change=change),
        Truth(
            name="idle, and one stops", kinds=MISSED, guilty=frozenset({rank}), named=True,
            line=line,
        ),
    )  # fmt: skip


def pauses(draw: random.Random, program: Program) -> Faulty:
    """One rank pauses in every seventh step."""
    everybody = set(range(program.world))
    body = tuple(act for act in program.body if act.kind in (COLLECTIVE, COMPUTE))
    able = [
        i for i, act in enumerate(body)
        if act.kind == COLLECTIVE and set(act.members[act.ranks[0]]) == everybody
    ]  # fmt: skip
    if not able or len(body) < len(program.body):
        raise UnfitError
    rank = draw.randrange(program.world)
    change = Change(
        act=draw.choice(able), rank=rank, step=draw.randrange(7), every=7,
        before=("time.sleep(0.3)",),
    )  # fmt: skip
    return Faulty(
        program.but(steps=draw.choice((28, 56)), change=change),
        Truth(name="pauses", kinds=SLOWNESS, guilty=frozenset({rank}), named=True, hangs=False),
    )


def equal_line(draw: random.Random, program: Program) -> Faulty:
    """One rank leaves out a call that is like the next one: results are mixed from there on."""
    lines = {line[4 : line.index(":")]: line for line in program.setup if line.startswith("def ")}
    reduces = {name for name, line in lines.items() if "reduce(torch" in line}
    able = [i for i, act in enumerate(program.body) if act.template in reduces]
    if not able or program.world < 3:
        raise UnfitError
    act, rank = draw.choice(able), draw.randrange(program.world)
    steps = max(program.steps, 4)
    change = Change(act=act, rank=rank, step=draw.randrange(1, steps - 2), instead=())
    return Faulty(
        replace(program, steps=steps, change=change),
        Truth(
            name="skips an equal line",
            kinds=out_of_step(program),
            guilty=frozenset({rank}),
            line=lines[program.body[act].template],
        ),
    )
