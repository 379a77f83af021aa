"""What a store key is, in words: whose address, which group's id, whose turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disttrace_viewer.trace.model import Group
from disttrace_viewer.trace.numbers import whole


def describe(key: str, groups: Sequence[Group] = ()) -> str | None:
    """What ``key`` (with every prefix, as in the export) holds; None where that is not known.

    ``groups`` tell whose key it is: the one with the longest prefix in front of it.
    """
    owner, rest = _owner(key, groups)
    if owner is not None:
        for row in _IN_GROUP:
            found = row.pattern.fullmatch(rest)
            if found is not None and _serves(owner, found.groupdict().get("device"), row.backend):
                return row.words(found, owner)
    for pattern, words in _ANYWHERE:
        found = pattern.search(key)
        if found is not None:
            return words(found)
    return None


@dataclass(frozen=True, slots=True)
class _Form:
    """A key under a group's prefix, by the backend that uses it."""

    pattern: re.Pattern[str]
    backend: str
    words: Callable[[re.Match[str], Group], str]


# Below a group's prefix stands the device with the slash that torch adds, unless it was hand-made.
_DEVICE = r"(?:(?P<device>[a-z]+)//)?"

_IN_GROUP: tuple[_Form, ...] = (
    _Form(
        re.compile(_DEVICE + r"\d+/(?P<rank>\d+)"),
        "gloo",
        lambda m, g: f"{_rank(m['rank'], g)}'s gloo address in {_group(g)}",
    ),
    _Form(
        re.compile(_DEVICE + r"(?P<n>\d+)"),
        "nccl",
        lambda m, g: (
            f"NCCL unique id of {_group(g)}" + (f", communicator {m['n']}" if int(m["n"]) else "")
        ),
    ),
    _Form(
        re.compile(_DEVICE + r"(?P<low>\d+):(?P<high>\d+)"),
        "nccl",
        lambda m, g: (
            f"NCCL unique id for messages between {_rank(m['low'], g)} and "
            f"{_rank(m['high'], g)} of {_group(g)}"
        ),
    ),
)

_ANYWHERE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"store_based_barrier_key:(?P<name>[^/]+?):last_worker$"),
        lambda m: f"the last worker's word in the store barrier of group {m['name']}",
    ),
    (
        re.compile(r"store_based_barrier_key:(?P<name>[^/]+)$"),
        lambda m: f"workers joined in the store barrier of group {m['name']}",
    ),
    (
        re.compile(r"torchelastic/role_info/(?P<node>\d+)$"),
        lambda m: f"node {m['node']}'s roles and worker count, for torchelastic",
    ),
    (
        re.compile(r"torchelastic/assigned_ranks/(?P<node>\d+)$"),
        lambda m: f"ranks that torchelastic assigns to node {m['node']}",
    ),
    (
        re.compile(r"torchelastic/agent/terminal_state/num_members$"),
        lambda _: "number of agents at torchelastic's exit barrier",
    ),
    (
        re.compile(r"torchelastic/agent/terminal_state/last_member$"),
        lambda _: "the last agent's word at torchelastic's exit barrier",
    ),
    (
        re.compile(r"(?:^|/)torch\.rendezvous\.[^/]+$"),
        lambda _: "torchelastic's rendezvous state",
    ),
    (re.compile(r"(?:^|/)MASTER_ADDR$"), lambda _: "host of the workers' store"),
    (re.compile(r"(?:^|/)MASTER_PORT$"), lambda _: "port of the workers' store"),
)


def _owner(key: str, groups: Sequence[Group]) -> tuple[Group | None, str]:
    """The group under whose prefix the key stands, and the key below it."""
    best, length = None, -1
    for group in groups:
        if not group.prefix or None in group.prefix:
            continue
        prefix = "/".join(part or "" for part in group.prefix) + "/"
        if key.startswith(prefix) and len(prefix) > length:
            best, length = group, len(prefix)
    return best, key[max(length, 0) :]


def _serves(group: Group, device: str | None, backend: str) -> bool:
    """Whether the group's backend for a device is this one; if unknown, the key's form decides."""
    backends = group.backends
    name = backends.get(device or "", backends.get("*")) or next(iter(backends.values()), backend)
    return name == backend


def _rank(group_rank: str, group: Group) -> str:
    number = whole(group_rank)
    if number is None or group.ranks is None or number >= len(group.ranks):
        return f"group rank {group_rank}"
    return f"rank {group.ranks[number]}"


def _group(group: Group) -> str:
    label = group.desc if group.desc and group.desc != "undefined" else group.name
    return f"group {label}" if label else "a group made by hand"
