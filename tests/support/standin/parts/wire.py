"""Messages between the processes of a job."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any


def start(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


class Wire:
    """Messages between the processes of a job, by key; each has a socket in the job's folder."""

    def __init__(self, rank: int) -> None:
        self._arrived: dict[Any, Any] = {}
        self._condition = threading.Condition()
        self._peers: dict[int, tuple[socket.socket, threading.Lock]] = {}
        self._connecting = threading.Lock()
        self.rank = rank
        self.gone: set[int] = set()  # whose connections broke
        self._listener = socket.socket(socket.AF_UNIX)
        path = self._path(rank)
        if os.path.exists(path):
            os.unlink(path)  # of a process before a restart
        self._listener.bind(path)
        self._listener.listen(64)
        start(self._accept)

    def send(self, to: int, key: Any, value: Any) -> None:
        """Give ``value`` to the process of that rank; nothing where it is gone."""
        text = pickle.dumps((key, value))
        try:
            peer, lock = self._peer(to)
            with lock:
                peer.sendall(struct.pack("!Q", len(text)) + text)
        except OSError:
            return

    def receive(self, key: Any) -> Any:
        """Wait for what has that key, for ever."""
        with self._condition:
            self._condition.wait_for(lambda: key in self._arrived)
            return self._arrived.pop(key)

    def _path(self, rank: int) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = f"{os.environ.get('MASTER_PORT')}-{attempt}"
        job = hashlib.sha1(name.encode(), usedforsecurity=False)
        return os.path.join(os.environ["STANDIN"], f"{job.hexdigest()[:8]}-{rank}")

    def _peer(self, rank: int) -> tuple[socket.socket, threading.Lock]:
        with self._connecting:
            known = self._peers.get(rank)
            if known is not None:
                return known
        while True:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(self._path(rank))
                made.sendall(struct.pack("!Q", self.rank))
                break
            except OSError:
                made.close()
                time.sleep(0.02)
        with self._connecting:
            return self._peers.setdefault(rank, (made, threading.Lock()))

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            start(self._read, peer)

    def _read(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            (rank,) = struct.unpack("!Q", stream.read(8))
            while head := stream.read(8):
                key, value = pickle.loads(stream.read(struct.unpack("!Q", head)[0]))
                with self._condition:
                    self._arrived[key] = value
                    self._condition.notify_all()
        self.gone.add(rank)


_made: list[Wire] = []


def wire(rank: int | None = None) -> Wire:
    """This process's; made for the rank that is told first."""
    if not _made:
        assert rank is not None
        _made.append(Wire(rank))
    return _made[0]


os.register_at_fork(after_in_child=_made.clear)
