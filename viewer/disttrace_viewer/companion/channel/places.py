"""Where companions of a job meet: on the host that serves its store, at ports that follow from it.

All hosts know that address from their journals, so nothing has to be told to anybody, and nothing
has to lie in the job's store: no key, not even a query. The kernel lets one process have a port, so
one of those on that host listens there and the others find it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Sequence

Address = tuple[str, int]

PORTS = 4
"""Of which the first one is taken that no other program has."""
_LOWEST, _HIGHEST = 10_240, 32_767
"""Above what services have, below what Linux hands out by itself (32,768 and up)."""


def job_of(store_port: int) -> str:
    """What companions of one job have in common: their names of it may differ."""
    return hashlib.sha256(b"disttrace job at %d" % store_port).hexdigest()[:16]


def ports(store_port: int) -> list[int]:
    """The ports at which companions of the job with its store at ``store_port`` meet."""
    found: list[int] = []
    number = 0
    while len(found) < PORTS:
        digest = hashlib.sha256(b"disttrace port %d of %d" % (number, store_port)).digest()
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
    """Whether an address is of this host: the kernel would speak to it from that same one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            return str(probe.getsockname()[0]) == address
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
