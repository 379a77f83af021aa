"""Waiting: signals, loops, pools and threads get what they wait for, once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from reliability.attacks.ground import (
    STALL_S,
    group,
    say,
)


def interrupted_loop() -> None:
    """Ctrl-C cancels the main task of asyncio.run once."""

    async def main() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say(cancelled=True)
            raise

    group()
    threading.Timer(1.5 * STALL_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        say(interrupted=True)
