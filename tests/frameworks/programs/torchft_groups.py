"""torchft, two replica groups of one rank each: one stays where `hang` is asked for."""

import os
import sys
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

replica = os.environ["REPLICA_GROUP_ID"]
model = torch.nn.Linear(4, 4)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
    min_replica_size=2, replica_id=replica, load_state_dict=lambda state: None, state_dict=dict,
    timeout=timedelta(seconds=60),
)  # fmt: skip
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(6):
    optimizer.zero_grad()
    loss = ddp(torch.ones(2, 4)).sum()
    if "hang" in sys.argv and replica == "1" and step == 2:
        time.sleep(600)  # here it hangs
    loss.backward()
    optimizer.step()
