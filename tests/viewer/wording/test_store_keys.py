"""Store keys in words."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from disttrace_viewer.trace.model import Group
from disttrace_viewer.wording.store_keys import describe


def group(
    name: str = "0",
    desc: str | None = None,
    prefix: tuple[str | None, ...] = ("default_pg", "0/"),
    ranks: tuple[int, ...] | None = (0, 1),
    backends: Mapping[str, str] | None = None,
) -> Group:
    """A group, as far as `describe` asks for it."""
    return Group(
        "", 0, name, desc, None, backends or {"cpu": "gloo", "cuda": "nccl"}, ranks, None,
        default=False, place=None, prefix=prefix, members=(),
    )  # fmt: skip


WORLD = group(desc="default_pg")
DATA = group(name="7", desc="dp", prefix=("default_pg", "7/"), ranks=(4, 6))
HAND = group(name="", prefix=("replica_0",), ranks=None, backends={"*": "gloo"})
UNKNOWN = group(prefix=(None, "9/"))

WORDS = [
    ("default_pg/0//cpu//0/1", "rank 1's gloo address in group default_pg"),
    ("default_pg/7//cpu//0/1", "rank 6's gloo address in group dp"),
    ("default_pg/7//cpu//0/5", "group rank 5's gloo address in group dp"),
    ("replica_0/0/1", "group rank 1's gloo address in a group made by hand"),
    ("default_pg/0//cuda//0", "NCCL unique id of group default_pg"),
    ("default_pg/7//cuda//2", "NCCL unique id of group dp, communicator 2"),
    (
        "default_pg/7//cuda//0:1",
        "NCCL unique id for messages between rank 4 and rank 6 of group dp",
    ),
    (
        "default_pg/store_based_barrier_key:3",
        "workers joined in the store barrier of group 3",
    ),
    (
        "default_pg/store_based_barrier_key:3:last_worker",
        "the last worker's word in the store barrier of group 3",
    ),
    ("torch.rendezvous.none", "torchelastic's rendezvous state"),
    (
        "torch.rendezvous.none.0/torchelastic/role_info/1",
        "node 1's roles and worker count, for torchelastic",
    ),
    (
        "none/torchelastic/assigned_ranks/0",
        "ranks that torchelastic assigns to node 0",
    ),
    (
        "none/torchelastic/agent/terminal_state/num_members",
        "number of agents at torchelastic's exit barrier",
    ),
    (
        "none/torchelastic/agent/terminal_state/last_member",
        "the last agent's word at torchelastic's exit barrier",
    ),
    ("torch.rendezvous.none.0/MASTER_ADDR", "host of the workers' store"),
    ("MASTER_PORT", "port of the workers' store"),
]


@pytest.mark.parametrize(("key", "words"), WORDS)
def test_known_keys(key: str, words: str) -> None:
    """Each key that torch itself uses says whose it is."""
    assert describe(key, [WORLD, DATA, HAND, UNKNOWN]) == words


@pytest.mark.parametrize(
    "key", ["", "step/17", "default_pg/0//mine", "default_pg/0//cpu//0", "?/9//cpu//0/1", "0/1"]
)
def test_other_keys(key: str) -> None:
    """A user's key, a form its backend does not use, an unknown prefix: nothing is guessed."""
    assert describe(key, [WORLD, DATA, HAND, UNKNOWN]) is None


def test_without_groups() -> None:
    """What needs no group is known without any."""
    assert describe("MASTER_ADDR") == "host of the workers' store"
    assert describe("default_pg/0//cpu//0/1") is None
