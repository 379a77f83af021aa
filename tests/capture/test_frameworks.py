"""Under real frameworks every call of a training loop is told by the program's own line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.processes import torchrun
from support.raw import read_journals

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
model, data = accelerator.prepare(model, data)
for batch in data:
    accelerator.backward(model(batch).sum())
    accelerator.gather(torch.ones(1))
accelerator.wait_for_everyone()
"""
LIGHTNING = """
import torch
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        loss = self.layer(batch).sum()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("library", "program"), [("accelerate", ACCELERATE), ("lightning", LIGHTNING)]
)
def test_every_collective_has_a_line_of_the_program(
    tmp_path: Path, library: str, program: str
) -> None:
    """Where the library is not installed there is nothing to see."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = tmp_path / "train.py"
    script.write_text(program)
    out = str(tmp_path / "out")
    torchrun(script, 2, timeout=200, DISTTRACE="1", DISTTRACE_DIR=out).check()
    seen = 0
    for journal in read_journals(tmp_path / "out"):
        files = {each["n"]: each["v"] for each in journal.of("string")}
        stacks = {each["n"]: each["frames"] for each in journal.of("stack")}
        calls = journal.calls()
        for call in (calls[each["s"]] for each in journal.records if "b" in each):
            if call.get("kind") == "collective":
                assert str(script) in [files[file] for file, _, _ in stacks[call["stack"]]], call
                seen += 1
    assert seen > 10
