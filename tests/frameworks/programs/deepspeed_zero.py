"""DeepSpeed with ZeRO 1, two ranks: one stays in its loop where `hang` is asked for."""

import sys
import time

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Sequential(torch.nn.Linear(4, 4))
config = {
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
}  # fmt: skip
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(6):
    if "hang" in sys.argv and engine.global_rank == 1 and step == 2:
        time.sleep(600)  # here it hangs
    loss = engine(torch.ones(2, 4)).sum()
    engine.backward(loss)
    engine.step()
