"""Writes the outputs of docs/notebook.ipynb from a real run of four ranks; `make docs` calls it.

Rank 2's loader takes 40 ms more. A cell that ends in a page (the timeline) keeps no output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent / "notebook.ipynb"
LIMIT_S = 120
TRAIN = """import os
import time

import torch
import torch.distributed as dist


def load():
    time.sleep(0.05 if os.environ["RANK"] == "2" else 0.01)


def step():
    load()
    dist.all_reduce(torch.ones(1000))


dist.init_process_group("gloo")
for _ in range(20):
    step()
dist.destroy_process_group()
"""


def main() -> None:
    """Run the program in a folder of its own, and the cells on what it left there."""
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(TRAIN)
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
        subprocess.run(
            [sys.executable, *launch, "train.py"],
            cwd=folder,
            env={**os.environ, "DISTTRACE": "1", "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=LIMIT_S,
        )
        os.chdir(folder)
        os.environ.pop("DISTTRACE_DIR", None)
        names: dict[str, Any] = {}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                *first, last = "".join(cell["source"]).splitlines()
                exec("\n".join(first), names)
                cell["outputs"] = outputs(eval(last, names), cell["execution_count"])
        os.chdir("/")
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def outputs(value: Any, count: int) -> list[dict[str, Any]]:
    """What a notebook shows of a cell's value."""
    if hasattr(value, "page"):
        return []
    data = {"text/plain": lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data = {"text/html": lines(value._repr_html_()), **data}
    return [
        {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
    ]


def lines(text: str) -> list[str]:
    """Text as notebooks keep it."""
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    main()
