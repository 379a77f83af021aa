"""Everything that DDP issues from C++, with results printed for comparison."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import disttrace

warnings.simplefilter("ignore")


def layers() -> Any:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(8)  # has buffers, which are shared in each forward pass
    return torch.nn.Sequential(torch.nn.Linear(8, 8), norm, torch.nn.Linear(8, 8))


def trained(model: Any, passes: int = 3) -> float:
    for n in range(passes):
        model(torch.ones(4, 8) * n).square().sum().backward()
    return sum(float(p.grad.sum()) for p in model.parameters())


class Raises:
    """A hook on a tensor that raises when the first gradients have been reduced."""

    def __call__(self, gradient: Any) -> None:
        raise KeyError("the program's own")


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    variants: tuple[dict[str, Any], ...] = (
        {}, {"find_unused_parameters": True}, {"static_graph": True},
        {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1e-4},
    )  # fmt: skip
    for variant in variants:
        model = DistributedDataParallel(layers(), **variant)
        print(variant, trained(model))
    told = model._get_ddp_logging_data()
    print({key: told[key] for key in sorted(told) if key.startswith(("backend", "gloo", "rank"))})

    model = DistributedDataParallel(layers())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    print("compressed", trained(model))

    model = DistributedDataParallel(torch.nn.Embedding(4, 4, sparse=True))
    model(torch.tensor([1, 2])).sum().backward()
    print("sparse", model.module.weight.grad.to_dense().tolist())

    model = DistributedDataParallel(layers())
    with Join([model]):
        print("joined", trained(model))
    with model.no_sync():
        print("not synchronised", trained(model, 1))
    with torch.inference_mode():
        model(torch.ones(4, 8))
    other = dist.new_group([0])
    model._update_process_group(other)
    print("regrouped", trained(model))

    # Its last layer is reduced, then the pass fails; the next ones are as if nothing had been.
    model = DistributedDataParallel(layers(), bucket_cap_mb=1e-4)
    hook = model.module[0].weight.register_hook(Raises())
    try:
        trained(model, 1)
    except KeyError as error:
        print(repr(error))
    hook.remove()
    model.zero_grad()
    model = DistributedDataParallel(model.module, bucket_cap_mb=1e-4)
    print("after that", trained(model))

    try:
        dist._broadcast_coalesced("a group", [torch.ones(1)], 8)
    except TypeError as error:
        print(str(error).splitlines()[0])
    disttrace.uninstall()
    print("uninstalled", trained(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
