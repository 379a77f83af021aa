"""The Trainer of transformers, two ranks: one stays in the data where `hang` is asked for."""

import os
import sys
import time
from datetime import timedelta

import torch
from transformers import Trainer, TrainingArguments

from disttrace.integrations.transformers import Disttrace


class Told(Disttrace, Trainer):
    pass


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(4, 4)

    def forward(self, x):
        return {"loss": self.part(x).sum()}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if "hang" in sys.argv and os.environ["RANK"] == "1" and index > 8:
            time.sleep(600)  # here it hangs
        return {"x": torch.ones(4)}


# The library takes its own limit for CUDA only.
limit = timedelta(seconds=40 if "hang" in sys.argv else 600)
torch.distributed.init_process_group("gloo", timeout=limit)
settings = TrainingArguments(
    output_dir="trained", use_cpu=True, max_steps=4, report_to=[], save_strategy="no",
    disable_tqdm=True, logging_steps=1, per_device_train_batch_size=2, ddp_backend="gloo",
)  # fmt: skip
trainer = Told(model=Tiny(), args=settings, train_dataset=Rows())
trainer.train()
print("logged:", *trainer.state.log_history[0])
