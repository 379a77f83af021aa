"""Where companions of a job meet: on the host that serves its store, at ports that follow from it.

All hosts know that address from their journals, so nothing has to be told to anybody, and nothing
has to lie in the job's store: no key, not even a query. The kernel lets one process have a port, so
one of those on that host listens there and the others find it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disttrace_viewer.trace.plain_text import whole

Address = tuple[str, int]

PORTS = 4
"""Of which the first one is taken that no other program has."""
_LOWEST, _HIGHEST = 10_240, 32_767
"""Above what services have, below what Linux hands out by itself (32,768 and up)."""


def job_of(store_port: int, about: str = "") -> str:
    """What companions of one job have in common: their names of it may differ."""
    return hashlib.sha256(b"disttrace job at %d%b" % (store_port, about.encode())).hexdigest()[:16]


def ports(store_port: int, about: str = "") -> list[int]:
    """The ports at which companions of the job with its store at ``store_port`` meet; what they
    meet ``about`` has ports of its own."""
    found: list[int] = []
    number = 0
    while len(found) < PORTS:
        words = b"disttrace port %d of %d%b" % (number, store_port, about.encode())
        digest = hashlib.sha256(words).digest()
        port = _LOWEST + int.from_bytes(digest[:4], "big") % (_HIGHEST - _LOWEST + 1)
        if port != store_port and port not in found:
            found.append(port)
        number += 1
    return found


def resolved(host: str) -> list[str]:
    """Numeric addresses of a host, as many as anybody needs; none where it is not known."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(one[4][0]) for one in found))[:4]


def is_here(address: str) -> bool:
    """Whether an address is of this host: the kernel would speak to it from that same one, or, as
    to the second address of an interface, from another one, but takes what comes to it.
    """
    family, version = (socket.AF_INET6, "6") if ":" in address else (socket.AF_INET, "4")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            if probe.getsockname()[0] == address:
                return True
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return not ipaddress.ip_address(address).is_unspecified and _only_own(version)
    except (OSError, ValueError):
        return False


def _only_own(version: str) -> bool:
    """Whether the kernel lets nobody have an address that is not of this host."""
    try:
        with open(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind", encoding="ascii") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def to_listen_at(host: str, numeric: Sequence[str]) -> str | None:
    """The address of ours at which ``host`` is reached from everywhere; None: it is another host.

    A host's own name may stand for 127.0.1.1 on itself, and for another address elsewhere.
    """
    here = [address for address in numeric if is_here(address)]
    outside = [address for address in here if not ipaddress.ip_address(address).is_loopback]
    if outside:
        return outside[0]
    if not here:
        return None
    return here[0] if host == "localhost" or host in here else ""


Tables = Mapping[str, Mapping[Any, Mapping[str, Any]]]
"""Numbered definitions by kind and number."""


def stores(processes: Iterable[tuple[Tables, Mapping[str, str], bool]]) -> list[Address]:
    """TCPStores of processes, of which come definitions, environment, and whether it is an agent;
    in an order on which all hosts agree, or they would wait apart.

    That of the default group is the job's own; where no group is there yet it is the one that
    workers expect, and before there are workers that of the launchers' rendezvous.
    """
    found: dict[Address, None] = {}
    rows = list(processes)
    for numbered, _, _ in rows:
        known = numbered.get("store", {})
        groups = numbered.get("group", {}).values()
        _offer(found, [_base(known, g.get("store")) for g in groups if g.get("default")])
    for _, env, is_agent in rows:
        host, port = env.get("MASTER_ADDR"), whole(env.get("MASTER_PORT", ""))
        if host and port is not None and not is_agent:
            found.setdefault((host, port))
    for numbered, _, _ in rows:
        _offer(found, numbered.get("store", {}).values())
    return list(found)[:4]


def _offer(found: dict[Address, None], known: Iterable[Mapping[str, Any] | None]) -> None:
    for store in known:
        if store and store.get("base") is None and store.get("host") and store.get("port"):
            found.setdefault((str(store["host"]), int(store["port"])))


def _base(known: Mapping[Any, Mapping[str, Any]], number: Any) -> Mapping[str, Any] | None:
    for _ in range(8):
        store = known.get(number)
        if store is None or store.get("base") is None:
            return store
        number = store["base"]
    return None
