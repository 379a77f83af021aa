"""Which parameters an exception of DDP is about: it has their numbers, and its traceback the model.

Nothing is recorded of a model before: only where one of DDP's exceptions ends the process, by the
frame of ``DistributedDataParallel`` that it passed.
"""

from __future__ import annotations

import re
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
            module, ignored = model.module, model.parameters_to_ignore
            named = torch.nn.Module.named_parameters(module)
            return [name for name, p in named if p.requires_grad and name not in ignored]
    return []
