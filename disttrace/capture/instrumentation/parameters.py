"""Which parameters it is about: an exception of DDP's, and a call that FSDP makes for a module.

DDP's exceptions have their numbers, and its traceback the model: nothing is recorded of that before
one of them ends the process.

FSDP2 calls for one module at a time, always from the same line. It does so through a function of
ours whose code is of that module alone, so that these calls have places of their own, which the
module is defined with: no call is looked at for that.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch

from disttrace import dynamo, errors, foreign, redact
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function

PART = "names of FSDP's modules"

MOST = 1_000
"""Names of one model; of a larger one all of them are none, for lists are compared."""
_READ = 10_000  # characters of the exception's text
_NAMED = 200  # names of one module
_MODULES = 4_096
_REACH = range(16)  # frames from a call to ours
_FSDP = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # up to torch 2.5
)
_FILE = "/torch/nn/parallel/distributed.py"
_SYNC, _SYNC_FILE = "_sync_module_states", "/torch/distributed/utils.py"

_UNUSED = re.compile(r"did not receive grad for rank \d{1,9}:([ \d]{1,8000})")
_SHAPE = re.compile(r"\bparams\[(\d{1,9})\] in this process")
_COUNT = re.compile(r"\bhas inconsistent \d{1,9} params")


def of(error: BaseException) -> list[str]:
    """Names, in DDP's order: of parameters without a gradient, of the one whose shape differs; of
    all of the model's where ranks have a different number of them. None where that is not known.
    """
    if not foreign.is_a(error, RuntimeError):
        return []
    text = foreign.text_of(error)[:_READ]
    found = _UNUSED.search(text) or _SHAPE.search(text)
    if found is None and _COUNT.search(text) is None:
        return []
    models = (model_of(entry.tb_frame)() for entry in foreign.entries_of(error))
    names = [name for name, _ in named(next((one for one in models if one is not None), None))]
    if found is not None:
        wanted = [int(number) for number in found[1].split()]
        names = [names[i] for i in wanted if i < len(names)] if names else []
    return masked(names)


def masked(names: list[str]) -> list[str]:
    """As they are recorded; none of too many."""
    return [redact.current.text(name) for name in names] if len(names) <= MOST else []


def model_of(frame: types.FrameType | None) -> Callable[[], Any]:
    """DDP's module, if ``frame`` is of a method of its; it is not kept."""
    if frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_FILE):
        model: Any = frame.f_locals.get("self")
        if type(model) is torch.nn.parallel.DistributedDataParallel:
            return weakref.ref(model)
    return lambda: None


def named(model: Any) -> Iterator[tuple[str, Any]]:
    """What DDP reduces (``_build_params_for_reducer``)."""
    if model is None:
        return
    fields, known = foreign.of_torch(model, "__dict__"), set[int]()
    for name, each in _below(fields["_modules"]["module"], "_parameters"):
        ignored = name in fields["parameters_to_ignore"]  # `.bias` of the outermost, as DDP does
        if not (ignored or id(each) in known) and foreign.of_torch(each, "requires_grad"):
            known.add(id(each))
            yield name.removeprefix("."), each


def _below(module: Any, *kinds: str) -> Iterator[tuple[str, Any]]:
    """Tensors of a module and of those below, by fields: methods may be the program's."""
    left, modules = [("", module)], set[int]()
    while left:
        prefix, one = left.pop()
        if one is None or id(one) in modules:
            continue
        modules.add(id(one))
        fields = foreign.of_torch(one, "__dict__")
        found = (item for kind in kinds for item in dict.items(fields[kind]))
        yield from ((f"{prefix}.{name}", each) for name, each in found if each is not None)
        below = [(f"{prefix}.{n}".removeprefix("."), m) for n, m in dict.items(fields["_modules"])]
        left += reversed(below)


def _shared(fields: dict[str, Any]) -> dict[str, Any]:
    """What DDP shares as it is made, and torch does not compare: buffers and frozen parameters."""
    names = [
        f"{name.removeprefix('.')}{[*foreign.of_torch(each, 'shape')]}"
        for name, each in _below(fields["module"], "_parameters", "_buffers")
        if not foreign.of_torch(each, "requires_grad")
    ]
    return {"module": "", "parameters": masked(names)}


def install(capture: Capture) -> None:
    """Tell FSDP's modules apart once it is imported, and name parameters for exceptions."""
    capture.parameters_of = of
    modules = Modules(capture)
    capture.module_of = modules.of
    for name in _FSDP:
        capture.when_imported(name, functools.partial(capture.guard, PART, modules.arrived))


class Modules:
    """The modules for which FSDP communicates, by the code through which it does."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._by_code: dict[int, dict[str, Any]] = {}
        self._calls: dict[tuple[str, ...], Function] = {}  # keeps that code, by parameters

    def arrived(self, module: types.ModuleType) -> None:
        for name in ("foreach_all_gather", "foreach_reduce"):
            if name in module.__dict__:
                self._capture.engine.value(PART, module, name, self._wrapper(module.__dict__[name]))

    def of(self) -> dict[str, Any] | None:
        """The module for which this thread calls: its name, and the parameters of that call."""
        frame: types.FrameType | None = sys._getframe(1)
        for _ in _REACH:
            if frame is None:
                break
            if (found := self._by_code.get(id(frame.f_code))) is not None:
                return found
            if frame.f_code.co_name == _SYNC and frame.f_code.co_filename.endswith(_SYNC_FILE):
                return foreign.attempt(_shared, frame.f_locals)
            frame = frame.f_back
        return None

    def _wrapper(self, original: Function) -> Function:
        guard, known, name_of = self._capture.guard, self._through, attrgetter("_param_fqn")

        def call(fsdp_params: Any, *args: Any, **kwargs: Any) -> Any:
            through = guard(PART, known, name_of, fsdp_params)
            try:
                if through is None:
                    return original(fsdp_params, *args, **kwargs)
                return through(original, fsdp_params, args, kwargs)
            except BaseException as error:
                errors.take_off(error)
                raise

        return call

    def _through(self, name_of: Function, fsdp_params: Any) -> Function | None:
        names: tuple[str, ...] = tuple(map(name_of, fsdp_params))
        through = self._calls.get(names)
        new = through is None and names and len(self._calls) < _MODULES
        if new and all(type(name) is str for name in names):
            through = types.FunctionType(_pass_on.__code__.replace(), globals())
            dynamo.skip(through.__code__)
            parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
            shared = itertools.takewhile(lambda one: len({*one}) == 1, parts)
            module = ".".join([one[0] for one in shared])
            module = module or ", ".join(dict.fromkeys(name.split(".")[0] for name in names[:4]))
            found: dict[str, Any] = {"module": redact.current.text(module)}
            if len(names) <= _NAMED:
                found["parameters"] = [redact.current.text(name) for name in names]
            self._by_code[id(through.__code__)] = found
            self._calls[names] = through
        return through


def _pass_on(original: Function, fsdp_params: Any, args: Any, kwargs: Any) -> Any:
    return original(fsdp_params, *args, **kwargs)
