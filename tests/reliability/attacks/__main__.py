"""Runs one attack: python -m reliability.attacks children.wait_for_any."""

from __future__ import annotations

import importlib
import sys

theme, _, name = sys.argv[1].partition(".")
getattr(importlib.import_module(f"reliability.attacks.{theme}"), name)()
torch = sys.modules.get("torch")
if torch is not None and torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # torch alone may abort in the end without it
