"""Which parameters an exception of DDP is about: it has their numbers, and its traceback the model.

Nothing is recorded of a model before: only where one of DDP's exceptions ends the process, by the
frame of ``DistributedDataParallel`` that it passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

import torch

from disttrace import foreign, redact

MOST = 1_000
"""Names of one model; of a larger one all of them are none, for lists are compared."""
_READ = 10_000  # characters of the exception's text
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
