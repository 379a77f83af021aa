"""Layers in which a framework communicates, where it is installed: tiny, and of two ranks."""

from __future__ import annotations

import random
from collections.abc import Callable

from faults.drawn.layer import Layer, together


def accelerate(draw: random.Random, world: int) -> Layer:
    """A prepared model, a gather of metrics, and a barrier of the library's."""
    acts = (
        "accelerator.backward(prepared(torch.ones(2, 4)).sum())",
        "accelerator.gather_for_metrics(torch.ones(3))",
        "accelerator.reduce(torch.ones(2), 'mean')",
        "accelerator.wait_for_everyone()",
    )
    return Layer(
        (
            "from accelerate import Accelerator",
            "accelerator = Accelerator(cpu=True)",
            "prepared = accelerator.prepare(torch.nn.Linear(4, 4))",
        ),
        tuple(together(line, world) for line in draw.sample(acts, 2)),
    )


def fabric(draw: random.Random, world: int) -> Layer:
    """Lightning's Fabric over the group that is there."""
    acts = (
        "fabric.all_reduce(torch.ones(3))", "fabric.all_gather(torch.ones(3))",
        "fabric.backward(wrapped(torch.ones(2, 4)).sum())", "fabric.barrier()",
    )  # fmt: skip
    return Layer(
        (
            "from lightning.fabric import Fabric",
            "from lightning.fabric.plugins.environments import LightningEnvironment",
            "os.environ.update(NODE_RANK='0', LOCAL_RANK=str(rank))",
            (
                f"fabric = Fabric(accelerator='cpu', strategy='ddp', devices={world},"
                " plugins=LightningEnvironment())"
            ),
            "fabric.launch()",
            "wrapped = fabric.setup(torch.nn.Linear(4, 4))",
        ),
        tuple(together(line, world) for line in draw.sample(acts, 2)),
    )


def trainer(draw: random.Random, world: int) -> Layer:
    """Two steps of the Trainer of transformers on a model of sixteen weights."""
    return Layer(
        (
            "from transformers import Trainer, TrainingArguments",
            "class Tiny(torch.nn.Module):",
            "    def __init__(self): super().__init__(); self.part = torch.nn.Linear(4, 4)",
            "    def forward(self, x): return {'loss': self.part(x).sum()}",
            "rows = [{'x': torch.ones(4)} for _ in range(16)]",
            (
                "told = TrainingArguments(output_dir='trained', use_cpu=True, max_steps=2,"
                " report_to=[], save_strategy='no', disable_tqdm=True, logging_steps=100,"
                " per_device_train_batch_size=2, ddp_backend='gloo')"
            ),
            "def train(): Trainer(model=Tiny(), args=told, train_dataset=rows).train()",
        ),
        (together("train()", world),),
    )


PACKAGES = ("accelerate", "lightning", "transformers")
FRAMEWORKS: tuple[Callable[[random.Random, int], Layer], ...] = (accelerate, fabric, trainer)
