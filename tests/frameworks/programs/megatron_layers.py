"""Megatron-Core, two ranks of one tensor-parallel layer: one stays where `hang` is asked for."""

import sys
import time

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
made = {
    "config": ModelParallelConfig(tensor_model_parallel_size=2, use_cpu_initialization=True),
    "init_method": torch.nn.init.ones_,
    "bias": False,
}
wide = ColumnParallelLinear(4, 8, gather_output=False, **made)
narrow = RowParallelLinear(8, 4, input_is_parallel=True, skip_bias_add=True, **made)
for step in range(6):
    if "hang" in sys.argv and dist.get_rank() == 1 and step == 2:
        time.sleep(600)  # here it hangs
    out, _ = narrow(wide(torch.ones(2, 4, requires_grad=True))[0])
    out.sum().backward()
