"""Writes the outputs of docs/notebook.ipynb from a real run of four ranks; `make docs` calls it.

Rank 2's loader takes 40 ms more. A cell that ends in a page (the timeline) keeps no output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

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
    """Run the program in a folder of its own, and the cells, in a kernel, on what it left there."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    os.environ.pop("DISTTRACE_DIR", None)
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
        NotebookClient(notebook, timeout=LIMIT_S, record_timing=False).execute(cwd=folder)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "iframe" in str(cell.outputs):
            cell.outputs = []
    del notebook.metadata["language_info"]
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
