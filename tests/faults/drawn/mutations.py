"""Changes of one act of one rank, each with what is true then.

The truth comes from the change alone: who did what, and which kinds of findings may tell it. Where
the records of two sides are alike, nobody has to be named; nobody else may be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from faults.drawn.layers import NET
from faults.drawn.program import (
    BARE,
    COLLECTIVE,
    COUNT,
    CREATE,
    EXCHANGE,
    RECV,
    SEND,
    SET,
    SPAWN,
    UNLOCK,
    Act,
    Change,
    Program,
)
from faults.drawn.truth import (
    FAILED,
    FOREVER,
    MISMATCHES,
    MISSED,
    OUT_OF_STEP,
    UNCREATED,
    Faulty,
    Mutation,
    Truth,
)

T = TypeVar("T")


class UnfitError(Exception):
    """A program cannot have a fault."""


def one_of(draw: random.Random, able: Sequence[T]) -> T:
    """One of those that can have the fault; UnfitError where there is none."""
    if not able:
        raise UnfitError
    return draw.choice(able)


def pick(draw: random.Random, program: Program, *kinds: str) -> tuple[int, Act, int, int]:
    """(index, act, rank, step) of an act of these kinds, its last steps left out."""
    found = [
        (i, act)
        for i, act in enumerate(program.body)
        if act.kind in kinds and any(len(act.members[r]) > 1 for r in act.ranks)
    ]
    index, act = one_of(draw, found)
    rank = draw.choice([r for r in act.ranks if len(act.members[r]) > 1])
    return index, act, rank, draw.randrange(max(1, program.steps - 1))


def changed(
    program: Program, place: tuple[int, int, int], name: str, kinds: frozenset[str], *,
    before: tuple[str, ...] = (), instead: tuple[str, ...] | None = None,
    after: tuple[str, ...] = (), **truth: Any,
) -> Faulty:  # fmt: skip
    """One guilty rank does something else; ``place``: of the act, the rank and the step."""
    index, rank, step = place
    change = Change(act=index, rank=rank, step=step, before=before, instead=instead, after=after)
    guilty = frozenset({rank})
    return Faulty(program.but(change=change), Truth(name=name, kinds=kinds, guilty=guilty, **truth))


def out_of_step(program: Program) -> frozenset[str]:
    """What it comes to where a rank calls something else than the others."""
    creates = any(act.kind == CREATE for act in program.body)
    return OUT_OF_STEP | UNCREATED if creates else OUT_OF_STEP


def skip(draw: random.Random, program: Program) -> Faulty:
    """One rank leaves a communication out."""
    index, act, rank, step = pick(
        draw, program, COLLECTIVE, EXCHANGE, SEND, RECV, SET, COUNT, CREATE
    )
    # Whoever left out a key may wait for those who wait for it.
    in_store = act.kind in (SET, COUNT)
    kinds = frozenset({"store_key_missing", "deadlock"}) if in_store else out_of_step(program)
    if act.kind == COUNT:  # those who ask for the count are not seen to wait
        kinds = MISSED
    return changed(
        program, (index, rank, step), f"skip {act.kind}", kinds, instead=(),
        harmless=act.kind == RECV,
    )  # fmt: skip


def swallow(draw: random.Random, program: Program) -> Faulty:
    """One rank's exception before a collective is caught, and the collective is left out."""
    index, act, rank, step = pick(draw, program, COLLECTIVE)
    lines = (
        "try:", "    raise ValueError('bad batch')", f"    {act.code()}",
        "except ValueError as error:", "    print(error)",
    )  # fmt: skip
    return changed(program, (index, rank, step), "swallow", out_of_step(program), instead=lines)


def repeat(draw: random.Random, program: Program) -> Faulty:
    """One rank calls a collective twice."""
    index, act, rank, step = pick(draw, program, COLLECTIVE, EXCHANGE)
    once_more = (act.code(),) * draw.choice((1, 1, 2, 3))
    return changed(program, (index, rank, step), "repeat", out_of_step(program), after=once_more)


def parameters(draw: random.Random, program: Program) -> Faulty:
    """A part of one rank's model is unused in one step, or else frozen, ignored or missing."""
    able = [i for i, act in enumerate(program.body) if "{off}" in act.template]
    if not able:
        raise UnfitError
    rank, name = draw.randrange(program.world), draw.choice("abc")
    how = draw.choice(("unused", "frozen", "ignored", "missing"))
    names = frozenset({f"{name}.weight", f"{name}.bias"})
    ignore = "torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model"
    line = {
        "frozen": f"net.{name}.requires_grad_(False)", "missing": f"net.{name} = None",
        "ignored": f"ignored.update(net.{name}.parameters()); {ignore}(net, {sorted(names)})",
    }.get(how, "pass")  # fmt: skip
    at = program.setup.index(NET) + 1
    setup = (*program.setup[:at], f"if rank == {rank}: {line}", *program.setup[at:])
    place = (able[0], rank, draw.randrange(max(1, program.steps - 1)))
    off = (program.body[able[0]].code(off=repr(name)),) if how == "unused" else None
    kinds = out_of_step(program) | FAILED
    return changed(
        program.but(setup=setup), place, f"parameters {how}", kinds, instead=off, parameters=names
    )


def not_finite(draw: random.Random, program: Program) -> Faulty:
    """One rank's input of a sum is not a number, or infinite."""
    fitting = {"reduce": "SUM", "dtype": "float32"}.items()
    able = [
        i for i, act in enumerate(program.body)
        if fitting <= act.fields.items() and "dist." in act.template and "reduce" in act.template
    ]  # fmt: skip
    act, rank = program.body[one_of(draw, able)], draw.randrange(program.world)
    value = f"float('{draw.choice(('nan', 'inf', '-inf'))}') * torch.ones("
    line = act.code().replace("torch.ones(", value)
    step, looks = draw.randrange(program.steps), {"DISTTRACE_DIGEST": "1"}
    environ = dict.fromkeys(range(program.world), looks)
    if rank not in act.ranks:
        raise UnfitError
    return changed(
        program.but(launch=BARE, environ=environ), (program.body.index(act), rank, step),
        "not finite", frozenset({"value_divergence"}), instead=(line,), named=True, hangs=False,
        line=line,
    )  # fmt: skip


def swap(draw: random.Random, program: Program) -> Faulty:
    """One rank calls two neighbouring collectives in the other order."""
    pairs = [
        i
        for i, (one, two) in enumerate(zip(program.body, program.body[1:], strict=False))
        if one.kind == two.kind == COLLECTIVE
        and one.code() != two.code()
        and set(one.ranks) == set(two.ranks) == set(range(program.world))
    ]
    index, rank = one_of(draw, pairs), draw.randrange(program.world)
    one, two = program.body[index], program.body[index + 1]
    step = draw.randrange(program.steps)
    # The second act of that rank is left out by taking both in one place.
    both = Act(
        kind=COLLECTIVE, template="[{one}, {two}]", fields={"one": one.code(), "two": two.code()},
        members=one.members,
    )  # fmt: skip
    body = (*program.body[:index], both, *program.body[index + 2 :])
    turned = f"[{two.code()}, {one.code()}]"
    return changed(
        program.but(body=body), (index, rank, step), "swap", out_of_step(program),
        instead=(turned,), harmless=True,
    )  # fmt: skip


def field(name: str, value: Callable[[str], str], kinds: frozenset[str], *acts: str) -> Mutation:
    def mutate(draw: random.Random, program: Program) -> Faulty:
        able = [i for i, a in enumerate(program.body) if a.kind in acts and name in a.fields]
        fitting = [i for i in able if "{" + name + "}" in program.body[i].template]
        index = one_of(draw, fitting)
        act = program.body[index]
        rank = draw.choice(act.ranks)
        step = draw.randrange(max(1, program.steps - 1))
        line = act.code(**{name: value(act.fields[name])})
        odd_one_out = act.kind == COLLECTIVE and len(act.members[rank]) > 2
        return changed(
            program, (index, rank, step), f"wrong {name} of {act.kind}", kinds, instead=(line,),
            named=odd_one_out,
        )  # fmt: skip

    return mutate


def keeps_the_lock(draw: random.Random, program: Program) -> Faulty:
    """One rank does not give a lock back; the others ask for it for ever."""
    able = [i for i, act in enumerate(program.body) if act.kind == UNLOCK]
    if not able:
        raise UnfitError
    rank = draw.randrange(program.world)
    place = (draw.choice(able), rank, draw.randrange(program.steps))
    return changed(program, place, "keeps the lock", MISSED, instead=(), harmless=True)


def deletes_the_key(draw: random.Random, program: Program) -> Faulty:
    """A key is deleted as soon as it was set: whoever comes later waits for ever."""
    able = [i for i, act in enumerate(program.body) if act.kind == SET]
    index = one_of(draw, able)
    (rank,) = program.body[index].ranks
    line = program.body[index].code().replace("store.set(", "store.delete_key(").partition(", ")
    place = (index, rank, draw.randrange(program.steps))
    deleted = (f"{line[0]})",)
    return changed(program, place, "deletes the key", MISSED, after=deleted, harmless=True)


def forks(draw: random.Random, program: Program) -> Faulty:
    """One rank forks a child that calls a collective in the group it inherits."""
    index, _, rank, step = pick(draw, program, COLLECTIVE)
    lines = ("if os.fork() == 0:", "    dist.all_reduce(torch.ones(3)); os._exit(0)")
    kinds = frozenset({"not_in_group"})
    return changed(program, (index, rank, step), "forks", kinds, before=lines, harmless=True)


def wrong_root(draw: random.Random, program: Program) -> Faulty:
    """One rank names another root."""
    acts = [(i, act.template) for i, act in enumerate(program.body)]
    able = [i for i, text in acts if "{root}" in text and "object" not in text]
    index = one_of(draw, able)
    act = program.body[index]
    rank = draw.choice(act.ranks)
    other = str((int(act.fields["root"]) + 1) % program.world)
    return changed(
        program, (index, rank, draw.randrange(program.steps)), "wrong root",
        frozenset({"root_mismatch"}), instead=(act.code(root=other),),
        named=len(act.members[rank]) > 2,
    )  # fmt: skip


def wrong_peer(draw: random.Random, program: Program) -> Faulty:
    """A message goes to, or is awaited from, somebody else."""
    index, act, rank, step = pick(draw, program, SEND, RECV)
    if program.world < 3:
        raise UnfitError
    others = [r for r in range(program.world) if r not in act.members[rank]]
    line = act.code(peer=str(one_of(draw, others)))
    kinds = MISSED | {"size_mismatch"} | MISMATCHES
    name = f"wrong peer of {act.kind}"
    return changed(program, (index, rank, step), name, kinds, instead=(line,))


def wrong_group(draw: random.Random, program: Program) -> Faulty:
    """A collective of a small group is called on everybody's."""
    able = [
        i
        for i, a in enumerate(program.body)
        if a.kind == COLLECTIVE and a.fields.get("group", "world") != "world"
    ]
    index = one_of(draw, able)
    act = program.body[index]
    rank = draw.choice(act.ranks)
    place = (index, rank, draw.randrange(program.steps))
    line = act.code(group="world")
    return changed(program, place, "wrong group", out_of_step(program), instead=(line,))


def does(
    name: str, *lines: str, kinds: frozenset[str], named: bool, line: str | None = None,
    unsaid: tuple[str, ...] = (), meanwhile: frozenset[str] = frozenset(),
) -> Mutation:  # fmt: skip
    """One rank does something before a communication that others need it for; ``line`` shows it."""

    def mutate(draw: random.Random, program: Program) -> Faulty:
        index, act, rank, step = pick(draw, program, COLLECTIVE, EXCHANGE, SEND, SET, COUNT, CREATE)
        # Who waits for one message or key may not know who should have acted.
        sure = named and (act.kind == COLLECTIVE or kinds == FAILED)
        # The store goes with the rank that serves it, and whoever waits there loses contact.
        gone = name == "leaves with 0" and rank == 0 and program.launch in (BARE, SPAWN)
        waits = any(one.kind == CREATE for one in program.body) and bool(kinds & MISSED)
        making = UNCREATED if waits else frozenset[str]()
        return changed(
            program, (index, rank, step), name,
            kinds | making | (FAILED if gone else frozenset()), before=lines, named=sure,
            mute=name in ("stopped", "holds the GIL"), line=line if sure else None, unsaid=unsaid,
            meanwhile=meanwhile,
        )  # fmt: skip

    return mutate


def other_name(draw: random.Random, program: Program) -> Faulty:
    """One rank has made a group more of its own, and so names the next one otherwise."""
    able = [i for i, a in enumerate(program.body) if "local_synchronization" in a.template]
    if not able:
        raise UnfitError
    rank = draw.randrange(program.world)
    line = f"made.append(dist.new_group([{rank}], use_local_synchronization=True))"
    step = draw.randrange(program.steps)
    place = (draw.choice(able), rank, step)
    return changed(program, place, "other name", frozenset({"group_mismatch"}), before=(line,))


def time_out(draw: random.Random, program: Program) -> Faulty:
    """One rank comes when the others have given up."""
    index, act, rank, step = pick(draw, program, COLLECTIVE, EXCHANGE)
    of_all = act.fields.get("group") == "world"  # other groups wait for longer
    line = "time.sleep(9)"
    return changed(
        program.but(timeout_s=4.0), (index, rank, step), "time-out", MISSED, before=(line,),
        line=line if of_all else None, harmless=not of_all,
    )  # fmt: skip


def lost_journal(draw: random.Random, program: Program) -> Faulty:
    """One rank hangs in its loader, and a journal is not there to be read."""
    index, _, rank, step = pick(draw, program, COLLECTIVE)
    if program.world < 3:
        raise UnfitError
    return changed(
        program.but(lost=(draw.randrange(program.world),)), (index, rank, step), "journal lost",
        OUT_OF_STEP | {"no_progress", "process_failed"}, before=(f"time.sleep({FOREVER})",),
        incomplete=True,
    )  # fmt: skip
