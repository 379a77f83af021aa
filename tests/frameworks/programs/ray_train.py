"""Ray Train, two workers: one of them stays in its loop where `hang` is asked for."""

import os
import sys
import time

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer


def loop(config):
    model = train.torch.prepare_model(torch.nn.Linear(4, 4))
    for step in range(6):
        if config["hang"] and train.get_context().get_world_rank() == 1 and step == 2:
            time.sleep(600)  # here it hangs
        model(torch.ones(2, 4)).sum().backward()


ours = {name: value for name, value in os.environ.items() if name.startswith("DISTTRACE")}
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": ours})
TorchTrainer(
    loop, train_loop_config={"hang": "hang" in sys.argv}, torch_config=TorchConfig(backend="gloo"),
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=os.environ["DISTTRACE_DIR"] + "-ray"),
).fit()  # fmt: skip
