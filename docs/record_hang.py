"""Records the first seconds of a hang and draws them, as they came, into ``img/hang.svg``.

    python docs/record_hang.py

A real job of three ranks, of which one stays in its data loader; a line appears when it was read.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from html import escape
from pathlib import Path

PROGRAM = """\
import time
import torch
import torch.distributed as dist


def batches():
    for step in range(100):
        if dist.get_rank() == 1 and step == 20:
            time.sleep(3600)  # a file system that does not answer
        yield torch.ones(4)


dist.init_process_group("gloo")
for step, batch in enumerate(batches()):
    dist.all_reduce(batch)
    if dist.get_rank() == 0 and step % 10 == 0:
        print("step", step, flush=True)
"""
COMMAND = ("torchrun", "--nproc-per-node", "3", "train.py")
COLUMNS, LINE, LONGEST_S = 100, 20, 60.0
START_S, REST_S = 1.0, 4.0
"""Before the first step, in place of what imports take, and after the verdict."""


def recorded(folder: Path) -> list[tuple[float, str]]:
    """Lines of the job with their seconds, until it has named who is missing."""
    (folder / "train.py").write_text(PROGRAM)
    env = {**os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(folder / "out")}
    command = [sys.executable, "-m", "torch.distributed.run", *COMMAND[1:]]
    begun, lines = time.monotonic(), queue.Queue[tuple[float, str]]()
    with subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as job:

        def read() -> None:
            for line in job.stdout or ():
                lines.put((time.monotonic() - begun, line.rstrip()))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        found: list[tuple[float, str]] = []
        while not found or "stalled" not in found[-1][1]:
            found.append(lines.get(timeout=LONGEST_S))
        job.terminate()
        reader.join(LONGEST_S)
    shown = [one for one in found if one[1].startswith(("step", "disttrace: stalled"))]
    return [(at - shown[0][0] + START_S, text) for at, text in shown]


def drawn(lines: list[tuple[float, str]]) -> str:
    """An SVG whose lines appear at their times, again and again."""
    whole = lines[-1][0] + REST_S
    rows = [(0.0, f"$ DISTTRACE=1 {' '.join(COMMAND)}")]
    rows += [(at, part) for at, text in lines for part in textwrap.wrap(text, COLUMNS)]
    style, texts = "text{font:14px monospace;fill:#ddd;white-space:pre}.v{fill:#ff7b72}", ""
    for number, (at, text) in enumerate(rows):
        share = 100 * at / whole
        after = f"{share + 0.01:.2f}%{{opacity:1}}"
        style += f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}{after}}}"
        style += f".l{number}{{animation:l{number} {whole:.1f}s infinite}}" if at else ""
        kind = "v " if at == lines[-1][0] else ""
        y = LINE * (number + 1) + 4
        texts += f'<text class="{kind}l{number}" x="14" y="{y}">{escape(text)}</text>'
    box = f'width="{COLUMNS * 9}" height="{LINE * (len(rows) + 1)}"'
    frame = f'<rect {box} rx="8" fill="#1e1e1e"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return f"{head}<style>{style}</style>{frame}{texts}</svg>\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        picture = drawn(recorded(Path(found)))
    Path(__file__).with_name("img").joinpath("hang.svg").write_text(picture, encoding="utf-8")
