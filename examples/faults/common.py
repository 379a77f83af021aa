"""What the faulty programs share: the way in, the options, and an end that always comes.

Importing it sets an alarm whose default action ends the process in C: a program that hangs for
ever leaks nothing, and no Python code of ours stands on its stack while it does.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

LIMIT_S = 120
LONG = timedelta(minutes=30)

_T = TypeVar("_T")

signal.alarm(LIMIT_S)
if "FAULT_STACKS" in os.environ:
    faulthandler.register(signal.SIGUSR1, all_threads=False)


def ranks(text: str) -> list[int]:
    """A comma list of ranks."""
    return [int(one) for one in text.split(",") if one]


def options(doc: str | None, *, culprit: int = 1) -> argparse.ArgumentParser:
    """The options that most of the programs know."""
    summary = (doc or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--culprit", type=int, default=culprit, help="the rank that does it")
    parser.add_argument("--group", type=ranks, default=[], help="work in this subgroup: 1,2,3")
    parser.add_argument("--step", type=int, default=2, help="the step in which it happens")
    parser.add_argument("--deep", type=int, default=0, help="that many calls deeper")
    return parser


def join(timeout: timedelta = LONG) -> tuple[int, int]:
    """Join the default group on gloo; returns rank and world size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timeout)
    return dist.get_rank(), dist.get_world_size()


def subgroup(wanted: list[int]) -> tuple[dist.ProcessGroup | None, list[int]]:
    """The group to work in and its members: a new one of the wanted ranks, or the default one."""
    if not wanted:
        return None, list(range(dist.get_world_size()))
    return dist.new_group(wanted), wanted


def deeper(depth: int, call: Callable[[], _T]) -> _T:
    """Make the call from further down the stack."""
    return call() if depth == 0 else deeper(depth - 1, call)
