"""Waits for any child: it has exactly one, whatever disttrace started."""

from __future__ import annotations

import os
import subprocess
import sys

import torch.distributed as dist

store = dist.HashStore()  # the first use of c10d: the journal opens, and the exporter starts
store.set("key", "value")
try:
    print("child", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
print("own child", os.wait()[0] == child.pid)
modules = [name for name in sys.modules if name.partition(".")[0] in ("grpc", "opentelemetry")]
print("imported", modules)
