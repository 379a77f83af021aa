"""Runs one attack: python -m reliability.attacks children.wait_for_any.

What takes an argument gets torch.distributed with a default group of one (``ground.group``).
"""

from __future__ import annotations

import importlib
import sys

from reliability.attacks import HEAD, ROWS
from reliability.attacks.ground import group

theme, _, name = sys.argv[1].partition(".")
if sys.argv[1] in ROWS:
    exec(compile(HEAD + ROWS[sys.argv[1]], name, "exec"), {"__name__": "__main__"})
else:
    attack = getattr(importlib.import_module(f"reliability.attacks.{theme}"), name)
    attack(*(group() for _ in range(attack.__code__.co_argcount)))
torch = sys.modules.get("torch")
if torch is not None and torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # torch alone may abort in the end without it
