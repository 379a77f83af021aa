"""What programs do in a store: keys, barriers, locks, and threads that stay there."""

from __future__ import annotations

import random

from faults.drawn.layer import Layer, together
from faults.drawn.program import COUNT, GET, LOCK, SET, UNLOCK, Act

_PATIENTLY = (
    "def patiently(key):",
    "    while True:",
    "        try: return store.wait([key], timedelta(seconds=1))",
    "        except dist.DistStoreError: print('not yet', key)",
)
"""Whoever asks again after each time limit has waited since it asked first."""


def store_protocol(draw: random.Random, world: int) -> Layer:
    """One rank publishes a key in each step, and the others wait for it."""
    writer = draw.randrange(world)
    all_ranks = tuple(range(world))
    writes = {writer: all_ranks}
    others = {rank: all_ranks for rank in range(world) if rank != writer}
    name = {"name": "checkpoint"}
    key = 'f"{name}/{{step}}"'
    get = draw.choice((f"store.get({key})", f"patiently({key})"))
    return Layer(
        (
            "store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",
            *_PATIENTLY,
        ),
        (
            Act(kind=SET, template=f"store.set({key}, 'done')", fields=name, members=writes),
            Act(kind=GET, template=get, fields=name, members=others),
        ),
    )


def store_barrier(draw: random.Random, world: int) -> Layer:
    """Everybody counts up in a key of each step, and waits until all have: as people write it."""
    key = 'f"arrived/{step}"'
    count = f"store.add({key}, 1)"
    wait = draw.choice(
        (
            f"({count} == {world} and store.set({key} + '/go', '')) or store.wait([{key} + '/go'])",
            f"({count}, [time.sleep(0.02) for _ in iter(lambda: store.add({key}, 0), {world})])",
        )
    )
    return Layer(
        ("store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",),
        (together(wait.replace("{", "{{").replace("}", "}}"), world, COUNT),),
    )


def turns_in_store(draw: random.Random, world: int) -> Layer:
    """What C++ exchanges for symmetric memory: a key of each rank in each turn."""
    prefix = draw.choice(("CUDASymmetricMemory", "NVSHMEMSymmetricMemory", "NCCLAllocation"))
    return Layer(
        (
            "shared = dist.distributed_c10d._get_default_store()",
            "handles, turns = dist.PrefixStore('symmetric_memory-0', shared), iter(range(999))",
            "def rendezvous():",
            "    turn = next(turns)",
            f"    handles.set(f'{prefix}/{{turn}}/{{rank}}', b'handle')",
            f"    for one in range({world}): handles.get(f'{prefix}/{{turn}}/{{one}}')",
        ),
        (together("rendezvous()", world, COUNT),),
    )


def listener(draw: random.Random, world: int) -> Layer:
    """A thread waits for a control message over its own connection: a TCPStore serves one call."""
    return Layer(
        (
            "shared = dist.distributed_c10d._get_default_store()",
            "control = dist.PrefixStore('control', shared.clone())",
            "def listen():",
            "    control.wait(['stop'], timedelta(hours=1))",
            "listening = threading.Thread(target=listen, daemon=True)",
            "listening.start()",
        ),
        (),
        ("dist.PrefixStore('control', shared).set('stop', '')", "listening.join()"),
    )


def lock_in_store(draw: random.Random, world: int) -> Layer:
    """Each rank takes a lock in the store in turn, and gives it back."""
    mine = "f'{rank}'"
    take = (
        f"[time.sleep(0.02) for _ in iter(lambda: store.compare_set('lock', '', {mine}),"
        f" {mine}.encode())]"
    )
    return Layer(
        ("store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",),
        (
            together(take.replace("{", "{{").replace("}", "}}"), world, LOCK),
            together("store.delete_key('lock')", world, UNLOCK),
        ),
    )


def polls_all_day(draw: random.Random, world: int) -> Layer:
    """A thread that gives signs of life in a store, whatever the main one does."""
    return Layer(
        (
            "alive = dist.PrefixStore('alive', dist.distributed_c10d._get_default_store().clone())",
            "over = threading.Event()",
            "def live():",
            "    while not over.wait(0.2): alive.add(f'{rank}', 1)",
            "living = threading.Thread(target=live, daemon=True)",
            "living.start()",
        ),
        (),
        ("over.set()", "living.join()"),
    )
