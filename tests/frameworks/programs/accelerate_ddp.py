"""Accelerate, two ranks: one of them stays in its loop where `hang` is asked for."""

import sys
import time

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
data = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)
model, data = accelerator.prepare(model, data)
for step, batch in enumerate(data):
    if "hang" in sys.argv and accelerator.process_index == 1 and step == 2:
        time.sleep(600)  # here it hangs
    accelerator.backward(model(batch).sum())
    accelerator.gather(torch.ones(1))
accelerator.wait_for_everyone()
