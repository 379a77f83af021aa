"""Runs one attack: python -m reliability.attacks children.wait_for_any.

What takes an argument gets torch.distributed with a default group of one (``ground.group``), or
the numbers that follow.
"""

from __future__ import annotations

import importlib
import sys

from reliability.attacks import HEAD, ROWS
from reliability.attacks.ground import group

theme, _, name = sys.argv[1].partition(".")
if theme == "rows":
    exec(compile(HEAD + ROWS[name], name, "exec"), {"__name__": "__main__"})
else:
    attack = getattr(importlib.import_module(f"reliability.attacks.{theme}"), name)
    numbers = map(int, sys.argv[2:])
    attack(*(next(numbers, None) or group() for _ in range(attack.__code__.co_argcount)))
torch = sys.modules.get("torch")
if torch is not None and torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # torch alone may abort in the end without it
