"""How ranks come, or do not come, to the start of a program, and how often it is tried."""

from __future__ import annotations

import random
from typing import Any

from faults.drawn.mutations import pick
from faults.drawn.program import BARE, COLLECTIVE, STANDALONE, TORCHRUN, Change, Program
from faults.drawn.truth import Faulty, Truth


def late_start(draw: random.Random, program: Program) -> Faulty:
    """One rank comes some seconds late to the rendezvous: nothing is wrong."""
    late = {draw.randrange(program.world): 2.5}
    return Faulty(program.but(late=late), Truth(name="late start", hangs=False))


def slow_imports(draw: random.Random, program: Program) -> Faulty:
    """One rank imports for long, as from a busy file server, while others wait for it."""
    imports_s = {draw.randrange(program.world): 10.0}
    return Faulty(program.but(imports_s=imports_s), Truth(name="slow imports"))


def tried_again(draw: random.Random, program: Program) -> Faulty:
    """One rank fails in the first attempt only; the second one runs to its end."""
    index, _, rank, step = pick(draw, program, COLLECTIVE)
    line = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise KeyError('batch')"
    return Faulty(
        program.but(
            launch=draw.choice((TORCHRUN, STANDALONE)),
            restarts=1,
            change=Change(act=index, rank=rank, step=step, before=(line,)),
        ),
        Truth(name="tried again", hangs=False),
    )


def _wrong(
    program: Program, name: str, kinds: set[str], guilty: set[int], **started: Any
) -> Faulty:  # fmt: skip
    """A program by which ranks are started wrongly, without a launcher."""
    truth = Truth(name=name, kinds=frozenset(kinds), guilty=frozenset(guilty))
    return Faulty(program.but(launch=BARE, **started), truth)


_NEVER_MET = {"rendezvous_incomplete", "rendezvous_unreachable"}


def never_started(draw: random.Random, program: Program) -> Faulty:
    """One rank is not started at all."""
    rank = draw.randrange(program.world)
    return _wrong(program, "never started", _NEVER_MET, {rank}, absent=(rank,))


def same_rank(draw: random.Random, program: Program) -> Faulty:
    """Two processes claim one rank."""
    rank, other = draw.sample(range(program.world), 2)
    environ = {rank: {"RANK": str(other)}}
    return _wrong(program, "duplicate rank", {"duplicate_rank"}, {rank, other}, environ=environ)


def other_world(draw: random.Random, program: Program) -> Faulty:
    """One process believes that the world is larger."""
    rank = draw.randrange(program.world)
    environ = {rank: {"WORLD_SIZE": str(program.world + 1)}}
    guilty = {rank, program.world}  # the rank that nobody is
    return _wrong(program, "wrong world size", {"group_mismatch"}, guilty, environ=environ)


def other_port(draw: random.Random, program: Program) -> Faulty:
    """One process dials another port."""
    rank = draw.randrange(program.world)
    environ = {rank: {"MASTER_PORT": "{free}"}}
    return _wrong(program, "wrong port", _NEVER_MET, {rank}, environ=environ)


def unharmed(draw: random.Random, program: Program) -> Faulty:
    return Faulty(program, Truth(name="healthy", hangs=False))
