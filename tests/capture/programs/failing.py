"""A helper inside a wrapper raises at every call; the program must not notice.

    python failing.py HELPER FOLDER

HELPER is `module:Class.attribute` or `module:function`; `none` leaves everything as it is.
"""

from __future__ import annotations

import sys
from typing import Any

BREAKER = """
def broken(*args, **kwargs):
    raise KeyError("broken on purpose")
"""


def breaking(helper: str) -> None:
    """Replace one helper by a function that stands in disttrace's own files, so it is ours."""
    import importlib

    import disttrace

    module_name, _, path = helper.partition(":")
    *outer, name = path.split(".")
    holder: Any = importlib.import_module(module_name)
    for part in outer:
        holder = getattr(holder, part)
    namespace: dict[str, Any] = {}
    exec(compile(BREAKER, disttrace.__file__, "exec"), namespace)
    assert hasattr(holder, name), helper
    setattr(holder, name, namespace["broken"])


def main(helper: str, folder: str) -> None:
    import disttrace

    if helper != "none":
        breaking(helper)
    disttrace.install(dir=folder)
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    print(work.wait(), work.is_completed())
    asked = dist.all_reduce(x, async_op=True)
    assert asked is not None
    while not asked.is_completed():
        pass
    store = dist.PrefixStore("p", dist.HashStore())
    store.set("k", "v")
    print(store.get("k"))
    functional = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name
    for _ in range(2):
        print(functional.wait_tensor(functional.all_reduce(x, "sum", name)).tolist())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(x).sum().backward()
    objects = [None]
    dist.all_gather_object(objects, "o")
    print(objects)

    class Own(dist.ProcessGroup):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            return dist.group.WORLD.allreduce(tensors)

    print(Own(0, 1).allreduce([x]).wait())
    refused: list[tuple[Any, Any]] = [(dist.broadcast, (x, 7)), (dist.all_reduce, ("no tensor",))]
    for function, arguments in refused:
        try:
            function(*arguments)
        except (RuntimeError, TypeError, ValueError) as error:
            print(type(error).__name__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
