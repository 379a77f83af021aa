"""Which parameters it is about: an exception of DDP's, a backward pass that reduced no gradient of
some, a call that FSDP makes for a module.

DDP's exceptions have their numbers, and its traceback the model: nothing is recorded of that before
one of them ends the process. Where nothing moves, or the process ends, the reducer is asked for the
exception that it would raise in the next forward pass (its logger notes that it had an error).

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
from collections.abc import Iterator, Set
from operator import attrgetter
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace import dynamo, errors, foreign, redact
from disttrace.capture.wrapping.context import Capture, Threads
from disttrace.capture.wrapping.wrappers import Function, after

PART = "names of parameters"

MOST = 1_000
"""Names of one model; of a larger one all of them are none, for lists are compared."""
_READ = 10_000  # characters of the exception's text
_CHECK = c10d.Reducer._check_reducer_finalized
_NAMED = 200  # names of one module
_MODULES = 4_096
_REACH = range(16)  # frames from a call to ours
_DDP = "torch.nn.parallel.distributed"
_FSDP = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # up to torch 2.5
)
_MODELS = 64  # of DDP, at once
_PASSES = ("/torch/nn/parallel/distributed.py", "/torch/autograd/__init__.py")
"""Where a thread is in a forward or a backward pass: the reducer may be locked meanwhile."""
_FILE = "/torch/nn/parallel/distributed.py"

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
    names = _names(error)
    if found is not None:
        wanted = [int(number) for number in found[1].split()]
        names = [names[i] for i in wanted if i < len(names)] if names else []
    return [redact.current.text(name) for name in names] if len(names) <= MOST else []


def _names(error: BaseException) -> list[str]:
    """Of all parameters that DDP reduces, by the numbers that it gives them."""
    for entry in foreign.entries_of(error):
        frame = entry.tb_frame
        if not frame.f_code.co_filename.replace("\\", "/").endswith(_FILE):
            continue
        model: Any = frame.f_locals.get("self")
        if type(model) is torch.nn.parallel.DistributedDataParallel:
            fields = foreign.of_torch(model, "__dict__")
            return list(_named(fields["_modules"]["module"], fields["parameters_to_ignore"]))
    return []


def _named(module: Any, ignored: Set[str]) -> Iterator[str]:
    """As ``_build_params_for_reducer`` has them, read from the modules' own fields: their methods
    may be the program's.
    """
    modules, parameters, left = set[int](), set[int](), [("", module)]
    while left:
        prefix, one = left.pop()
        if one is None or id(one) in modules:
            continue
        modules.add(id(one))
        fields = foreign.of_torch(one, "__dict__")
        for name, each in dict.items(fields["_parameters"]):
            full = f"{prefix}.{name}"  # also of the outermost module: so DDP compares
            if each is None or id(each) in parameters or full in ignored:
                continue
            if foreign.of_torch(each, "requires_grad"):
                parameters.add(id(each))
                yield full.removeprefix(".")
        below = [(f"{prefix}.{n}".removeprefix("."), m) for n, m in dict.items(fields["_modules"])]
        left += reversed(below)


def install(capture: Capture) -> None:
    """Tell FSDP's modules apart, once the program imports it, and know DDP's models."""
    models = Models(capture)
    capture.when_imported(_DDP, functools.partial(capture.guard, PART, models.arrived))
    capture.standing = functools.partial(capture.guard, PART, models.standing)
    modules = Modules(capture)
    capture.module_of = modules.of
    for name in _FSDP:
        capture.when_imported(name, functools.partial(capture.guard, PART, modules.arrived))


class Models:
    """DDP's models: of which parameters their last backward pass has reduced no gradient."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._known: list[weakref.ref[Any]] = []
        self._noted: list[str] = []

    def arrived(self, module: types.ModuleType) -> None:
        """``module`` of DDP was imported."""
        look, owner = after(self._capture, PART, self.made), module.DistributedDataParallel
        self._capture.engine.attribute(PART, owner, "_ddp_init_helper", look)

    def made(self, result: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        """``model`` has got its reducer."""
        known = [one for one in self._known if one() is not None]
        self._known = [*known[1 - _MODELS :], weakref.ref(model)]

    def standing(self, threads: Threads) -> None:
        """Note these parameters, once, where no thread is in a forward or a backward pass."""
        models = [model for one in self._known if (model := one()) is not None]
        files = [file.replace("\\", "/") for t in threads() for file, _, _ in t] if models else []
        if any([file.endswith(_PASSES) for file in files]):  # noqa: C419 - no generator
            return
        found: list[str] = []
        for model in models:
            found += _not_reduced(foreign.of_torch(model, "__dict__"))
        if found and found != self._noted and len(found) <= MOST:
            self._capture.recorder.note("gradients", parameters=found)
            self._noted = found


def _not_reduced(fields: dict[str, Any]) -> list[str]:
    """Names of parameters, where others have had a gradient since the last forward pass."""
    reducer = fields.get("reducer")
    if type(reducer) is not c10d.Reducer:
        return []
    try:
        _CHECK(reducer)
        return []
    except RuntimeError as error:
        found = _UNUSED.search(foreign.text_of(error)[:_READ])
    names = list(_named(fields["_modules"]["module"], fields["parameters_to_ignore"]))
    wanted = [int(number) for number in found[1].split()] if found is not None else []
    if len(wanted) == len(names):
        return []  # there was no backward pass yet
    return [redact.current.text(names[i]) for i in wanted if i < len(names)]


class Modules:
    """The modules for which FSDP communicates, by the code through which it does."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._by_code: dict[int, dict[str, Any]] = {}
        self._calls: dict[tuple[str, ...], Function] = {}  # keeps that code, by parameters

    def arrived(self, module: types.ModuleType) -> None:
        """``module`` of FSDP was imported."""
        for name in ("foreach_all_gather", "foreach_reduce"):
            if name in module.__dict__:
                self._capture.engine.value(PART, module, name, self._wrapper(module.__dict__[name]))

    def of(self) -> dict[str, Any] | None:
        """The module for which this thread calls: its name, and the parameters of that call."""
        frame = sys._getframe(1) if self._by_code else None
        for _ in _REACH:
            if frame is None:
                break
            if (found := self._by_code.get(id(frame.f_code))) is not None:
                return found
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

        dynamo.skip(call.__code__)
        return call

    def _through(self, name_of: Function, fsdp_params: Any) -> Function | None:
        names: tuple[str, ...] = tuple(map(name_of, fsdp_params))
        through = self._calls.get(names)
        if (
            through is None
            and names
            and all(type(name) is str for name in names)
            and len(self._calls) < _MODULES
        ):
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
