"""Capture: the only part of the recorder that knows torch.

Importing this package imports no torch; ``activate`` is called once torch.distributed is there.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from disttrace import dynamo
from disttrace.capture.wrapping import context
from disttrace.capture.wrapping.context import Capture


class Coverage(NamedTuple):
    """What tracing sees with this torch: (part, state) pairs, and what it does not see."""

    parts: list[tuple[str, str]]
    not_captured: list[str]
    devices: list[tuple[str, str, str]]  # backend, how its completion is seen, what to set


def activate(capture: Capture) -> None:
    """Install every part that this torch has; one that fails is left out and named once."""
    from disttrace.capture.parts import parts

    context.current = capture
    for part in parts():
        capture.guard(part.PART, part.install, capture)

    def compile_none_of_ours(_: object) -> None:
        """torch.compile must not compile what runs inside a compiled region."""
        dynamo.skip_module(*(m for n, m in sys.modules.items() if m and n.startswith("disttrace.")))

    capture.when_imported("torch._dynamo", compile_none_of_ours)


def deactivate() -> None:
    """Forget the capture; its engine has taken the patches off."""
    context.current = None


def expect_equal(name: str, tensors: Any, group: Any) -> None:
    """See ``disttrace.expect_equal``."""
    capture = context.current
    if capture is not None and capture.digest_every:
        from disttrace.capture import digests

        frame = sys._getframe(2)
        capture.guard(digests.PART, digests.expect_equal, capture, name, tensors, group, frame)


def coverage() -> Coverage:
    """What can be captured with the torch of this environment; imports it.

    Raises ImportError where there is no torch.
    """
    import torch.distributed as dist

    if not dist.is_available():
        nothing = "this torch was built without torch.distributed: there is nothing to trace"
        return Coverage([], [nothing], [])
    from disttrace.capture.devices.flight_recorder import statements
    from disttrace.capture.parts import survey

    parts, missing = survey(context.current)
    return Coverage(parts, missing, list(statements()))
