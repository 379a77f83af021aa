"""What tensors hold, looked at in every n-th call (``DISTTRACE_DIGEST=n``): digests of results
that all members of a group have to have equal, and whether what is reduced is finite.

Of functions that return with the result: a checksum (CRC-32) of the tensors' bytes, in which one
flipped bit is certainly seen. It is taken in the call, before the program can change them, and of
tensors in the host's memory only. What is issued asynchronously or from C++ has no moment at which
its result is there and still whole: for that, and for replicated parameters, there is
``disttrace.expect_equal``.

An input is there before torch's own method gets it, DDP's and asynchronous ones too. Only of
what sums or products come of: infinities are legal in a mask, and under MIN and MAX.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from disttrace import dynamo
from disttrace.capture.calls import arguments
from disttrace.capture.calls.operations import Method
from disttrace.capture.objects.groups import GroupEntry
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import before, compose
from disttrace.patching import rename

PART = "digests of values"

_FUNCTIONS = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor")
"""Torch's functions whose result stands in their first argument, equal in all members."""
_SPREADING = (None, "SUM", "AVG", "PREMUL_SUM", "PRODUCT")
"""Reduce operations of which one input that is not finite spoils the result; None: torch's own."""


def install(capture: Capture) -> None:
    """Give the functions their wrapper, where digests are wanted."""
    if not capture.digest_every:
        return
    capture.digests = digests = Digests(capture)
    for name in _FUNCTIONS:
        function = getattr(c10d, name, None)
        if function is not None:
            make = functools.partial(_wrapper, digests, name)
            capture.engine.function(PART, function, make)
    capture.when_imported("torch.amp.grad_scaler", digests.amp_arrived)
    capture.looking = functools.partial(_looking, digests)


def _looking(digests: Digests, row: Method, original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, after a look at what it is to reduce."""
    if not row.op.startswith(("all_reduce", "reduce")):
        return original

    def look(group: Any, /, *args: Any, **kwargs: Any) -> None:
        if PART in digests._capture.broken or torch.compiler.is_compiling():
            return
        entry = digests.due(row.op, group)
        if entry is None:
            return
        how, tensors = arguments.reduced(row, args, kwargs)
        if how in _SPREADING:
            dynamo.call_unseen(digests.look, row.op, entry, tensors, sys._getframe(1), group)

    made: Callable[..., Any] = before(digests._capture, PART, look)(original)
    rename(made, row.method, c10d.ProcessGroup)
    return made


class Digests:
    """How often each was there to be taken, and what it was."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._seen: dict[tuple[int, str, str], int] = {}
        self._spoilt: set[int] = set()  # groups with an input of ours that was not finite
        self._scaled = False

    def amp_arrived(self, module: types.ModuleType) -> None:
        """Learn of losses that are scaled: gradients that are not finite find the scale."""
        scale = before(self._capture, PART, lambda *_, **__: setattr(self, "_scaled", True))
        name = "_lazy_init_scale_growth_tracker"
        self._capture.engine.attribute(PART, module.GradScaler, name, scale)

    def due(self, op: str, group: Any) -> GroupEntry | None:
        """The group of an input that is one to look at."""
        entry = self._capture.groups.of(group)
        known = self._scaled or entry.n in self._spoilt
        return entry if self._is_turn(entry, op, "input") and not known else None

    def _is_turn(self, entry: GroupEntry, op: str, name: str) -> bool:
        """Count one, and whether it is the n-th, and can be looked at and recorded."""
        key = (entry.n, op, name)
        self._seen[key] = number = self._seen.get(key, 0) + 1
        skipped = number % self._capture.digest_every or entry.n < 0
        return not (skipped or self._capture.recorder.full or _watched())

    def look(
        self, op: str, entry: GroupEntry, tensors: Any, frame: types.FrameType, group: Any
    ) -> None:
        """Note that an input is not finite, the first in its group."""
        capture, number = self._capture, self._seen[entry.n, op, "input"]
        finite = all(map(is_finite, tensors))
        if not finite:
            self._spoilt.add(entry.n)
            seq = entry.counter(entry.backend("cpu")).n
            stack = capture.sites.stack(frame)
            found = {"stack": stack, "parameters": capture.spoilt(group, is_finite) or None}
            keys = {key: value for key, value in found.items() if value is not None}
            module = (capture.module_of() or {}).get("module")
            named = op if module is None else f"{op} of {module}"
            capture.recorder.note("nonfinite", group=entry.n, op=named, q=seq, **keys)
        capture.recorder.courses.value(entry.shared_key("inputs"), [op, number, finite])

    def take(
        self,
        op: str,
        name: str,
        entry: GroupEntry,
        tensors: torch.Tensor | Iterable[torch.Tensor] | None,
        frame: types.FrameType | None,
    ) -> None:
        """Note the digest, if it is the turn of this one. ``entry``: whose members have it;
        ``tensors``: None where they are yet to come."""
        if self._is_turn(entry, op, name) and tensors is not None:
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            dynamo.call_unseen(self._note, op, name, entry, given, frame)

    def expect_equal(self, name: str, tensors: Any, group: Any, frame: types.FrameType) -> None:
        """See ``disttrace.expect_equal``."""

        def take() -> None:
            entry = self._capture.groups.passed(group)
            if entry is not None:
                self.take("expect_equal", name, entry, tensors, frame)

        self._capture.guard(PART, take)

    def _note(
        self,
        op: str,
        name: str,
        entry: GroupEntry,
        tensors: Iterable[torch.Tensor],
        frame: types.FrameType | None,
    ) -> None:
        capture, number, value = self._capture, self._seen[entry.n, op, name], digest(tensors)
        if value is None:
            return
        stack = capture.sites.stack(frame)
        keys = {"group": entry.n, "op": op, "name": name or None, "q": number, "v": value}
        given = {key: one for key, one in {**keys, "stack": stack}.items() if one is not None}
        capture.recorder.note("digest", **given)
        capture.recorder.courses.value(entry.shared_key("values"), [op, name, number, value])


def digest(tensors: Iterable[torch.Tensor]) -> int | None:
    """The checksum of some tensors' bytes; None where one is not in the host's memory."""
    found = 0
    with torch.no_grad():
        for tensor in tensors:
            whole = getattr(tensor, "_local_tensor", tensor)
            if whole.device.type != "cpu" or whole.layout != torch.strided:
                return None
            flat = whole.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            found = zlib.crc32(memoryview(flat.view(torch.uint8).numpy()), found)
    return found


def _watched() -> bool:
    """Whether a mode of the program's would see what is done to look at a tensor."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether it is, as far as it is looked at: a plain one of numbers, in the host's memory."""
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or tensor.device.type != "cpu"
        or tensor.layout != torch.strided
    ):
        return True
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        return True
    with torch.no_grad():  # one pass without a copy; a sum of finite numbers may be too large
        return bool(tensor.sum().isfinite() or tensor.isfinite().all())


def _wrapper(digests: Digests, op: str, original: types.FunctionType) -> Callable[..., Any]:
    """What every call pays is the count: of most of them no digest is taken."""
    capture, places = digests._capture, [*inspect.signature(original).parameters]
    group_at, async_at = places.index("group") - 1, places.index("async_op") - 1

    def left(_: None, returned: Any, first: Any, /, *args: Any, **kwargs: Any) -> None:
        if capture.recorder.threads.state.inside:
            return
        waited = not (kwargs.get("async_op") or (len(args) > async_at and args[async_at]))
        group = args[group_at] if len(args) > group_at else kwargs.get("group")
        group = c10d._world.default_pg if group is None else group
        if isinstance(group, c10d.ProcessGroup) and not torch.compiler.is_compiling():
            # Another member may wait in the call itself: both count it.
            result = first if waited and returned is None else None
            digests.take(op, "", capture.groups.of(group), result, sys._getframe(1))

    return compose(capture, PART, original, left=left)
