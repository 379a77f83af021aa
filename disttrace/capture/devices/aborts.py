"""Whether what looks complete was aborted: by torch's watchdog, where it is told to abort.

In modes 1 and 2 of ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` it aborts communicators after a time-out or
any other error of NCCL's. Their kernels end then, and their events are complete like those of
operations that did their work.
"""

from __future__ import annotations

import os
from typing import Any

from disttrace import errors
from disttrace.capture.objects.groups import Groups

_MODES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_ABORTING = ("1", "2")
_WELL = "SUCCESS"


class Aborts:
    """``possible``: the watchdog may abort; else nothing needs to be asked."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.possible = any(os.environ.get(name) in _ABORTING for name in _MODES)

    def happened(self, group: int | None) -> bool | None:
        """Whether an error of the group's is known, which torch notes before it aborts; None where
        this torch does not tell. Asked after an operation was seen complete, so it decides."""
        entry = self._groups.by_number(group)
        live = None if entry is None else entry.reference()
        for device in {} if entry is None else entry.backends:
            error: Any = errors.asked(_error, live, device)
            if error is not None:
                return bool(error.name != _WELL)
        return None


def _error(group: Any, device: str) -> Any:
    """The ErrorType of the group's backend for ``device``, where it has one and is not gone."""
    import torch

    return group._get_backend(torch.device(device)).get_error()
