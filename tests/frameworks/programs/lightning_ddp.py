"""Lightning, two ranks: one of them stays in its training step where `hang` is asked for."""

import sys
import time
from datetime import timedelta

import lightning
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from disttrace.integrations.lightning import Disttrace


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        if "hang" in sys.argv and self.global_rank == 1 and index == 2:
            time.sleep(600)  # here it hangs
        loss = self.layer(batch).sum()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Printed(Logger):
    name, version = "printed", 1

    def log_metrics(self, metrics, step=None):
        print("logged:", *metrics, flush=True)

    def log_hyperparams(self, *args, **keywords):
        pass


limit = timedelta(seconds=40 if "hang" in sys.argv else 600)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(timeout=limit, process_group_backend="gloo"),
    max_epochs=1, logger=Printed(), log_every_n_steps=2, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Disttrace()],
)  # fmt: skip
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2))
