"""The catalogue of faults: each changes one thing in a program and says what is true then.

The truth comes from the change alone: who did what, and which kinds of findings may tell it. Where
the records of two sides are alike, nobody has to be named; nobody else may be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from faults.drawn.program import (
    BARE,
    COLLECTIVE,
    COUNT,
    EXCHANGE,
    RECV,
    SEND,
    SET,
    SPAWN,
    STANDALONE,
    TORCHRUN,
    UNLOCK,
    Act,
    Change,
    Program,
)

MISMATCHES = frozenset(
    {"op_mismatch", "shape_mismatch", "dtype_mismatch", "reduce_op_mismatch", "root_mismatch"}
)
ONE_END = frozenset({"unmatched_send", "unmatched_recv"})
MISSED = frozenset({"missing_participant", "deadlock", "store_key_missing"}) | ONE_END
STILL = MISSED | {"no_progress"}
"""Who is stopped may serve the store, or have begun what the others are in."""
OUT_OF_STEP = MISSED | MISMATCHES | {"size_mismatch", "divergence"}
SLOWNESS = frozenset({"straggler", "late_sender"})
FOREVER = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What may be said about a run, and about whom."""

    name: str
    kinds: frozenset[str] = frozenset()
    """One of these must be found; none: nothing may be."""
    guilty: frozenset[int] = frozenset()
    named: bool = False
    """The guilty ones must be named; else they may be."""
    hangs: bool = True
    """It may stand still: then it is diagnosed while it does."""
    harmless: bool = False
    """It may also end well, and then nothing needs to be said."""
    mute: bool = False
    """The guilty give no sign of life: where nobody has a connection to them, they look afterwards
    like processes that were killed then.
    """
    incomplete: bool = False
    """A journal is missing: nothing certain is asked for, but no all-clear either."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """A program and what is true of it."""

    program: Program
    truth: Truth


Mutation = Callable[[random.Random, Program], Faulty | None]


def _pick(draw: random.Random, program: Program, *kinds: str) -> tuple[int, Act, int, int] | None:
    """(index, act, rank, step) of an act of these kinds, its last steps left out."""
    found = [
        (i, act)
        for i, act in enumerate(program.body)
        if act.kind in kinds and any(len(act.members[r]) > 1 for r in act.ranks)
    ]
    if not found:
        return None
    index, act = draw.choice(found)
    rank = draw.choice([r for r in act.ranks if len(act.members[r]) > 1])
    return index, act, rank, draw.randrange(max(1, program.steps - 1))


def _changed(
    program: Program, index: int, rank: int, step: int, **change: tuple[str, ...]
) -> Program:
    return program.but(change=Change(act=index, rank=rank, step=step, **change))


def skip(draw: random.Random, program: Program) -> Faulty | None:
    """One rank leaves a communication out."""
    chosen = _pick(draw, program, COLLECTIVE, EXCHANGE, SEND, RECV, SET, COUNT)
    if chosen is None:
        return None
    index, act, rank, step = chosen
    # Whoever left out a key may wait for those who wait for it.
    in_store = act.kind in (SET, COUNT)
    kinds = frozenset({"store_key_missing", "deadlock"}) if in_store else OUT_OF_STEP
    if act.kind == COUNT:  # those who ask for the count are not seen to wait
        kinds = MISSED
    return Faulty(
        _changed(program, index, rank, step, instead=()),
        Truth(
            name=f"skip {act.kind}",
            kinds=kinds,
            guilty=frozenset({rank}),
            harmless=act.kind == RECV,
        ),
    )


def swallow(draw: random.Random, program: Program) -> Faulty | None:
    """One rank's exception before a collective is caught, and the collective is left out."""
    chosen = _pick(draw, program, COLLECTIVE)
    if chosen is None:
        return None
    index, act, rank, step = chosen
    lines = (
        "try:",
        "    raise ValueError('bad batch')",
        f"    {act.code()}",
        "except ValueError as error:",
        "    print(error)",
    )
    return Faulty(
        _changed(program, index, rank, step, instead=lines),
        Truth(name="swallow", kinds=OUT_OF_STEP, guilty=frozenset({rank})),
    )


def repeat(draw: random.Random, program: Program) -> Faulty | None:
    """One rank calls a collective twice."""
    chosen = _pick(draw, program, COLLECTIVE, EXCHANGE)
    if chosen is None:
        return None
    index, act, rank, step = chosen
    return Faulty(
        _changed(program, index, rank, step, after=(act.code(),)),
        Truth(name="repeat", kinds=OUT_OF_STEP, guilty=frozenset({rank})),
    )


def swap(draw: random.Random, program: Program) -> Faulty | None:
    """One rank calls two neighbouring collectives in the other order."""
    pairs = [
        i
        for i, (one, two) in enumerate(zip(program.body, program.body[1:], strict=False))
        if one.kind == two.kind == COLLECTIVE
        and one.code() != two.code()
        and set(one.ranks) == set(two.ranks) == set(range(program.world))
    ]
    if not pairs:
        return None
    index, rank = draw.choice(pairs), draw.randrange(program.world)
    one, two = program.body[index], program.body[index + 1]
    step = draw.randrange(program.steps)
    # The second act of that rank is left out by taking both in one place.
    both = Act(
        kind=COLLECTIVE,
        template="[{one}, {two}]",
        fields={"one": one.code(), "two": two.code()},
        members=one.members,
    )
    body = (*program.body[:index], both, *program.body[index + 2 :])
    turned = f"[{two.code()}, {one.code()}]"
    return Faulty(
        _changed(program.but(body=body), index, rank, step, instead=(turned,)),
        Truth(name="swap", kinds=OUT_OF_STEP, guilty=frozenset({rank}), harmless=True),
    )


def _field(name: str, value: Callable[[str], str], kinds: frozenset[str], *acts: str) -> Mutation:
    def mutate(draw: random.Random, program: Program) -> Faulty | None:
        able = [i for i, a in enumerate(program.body) if a.kind in acts and name in a.fields]
        fitting = [i for i in able if "{" + name + "}" in program.body[i].template]
        if not fitting:
            return None
        index = draw.choice(fitting)
        act = program.body[index]
        rank = draw.choice(act.ranks)
        step = draw.randrange(max(1, program.steps - 1))
        line = act.code(**{name: value(act.fields[name])})
        odd_one_out = act.kind == COLLECTIVE and len(act.members[rank]) > 2
        return Faulty(
            _changed(program, index, rank, step, instead=(line,)),
            Truth(
                name=f"wrong {name} of {act.kind}",
                kinds=kinds,
                guilty=frozenset({rank}),
                named=odd_one_out,
            ),
        )

    return mutate


def keeps_the_lock(draw: random.Random, program: Program) -> Faulty | None:
    """One rank does not give a lock back; the others ask for it for ever."""
    able = [i for i, act in enumerate(program.body) if act.kind == UNLOCK]
    if not able:
        return None
    rank = draw.randrange(program.world)
    return Faulty(
        _changed(program, draw.choice(able), rank, draw.randrange(program.steps), instead=()),
        Truth(name="keeps the lock", kinds=MISSED, guilty=frozenset({rank}), harmless=True),
    )


def deletes_the_key(draw: random.Random, program: Program) -> Faulty | None:
    """A key is deleted as soon as it was set: whoever comes later waits for ever."""
    able = [i for i, act in enumerate(program.body) if act.kind == SET]
    if not able:
        return None
    index = draw.choice(able)
    (rank,) = program.body[index].ranks
    line = program.body[index].code().replace("store.set(", "store.delete_key(").partition(", ")
    return Faulty(
        _changed(program, index, rank, draw.randrange(program.steps), after=(f"{line[0]})",)),
        Truth(name="deletes the key", kinds=MISSED, guilty=frozenset({rank}), harmless=True),
    )


def forks(draw: random.Random, program: Program) -> Faulty | None:
    """One rank forks a child that calls a collective in the group it inherits."""
    chosen = _pick(draw, program, COLLECTIVE)
    if chosen is None:
        return None
    index, _, rank, step = chosen
    lines = (
        "if os.fork() == 0:",
        "    dist.all_reduce(torch.ones(3)); os._exit(0)",
    )
    return Faulty(
        _changed(program, index, rank, step, before=lines),
        Truth(
            name="forks",
            kinds=frozenset({"not_in_group"}),
            guilty=frozenset({rank}),
            hangs=True,
            harmless=True,
        ),
    )


def wrong_root(draw: random.Random, program: Program) -> Faulty | None:
    """One rank names another root."""
    able = [
        i
        for i, a in enumerate(program.body)
        if "{root}" in a.template and "object" not in a.template
    ]
    if not able:
        return None
    index = draw.choice(able)
    act = program.body[index]
    rank = draw.choice(act.ranks)
    other = str((int(act.fields["root"]) + 1) % program.world)
    return Faulty(
        _changed(
            program, index, rank, draw.randrange(program.steps), instead=(act.code(root=other),)
        ),
        Truth(
            name="wrong root",
            kinds=frozenset({"root_mismatch"}),
            guilty=frozenset({rank}),
            named=len(act.members[rank]) > 2,
        ),
    )


def wrong_peer(draw: random.Random, program: Program) -> Faulty | None:
    """A message goes to, or is awaited from, somebody else."""
    chosen = _pick(draw, program, SEND, RECV)
    if chosen is None or program.world < 3:
        return None
    index, act, rank, step = chosen
    others = [r for r in range(program.world) if r not in act.members[rank]]
    if not others:
        return None
    line = act.code(peer=str(draw.choice(others)))
    return Faulty(
        _changed(program, index, rank, step, instead=(line,)),
        Truth(
            name=f"wrong peer of {act.kind}",
            kinds=MISSED | {"size_mismatch"} | MISMATCHES,
            guilty=frozenset({rank}),
        ),
    )


def wrong_group(draw: random.Random, program: Program) -> Faulty | None:
    """A collective of a small group is called on everybody's."""
    able = [
        i
        for i, a in enumerate(program.body)
        if a.kind == COLLECTIVE and a.fields.get("group", "world") != "world"
    ]
    if not able:
        return None
    index = draw.choice(able)
    act = program.body[index]
    rank = draw.choice(act.ranks)
    return Faulty(
        _changed(
            program, index, rank, draw.randrange(program.steps), instead=(act.code(group="world"),)
        ),
        Truth(name="wrong group", kinds=OUT_OF_STEP, guilty=frozenset({rank})),
    )


def _does(name: str, *lines: str, kinds: frozenset[str], named: bool) -> Mutation:
    """One rank does something before a communication that others need it for."""

    def mutate(draw: random.Random, program: Program) -> Faulty | None:
        chosen = _pick(draw, program, COLLECTIVE, EXCHANGE, SEND, SET, COUNT)
        if chosen is None:
            return None
        index, act, rank, step = chosen
        # Who waits for one message or key may not know who should have acted.
        sure = named and (act.kind == COLLECTIVE or kinds == FAILED)
        # The store goes with the rank that serves it, and whoever waits there loses contact.
        gone = name == "leaves with 0" and rank == 0 and program.launch in (BARE, SPAWN)
        return Faulty(
            _changed(program, index, rank, step, before=lines),
            Truth(
                name=name,
                kinds=kinds | FAILED if gone else kinds,
                guilty=frozenset({rank}),
                named=sure,
                mute=name in ("stopped", "holds the GIL"),
            ),
        )

    return mutate


def time_out(draw: random.Random, program: Program) -> Faulty | None:
    """One rank comes when the others have given up."""
    chosen = _pick(draw, program, COLLECTIVE, EXCHANGE)
    if chosen is None:
        return None
    index, act, rank, step = chosen
    return Faulty(
        _changed(program, index, rank, step, before=("time.sleep(9)",)).but(timeout_s=4.0),
        Truth(
            name="time-out",
            kinds=frozenset({"missing_participant"}) | MISSED,
            guilty=frozenset({rank}),
            harmless=act.fields.get("group", "") != "world",  # other groups wait for longer
        ),
    )


def lost_journal(draw: random.Random, program: Program) -> Faulty | None:
    """One rank hangs in its loader, and a journal is not there to be read."""
    chosen = _pick(draw, program, COLLECTIVE)
    if chosen is None or program.world < 3:
        return None
    index, _, rank, step = chosen
    return Faulty(
        _changed(program, index, rank, step, before=(f"time.sleep({FOREVER})",)).but(
            lost=(draw.randrange(program.world),)
        ),
        Truth(
            name="journal lost",
            kinds=OUT_OF_STEP | {"no_progress", "process_failed"},
            guilty=frozenset({rank}),
            incomplete=True,
        ),
    )


def late_start(draw: random.Random, program: Program) -> Faulty | None:
    """One rank comes some seconds late to the rendezvous: nothing is wrong."""
    return Faulty(
        program.but(late={draw.randrange(program.world): 2.5}),
        Truth(name="late start", hangs=False),
    )


def never_started(draw: random.Random, program: Program) -> Faulty | None:
    """One rank is not started at all."""
    rank = draw.randrange(program.world)
    return Faulty(
        program.but(launch=BARE, absent=(rank,)),
        Truth(
            name="never started",
            kinds=frozenset({"rendezvous_incomplete", "rendezvous_unreachable"}),
            guilty=frozenset({rank}),
        ),
    )


def same_rank(draw: random.Random, program: Program) -> Faulty | None:
    """Two processes claim one rank."""
    rank, other = draw.sample(range(program.world), 2)
    return Faulty(
        program.but(launch=BARE, environ={rank: {"RANK": str(other)}}),
        Truth(
            name="duplicate rank",
            kinds=frozenset({"duplicate_rank"}),
            guilty=frozenset({rank, other}),
        ),
    )


def other_world(draw: random.Random, program: Program) -> Faulty | None:
    """One process believes that the world is larger."""
    rank = draw.randrange(program.world)
    return Faulty(
        program.but(launch=BARE, environ={rank: {"WORLD_SIZE": str(program.world + 1)}}),
        Truth(
            name="wrong world size",
            kinds=frozenset({"group_mismatch"}),
            guilty=frozenset({rank, program.world}),  # the rank that nobody is
        ),
    )


def other_port(draw: random.Random, program: Program) -> Faulty | None:
    """One process dials another port."""
    rank = draw.randrange(program.world)
    return Faulty(
        program.but(launch=BARE, environ={rank: {"MASTER_PORT": "{free}"}}),
        Truth(
            name="wrong port",
            kinds=frozenset({"rendezvous_unreachable", "rendezvous_incomplete"}),
            guilty=frozenset({rank}),
        ),
    )


def unharmed(draw: random.Random, program: Program) -> Faulty | None:
    """Nothing is changed."""
    return Faulty(program, Truth(name="healthy", hangs=False))


FAILED = frozenset({"process_failed"})
_LARGER: Callable[[str], str] = lambda size: str(int(size) + 3)  # noqa: E731
_OTHER_DTYPE: Callable[[str], str] = lambda t: "float64" if t == "float32" else "float32"  # noqa: E731

MUTATIONS: tuple[tuple[int, Mutation], ...] = (
    (8, unharmed),
    (2, late_start),
    (5, skip),
    (2, swallow),
    (3, repeat),
    (2, swap),
    (2, _field("size", _LARGER, frozenset({"shape_mismatch"}), COLLECTIVE)),
    (2, _field("size", _LARGER, frozenset({"size_mismatch"}), SEND)),
    (1, _field("dtype", _OTHER_DTYPE, MISMATCHES, COLLECTIVE)),
    (2, _field("reduce", lambda _: "PRODUCT", frozenset({"reduce_op_mismatch"}), COLLECTIVE)),
    (1, _field("tag", lambda tag: str(int(tag) + 1), MISSED, SEND, RECV)),
    (1, _field("name", lambda _: "chekpoint", frozenset({"store_key_missing"}), SET)),
    (2, wrong_root),
    (2, wrong_peer),
    (2, wrong_group),
    (4, _does("sleeps", f"time.sleep({FOREVER})", kinds=MISSED, named=True)),
    (2, _does("stopped", "os.kill(os.getpid(), signal.SIGSTOP)", kinds=STILL, named=True)),
    (2, _does("holds the GIL", "re.match('(a+)+$', 'a' * 60 + 'b')", kinds=MISSED, named=True)),
    (2, _does("waits for a lock", "lock = threading.Lock()", "lock.acquire()", "lock.acquire()",
              kinds=MISSED, named=True)),
    (2, _does("raises", "raise KeyError('batch')", kinds=FAILED, named=True)),
    (1, _does("sys.exit(3)", "sys.exit(3)", kinds=FAILED, named=True)),
    (1, _does("os._exit(4)", "os._exit(4)", kinds=FAILED, named=True)),
    (2, _does("SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", kinds=FAILED, named=True)),
    (1, _does("SIGABRT", "os.abort()", kinds=FAILED, named=True)),
    (1, _does("SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)", kinds=FAILED, named=True)),
    (2, _does("leaves with 0", "sys.exit(0)", kinds=MISSED, named=False)),
    (1, _does("SIGUSR1", "os.kill(os.getpid(), signal.SIGUSR1)", kinds=FAILED, named=True)),
    (1, _does("SIGXCPU", "os.kill(os.getpid(), signal.SIGXCPU)", kinds=FAILED, named=True)),
    (1, _does("another program", "os.execv(sys.executable, [sys.executable, '-S', '-c',"
              f" 'import time; time.sleep({FOREVER})'])", kinds=MISSED | FAILED, named=True)),
    (2, _does("fails while it handles a time-out", "try:",
              "    dist.distributed_c10d._get_default_store().wait(['no'], timedelta(seconds=1))",
              "except Exception:", "    int('no number')", kinds=FAILED, named=True)),
    (2, _does("fails after a time-out", "try:",
              "    dist.distributed_c10d._get_default_store().wait(['no'], timedelta(seconds=1))",
              "except Exception: pass", "raise LookupError('batch')", kinds=FAILED, named=True)),
    (2, keeps_the_lock),
    (1, deletes_the_key),
    (2, forks),
    (2, time_out),
    (2, lost_journal),
    (1, never_started),
    (1, same_rank),
    (1, other_world),
    (1, other_port),
)  # fmt: skip
"""(weight, mutation)"""


def faulty(draw: random.Random, program: Program) -> Faulty:
    """The program with one fault of the catalogue that it can have."""
    for mutation in _drawn(draw):
        found = mutation(draw, program)
        if found is not None and _runs(found):
            return found
    return Faulty(program, Truth(name="healthy", hangs=False))


def _runs(found: Faulty) -> bool:
    """A launcher that ends everybody takes part in what happens: no fault is judged under it that
    depends on what survivors do for long."""
    return found.program.launch not in (TORCHRUN, STANDALONE) or not found.program.lost


def _drawn(draw: random.Random) -> Iterator[Mutation]:
    weights, mutations = zip(*MUTATIONS, strict=True)
    while True:
        yield draw.choices(mutations, weights)[0]
