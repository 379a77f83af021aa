"""What a station needs of the world: a clock, and streams of bytes to and from others.

Sockets give it in a job (``sockets.py``), and a simulation in virtual time where a thousand hosts
are tried.
"""

from __future__ import annotations

from typing import Protocol

from disttrace_viewer.companion.channel.places import Address


class Transport(Protocol):
    """Streams by number. Nothing here blocks, and nothing raises."""

    def now(self) -> float:
        """Seconds of a clock that is never set."""

    def connect(self, address: Address) -> int:
        """Call somebody: ``opened`` or ``closed`` of the station follows."""

    def listen(self, address: Address) -> Address | None:
        """Take calls there (port 0: at any); where it is, or None where that is somebody else's."""

    def unlisten(self) -> None:
        """Take no more calls."""

    def send(self, stream: int, data: bytes) -> None:
        """Bytes for the other one; whoever does not read them is cut off in the end."""

    def close(self, stream: int) -> None:
        """Let go of a stream; ``closed`` does not follow."""

    def peer(self, stream: int) -> str:
        """The numeric address of the other one."""

    def own(self, stream: int) -> str:
        """Our own numeric address there."""

    def is_ours(self, stream: int) -> bool:
        """Whether the kernel says that the other one runs here, for the same user."""
