"""Tools that look at or into a program: profilers, hooks, policies, debuggers, picklers."""

from __future__ import annotations

import logging
import logging.config
import sys
import types
import warnings
from typing import Any

from reliability.attacks.ground import group, reduce, say, stall


def profiled_calls(dist: Any) -> None:
    """sys.setprofile sees the same calls of C from the program's own lines."""
    seen: list[tuple[str, str]] = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == __file__:
            seen.append((event, getattr(arg, "__name__", "") if event[:2] == "c_" else ""))

    def work() -> None:
        store = dist.HashStore()
        store.set("a", "b")
        store.get("a")
        reduce(dist, 3)

    sys.setprofile(profile)
    work()
    sys.setprofile(None)
    say(seen=seen)


def logging_of_the_program() -> None:
    """Configurations that disable, capture, raise and replace: no record and no handler of ours."""
    records: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.name)
            if record.name.startswith("disttrace"):
                raise RuntimeError("who is that?")

    logging.raiseExceptions = True
    logging.captureWarnings(True)
    logging.setLogRecordFactory(logging.LogRecord)
    dist = group()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    logging.basicConfig(handlers=[Keeps()], level=1, force=True)
    reduce(dist, 50)
    stall(2.5)
    warnings.warn("mine", stacklevel=1)
    loggers = [name for name in logging.root.manager.loggerDict if "disttrace" in name]
    say(records=sorted(set(records)), handlers=len(logging.root.handlers), loggers=loggers)
