"""Python subclasses of torch's classes, made before and after tracing started.

LATER=1 starts it. Each group overrides none, some or all of what is called; prints results and
exceptions.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import disttrace


class Before(dist.ProcessGroup):
    """Overrides some, and hands them on to a real group."""

    def __init__(self, inner: Any) -> None:
        super().__init__(0, 1)
        self.inner = inner

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self.inner.allreduce(tensors)


def later_classes() -> tuple[type, ...]:
    """Classes made while tracing is on."""

    class OwnWork(Work):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def wait(self, timeout: Any = None) -> Any:
            return self.inner.wait()

    class All(Before):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            return OwnWork(self.inner.allreduce(tensors))

        def barrier(self, opts: Any = None) -> Any:
            return self.inner.barrier()

        def broadcast(self, tensors: Any, opts: Any = None) -> Any:
            return self.inner.broadcast(tensors, dist.BroadcastOptions())

    class NoneOf(dist.ProcessGroup):
        def __init__(self, inner: Any) -> None:
            super().__init__(0, 1)

    return All, NoneOf


class Dictionary(dist.Store):
    """Overrides some; `append` and others stay the base class's."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value

    def get(self, key: str) -> Any:
        return self.values[key]


def waited(group: Any, name: str, arguments: list[Any]) -> Any:
    return getattr(group, name)(*arguments).wait()


def say(name: str, case: Callable[[], Any]) -> None:
    try:
        print(name, case())
    except Exception as error:
        print(name, type(error).__name__, str(error).partition("\n")[0].partition(" at ")[0])


def main() -> None:
    if os.environ["LATER"] == "1":
        disttrace.install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(2)
    for kind in (Before, *later_classes()):
        group = kind(dist.group.WORLD)
        for name, arguments in (("allreduce", [[x]]), ("barrier", []), ("broadcast", [[x]])):
            say(f"{kind.__name__} {name}", functools.partial(waited, group, name, arguments))
    store = Dictionary()
    prefixed = dist.PrefixStore("p", store)
    say("set", lambda: prefixed.set("k", "v"))
    say("get", lambda: prefixed.get("k"))
    say("own get", lambda: store.get("p/k"))
    say("append", lambda: store.append("k", "v"))
    say("append through a prefix", lambda: prefixed.append("k", "v"))
    say("has_extended_api", store.has_extended_api)
    say("backend", lambda: dist.group.WORLD._get_backend(x.device).allreduce([x]).wait())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
