"""Puts the stand-in in the place of gloo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup

from . import graphs
from .group import StandIn
from .recorder import dump
from .semantics import CHOSEN, DEVICE
from .streams import STREAMS


def install(module: Any) -> None:
    """``module`` is torch.distributed.distributed_c10d, just imported."""
    backend, plain = module.Backend, module.Backend.__new__
    StandIn.__name__ = CHOSEN.implementation
    plugin = backend._BackendPlugin(_create, True)
    backend._plugins[CHOSEN.backend.upper()] = plugin
    setattr(backend, CHOSEN.backend.upper(), CHOSEN.backend)
    if CHOSEN.backend not in backend.backend_list:
        backend.backend_list.append(CHOSEN.backend)
    backend.backend_capability[CHOSEN.backend] = ["cpu"]
    backend.backend_type_map[CHOSEN.backend] = ProcessGroup.BackendType.CUSTOM

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        """As torch's, where the backend coalesces."""
        module._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or module._get_default_group()
        device = p2p_op_list[0].tensor.device
        with module._coalescing_manager(group, device, async_ops=True) as manager:
            for each in p2p_op_list:
                key = "group_dst" if each.op is module.isend else "group_src"
                each.op(each.tensor, group=each.group, tag=each.tag, **{key: each.group_peer})
        return manager.works

    module.batch_isend_irecv = batch_isend_irecv
    ProcessGroup.abort = lambda group: group.abort_all()
    ProcessGroup.shrink = lambda group, *args: group.shrunk(*args)
    ProcessGroup._start_coalescing = lambda group, device: group.begin_batch()
    ProcessGroup._end_coalescing = lambda group, device: group.end_batch()

    def __new__(cls: Any, name: str) -> Any:
        return plain(cls, CHOSEN.backend if name == "gloo" else name)

    backend.__new__ = __new__
    setattr(c10d, CHOSEN.dump, dump)
    if DEVICE:
        graphs.install()
    for name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__repr__"):
        setattr(torch.Tensor, name, _synchronizing(getattr(torch.Tensor, name)))
    # Memory is given back at once here, and what is on a stream may still write into it.
    torch.UntypedStorage.resize_ = _synchronizing(torch.UntypedStorage.resize_)


_sum = torch.sum


def _create(options: Any, _: Any) -> StandIn:
    if torch.sum is _sum:  # read on the host; torch gives it its docstring later than we come
        torch.sum = _synchronizing(_sum)
    return StandIn(
        options, options.group_rank, options.group_size, list(options.global_ranks_in_group),
        str(options.group_id), options.timeout.total_seconds(),
    )  # fmt: skip


def _synchronizing(method: Callable[..., Any]) -> Callable[..., Any]:
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().daemon is False:
            STREAMS.synchronize()
        return method(tensor, *args, **kwargs)

    return read
